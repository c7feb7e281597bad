"""The API for asyncio, with real nodes."""

from __future__ import annotations

import asyncio
import threading

import pytest

import dafka.asyncio
from dafka import Config
from dafka.errors import RecordError, UnacknowledgedError, WrongContextError
from tests.clients.each_hosted_style import EachHostedStyle
from tests.clients.styles import ASYNCIO

DEADLINE_S = 60


def test_leaving_the_block_waits_for_acks_unless_it_is_left_by_an_exception(
    config: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = config.with_beacon(tower_sub=("tcp://127.0.0.1:1",), tower_pub=("tcp://127.0.0.1:1",))
    left: list[dafka.asyncio.Producer] = []

    async def program() -> None:
        short, long = (alone.with_producer(close_timeout_ms=timeout_ms) for timeout_ms in (200, 1000))
        with pytest.raises(UnacknowledgedError):
            async with dafka.asyncio.open_producer("hello", short) as producer:
                await producer.send(b"1")
        with pytest.raises(RecordError):  # noqa: PT012
            async with dafka.asyncio.open_producer("hello", short) as producer:
                left.append(producer)
                await producer.send_many([b"1"])
                await producer.send("text")  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with asyncio.timeout(None) as limit, dafka.asyncio.open_producer("hello", long) as producer:
                left.append(producer)
                await producer.send(b"1")
                limit.reschedule(0)  # the time is over while the block is left

    asyncio.run(asyncio.wait_for(program(), DEADLINE_S))
    for producer in left:
        assert isinstance(producer._hosted.closed.exception(DEADLINE_S), UnacknowledgedError)
    assert capfd.readouterr().err.count("dafka: 1 record of topic hello is not stored: ") == 2


def test_an_opening_that_is_cancelled_leaves_nothing_open() -> None:
    late = Config().with_node(bind="tcp://127.0.0.1:*").with_beacon(settle_ms=60_000)

    async def program() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await dafka.asyncio.open_consumer(["hello"], late)

    asyncio.run(program())
    assert not [thread for thread in threading.enumerate() if thread.name == "dafka"]


async def test_trio_is_told_to_use_its_own_api() -> None:
    with pytest.raises(WrongContextError, match="programs on Trio use dafka"):
        await dafka.asyncio.open_consumer(["hello"])


class TestAsInEachStyle(EachHostedStyle):
    style = ASYNCIO
