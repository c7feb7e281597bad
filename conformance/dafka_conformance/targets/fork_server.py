"""Starts Python programs as forks of one process that has loaded their modules, which saves most of a start.

Each program is still a separate process, with a process group, streams, signals and an exit status.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from dafka_conformance.targets.fork_program import NUMBER_BYTES

STOP_S = 2.0
"""The time that the server has to end."""

_PROGRAM = Path(__file__).with_name("fork_program.py")


class ForkedProcess:
    """A process that a `ForkServer` started, with the part of `trio.Process` that the suite needs.

    Attributes:
        pid: Its number.
        returncode: Its exit status, or the negative number of the signal that ended it; None until `wait` returns.

    Args:
        pid: Its number.
        status: Where its exit status arrives.
    """

    def __init__(self, pid: int, status: trio.socket.SocketType) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._waiting = trio.Lock()

    async def wait(self) -> int:
        """Wait until the process has ended, and return its exit status."""
        async with self._waiting:
            if self.returncode is None:
                ended = await self._status.recv(NUMBER_BYTES)
                # Nothing arrives if the process that watches this one was killed.
                self.returncode = _number(ended) if ended else -signal.SIGKILL
                self._status.close()
        return self.returncode


class ForkServer:
    """The process that starts programs as forks of itself, opened by `open_fork_server`.

    Args:
        requests: The socket that it reads requests from.
    """

    def __init__(self, requests: trio.socket.SocketType) -> None:
        self._requests = requests
        self._sending = trio.Lock()

    async def start(
        self, command: Sequence[bytes], environment: Mapping[str, str], folder: bytes, streams: Sequence[int]
    ) -> ForkedProcess:
        """Start a program, and return once its process leads its process group.

        Args:
            command: The arguments of the interpreter: `-m` and a module, or a file; then those of the program.
            environment: The whole environment.
            folder: The folder that it runs in.
            streams: The file descriptors of its standard streams.

        Returns:
            The process.

        Raises:
            ConnectionError: The server has ended.
        """
        request = {
            "command": [os.fsdecode(argument) for argument in command],
            "environment": dict(environment),
            "folder": os.fsdecode(folder),
        }
        body = json.dumps(request).encode("ascii")
        status, theirs = trio.socket.socketpair()
        try:
            with theirs:
                descriptors = array.array("i", [*streams, theirs.fileno()])
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)
                async with self._sending:
                    await self._requests.sendmsg([len(body).to_bytes(NUMBER_BYTES, "big")], [rights])
                    while body:
                        body = body[await self._requests.send(body) :]
            if pid := await status.recv(NUMBER_BYTES):
                return ForkedProcess(_number(pid), status)
            raise BrokenPipeError
        except BaseException:
            status.close()
            raise


def _number(found: bytes) -> int:
    return int.from_bytes(found, "big", signed=True)


@asynccontextmanager
async def open_fork_server(modules: Sequence[str]) -> AsyncIterator[ForkServer]:
    """Load modules in a process of their own, and start programs from it inside the block.

    Args:
        modules: The names of the modules. One that cannot be imported is left out.

    Yields:
        The server.
    """
    requests, theirs = trio.socket.socketpair()
    with requests:
        with theirs:
            process = await trio.lowlevel.open_process(
                [sys.executable, os.fspath(_PROGRAM), str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the suite handles signals from the terminal
            )
        try:
            await requests.recv(1)
            yield ForkServer(requests)
        finally:
            requests.close()
            with trio.CancelScope(shield=True):
                with trio.move_on_after(STOP_S):
                    await process.wait()
                process.kill()
                await process.wait()
