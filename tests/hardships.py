"""Runs the tests where much goes wrong around them: `make test-hard`. They must pass all the same.

    python -m tests.hardships --busy-loops 8 --jumping-clock --memory-gib 4 -- pytest --workers=5

Busy loops take the processors, the wall clock jumps by hours and days, and there is little memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

CLOCK = Path(__file__).with_name("jumping_clock.c")
CGROUPS = Path("/sys/fs/cgroup")
GIB = 2**30


def main(arguments: list[str]) -> int:
    """Run a command under the chosen hardships, and return its status."""
    parser = argparse.ArgumentParser(prog="python -m tests.hardships", description="Run tests where much goes wrong.")
    parser.add_argument("--busy-loops", type=int, default=0, help="processes that compute all the time (default: 0)")
    parser.add_argument("--jumping-clock", action="store_true", help="a wall clock that jumps (needs Linux and gcc)")
    parser.add_argument("--memory-gib", type=int, help="the memory of all processes (needs root and cgroups)")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the tests, such as: pytest tests/roles")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no busy loop outlives this process
    with ExitStack() as hardships:
        environment = dict(os.environ)
        if options.jumping_clock:
            environment["LD_PRELOAD"] = str(hardships.enter_context(jumping_clock()))
        group = hardships.enter_context(limited_memory(options.memory_gib * GIB)) if options.memory_gib else None
        for _ in range(options.busy_loops):
            hardships.enter_context(busy_loop())
        return subprocess.call(
            options.command, env=environment, preexec_fn=None if group is None else lambda: _enter(group)
        )


@contextmanager
def jumping_clock() -> Iterator[Path]:
    """Compile the library of the wall clock that jumps, and yield its path."""
    with TemporaryDirectory(prefix="dafka-clock-") as folder:
        library = Path(folder, "jumping_clock.so")
        compiler = shutil.which("cc") or "gcc"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o", library, CLOCK], check=True)
        yield library


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Path]:
    """Make a control group with this much memory, without swap, and yield its folder."""
    is_second_version = (CGROUPS / "cgroup.controllers").exists()
    folder = (CGROUPS if is_second_version else CGROUPS / "memory") / f"dafka-tests-{os.getpid()}"
    folder.mkdir()
    try:
        if is_second_version:
            (folder / "memory.max").write_text(str(limit_bytes))
            (folder / "memory.swap.max").write_text("0")
        else:
            (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
            (folder / "memory.swappiness").write_text("0")
        yield folder
    finally:
        folder.rmdir()


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def busy_loop() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that computes all the time, as long as this lasts."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
