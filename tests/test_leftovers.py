"""What a test leaves running is found, ended, and named."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import trio

from tests.leftovers import Running, end_leftovers

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
