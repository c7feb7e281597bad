"""A node as a process, which is fed and read through its standard streams.

Each process leads its own process group. At the end of the block, even if it is cancelled, the whole group is stopped:
first with the target's stop signal, and after two seconds with SIGKILL.
"""

from __future__ import annotations

import os
import signal
import tty
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress

import attrs
import trio

from dafka.exceptions import unwrap_group
from dafka_conformance.targets.base import Delivery, Node, TargetError
from dafka_conformance.targets.fork_server import ForkedProcess, ForkServer
from dafka_conformance.targets.line_formats import InputFormat, LineParser

STOP_S = 2.0
"""The time that a process has to end after the stop signal."""

DRAIN_S = 1.0
"""The time that the streams are still read after the process ended, because its children may hold them open."""

EXIT_REASON_BYTES = 4096
"""The size of the part of standard error that is kept for the exit reason."""


@attrs.frozen
class ProcessCommand:
    """A process to start.

    Attributes:
        what: Its name in messages, such as `the store of NAME`.
        command: The program and its arguments.
        environment: The whole environment.
        working_folder: The folder that it runs in; None for the suite's.
        stop: The signal that stops it.
        input: The format of its input; None if it reads no records.
        output: The parser of its output; None if it prints no records.
        is_terminal: Whether its output must be a terminal.
        forks: Starts it without loading its modules again; None for a process like any other.
    """

    what: str
    command: tuple[bytes, ...]
    environment: Mapping[str, str]
    working_folder: bytes | None = None
    stop: signal.Signals = signal.SIGTERM
    input: InputFormat | None = None
    output: LineParser | None = None
    is_terminal: bool = False
    forks: ForkServer | None = None


@attrs.frozen
class Streams:
    """The suite's ends of a process's standard streams.

    Attributes:
        input: Its standard input; None if it reads no records.
        output: Its records; None if it prints none.
        errors: Any other output.
    """

    input: trio.lowlevel.FdStream | None
    output: trio.lowlevel.FdStream | None
    errors: trio.lowlevel.FdStream

    async def aclose(self) -> None:
        """Close them."""
        for stream in (self.input, self.output, self.errors):
            if stream is not None:
                await stream.aclose()


@asynccontextmanager
async def run_process(command: ProcessCommand) -> AsyncIterator[Node]:
    """Run a process, and leave no process of its group. Raise `TargetError` if it cannot be started."""
    # Shielded, because a cancellation while the process starts would leave it running.
    with trio.CancelScope(shield=True):
        process, streams = await _open(command)
        node = ProcessNode(command, process, streams)
    try:
        with unwrap_group():
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
            await streams.aclose()


class ProcessNode(Node):
    """A process of the target, created by `run_process`."""

    def __init__(self, command: ProcessCommand, process: trio.Process | ForkedProcess, streams: Streams) -> None:
        super().__init__()
        self.pid = process.pid
        self._command = command
        self._process = process
        self._streams = streams
        self._tail = bytearray()
        self._writing = trio.Lock()
        self._is_input_ended = False
        self._is_stopping = False

    async def feed(self, contents: Sequence[bytes]) -> None:
        """Write the lines of records, and wait until the process or its pipe has accepted them."""
        if self._command.input is None or self._streams.input is None:
            raise TargetError(f"{self._command.what} reads no records: add `input` to its table")
        async with self._writing:
            try:
                await self._streams.input.send_all(self._command.input.format(contents))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                if self._is_stopping:
                    return
                with trio.move_on_after(STOP_S):
                    await self.ended.wait()
                raise TargetError(
                    f"{self._command.what} no longer reads its input: {self.exit_reason or 'it closed it'}"
                ) from None

    async def end_input(self) -> None:
        """Close the process's standard input."""
        async with self._writing:
            self._is_input_ended = True
            if self._streams.input is not None:
                await self._streams.input.aclose()

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        self._is_stopping = True
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def run(self) -> None:
        """Read the process's output until its end."""
        async with trio.open_nursery() as readers:
            readers.start_soon(self._read_errors)
            readers.start_soon(self._read_output)
            await self._process.wait()
            readers.cancel_scope.deadline = trio.current_time() + DRAIN_S
        if not self._is_stopping:
            self.exit_reason = self._describe_end()
            self.ended.set()

    async def stop(self) -> None:
        """Stop the process and its group."""
        self._is_stopping = True
        if self._process.returncode is None:
            self._signal(self._command.stop)
            with trio.move_on_after(STOP_S):
                await self._process.wait()
        # The children of the process may still be running.
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def _read_output(self) -> None:
        parser = self._command.output
        if self._streams.output is None or parser is None:
            return
        while chunk := await _receive(self._streams.output):
            self._put(parser, parser.feed(chunk))
        # The unterminated last line of a process that was stopped is not a record.
        if not self._is_stopping:
            self._put(parser, parser.finish())

    def _put(self, parser: LineParser, found: Sequence[Delivery]) -> None:
        if found:
            self._deliver.send_nowait(found)
        if parser.unparsed_lines:
            self._keep(b"\n".join(parser.unparsed_lines) + b"\n")
            parser.unparsed_lines.clear()

    async def _read_errors(self) -> None:
        while chunk := await _receive(self._streams.errors):
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


