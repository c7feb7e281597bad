"""Events of a node: kept for the embedding program, and logged.

The log uses named loggers of the standard library (`dafka.store` for a store), which a program can configure. The
message of a log record is a sentence. Its attribute `dafka` contains the fields: the name of the event, the role and
the address of the node, and the event's own fields.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping

import trio

from dafka.protocol.events import (
    DialectAdopted,
    Event,
    FetchUnanswered,
    PartitionHeard,
    PartitionsAssigned,
    PartitionsRevoked,
    PeerJoined,
    PeerLeft,
    StoresHeard,
    TowersHeard,
)
from dafka.protocol.store_events import (
    PartitionsForgotten,
    RecordsCompacted,
    RecordsDropped,
    StorageRecovered,
    StoreHasRoom,
)
from dafka.protocol.token_bucket import TokenBucket
from dafka.records import Partition
from dafka.roles.logging_events import FetchesUnanswered, LogEvent, MessagesDiscarded, event_fields, event_name
from dafka.roles.trio_context import Iteration, bind_to_process

EVENTS_MAX = 1000
"""The number of events kept for readers. A slower reader misses the oldest."""

LINES_BURST = 200
"""The number of events of one kind that are logged at once. Peers cause events, and must not be able to fill a disk."""

LINES_PER_S = 2.0
"""Events of one kind that are logged per second in the long run."""

DISCARDS_INTERVAL_S = 1.0
"""Seconds between two checks of the counters of discarded messages."""

DISCARDS_REPEAT_S = 60.0
"""Seconds after which a reason for discarded messages is logged again, with a count."""

UNANSWERED_INTERVAL_S = 60.0
"""The interval, in seconds, in which one line names an unanswered partition, and another line counts all others."""

ROUTINE = (
    DialectAdopted,
    PartitionHeard,
    PartitionsAssigned,
    PartitionsForgotten,
    PartitionsRevoked,
    PeerJoined,
    PeerLeft,
    RecordsCompacted,
    RecordsDropped,
    StorageRecovered,
    StoreHasRoom,
    StoresHeard,
    TowersHeard,
)
"""The events that are logged for information. All others are warnings."""


class NodeLog:
    """The log of one node. The last name of its logger is the role, as in `dafka.store`; a tower has no address."""

    def __init__(self, logger: logging.Logger, node: str = "") -> None:
        self._logger = logger
        self._common = {"role": logger.name.rpartition(".")[2]} | ({"node": node} if node else {})

    def write(self, event: Event | LogEvent, level: int = logging.INFO) -> None:
        """Log an event."""
        if self._logger.isEnabledFor(level):
            fields = {"event": event_name(type(event)), **self._common, **event_fields(event)}
            self._logger.log(level, "%s", event, extra={"dafka": fields})


class EventFeed:
    """The events of one node from its start on: an async iterable.

    Each iteration begins with the oldest event kept, and ends when the node is closed.

    Args:
        logger: The logger for the events. Its last name is the role, as in `dafka.store`.
        node: The node's address; empty for a tower, which has none.

    Attributes:
        log: The node's log, which takes these events and others.
    """

    def __init__(self, logger: logging.Logger, node: str = "") -> None:
        bind_to_process(self)
        self.log = NodeLog(logger, node)
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._count = 0
        self._is_ended = False
        self._readers = trio.lowlevel.ParkingLot()
        self._buckets: dict[type[Event], TokenBucket] = {}
        self._unanswered_begun = trio.Event()
        self._unanswered = 0
        self._last_unanswered: Partition | None = None

    def rename(self, logger: logging.Logger, node: str) -> None:
        """Log under another address from now on: the node has restarted with it."""
        self.log = NodeLog(logger, node)

    def put(self, event: Event) -> None:
        """Add an event, wake the readers, and log it."""
        self._events.append(event)
        self._count += 1
        self._readers.unpark_all()
        now = time.monotonic()
        bucket = self._buckets.setdefault(type(event), TokenBucket(LINES_PER_S, LINES_BURST, now))
        level = logging.INFO if isinstance(event, ROUTINE) else logging.WARNING
        if isinstance(event, FetchUnanswered) and not self._begins_interval(event):
            level = logging.DEBUG
        if bucket.try_take(now):
            self.log.write(event, level)

    def end(self) -> None:
        """End each iteration after the kept events: the node is closed."""
        self._is_ended = True
        self._readers.unpark_all()

    async def log_unanswered(self) -> None:
        """Log the number of unanswered partitions after the first one, until cancelled."""
        try:
            while True:
                await self._unanswered_begun.wait()
                await trio.sleep(UNANSWERED_INTERVAL_S)
                self._log_further_unanswered()
        finally:
            self._log_further_unanswered()

    def _begins_interval(self, event: FetchUnanswered) -> bool:
        """Return whether an unanswered partition is logged separately. Others are counted: they can be thousands."""
        if not self._unanswered_begun.is_set():
            self._unanswered_begun.set()
            return True
        self._unanswered += 1
        self._last_unanswered = event.partition
        return False

    def _log_further_unanswered(self) -> None:
        """Log one line for the counted partitions, after which another interval begins."""
        if self._last_unanswered is None:
            self._unanswered_begun = trio.Event()
            return
        self.log.write(FetchesUnanswered(self._unanswered, self._last_unanswered), logging.WARNING)
        self._unanswered, self._last_unanswered = 0, None

    def __aiter__(self) -> AsyncIterator[Event]:
        seen = 0

        async def wait_next() -> Event:
            nonlocal seen
            wait_event = self.wait_event  # raises in a forked process before it uses the event loop
            await trio.lowlevel.checkpoint()
            try:
                event, seen = await wait_event(seen)
            except trio.ClosedResourceError:
                raise StopAsyncIteration from None
            return event

        return Iteration(wait_next)

    async def wait_event(self, seen: int) -> tuple[Event, int]:
        """Return the event after the first `seen` ones, and the number of events seen then.

        Raise `trio.ClosedResourceError` if there is none, and the node is closed.
        """
        while (kept := self.kept_event(seen)) is None:
            if self._is_ended:
                raise trio.ClosedResourceError("this node is closed")
            await self._readers.park()
        return kept

    def kept_event(self, seen: int) -> tuple[Event, int] | None:
        """Return the same without waiting; None if there is no such event yet."""
        if seen >= self._count:
            return None
        seen = max(seen, self._count - len(self._events))
        return self._events[seen - self._count], seen + 1


class DiscardLog:
    """Logs discarded messages: the first of each reason at once, later ones at intervals with a count."""

    def __init__(self) -> None:
        self._reported: Counter[str] = Counter()
        self._buckets: dict[str, TokenBucket] = {}

    def due_events(self, discarded: Mapping[str, int], now: float) -> list[MessagesDiscarded]:
        """Return one event for each reason that is due, given all messages discarded so far by reason."""
        events = []
        for reason, total in discarded.items():
            bucket = self._buckets.setdefault(reason, TokenBucket(1 / DISCARDS_REPEAT_S, 1, now))
            if total > self._reported[reason] and bucket.try_take(now):
                events.append(MessagesDiscarded(reason, total - self._reported[reason], total))
                self._reported[reason] = total
        return events


async def log_discards(discarded: Callable[[], Mapping[str, int]], log: NodeLog) -> None:
    """Log the messages that a role discards, until cancelled."""
    discards = DiscardLog()
    while True:
        await trio.sleep(DISCARDS_INTERVAL_S)
        for event in discards.due_events(discarded(), trio.current_time()):
            log.write(event)
