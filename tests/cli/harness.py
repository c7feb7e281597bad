"""Runs the `dafka` command in real processes, waits for what they print, and always stops them.

The processes are forks of one that has loaded the modules: they cost no more than what the command does.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import attrs

from tests.cli.forks import Forked, fork_dafka

DEADLINE_S = 90.0
FREE = "tcp://127.0.0.1:*"
MODULE = (sys.executable, "-m", "dafka")
FOR_INTERPRETERS = ("PYTHON", "LD_")
"""What the names of variables begin with that only a new interpreter reads."""

_T = TypeVar("_T")


def wait_for(look: Callable[[], _T | None], what: Callable[[], str]) -> _T:
    """Return the first result of `look` that is not None; fail with `what` if that takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline, what()
        time.sleep(0.005)
    return found


@attrs.frozen
class Ended:
    status: int
    output: bytes
    errors: str

    @property
    def error(self) -> str:
        """The error, which must be the only line on standard error."""
        (line,) = self.errors.splitlines()
        assert line.startswith("Error: "), line
        return line.removeprefix("Error: ")


class Running:
    """A process whose output goes to files, so that it never waits for a reader."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str], stdin: int) -> None:
        self._output = folder / "output"
        self._errors = folder / "errors"
        self.process: subprocess.Popen[bytes] | Forked
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            if command[:3] == [*MODULE]:
                descriptors = stdin, output.fileno(), errors.fileno()
                self.process = fork_dafka(command[3:], *descriptors, environment)
            else:
                self.process = subprocess.Popen(command, stdin=stdin, stdout=output, stderr=errors, env=environment)

    @property
    def output(self) -> bytes:
        return self._output.read_bytes()

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="backslashreplace")

    def wait_output(self, lines: int) -> list[str]:

        def look() -> list[str] | None:
            found = self.output.decode(errors="replace").splitlines(keepends=True)
            is_there = len(found) >= lines and found[lines - 1].endswith("\n")
            assert is_there or self.process.poll() is None, self.errors
            return found if is_there else None

        return wait_for(look, lambda: self.errors)

    def wait_errors(self, text: str) -> None:

        def look() -> bool | None:
            found = text in self.errors
            assert found or self.process.poll() is None, self.errors
            return found or None

        wait_for(look, lambda: self.errors)

    def wait(self) -> Ended:
        status = self.process.wait(DEADLINE_S)
        return Ended(status, self.output, self.errors)

    def end(self, number: int = signal.SIGTERM) -> Ended:
        self.process.send_signal(number)
        return self.wait()


class Dafka:
    """Runs the command. `options` are added to the options of every node."""

    def __init__(self, folder: Path, command: tuple[str, ...] = MODULE) -> None:
        self.folder = folder
        self._command = command
        self.options: list[str] = []
        self._running: list[Running] = []

    def start(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        command: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> Running:
        folder = self.folder / f"process-{len(self._running)}"
        folder.mkdir()
        if not command and any(name.startswith(FOR_INTERPRETERS) for name in environment or {}):
            command = (sys.executable, "-u", *self._command[1:])
        running = Running([*(command or self._command), *arguments], folder, self.environment(environment), stdin)
        self._running.append(running)
        return running

    def run(self, *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None) -> Ended:
        path = self.folder / "stdin"
        path.write_bytes(stdin)
        with path.open("rb") as file:
            return self.start(*arguments, stdin=file.fileno(), environment=environment).wait()

    def node(self, *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None) -> Ended:
        return self.run(*arguments, *self.options, stdin=stdin, environment=environment)

    def start_node(
        self, *arguments: str, stdin: int = subprocess.DEVNULL, environment: dict[str, str] | None = None
    ) -> Running:
        return self.start(*arguments, *self.options, stdin=stdin, environment=environment)

    def start_consumer(self, *arguments: str) -> Running:
        consumer = self.start_node("consume", "-v", *arguments)
        consumer.wait_errors("Following")
        return consumer

    def start_tower(self) -> Running:
        tower = self.start("tower", "--sub", FREE, "--pub", FREE)
        self._join(tower.wait_output(1)[0])
        return tower

    def start_up(self, *arguments: str) -> Running:
        up = self.start("up", "--sub", FREE, "--pub", FREE, *arguments)
        self._join(up.wait_output(2)[0])
        return up

    def environment(self, changes: dict[str, str] | None = None) -> dict[str, str]:
        """Return this process's environment without settings of dafka and terminals. TMPDIR marks our processes."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("DAFKA_") and name not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES")
        }
        return {**inherited, "TMPDIR": str(self.folder), "TERM": "xterm", **(changes or {})}

    def processes(self) -> dict[int, str]:
        """Return the command lines of running processes that we or our processes have started, by process id."""
        mark = f"TMPDIR={self.folder}".encode()
        found = {each.process.pid: "dafka" for each in self._running if each.process.poll() is None}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def close(self) -> None:
        for running in self._running:
            if running.process.poll() is None:
                running.process.kill()
            running.process.wait()
            if running.process.stdin is not None:
                running.process.stdin.close()
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _join(self, announcement: str) -> None:
        words = announcement.split()
        self.options = [*self.options, "--tower-sub", words[4], "--tower-pub", words[-1]]


class Terminal:
    def __init__(self, master: int, process: Forked) -> None:
        self.process = process
        self.seen = b""
        self._master = master
        self._is_closed = False

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: bytes) -> None:
        wait_for(lambda: text in self._read() or None, lambda: repr(self.seen))

    def wait(self) -> int:
        """Return the status of the process, when all that it has written is seen."""

        def look() -> int | None:
            self._read()
            return self.process.poll()

        status = wait_for(look, lambda: repr(self.seen))

        def see_rest() -> bool | None:
            self._read()
            return self._is_closed or None

        wait_for(see_rest, lambda: repr(self.seen))
        return status

    def _read(self) -> bytes:
        while select.select([self._master], [], [], 0.01)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                self._is_closed = True
                break
            self.seen += data
        return self.seen


@contextmanager
def open_terminal(
    dafka: Dafka, *arguments: str, program: tuple[str, ...] = (), environment: dict[str, str] | None = None
) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    variables = dafka.environment(environment)
    process = fork_dafka([*arguments], slave, slave, slave, variables, on_terminal=True, program=program)
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def numbered_lines(count: int) -> bytes:
    """Return lines that a careless reader would break; the last one has no line feed."""
    tails = (b"", b"\r", b"\0\0", b"\xff\xfe\x80", b" \t", "\N{SNOWMAN}\u2028".encode(), b"x" * 300)
    lines = [b"" if number % 97 == 5 else b"%d" % number + tails[number % len(tails)] for number in range(count)]
    lines[-1] = b"the last"
    return b"\n".join(lines)
