"""Puts the records of many partitions in order, and fetches missing ones. Consumers, stores and readers share this.

Batches of records go in, from any sender, in any order and any number of times; the records of each partition come out
in order, once. FETCHes for missing records come out, too. If the program or the disk is too slow, live records are
dropped, and fetched when there is room again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable

from dafka import wire
from dafka.config import FetchConfig
from dafka.protocol.actions import Action, Deliver
from dafka.protocol.events import FetchUnanswered
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.fetch_planner import FetchPlanner
from dafka.protocol.ordering.gap_resolver import GapResolver
from dafka.protocol.store_events import RecordsMissing
from dafka.records import Partition, RecordBatch
from dafka.wire import Command

UNPROVEN_MAX = 50_000
"""The maximum number of partitions that are followed although no record of them has arrived yet."""

IDLE_S = 30.0
"""The minimum seconds for which such a partition is followed."""

UNANSWERED_ATTEMPTS = 3
"""Consecutive FETCHes without an answer after which the program is notified."""

AHEAD_SHARE = 4
"""One part in this many of a node's memory is for records after gaps, so that records that fill them have room."""

MISSING_FIRST_S = 15.0
"""Seconds until the first report of missing records, in which more FETCHes go unanswered."""

MISSING_INTERVAL_S = 60.0
"""Seconds between two reports of missing records."""


