"""Every folder of dafka/ has tests, which `make test-room` finds."""

from __future__ import annotations

import pytest

from tests.rooms import ROOT, find_tests, main

FOLDERS = sorted({path.parent.relative_to(ROOT / "dafka").as_posix() for path in ROOT.glob("dafka/*/**/*.py")})


def test_every_folder_has_tests_of_its_own() -> None:
    for room in FOLDERS:
        found = find_tests(room)
        assert found != find_tests("records.py")
        assert all((ROOT / each).is_file() or list((ROOT / each).rglob("test_*.py")) for each in found)


def test_the_nearest_folder_is_chosen() -> None:
    assert find_tests("dafka/broker/core/positions.py") == ["tests/broker/core"]
    assert find_tests("wire/batch.py") == find_tests("dafka/wire/") == ["tests/wire"]
    assert "tests/test_records.py" in find_tests("records.py")


@pytest.mark.parametrize("room", ["", "nowhere"])
def test_an_unknown_room_is_refused(room: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([room]) == 2
    assert "such as broker/core" in (complaint := capsys.readouterr().err) or "ROOM=broker/core" in complaint
