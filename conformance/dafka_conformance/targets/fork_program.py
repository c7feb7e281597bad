"""Runs Python programs as forks of a process that has loaded their modules: `python fork_program.py SOCKET MODULE...`.

SOCKET is the number of an inherited socket, which gets one byte when the modules are loaded. Each request on it is a
JSON object after its size in four bytes, with four file descriptors: the standard streams of a program, and a socket
that gets the number of the program's process and later its exit status. After the last request, this process ends once
all programs have.

This uses the standard library only: a program finds nothing of the suite in its process.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

NUMBER_BYTES = 4
DESCRIPTORS = 4


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, and return it in the fork. Return None in this process after the last one."""
    while True:
        size, descriptors, _, _ = socket.recv_fds(requests, NUMBER_BYTES, DESCRIPTORS)
        if not size:
            wait_for_programs(0)
            return None
        body = requests.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        if os.fork() == 0:
            requests.close()
            if os.fork() == 0:
                become_program(descriptors)
                request: dict[str, Any] = json.loads(body)
                return request
            watch_program(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        wait_for_programs(os.WNOHANG)


def wait_for_programs(options: int) -> None:
    """Forget the programs that have ended. Without WNOHANG as an option, wait until all have."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def become_program(descriptors: Sequence[int]) -> None:
    """Give this process a process group and the standard streams of a program."""
    os.setsid()
    *streams, status = descriptors
    send_number(status, os.getpid())
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.line_buffering or stream.isatty())  # type: ignore[union-attr]


def watch_program(descriptors: Sequence[int]) -> None:
    """Wait until the program ends, report how, and end this process."""
    *streams, status = descriptors
    for descriptor in streams:
        os.close(descriptor)
    _, ended = os.wait()
    send_number(status, os.waitstatus_to_exitcode(ended))
    os._exit(0)


def send_number(status: int, number: int) -> None:
    """Send a number to the process that asked for the program, if that still runs."""
    with suppress(BrokenPipeError):
        os.write(status, number.to_bytes(NUMBER_BYTES, "big", signed=True))


def run_program(command: list[str], environment: dict[str, str], folder: str) -> None:
    """Run what `python -m MODULE ARGUMENT...` or `python FILE ARGUMENT...` runs."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if command[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(command[0]))
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as `python -m` has it
    for module in sys.argv[2:]:
        with suppress(Exception):  # a program that needs it reports why it cannot be imported
            import_module(module)
    gc.freeze()  # a collection in a fork would write to the memory that all of them share
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.setblocking(True)
    program = None
    with suppress(ConnectionError):  # the process that asks for programs can have ended
        requests.sendall(b"\0")
        program = serve(requests)
    if program is not None:
        run_program(**program)