class Reassembler:
    """The partitions that one node follows, and the FETCHes for missing records.

    At most `unproven_max` partitions are followed of which no record has been received.
    """

    def __init__(self, address: str, config: FetchConfig, unproven_max: int = UNPROVEN_MAX) -> None:
        self.cursors: dict[Partition, Cursor] = {}
        self.gap_resolver = GapResolver()
        self.fetches_sent = 0
        self.ahead_bytes = 0
        """The memory of all records after gaps."""
        self._address = address
        self._ahead_bytes_max = config.ahead_bytes_max
        self._planner = FetchPlanner(config)
        self._changed: dict[Partition, None] = {}
        self._unproven: OrderedDict[Partition, float] = OrderedDict()
        self._unproven_max = unproven_max
        self.paused: set[Partition | str] = set()
        """The partitions, and the topics, that are not fetched."""
        self._is_held: Callable[[Partition], bool] | None = None
        self.assigned: set[Partition] | None = None
        """The only partitions that are fetched; None for all."""

    def follow_partition(self, partition: Partition, next_sequence: int, since: float | None = None) -> None:
        """Begin to follow a partition from `next_sequence` on.

        `since` is the time if only the name of the partition is known; None if the partition is known to exist.
        """
        self.cursors[partition] = Cursor(next_sequence)
        if since is not None:
            self._unproven[partition] = since

    def limit_ahead(self, bytes_max: int) -> None:
        """Keep at most this many bytes of records after gaps, even if the configuration allows more."""
        self._ahead_bytes_max = min(self._ahead_bytes_max, bytes_max)

    def limit_rate(self, is_limited: Callable[[Partition], bool], bytes_per_s: int) -> None:
        """Limit the rate at which some partitions are fetched; see `FetchPlanner.limit_rate`."""
        self._planner.limit_rate(is_limited, bytes_per_s)

    def pause(self, selected: Iterable[Partition | str]) -> None:
        """Stop fetching these partitions and topics; the caller follows those anew that are being fetched."""
        self.paused.update(selected)

    def resume(self, selected: Collection[Partition | str]) -> None:
        """Fetch missing records of these partitions and topics again."""
        self.paused.difference_update(selected)
        for partition in self.cursors:
            if partition in selected or partition.topic in selected:
                self._changed[partition] = None

    def hold(self, is_held: Callable[[Partition], bool] | None) -> None:
        """Stop fetching all partitions for which a function returns True; None to fetch them again."""
        self._is_held = is_held
        for partition in self.cursors:
            if is_held is None:
                self._changed[partition] = None
            elif is_held(partition):
                self._planner.mark_complete(partition)

    def is_held(self, partition: Partition) -> bool:
        """Return whether records of a partition are not fetched now; see `hold`."""
        return self._is_held is not None and self._is_held(partition)

    def is_paused(self, partition: Partition) -> bool:
        """Return whether a partition is paused."""
        if self.assigned is not None and partition not in self.assigned:
            return True
        return bool(self.paused) and (partition in self.paused or partition.topic in self.paused)

    def has_capacity(self) -> bool:
        """Return whether one more partition without records can be followed."""
        return len(self._unproven) < self._unproven_max

    def unproven_partitions(self) -> list[Partition]:
        """Return the followed partitions that are known only by name."""
        return list(self._unproven)

    def idle_partitions(self, now: float) -> list[Partition]:
        """Return partitions without records that were followed long enough to be forgotten, if there are many."""
        found: list[Partition] = []
        surplus = len(self._unproven) - self._unproven_max // 2
        for partition, since in self._unproven.items():
            if len(found) >= surplus or now - since < IDLE_S:
                break
            found.append(partition)
        return found

    def add_batch(self, batch: RecordBatch) -> list[RecordBatch]:
        """Add records of a followed partition; return the batches that are now in order."""
        cursor = self.cursors[batch.partition]
        ahead_bytes = cursor.ahead_bytes
        ready = cursor.add_batch(batch, self._ahead_bytes_max - self.ahead_bytes)
        self.ahead_bytes += cursor.ahead_bytes - ahead_bytes
        if cursor.first_gap() is not None:
            self._planner.record_size(batch.partition, batch.content_bytes, len(batch))
        if ready:
            self._unproven.pop(batch.partition, None)
        self._changed[batch.partition] = None
        return ready

    def record_answer(self, now: float) -> None:
        """Record that fetched records arrived, new or not."""
        self._planner.record_answer(now)

    def record_known_end(self, partition: Partition, end_sequence: int) -> None:
        """Record that the records before this sequence of a followed partition exist."""
        self.cursors[partition].record_known_end(end_sequence)
        self._changed[partition] = None

    def expect_more(self, partition: Partition) -> None:
        """Fetch more records of a followed partition than are known, until several FETCHes are not answered."""
        cursor = self.cursors[partition]
        if cursor.first_gap() is None:
            self._planner.open_end(partition)
            cursor.expect_record()
            self._changed[partition] = None

    def drop_batch(self, batch: RecordBatch) -> None:
        """Remember records as missing: there is no room for them now."""
        cursor = self.cursors[batch.partition]
        cursor.record_known_end(batch.end_sequence)
        if batch.end_sequence > cursor.next_sequence:
            self._planner.record_dropped(batch.partition, max(batch.first_sequence, cursor.next_sequence))
        self._changed[batch.partition] = None

    def receive_earliest(self, message: wire.DirectEarliest) -> str:
        """Record that a peer does not hold fetched records. Return the reason to discard the message; may be empty."""
        cursor = self.cursors.get(Partition(message.subject, message.partition))
        if message.requestor != self._address:
            return "another requestor"
        if cursor is None:
            return "not asked for"
        self.gap_resolver.add_answer(message, cursor.next_sequence)
        return ""

    def unrecoverable_ranges(self, *, only_new: bool = False) -> list[tuple[Partition, int, int]]:
        """Return the partitions that are blocked, with the first and end sequence of the unrecoverable records.

        With `only_new`, return only those about which a peer has answered since the last call.
        """
        resolver = self.gap_resolver
        found = []
        for partition in resolver.take_newly_answered() if only_new else resolver.answered_partitions():
            first = self.cursors[partition].next_sequence
            end = resolver.resume_sequence(partition, first, self._planner.attempts(partition))
            if end is not None:
                found.append((partition, first, end))
        return found

    def skip_unrecoverable(self, *, only_new: bool = False) -> list[Action]:
        """Continue after records that no node holds any more, and deliver the records that are then in order."""
        ranges = self.unrecoverable_ranges(only_new=only_new)
        return [Deliver(batch) for partition, _, end in ranges for batch in self.reset_to(partition, end)]

    def reset_to(self, partition: Partition, next_sequence: int) -> list[RecordBatch]:
        """Give up the records before `next_sequence`; return the batches that are in order from there on.

        The partition is then known to exist, because a store has its new position in the storage.
        """
        cursor = self.cursors[partition]
        ahead_bytes = cursor.ahead_bytes
        ready = cursor.reset_to(next_sequence)
        self.ahead_bytes += cursor.ahead_bytes - ahead_bytes
        self._unproven.pop(partition, None)
        self.gap_resolver.forget_partition(partition)
        self._planner.mark_complete(partition)
        self._changed[partition] = None
        return ready

    def forget_partition(self, partition: Partition) -> None:
        """Stop following a partition."""
        cursor = self.cursors.pop(partition)
        self.ahead_bytes -= cursor.ahead_bytes
        self.gap_resolver.forget_partition(partition)
        self._planner.forget_partition(partition)
        self._changed.pop(partition, None)
        self._unproven.pop(partition, None)

    def refetch_unanswered(self, subscription: wire.Subscription, now: float) -> None:
        """Repeat unanswered FETCHes: a peer that can answer them has just connected."""
        for partition in self._planner.active_partitions():
            if subscription.covers(Command.FETCH, partition.address):
                self._planner.allow_refetch(partition, self.cursors[partition], now)
                self._changed[partition] = None

    def due_fetches(self, now: float) -> list[wire.Fetch]:
        """Return the FETCHes to send now. They stay due until this is called."""
        planned = []
        changed, self._changed = self._changed, {}
        for partition in changed:
            planned += self._plan(partition, now)
        while (waiting := self._planner.next_waiting()) is not None:
            planned += self._plan(waiting, now)
        self.fetches_sent += len(planned)
        return planned

    def tick(self, now: float) -> list[FetchUnanswered]:
        """Plan pages without progress again; return events for those that went unanswered several times."""
        unanswered = []
        for partition in self._planner.expire_pages(now):
            self._changed[partition] = None
            attempts = self._planner.attempts(partition)
            if attempts >= UNANSWERED_ATTEMPTS and not self.cursors[partition].has_missing:
                self.cursors[partition].stop_expecting()
            elif attempts == UNANSWERED_ATTEMPTS:
                unanswered.append(FetchUnanswered(partition, self.cursors[partition].next_sequence, attempts))
        return unanswered

    def unanswered_partitions(self) -> list[Partition]:
        """Return the partitions with missing records for which several FETCHes in a row were not answered."""
        found = self._planner.unanswered_partitions(UNANSWERED_ATTEMPTS)
        return [each for each in found if each in self.cursors and self.cursors[each].has_missing]

    def deadline(self) -> float:
        """Return when to call `tick`."""
        return self._planner.deadline()

    def _plan(self, partition: Partition, now: float) -> list[wire.Fetch]:
        cursor = self.cursors.get(partition)
        if self.is_paused(partition) or self.is_held(partition):
            return []
        planned = None if cursor is None else self._planner.plan_fetch(partition, cursor, now)
        if planned is None:
            return []
        first_sequence, count = planned
        return [wire.Fetch(partition.address, self._address, partition.topic, first_sequence, count)]


