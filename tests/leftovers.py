"""Threads and child processes that a test leaves behind: the test fails, and does not disturb those after it.

A thread that goes on works beside later tests: Hypothesis then fails tests that have nothing to do with it, since both
draw random numbers. What fixtures of a module or a session have started is there before the test, and stays.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Container, Iterator
from concurrent.futures import thread as thread_pools
from contextlib import suppress
from pathlib import Path

import attrs
from zmq.utils.garbage import GarbageCollectorThread

GRACE_S = 5.0
"""Seconds that what was told to end may take. Only a test that leaves something waits."""

KEPT_THREADS = ("Trio thread",)
"""What the names of threads begin with that may stay: Trio keeps idle ones for later, for some seconds."""

POOLED_THREADS: Container[threading.Thread] = thread_pools._threads_queues
"""The threads of pools, which may stay: a pool of a module's fixture grows in the test that needs more of them."""

LIBRARY_THREADS = (GarbageCollectorThread,)
"""The threads that a library keeps for the whole process: pyzmq's, which releases messages that libzmq has sent."""

KEPT_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""What is in the command lines of processes that may stay: those that serve a whole session."""

ENDED = (b"Z", b"X")
"""The states of processes that have ended."""

TASKS = "/proc/self/task"
READ_BYTES = 2**16


@attrs.frozen
class Running:
    """The threads and the child processes of this process at one time.

    Attributes:
        threads: The threads.
        processes: The numbers of the child processes; none where the system does not list them.
    """

    threads: frozenset[threading.Thread]
    processes: frozenset[int]

    @classmethod
    def now(cls) -> Running:
        """Return what is running now."""
        return cls(frozenset(threading.enumerate()), frozenset(_children()))


def end_leftovers(before: Running, grace_s: float = GRACE_S) -> list[str]:
    """End what is running that was not before, and return descriptions of what did not end by itself.

    Args:
        before: What may go on.
        grace_s: How many seconds it may take to end by itself.

    Returns:
        The descriptions. Threads among them cannot be ended, processes were killed.
    """
    if not _leftovers(before):
        return []
    deadline = time.monotonic() + grace_s
    while (left := _leftovers(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    descriptions = [_describe(each) for each in left]
    for each in left:
        if isinstance(each, int):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(each, signal.SIGKILL)
                os.waitpid(each, 0)
    return descriptions


def _leftovers(before: Running) -> list[threading.Thread | int]:
    now = Running.now()
    threads = [
        each
        for each in now.threads - before.threads
        if each.is_alive()
        and each not in POOLED_THREADS
        and not each.name.startswith(KEPT_THREADS)
        and not isinstance(each, LIBRARY_THREADS)
        and not _serves_spark(each)
    ]
    return [*threads, *(each for each in now.processes - before.processes if _is_left(each))]


def _serves_spark(thread: threading.Thread) -> bool:
    """Return whether py4j keeps a thread for Spark's calls of Python functions, as long as the session lasts."""
    owner = getattr(getattr(thread, "_target", None), "__self__", None)
    return type(owner).__module__.startswith("py4j.")


def _children() -> Iterator[int]:
    """Yield the numbers of the child processes, of all threads, where the system lists them."""
    with suppress(OSError):
        for task in os.listdir(TASKS):
            with suppress(OSError):
                yield from map(int, _read(f"{TASKS}/{task}/children").split())


def _read(path: str) -> bytes:
    """Return the first bytes of a file. Faster than a file object, for each thread before and after each test."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, READ_BYTES)
    finally:
        os.close(descriptor)


def _is_left(process: int) -> bool:
    """Return whether a process is still running, and is not one that may stay."""
    try:
        state = _read(f"/proc/{process}/stat").rpartition(b")")[2].split()[0]
    except OSError:
        return False
    # A process that is just being started has no command line yet.
    return state not in ENDED and not any(each in _command(process) for each in KEPT_PROCESSES)


def _command(process: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _describe(each: threading.Thread | int) -> str:
    return f"process {each}: {_command(each)}" if isinstance(each, int) else f"thread {each.name}"
