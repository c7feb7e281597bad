"""Opening nodes again and again leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable

import pytest

import dafka.asyncio
from dafka import Config, blocking

DEADLINE_S = 60


def open_blocking(config: Config, count: int) -> None:
    for number in range(count):
        with blocking.open_producer("hello", config) as producer:
            producer.send(b"%d" % number)
        with blocking.open_consumer(["hello"], config) as consumer:
            consumer.next_record(timeout_s=DEADLINE_S)


def open_asyncio(config: Config, count: int) -> None:
    async def program() -> None:
        for number in range(count):
            async with dafka.asyncio.open_producer("hello", config) as producer:
                await producer.send(b"%d" % number)
            async with dafka.asyncio.open_consumer(["hello"], config) as consumer, asyncio.timeout(DEADLINE_S):
                await consumer.next_record()

    asyncio.run(program())


def names_of_threads() -> list[str]:
    """Return the threads but for Trio's idle workers, which end by themselves."""
    return sorted(each.name for each in threading.enumerate() if not each.name.startswith("Trio thread"))


def system_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def check_leaves_nothing(run: Callable[[Config, int], None], config: Config, count: int) -> None:
    run(config, 2)
    gc.collect()
    threads, files, tasks = names_of_threads(), len(os.listdir("/proc/self/fd")), system_threads()
    run(config, count)
    gc.collect()  # unclosed sockets and nodes warn, and warnings are errors
    assert names_of_threads() == threads
    deadline = time.monotonic() + DEADLINE_S
    while len(os.listdir("/proc/self/fd")) > files or system_threads() > tasks:
        assert time.monotonic() < deadline, (os.listdir("/proc/self/fd"), names_of_threads())
        time.sleep(0.05)


@pytest.mark.parametrize("run", [open_blocking, open_asyncio])
def test_nothing_is_left_behind(run: Callable[[Config, int], None], config: Config) -> None:
    check_leaves_nothing(run, config, 5)


def open_alone(config: Config, count: int) -> None:
    """Open nodes each of which is the only one of its process, so that the thread of Trio ends with it."""

    async def program() -> None:
        async with dafka.asyncio.open_consumer(["hello"], config):
            assert "dafka" in names_of_threads()

    for _ in range(count):
        with blocking.open_consumer(["hello"], config):
            assert "dafka" in names_of_threads()
        assert "dafka" not in names_of_threads()
        asyncio.run(program())
        assert "dafka" not in names_of_threads()


def test_the_last_node_of_the_process_leaves_nothing_behind() -> None:
    config = Config().with_node(bind="tcp://127.0.0.1:*", discovery="static:tcp://127.0.0.1:1")
    check_leaves_nothing(open_alone, config.with_consumer(offset_reset="earliest"), 5)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", [open_blocking, open_asyncio])
def test_nothing_is_left_behind_after_a_thousand_openings(run: Callable[[Config, int], None], config: Config) -> None:
    check_leaves_nothing(run, config, 500)