class ReceiveCapacity:
    """The memory of records that have arrived and that the program has not taken yet, whether they are in order or not.

    It never exceeds the limit by more than one batch. Half of the limit is reserved for fetched records: otherwise, a
    stream of live records would fill the memory, and fetched records would be dropped each time they arrive. If the
    limit is small, the reassembler keeps fewer records after gaps.
    """

    def __init__(self, bytes_max: int, reassembler: Reassembler) -> None:
        self.buffered_bytes = 0
        """The memory of the records that wait for the program."""
        self._arriving_bytes = 0
        self._bytes_max = bytes_max
        self._reassembler = reassembler
        reassembler.limit_ahead(bytes_max // AHEAD_SHARE)

    @property
    def held_bytes(self) -> int:
        """The memory of all records that have arrived and that the program has not taken yet."""
        return self.buffered_bytes + self._arriving_bytes + self._reassembler.ahead_bytes

    @property
    def has_half(self) -> bool:
        """Whether there is room for live records, and to fetch others."""
        return 2 * self.held_bytes < self._bytes_max

    def has_capacity(self, *, is_live: bool) -> bool:
        """Return whether a batch that has arrived can be kept."""
        return self.has_half if is_live else self.held_bytes < self._bytes_max

    def record_arriving(self, memory_bytes: int) -> None:
        """Add ordered records for which `record_buffered` will be called later."""
        self._arriving_bytes += memory_bytes

    def end_arrival(self) -> None:
        """Forget arriving records: `record_buffered` is now called for all of them."""
        self._arriving_bytes = 0

    def record_buffered(self, memory_bytes: int) -> None:
        """Record that records wait for the program."""
        self.buffered_bytes += memory_bytes

    def record_taken(self, memory_bytes: int) -> bool:
        """Record that records no longer wait. Return whether fetching is possible now and was not before."""
        had_half = self.has_half
        self.buffered_bytes -= memory_bytes
        return self.has_half and not had_half


class MissingRecords:
    """Repeated reports of announced records that a store misses and that no node sends.

    When FETCHes for a partition go unanswered several times, that is reported once. If it lasts, for example because
    the only node that had the records has ended, the store repeatedly reports the number of missing records.
    """

    def __init__(self, reassembler: Reassembler) -> None:
        self._reassembler = reassembler
        self._due = float("inf")

    def begin(self, now: float) -> None:
        """Schedule a report, because FETCHes were not answered. Do nothing if one is scheduled."""
        if self._due == float("inf"):
            self._due = now + MISSING_FIRST_S

    def count(self) -> int:
        """Return how many records are missing that no node sends."""
        cursors = self._reassembler.cursors
        unanswered = self._reassembler.unanswered_partitions()
        return sum(cursors[partition].known_end - cursors[partition].next_sequence for partition in unanswered)

    def take_due(self, now: float) -> list[RecordsMissing]:
        """Return the report that is due now. If nothing is missing, the reports stop until `begin`."""
        if now < self._due:
            return []
        partitions = self._reassembler.unanswered_partitions()
        if not partitions:
            self._due = float("inf")
            return []
        self._due = now + MISSING_INTERVAL_S
        return [RecordsMissing(self.count(), len(partitions), partitions[0])]

    def deadline(self) -> float:
        """Return when to call `take_due`."""
        return self._due
