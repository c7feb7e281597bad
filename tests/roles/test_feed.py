from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from dafka import EventFeed
from dafka.endpoints import PeerEndpoint
from dafka.protocol import (
    DialectAdopted,
    Event,
    FetchUnanswered,
    ForeignDialect,
    PeerJoined,
    StorageFailed,
    TowersHeard,
)
from dafka.protocol.events import StoresHeard
from dafka.records import Partition
from dafka.roles import events
from dafka.roles.events import EVENTS_MAX, LINES_BURST, LINES_PER_S, UNANSWERED_INTERVAL_S
from dafka.roles.logging_events import FetchesUnanswered

LOGGER = logging.getLogger("dafka.test")


def joined(number: int) -> PeerJoined:
    return PeerJoined(str(number), PeerEndpoint(f"tcp://127.0.0.1:{number}"))


def partition(number: int) -> Partition:
    return Partition("orders", f"{number:032X}")


def unanswered(number: int) -> FetchUnanswered:
    return FetchUnanswered(partition(number), 0, 3)


async def read(feed: EventFeed, count: int) -> list[Event]:
    events: list[Event] = []
    async for event in feed:
        events.append(event)
        if len(events) == count:
            break
    return events


async def test_reader_waits_for_the_next_event(autojump_clock: trio.testing.MockClock) -> None:
    feed = EventFeed(LOGGER)
    read_events: list[Event] = []

    async def keep_reading() -> None:
        read_events.extend(await read(feed, 2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_reading)
        nursery.start_soon(keep_reading)
        await trio.sleep(1)
        feed.put(joined(0))
        await trio.sleep(1)
        assert read_events == []
        feed.put(joined(1))
    assert read_events == [joined(0), joined(1)] * 2


async def test_reader_that_is_far_behind_misses_the_oldest() -> None:
    feed = EventFeed(LOGGER)
    reader = aiter(feed)
    feed.put(joined(0))
    assert await anext(reader) == joined(0)
    for number in range(1, EVENTS_MAX + 11):
        feed.put(joined(number))
    assert await anext(reader) == joined(11)
    assert await anext(reader) == joined(12)
    assert await read(feed, EVENTS_MAX) == [joined(number) for number in range(11, EVENTS_MAX + 11)]


def test_events_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    routine = (joined(1), TowersHeard(), StoresHeard(), DialectAdopted("libdafka"))
    feed = EventFeed(LOGGER, "A")
    with caplog.at_level(logging.DEBUG, "dafka.test"):
        for event in (*routine, StorageFailed("disk full"), ForeignDialect("rfc46", "libdafka")):
            caplog.clear()
            feed.put(event)
            level = logging.INFO if event in routine else logging.WARNING
            (record,) = caplog.records
            assert (record.levelno, record.getMessage()) == (level, str(event))
            assert {name: vars(record)["dafka"][name] for name in ("role", "node")} == {"role": "test", "node": "A"}


def test_a_flood_of_events_of_one_kind_is_not_logged_in_full(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 7.0)
    monkeypatch.setattr(events, "time", clock)
    feed = EventFeed(LOGGER)
    with caplog.at_level(logging.INFO, "dafka.test"):
        for lines in (LINES_BURST, 3 * LINES_PER_S):
            for number in range(2 * LINES_BURST):
                feed.put(joined(number))
            feed.put(StoresHeard())
            assert caplog.messages == [*(str(joined(number)) for number in range(int(lines))), str(StoresHeard())]
            caplog.clear()
            clock.monotonic = lambda: 10.0


async def test_partitions_that_no_node_answers_for_take_one_line_each_interval(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    feed, expected = EventFeed(LOGGER), list[str]()
    caplog.set_level(logging.INFO, "dafka.test")
    steps: tuple[tuple[float, range, Event | FetchesUnanswered | None], ...] = (
        (50, range(151), unanswered(0)),
        (UNANSWERED_INTERVAL_S - 1, range(0), None),
        (2, range(0), FetchesUnanswered(150, partition(150))),
        (0, range(151, 152), None),
        (UNANSWERED_INTERVAL_S, range(0), FetchesUnanswered(1, partition(151))),
        (UNANSWERED_INTERVAL_S, range(152, 153), unanswered(152)),
        (0, range(153, 155), None),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.log_unanswered)
        for seconds, numbers, line in steps:
            await trio.sleep(seconds)
            for number in numbers:
                feed.put(unanswered(number))
            expected += [] if line is None else [str(line)]
            assert caplog.messages == expected
        nursery.cancel_scope.cancel()
    assert caplog.messages == [*expected, str(FetchesUnanswered(2, partition(154)))]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_each_partition_that_no_node_answers_for_is_an_event_and_a_line_for_debugging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = EventFeed(LOGGER)
    with caplog.at_level(logging.DEBUG, "dafka.test"):
        for number in range(3):
            feed.put(unanswered(number))
    assert caplog.messages == [str(unanswered(number)) for number in range(3)]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.DEBUG, logging.DEBUG]
