"""What a test leaves behind is found, ended, and named."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from dafka.wire import batch
from tests.leftovers import Before, Running, end_leftovers, shares_something
from tests.process_globals import KINDS

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
GRACE_S = 0.1


@contextmanager
def thread_until(event: threading.Event, name: str) -> Iterator[None]:
    thread = threading.Thread(target=event.wait, name=name)
    thread.start()
    try:
        yield
    finally:
        event.set()
        thread.join()


def test_a_thread_that_goes_on_is_named() -> None:
    before = Running.now()
    with thread_until(threading.Event(), "forgotten"):
        assert end_leftovers(before, GRACE_S) == ["thread forgotten"]
        assert end_leftovers(Running.now(), GRACE_S) == []
    assert end_leftovers(before, GRACE_S) == []


def test_a_thread_that_is_about_to_end_is_waited_for() -> None:
    before = Running.now()
    ended = threading.Event()
    with thread_until(ended, "slow"):
        threading.Timer(0.05, ended.set).start()
        assert end_leftovers(before) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the children of a process without their names")
def test_a_process_that_goes_on_is_named_and_killed() -> None:
    before = Running.now()
    with subprocess.Popen(SLEEPER) as process:
        (found,) = end_leftovers(before, GRACE_S)
        assert found.startswith(f"process {process.pid}: ")
        assert "time.sleep(600)" in found
        assert end_leftovers(before, GRACE_S) == []


def test_a_process_that_was_there_before_or_has_ended_is_none() -> None:
    with subprocess.Popen(SLEEPER) as process:
        before = Running.now()
        ended = subprocess.Popen([sys.executable, "-c", ""])
        assert end_leftovers(before) == []
        ended.wait()
        process.kill()


def test_threads_that_trio_keeps_for_later_may_stay() -> None:
    before = Running.now()
    trio.run(trio.to_thread.run_sync, lambda: None)
    assert end_leftovers(before, GRACE_S) == []


def test_a_pool_may_grow() -> None:
    with ThreadPoolExecutor(2) as pool:
        before = Running.now()
        pool.submit(int).result()
        assert end_leftovers(before, GRACE_S) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the open files of a process")
def test_what_stays_open_is_named() -> None:
    before = Before()
    path = Path(tempfile.gettempdir(), "forgotten")
    with socket.socket(), path.open("w"):
        of_socket, opened, file = before.end(GRACE_S)
    assert (opened, of_socket[:12], file) == (f"open {path}", "open socket:", "temporary file forgotten")
    assert before.end(GRACE_S) == []


def test_the_files_of_a_test_that_shares_nothing_are_looked_at(request: pytest.FixtureRequest) -> None:
    """A fixture that all tests share and that is not in `SHARED_BY_ALL` would end this check for each of them."""
    assert not shares_something(request.node)


def test_what_fixtures_of_a_module_open_meanwhile_is_theirs() -> None:
    before = Before(shares=True)
    with socket.socket(), tempfile.NamedTemporaryFile():
        assert before.end(GRACE_S) == []


CHANGES: dict[str, Callable[[], object]] = {
    "environment variables": lambda: os.environ.update(DAFKA_LEFT="1"),
    "working folder": lambda: os.chdir("/"),
    "signal handlers": lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
    "loggers": lambda: logging.getLogger("dafka").addHandler(logging.NullHandler()),
    "hooks for exceptions": lambda: setattr(sys, "excepthook", lambda *_: None),
    "default timeout of sockets": lambda: socket.setdefaulttimeout(9),
    "import path": lambda: sys.path.append("/nowhere"),
    "constants of dafka": lambda: setattr(batch, "UNPACKED_BYTES_MAX", 1),
}


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_a_changed_global_is_named_and_restored(kind: str) -> None:
    before = Before()
    CHANGES[kind]()
    (found,) = before.end(GRACE_S)
    assert found.startswith(f"other {kind}: ")
    assert before.end(GRACE_S) == []
