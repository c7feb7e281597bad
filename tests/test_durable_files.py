"""A text is replaced as a whole, and is on the disk when that is done."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dafka.durable_files import replace_text


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_gets_the_mode_and_one_that_exists_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "text"
    replace_text(path, "first\n", 0o600)
    assert (path.read_text(), mode_of(path)) == ("first\n", 0o600)
    path.chmod(0o640)
    replace_text(path, "größer\n", 0o600)
    assert (path.read_text("utf-8"), mode_of(path)) == ("größer\n", 0o640)


def test_the_text_is_synced_before_it_is_visible_and_its_name_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text"
    path.write_text("former")
    done: list[tuple[str, str]] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        found = os.fstat(descriptor)
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        assert Path(place).is_relative_to(tmp_path), "a file of another file system cannot be put in its place"
        done.append(("folder" if stat.S_ISDIR(found.st_mode) else "file", path.read_text()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    opened = os.listdir("/proc/self/fd")
    replace_text(path, "new", 0o600)
    assert done == [("file", "former"), ("folder", "new")]
    assert os.listdir("/proc/self/fd") == opened


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_leaves_the_former_text_and_nothing_else(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text"
    path.write_text("former")

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="no space"):
        replace_text(path, "new", 0o600)
    assert path.read_text() == "former"
    assert list(tmp_path.iterdir()) == [path]
