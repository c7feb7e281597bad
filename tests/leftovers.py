"""What a test leaves behind: threads, child processes, open files and sockets, temporary files, changed globals.

A test that leaves something fails, and does not disturb those after it: processes are killed, files removed, globals
restored. A thread that goes on works beside later tests: Hypothesis then fails tests that have nothing to do with it,
since both draw random numbers. What fixtures of a module or a session have started is there before the test, and stays;
what they open while a test uses them, such as the files of a broker, is theirs.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterator
from concurrent.futures import thread as thread_pools
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
from zmq.utils.garbage import GarbageCollectorThread

from tests.cli.forks import LINKS
from tests.process_globals import Globals

GRACE_S = 30.0
"""Seconds that what was told to end may take. Only a test that leaves something waits."""

STUCK_CLIENT = "librdkafka waits"
"""The name of a thread that waits for a call of librdkafka, which may never return."""

KEPT_THREADS = ("Trio thread", STUCK_CLIENT)
"""What the names of threads begin with that may stay.

Trio keeps idle ones for later, for some seconds. In librdkafka, two threads can wait for each other for ever.
"""

POOLED_THREADS: Container[threading.Thread] = thread_pools._threads_queues
"""The threads of pools, which may stay: a pool of a module's fixture grows in the test that needs more of them."""

LIBRARY_THREADS = (GarbageCollectorThread,)
"""The threads that a library keeps for the whole process: pyzmq's, which releases messages that libzmq has sent."""

KEPT_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "tests/cli/forks.py")
"""What is in the command lines of processes that may stay: those that serve a whole session."""

SQLITE_FILES = "etilqs_"
"""How the names of SQLite's temporary files begin: a process that is killed while it opens one leaves it."""

KEPT_FILES = ("/dev/", "/proc/", "/sys/", "/usr/", "/etc/")
"""What the paths of open files begin with that may stay: libraries keep them, such as a source of random numbers."""

ENDED = (b"Z", b"X")
"""The states of processes that have ended."""

TASKS = "/proc/self/task"
DESCRIPTORS = "/proc/self/fd"
READ_BYTES = 2**16


SHARED_BY_ALL = frozenset(
    {"foreign_clients_leave_nothing", "hangup_not_ignored", "temporary_files", "tmp_path_factory"}
)
"""Fixtures wider than a test that open nothing while a test uses them."""


@attrs.frozen
class Running:
    """What a test may leave behind, as it is at one time. Where the system does not list something, it is empty.

    Attributes:
        threads: The threads of this process.
        processes: The numbers of its child processes.
        opened: Its open files and sockets: for each descriptor, the system's name of what is open.
        files: The names in the folder of temporary files.
    """

    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    opened: frozenset[tuple[int, str]] = frozenset()
    files: frozenset[str] = frozenset()

    @classmethod
    def now(cls) -> Running:
        return cls(frozenset(threading.enumerate()), frozenset(_children()))

    @classmethod
    def and_opened(cls) -> Running:
        found = (each for each in os.listdir(tempfile.gettempdir()) if not each.startswith(SQLITE_FILES))
        return attrs.evolve(cls.now(), opened=frozenset(_opened()), files=frozenset(found))


@attrs.define
class Before:
    """What there was before a test.

    Args:
        shares: Whether the test uses a fixture of its module or session, which may open files meanwhile.
    """

    shares: bool = False
    running: Running = attrs.field(init=False)
    globals: Globals = attrs.field(init=False, factory=Globals.now)

    def __attrs_post_init__(self) -> None:
        self.running = self._now()

    def end(self, grace_s: float = GRACE_S) -> list[str]:
        """End and restore what a test has left behind, and return descriptions of it."""
        return [*end_leftovers(self.running, grace_s, self._now), *self.globals.restore()]

    def _now(self) -> Running:
        return Running.now() if self.shares else Running.and_opened()


def end_leftovers(before: Running, grace_s: float = GRACE_S, look: Callable[[], Running] = Running.now) -> list[str]:
    """End what is there that was not before, and return descriptions of what did not end by itself.

    Args:
        before: What may go on.
        grace_s: How many seconds it may take to end by itself.
        look: Returns what is there.

    Returns:
        The descriptions. Threads among them, open files and sockets cannot be ended; processes were killed and
        temporary files removed.
    """
    if not _leftovers(before, look()):
        return []
    gc.collect()  # sockets that nothing uses any more
    deadline = time.monotonic() + grace_s
    while (left := _leftovers(before, look())) and time.monotonic() < deadline:
        time.sleep(0.01)
    descriptions = [_describe(each) for each in left]
    for each in left:
        if isinstance(each, int):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(each, signal.SIGKILL)
                os.waitpid(each, 0)
        elif isinstance(each, Path):
            shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)
    return descriptions


def _leftovers(before: Running, now: Running) -> list[threading.Thread | int | Path | str]:
    threads = [
        each
        for each in now.threads - before.threads
        if each.is_alive()
        and each not in POOLED_THREADS
        and not each.name.startswith(KEPT_THREADS)
        and not isinstance(each, LIBRARY_THREADS)
        and not _serves_spark(each)
    ]
    processes = [each for each in now.processes - before.processes if _is_left(each)]
    opened = [target for _, target in sorted(now.opened - before.opened)]
    folder = Path(tempfile.gettempdir())
    return [*threads, *processes, *opened, *(folder / name for name in sorted(now.files - before.files))]


def _serves_spark(thread: threading.Thread) -> bool:
    """Return whether py4j keeps a thread for Spark's calls of Python functions, as long as the session lasts."""
    owner = getattr(getattr(thread, "_target", None), "__self__", None)
    return type(owner).__module__.startswith("py4j.")


def _children() -> Iterator[int]:
    with suppress(OSError):
        for task in os.listdir(TASKS):
            with suppress(OSError):
                yield from map(int, _read(f"{TASKS}/{task}/children").split())


def _opened() -> Iterator[tuple[int, str]]:
    """Yield the descriptors of open files and sockets, where the system lists them, each with what is open.

    Pipes, events and the like are not among them: threads and libraries keep them for later.
    """
    with suppress(OSError):
        for name in set(os.listdir(DESCRIPTORS)).difference(map(str, LINKS)):
            with suppress(OSError):
                target = os.readlink(f"{DESCRIPTORS}/{name}")
                if target.startswith("socket:") or _is_kept_open(int(name), target):
                    yield int(name), target


def _is_kept_open(descriptor: int, target: str) -> bool:
    is_path = target.startswith("/") and not target.startswith(KEPT_FILES) and not target.endswith(" (deleted)")
    return is_path and stat.S_ISREG(os.fstat(descriptor).st_mode)


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
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _describe(each: threading.Thread | int | Path | str) -> str:
    match each:
        case int():
            return f"process {each}: {_command(each)}"
        case threading.Thread():
            return f"thread {each.name}"
        case Path():
            return f"temporary file {each.name}"
        case _:
            return f"open {each}"


def shares_something(item: pytest.Item) -> bool:
    """Return whether a test uses a fixture of its module or its session, which may open files for it."""
    definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    return any(each[-1].scope != "function" for name, each in definitions.items() if name not in SHARED_BY_ALL)
