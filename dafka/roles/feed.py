"""Events on their way to the embedding program: kept for whoever looks, late or never, and logged."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator

import trio

from dafka.protocol import (
    AddressConflict,
    AuthorizedKeysUnreadable,
    EndpointsExposed,
    Event,
    FetchUnanswered,
    ForeignDialect,
    LoopbackOnly,
    PartitionHalted,
    PartitionSilent,
    PeerNotAuthorized,
    PeerRefused,
    RecordsGone,
    RefusedByPeer,
    StorageFailed,
    StorageLost,
    StorageRepaired,
    StoresSilent,
    TowersSilent,
)
from dafka.protocol.token_bucket import TokenBucket
from dafka.roles.log import NodeLog

EVENTS_MAX = 1000
"""Events kept for readers; one that is further behind misses the oldest."""

LINES_BURST = 200
"""Events of one kind that are logged at once: peers cause many of them, and whoever invents names fills no disk."""

LINES_PER_S = 2.0
"""Events of one kind that are logged a second, for ever."""

_WARNINGS = (
    AuthorizedKeysUnreadable,
    AddressConflict,
    EndpointsExposed,
    FetchUnanswered,
    ForeignDialect,
    RefusedByPeer,
    PeerNotAuthorized,
    PartitionHalted,
    PartitionSilent,
    RecordsGone,
    StorageFailed,
    StorageLost,
    StorageRepaired,
    StoresSilent,
    PeerRefused,
    TowersSilent,
    LoopbackOnly,
)


class EventFeed:
    """What happened to one node, from its start on. Every iteration begins with the oldest event kept.

    Attributes:
        log: where the events are logged, and what is for the operator alone.
    """

    def __init__(self, logger: logging.Logger, node: str = "") -> None:
        self.log = NodeLog(logger, node)
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._count = 0
        self._readers = trio.lowlevel.ParkingLot()
        self._lines: dict[type[Event], TokenBucket] = {}

    def put(self, event: Event) -> None:
        """Adds an event, wakes the readers, and logs it."""
        self._events.append(event)
        self._count += 1
        self._readers.unpark_all()
        level = logging.WARNING if isinstance(event, _WARNINGS) else logging.INFO
        now = time.monotonic()
        lines = self._lines.setdefault(type(event), TokenBucket(LINES_PER_S, LINES_BURST, now))
        if lines.try_take(now):
            self.log.write(event, level)

    def __aiter__(self) -> AsyncIterator[Event]:
        return _Reader(self)

    async def wait_event(self, seen: int) -> tuple[Event, int]:
        """The event after the first `seen` ones, and how many have been seen with it."""
        while seen >= self._count:
            await self._readers.park()
        seen = max(seen, self._count - len(self._events))
        return self._events[seen - self._count], seen + 1


class _Reader:
    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed
        self._seen = 0

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint()
        event, self._seen = await self._feed.wait_event(self._seen)
        return event