async def _open(command: ProcessCommand) -> tuple[trio.Process | ForkedProcess, Streams]:
    """Start the process; return it and the suite's ends of its streams."""
    if any(b"\0" in argument for argument in command.command):
        raise TargetError(f"{command.what}: expected a topic without NUL, which a command line cannot contain")
    with ExitStack() as theirs:  # the process's ends of its streams, which it has for itself once it is started
        stdin, records = (_open_devnull(theirs), None) if command.input is None else _open_pipe(theirs, reads=True)
        stderr, errors = _open_pipe(theirs, reads=False)
        stdout, output = (stderr, None) if command.output is None else _open_output(theirs, command.is_terminal)
        streams = Streams(records, output, errors)
        try:
            return await _start(command, (stdin, stdout, stderr)), streams
        except OSError as error:
            await streams.aclose()
            reason = f"{os.fsdecode(error.filename or command.command[0])}: {error.strerror}"
            if isinstance(error, ConnectionError):
                reason = "the process that had loaded the modules of `preload` has ended"
            raise TargetError(f"{command.what} cannot be started: {reason}") from None


async def _start(command: ProcessCommand, streams: tuple[int, int, int]) -> trio.Process | ForkedProcess:
    if command.forks is not None:
        folder = command.working_folder or os.getcwdb()
        return await command.forks.start(command.command[1:], command.environment, folder, streams)
    stdin, stdout, stderr = streams
    return await trio.lowlevel.open_process(
        command.command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=command.working_folder,
        env=command.environment,
        start_new_session=True,
    )


def _open_output(theirs: ExitStack, is_terminal: bool) -> tuple[int, trio.lowlevel.FdStream]:
    if not is_terminal:
        return _open_pipe(theirs, reads=False)
    ours, terminal = os.openpty()
    theirs.callback(os.close, terminal)
    tty.setraw(terminal)
    return terminal, trio.lowlevel.FdStream(ours)


def _open_pipe(theirs: ExitStack, *, reads: bool) -> tuple[int, trio.lowlevel.FdStream]:
    """Return the process's end of a new pipe, which the process reads or writes, and the suite's end."""
    reading, writing = os.pipe()
    their, our = (reading, writing) if reads else (writing, reading)
    theirs.callback(os.close, their)
    return their, trio.lowlevel.FdStream(our)


def _open_devnull(theirs: ExitStack) -> int:
    opened = os.open(os.devnull, os.O_RDONLY)
    theirs.callback(os.close, opened)
    return opened


async def _receive(stream: trio.abc.ReceiveStream) -> bytes:
    """Return the next bytes; empty at the end."""
    try:
        return bytes(await stream.receive_some())
    except trio.BrokenResourceError:  # a terminal whose other side is closed
        return b""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
