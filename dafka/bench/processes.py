"""The processes that are measured: servers and clients, started, read, and always ended.

What each costs is read from /proc: the processor's time, and the peak of resident memory.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from dafka.bench.client import Task, Usage, read_peak_bytes
from dafka.bench.results import BenchError

STEP_S = 120.0
"""A step that takes longer has failed."""
END_S = 5.0
"""A process that does not end within this is killed."""
LOOK_S = 0.01
"""How often it is tried whether a server listens."""


class Server:
    """A process that serves: a tower, a store, a foreign server."""

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        self.name = name
        self._process = process
        self._errors = errors

    def usage(self) -> Usage:
        """What it has cost so far."""
        try:
            # The fields stand behind the command's name, which is in parentheses; times are in clock ticks.
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            raise BenchError(f"{self.name} ended early: {last_line(self._errors)}") from None
        ticks = int(fields[11]) + int(fields[12])
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), read_peak_bytes(self._process.pid))

    async def read_line(self) -> str:
        """The line that it announces itself with. Raises `BenchError` where it ends before."""
        assert self._process.stdout is not None
        line = b""
        with _step(self.name):
            while not line.endswith(b"\n"):
                data = await self._process.stdout.receive_some(1)
                if not data:
                    raise BenchError(f"{self.name} ended early: {last_line(self._errors)}")
                line += data
        return line.decode(errors="replace").rstrip()

    async def wait_listening(self, port: int) -> None:
        """Waits until the loopback port is listened at. Raises `BenchError` where the process ends before."""
        with _step(self.name):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                except OSError:
                    if self._process.poll() is not None:
                        raise BenchError(f"{self.name} ended early: {last_line(self._errors)}") from None
                    await trio.sleep(LOOK_S)
                else:
                    return


@attrs.frozen
class Done:
    """What a client reported: when it began and was over, in nanoseconds, what it cost, and what else it knows."""

    first: int
    last: int
    usage: Usage
    figures: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """From the beginning to the end."""
        return (self.last - self.first) / 1e9


class Client:
    """A process of `dafka.bench.run_client`."""

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        self.name = name
        self._process = process
        self._errors = errors
        self._read = b""

    async def wait_ready(self) -> None:
        """Waits until it can go. Raises `BenchError` where it ends before."""
        await self._wait("ready")

    async def go(self) -> None:
        """Lets it begin."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(b"go\n")

    async def wait_done(self) -> Done:
        """Waits until all is sent or received, and gives what it reported. Raises `BenchError` where it ends before."""
        figures = await self._wait("done")
        usage = Usage(figures.pop("cpu_s"), int(figures.pop("peak_bytes")))
        return Done(int(figures.pop("first")), int(figures.pop("last")), usage, figures)

    async def wait_ended(self) -> None:
        """Waits until the process is over. Raises `BenchError` where it failed."""
        with _step(self.name):
            if await self._process.wait():
                raise BenchError(f"{self.name} failed: {last_line(self._errors)}")

    async def _wait(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        with _step(self.name):
            while True:
                line, found, rest = self._read.partition(b"\n")
                if found:
                    self._read = rest
                    message: dict[str, Any] = json.loads(line)
                    if message.pop("event") == event:
                        return message
                    continue
                data = await self._process.stdout.receive_some()
                if not data:
                    raise BenchError(f"{self.name} ended early: {last_line(self._errors)}")
                self._read += data


class Processes:
    """Starts processes for the length of a block (see `open_processes`).

    Attributes:
        folder: for whatever they keep; new, and gone after the block.
    """

    def __init__(self, folder: Path, stack: AsyncExitStack, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self._stack = stack
        self._count = 0
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DAFKA_")}
        self._environment = {**inherited, **variables}

    async def serve(self, name: str, command: Sequence[str], *, is_patient: bool = True) -> Server:
        """Starts a server.

        Arguments:
            name: for messages.
            command: the program and its arguments.
            is_patient: it ends when it is asked to; others are killed at once.
        """
        process, errors = await self._start(name, command, subprocess.DEVNULL, is_patient=is_patient)
        return Server(name, process, errors)

    async def client(self, name: str, module: str, role: str, task: Task) -> Client:
        """Starts a role of a module of `dafka.bench.run_client`."""
        command = [sys.executable, "-m", "dafka.bench.run_client", module, role, task.to_json()]
        process, errors = await self._start(name, command, subprocess.PIPE, is_patient=False)
        return Client(name, process, errors)

    async def _start(
        self, name: str, command: Sequence[str], stdin: int, *, is_patient: bool
    ) -> tuple[trio.Process, Path]:
        self._count += 1
        errors = self.folder / f"errors-{self._count}"
        with errors.open("wb") as file:
            try:
                process = await trio.lowlevel.open_process(
                    command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    cwd=self.folder,
                    env=self._environment,
                    process_group=0,
                )
            except OSError as error:
                raise BenchError(f"{name} cannot be started: {command[0]}: {error.strerror}") from None
        self._stack.push_async_callback(_end, process, is_patient)
        return process, errors


@asynccontextmanager
async def open_processes(folder: Path, variables: Mapping[str, str]) -> AsyncIterator[Processes]:
    """Whatever is started in the block is over when it is left.

    Arguments:
        folder: where they run.
        variables: to set in their environment, beside what this process has without its DAFKA_* variables.
    """
    async with AsyncExitStack() as stack:
        yield Processes(folder, stack, variables)


def free_port() -> int:
    """A loopback port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_line(errors: Path) -> str:
    """The last line of what a process said on standard error."""
    return errors.read_text(errors="replace").strip().rpartition("\n")[2] or "it said nothing"


@contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        with trio.fail_after(STEP_S):
            yield
    except trio.TooSlowError:
        raise BenchError(f"{name} took more than {STEP_S:.0f} s") from None


async def _end(process: trio.Process, is_patient: bool) -> None:
    with trio.CancelScope(shield=True):
        if process.returncode is None and is_patient:
            process.terminate()
            with trio.move_on_after(END_S):
                await process.wait()
        if process.returncode is None:
            # Clients have started processes of their own, which are in the same group.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()
