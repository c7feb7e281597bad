"""A node that is a process: started from a command, fed and read through its standard streams, and always ended.

Each process leads a group of its own. At the end of its block the whole group is ended: with the signal that its
target asks for, and two seconds later with SIGKILL. That happens however the block ends, cancelled too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tty
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import trio

from dafka.groups import single_exception
from dafka_conformance.targets.base import Delivery, Node, TargetError
from dafka_conformance.targets.line_formats import InputFormat, LineParser

STOP_S = 2.0
"""How long a process may take to end after it was asked to."""

DRAIN_S = 1.0
"""After a process ended, how long others that hold its streams (its children) are still listened to."""

EXIT_REASON_BYTES = 4096
"""How much of what a process wrote to standard error is kept."""


@attrs.frozen
class ProcessCommand:
    """A process to be started.

    Attributes:
        what: its name in messages, as in `the store of NAME`.
        command: the program and its arguments.
        environment: the whole environment.
        working_folder: where it runs; None: where the suite does.
        stop: the signal that asks it to end.
        input: how it is given records; None where it takes none.
        output: how its records are read; None where it prints none.
        is_terminal: is its output to be a terminal?
    """

    what: str
    command: tuple[bytes, ...]
    environment: Mapping[str, str]
    working_folder: bytes | None = None
    stop: signal.Signals = signal.SIGTERM
    input: InputFormat | None = None
    output: LineParser | None = None
    is_terminal: bool = False


@asynccontextmanager
async def run_process(launch: ProcessCommand) -> AsyncIterator[Node]:
    """A block in which a process runs. At its end nothing of the process's group is left.

    Raises `TargetError` where it cannot be started.
    """
    # Shielded: who is cancelled while a process is being started would not get to know, and end, it.
    with trio.CancelScope(shield=True):
        process, output = await _open(launch)
        node = ProcessNode(launch, process, output)
    try:
        with single_exception():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.run)
                try:
                    yield node
                finally:
                    with trio.CancelScope(shield=True):
                        await node.stop()
                    nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await node.close()


class ProcessNode(Node):
    """A process of the target; made by `run_process`."""

    def __init__(self, launch: ProcessCommand, process: trio.Process, output: trio.abc.ReceiveStream | None) -> None:
        super().__init__()
        self.pid = process.pid
        self._launch = launch
        self._process = process
        self._output = output
        self._errors = process.stderr or process.stdout
        self._tail = bytearray()
        self._writing = trio.Lock()
        self._is_input_ended = False
        self._is_stopping = False

    async def feed(self, contents: Sequence[bytes]) -> None:
        """Writes the records' lines, and waits until the process (or its pipe) has taken them."""
        if self._launch.input is None or self._process.stdin is None:
            raise TargetError(f"{self._launch.what} takes no records: its table has no `input`")
        async with self._writing:
            try:
                await self._process.stdin.send_all(self._launch.input.format(contents))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                if self._is_stopping:
                    return
                with trio.move_on_after(STOP_S):
                    await self.ended.wait()
                raise TargetError(
                    f"{self._launch.what} takes no more input: {self.exit_reason or 'it was closed'}"
                ) from None

    async def end_input(self) -> None:
        """Closes the process's standard input."""
        async with self._writing:
            self._is_input_ended = True
            if self._process.stdin is not None:
                await self._process.stdin.aclose()

    async def kill(self) -> None:
        """Sends SIGKILL, and waits until the process is gone."""
        self._is_stopping = True
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def run(self) -> None:
        """Reads what the process writes, and waits for its end."""
        async with trio.open_nursery() as readers:
            readers.start_soon(self._read_errors)
            readers.start_soon(self._read_output)
            await self._process.wait()
            readers.cancel_scope.deadline = trio.current_time() + DRAIN_S
        if not self._is_stopping:
            self.exit_reason = self._describe_end()
            self.ended.set()

    async def stop(self) -> None:
        """Asks the process to end, and makes it."""
        self._is_stopping = True
        if self._process.returncode is None:
            self._signal(self._launch.stop)
            with trio.move_on_after(STOP_S):
                await self._process.wait()
        # What the process started may have outlived it.
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def close(self) -> None:
        """Closes its streams, which nothing is reading any more."""
        for stream in (self._process.stdin, self._output, self._errors):
            if stream is not None:
                await stream.aclose()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def _read_output(self) -> None:
        parser = self._launch.output
        if self._output is None or parser is None:
            return
        while chunk := await _receive(self._output):
            self._put(parser, parser.feed(chunk))
        # Half a line, of a process that was ended in the middle of it, is no record.
        if not self._is_stopping:
            self._put(parser, parser.finish())

    def _put(self, parser: LineParser, found: Sequence[Delivery]) -> None:
        if found:
            self._deliver.send_nowait(found)
        if parser.unparsed_lines:
            self._keep(b"\n".join(parser.unparsed_lines) + b"\n")
            parser.unparsed_lines.clear()

    async def _read_errors(self) -> None:
        if self._errors is None:
            return
        while chunk := await _receive(self._errors):
            self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        self._tail += chunk[-EXIT_REASON_BYTES:]
        del self._tail[:-EXIT_REASON_BYTES]

    def _describe_end(self) -> str:
        status = self._process.returncode or 0
        if status == 0 and self._is_input_ended:
            return ""
        reason = f"exit status {status}" if status >= 0 else f"ended by {_signal_name(-status)}"
        words = self._tail.decode("utf-8", "backslashreplace").strip()
        return f"{reason}: {words}" if words else reason


async def _open(launch: ProcessCommand) -> tuple[trio.Process, trio.abc.ReceiveStream | None]:
    """The process, and the stream of its records. Where it prints none, its output goes where its errors do."""
    master = slave = -1
    if any(b"\0" in argument for argument in launch.command):
        raise TargetError(f"{launch.what}: a topic with a NUL cannot be given on a command line")
    if launch.output is not None and launch.is_terminal:
        master, slave = os.openpty()
        tty.setraw(slave)
    try:
        process = await trio.lowlevel.open_process(
            launch.command,
            stdin=subprocess.DEVNULL if launch.input is None else subprocess.PIPE,
            stdout=subprocess.PIPE if slave < 0 else slave,
            stderr=subprocess.STDOUT if launch.output is None else subprocess.PIPE,
            cwd=launch.working_folder,
            env=launch.environment,
            start_new_session=True,
        )
    except OSError as error:
        if master >= 0:
            os.close(master)
        raise TargetError(f"{launch.what} cannot be started: {os.fsdecode(error.filename)}: {error.strerror}") from None
    finally:
        if slave >= 0:
            os.close(slave)
    if master >= 0:
        return process, trio.lowlevel.FdStream(master)
    return process, None if launch.output is None else process.stdout


async def _receive(stream: trio.abc.ReceiveStream) -> bytes:
    """The next octets; none at the end."""
    try:
        return bytes(await stream.receive_some())
    except trio.BrokenResourceError:  # a terminal's way of saying that nobody has it open any more
        return b""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
