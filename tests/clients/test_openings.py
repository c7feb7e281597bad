"""Opening nodes again and again leaves nothing behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from dafka import Config
from tests.clients.styles import ASYNCIO, BLOCKING, DEADLINE_S, Style


async def open_and_use(style: Style, config: Config, count: int) -> None:
    for number in range(count):
        async with style.opened("open_producer", "hello", config) as producer:
            await style.call(producer.send, b"%d" % number)
        async with style.opened("open_consumer", ["hello"], config) as consumer:
            await style.call(consumer.next_record)


async def open_alone(style: Style, config: Config, count: int) -> None:
    """Open nodes each of which is the only one of its process, so that the thread of Trio ends with it."""
    for _ in range(count):
        async with style.opened("open_consumer", ["hello"], config):
            assert "dafka" in names_of_threads()
        assert "dafka" not in names_of_threads()


def names_of_threads() -> list[str]:
    """Return the threads but for Trio's idle workers, which end by themselves."""
    return sorted(each.name for each in threading.enumerate() if not each.name.startswith("Trio thread"))


def system_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def check_leaves_nothing(run: Callable[[int], None], count: int) -> None:
    run(2)
    gc.collect()
    threads, files, tasks = names_of_threads(), len(os.listdir("/proc/self/fd")), system_threads()
    run(count)
    gc.collect()  # unclosed sockets and nodes warn, and warnings are errors
    assert names_of_threads() == threads
    deadline = time.monotonic() + DEADLINE_S
    while len(os.listdir("/proc/self/fd")) > files or system_threads() > tasks:
        assert time.monotonic() < deadline, (os.listdir("/proc/self/fd"), names_of_threads())
        time.sleep(0.05)


STYLES = pytest.mark.parametrize("style", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])


@STYLES
def test_nothing_is_left_behind(style: Style, config: Config) -> None:
    check_leaves_nothing(lambda count: style.run(partial(open_and_use, style, config, count)), 5)


@STYLES
def test_the_last_node_of_the_process_leaves_nothing_behind(style: Style) -> None:
    config = Config().with_node(bind="tcp://127.0.0.1:*", discovery="static:tcp://127.0.0.1:1")
    config = config.with_consumer(offset_reset="earliest")
    check_leaves_nothing(lambda count: style.run(partial(open_alone, style, config, count)), 5)


@pytest.mark.long
@pytest.mark.timeout(900)
@STYLES
def test_nothing_is_left_behind_after_a_thousand_openings(style: Style, config: Config) -> None:
    def run(count: int) -> None:
        for _ in range(count):
            style.run(partial(open_and_use, style, config, 1))

    check_leaves_nothing(run, 500)
