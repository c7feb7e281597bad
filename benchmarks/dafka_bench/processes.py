"""The processes of a benchmark, servers and clients: starting them, reading their output, and stopping them.

Processor time and peak resident memory are read from /proc.
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

from dafka_bench.client import Task, Usage, read_peak_bytes
from dafka_bench.results import BenchError

STEP_S = 120.0
"""The time limit of each step of a job."""
TERMINATE_S = 5.0
"""The time that a process has to terminate before it is killed."""
POLL_S = 0.01
"""How often a connection to a starting server is tried."""


@attrs.frozen
class Snapshot:
    """The resources of a process at one time.

    Attributes:
        cpu_s: The processor time that it has used, in seconds.
        resident_bytes: Its resident memory, in bytes.
        descriptors: The number of its open file descriptors.
    """

    cpu_s: float
    resident_bytes: int
    descriptors: int


class MeasuredProcess:
    """A process whose resources can be read.

    Args:
        name: The name of the process in messages.
        process: The process.
        errors: The file with its standard error output.

    Attributes:
        name: The name of the process in messages.
    """

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        self.name = name
        self._process = process
        self._errors = errors

    def usage(self) -> Usage:
        """Return the resources that the process has used so far."""
        return Usage(self.snapshot().cpu_s, read_peak_bytes(self._process.pid))

    def snapshot(self) -> Snapshot:
        """Return the resources of the process. Raise `BenchError` if it has ended."""
        folder = Path("/proc", str(self._process.pid))
        try:
            # The fields follow the name of the command, which is in parentheses. Times are in clock ticks.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            descriptors = len(os.listdir(folder / "fd"))
        except OSError:
            raise self._ended_early() from None
        ticks = int(fields[11]) + int(fields[12])
        resident_bytes = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        return Snapshot(ticks / os.sysconf("SC_CLK_TCK"), resident_bytes, descriptors)

    def _ended_early(self) -> BenchError:
        return BenchError(f"{self.name} ended early: {last_line(self._errors)}")


class Server(MeasuredProcess):
    """A server process: a tower, a store, or the server of another system."""

    async def read_line(self) -> str:
        """Return the line that the server prints when it is ready. Raise `BenchError` if it ends before that."""
        assert self._process.stdout is not None
        line = b""
        with _time_limit(self.name):
            while not line.endswith(b"\n"):
                data = await self._process.stdout.receive_some(1)
                if not data:
                    raise self._ended_early()
                line += data
        return line.decode(errors="replace").rstrip()

    async def wait_listening(self, port: int) -> None:
        """Wait until the server listens on a loopback port. Raise `BenchError` if it ends before that."""
        with _time_limit(self.name):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                except OSError:
                    if self._process.poll() is not None:
                        raise self._ended_early() from None
                    await trio.sleep(POLL_S)
                else:
                    return


@attrs.frozen
class ClientResult:
    """The result that a client process reported.

    Attributes:
        first: The time at which the transfer began, in nanoseconds.
        last: The time at which it ended, in nanoseconds.
        usage: The resources that the process used.
        figures: Further results.
    """

    first: int
    last: int
    usage: Usage
    figures: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """The duration of the transfer."""
        return (self.last - self.first) / 1e9


class Client(MeasuredProcess):
    """A client process (see `run_client`)."""

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        super().__init__(name, process, errors)
        self._read = b""

    async def wait_ready(self) -> None:
        """Wait until the client is ready. Raise `BenchError` if it ends before that."""
        await self.wait_event("ready")

    async def go(self) -> None:
        """Start the job of the client."""
        await self.send_command("go")

    async def send_command(self, command: str) -> None:
        """Send a command to the client. Raise `BenchError` if it has ended."""
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(command.encode() + b"\n")
        except trio.BrokenResourceError:
            raise self._ended_early() from None

    async def wait_done(self) -> ClientResult:
        """Wait until all records are sent or received, and return the report. Raise `BenchError` if the client ends."""
        figures = await self.wait_event("done")
        usage = Usage(figures.pop("cpu_s"), int(figures.pop("peak_bytes")))
        return ClientResult(int(figures.pop("first")), int(figures.pop("last")), usage, figures)

    async def wait_ended(self) -> None:
        """Wait until the process ends. Raise `BenchError` if it failed."""
        with _time_limit(self.name):
            if await self._process.wait():
                raise BenchError(f"{self.name} failed: {last_line(self._errors)}")

    async def wait_event(self, event: str) -> dict[str, Any]:
        """Wait for an event and return its values. Other events are skipped.

        Args:
            event: The name of the event.

        Returns:
            The values of the event.

        Raises:
            BenchError: The client ended, or the event took too long.
        """
        with _time_limit(self.name):
            while True:
                name, values = await self.next_event()
                if name == event:
                    return values

    async def next_event(self) -> tuple[str, dict[str, Any]]:
        """Wait for the next event, without a time limit. Raise `BenchError` if the client ends before that."""
        assert self._process.stdout is not None
        while True:
            line, found, rest = self._read.partition(b"\n")
            if found:
                self._read = rest
                values: dict[str, Any] = json.loads(line)
                return values.pop("event"), values
            data = await self._process.stdout.receive_some()
            if not data:
                raise self._ended_early()
            self._read += data


class Processes:
    """Starts processes that are stopped at the end of a block (see `open_processes`).

    Args:
        folder: A temporary folder for the files of the processes.
        stack: Stops the processes.
        variables: Environment variables to set.

    Attributes:
        folder: A temporary folder for the files of the processes.
    """

    def __init__(self, folder: Path, stack: AsyncExitStack, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self._stack = stack
        self._count = 0
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DAFKA_")}
        self._environment = {**inherited, **variables}

    async def serve(self, name: str, command: Sequence[str], *, is_graceful: bool = True) -> Server:
        """Start a server.

        Args:
            name: The name of the process in messages.
            command: The program and its arguments.
            is_graceful: Whether to stop the process with SIGTERM; otherwise it is killed.

        Returns:
            The server.
        """
        process, errors = await self._start(name, command, subprocess.DEVNULL, is_graceful=is_graceful)
        return Server(name, process, errors)

    async def client(self, name: str, module: str, role: str, task: Task) -> Client:
        """Start a client: a function `role` of a module of `dafka_bench.systems`."""
        command = [sys.executable, "-m", "dafka_bench.run_client", module, role, task.to_json()]
        process, errors = await self._start(name, command, subprocess.PIPE, is_graceful=False)
        return Client(name, process, errors)

    async def _start(
        self, name: str, command: Sequence[str], stdin: int, *, is_graceful: bool
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
        self._stack.push_async_callback(_stop, process, is_graceful)
        return process, errors


@asynccontextmanager
async def open_processes(folder: Path, variables: Mapping[str, str]) -> AsyncIterator[Processes]:
    """Provide `Processes` for a block, and stop all of them at its end.

    Args:
        folder: The working folder of the processes.
        variables: Environment variables to set. The processes inherit all others, except DAFKA_* variables.

    Yields:
        The processes.
    """
    async with AsyncExitStack() as stack:
        yield Processes(folder, stack, variables)


def free_port() -> int:
    """Return a loopback port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_line(errors: Path) -> str:
    """Return the last line that a process printed on standard error."""
    return errors.read_text(errors="replace").strip().rpartition("\n")[2] or "no error message"


@contextmanager
def _time_limit(name: str) -> Iterator[None]:
    try:
        with trio.fail_after(STEP_S):
            yield
    except trio.TooSlowError:
        raise BenchError(f"{name} took more than {STEP_S:.0f} s") from None


async def _stop(process: trio.Process, is_graceful: bool) -> None:
    with trio.CancelScope(shield=True):
        if process.returncode is None and is_graceful:
            process.terminate()
            with trio.move_on_after(TERMINATE_S):
                await process.wait()
        if process.returncode is None:
            # Clients may have started processes, which are in the same group.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()
