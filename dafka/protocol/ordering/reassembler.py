"""Many partitions put in order at once: what consumers and stores share.

Runs of records go in, from whoever sent them, in any order and any number of times; each partition's records come
out in order, once. What is missing comes out as FETCHes. A program (or a disk) that is behind pauses the reassembler:
live records are then let go, to be fetched when there is room.
"""

from __future__ import annotations

from collections import OrderedDict

from dafka import wire
from dafka.config import FetchConfig
from dafka.protocol.events import FetchUnanswered
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.fetch_planner import FetchPlanner
from dafka.protocol.ordering.gap_resolver import GapResolver
from dafka.records import Partition, RecordBatch
from dafka.wire import Command

UNPROVEN_MAX = 50_000
"""Partitions of which nothing but the name is known."""

IDLE_S = 30.0
"""How long one of them is waited for at least."""

UNANSWERED_ATTEMPTS = 3
"""FETCHes in a row without an answer after which the program is told."""


class Reassembler:
    """Attributes:
    cursors: where each followed partition stands.
    holders: who may have what is missing.
    fetches_sent: FETCHes so far.
    """

    def __init__(self, address: str, config: FetchConfig, unproven_max: int = UNPROVEN_MAX) -> None:
        self.cursors: dict[Partition, Cursor] = {}
        self.gap_resolver = GapResolver()
        self.fetches_sent = 0
        self._address = address
        self._ahead_bytes_max = config.ahead_bytes_max
        self._ahead_bytes = 0
        self._planner = FetchPlanner(config)
        self._changed: dict[Partition, None] = {}
        self._unproven: OrderedDict[Partition, float] = OrderedDict()
        self._unproven_max = unproven_max

    def follow_partition(self, partition: Partition, next_sequence: int, since: float | None = None) -> None:
        """Begins a partition: what comes before `next_sequence` is not wanted.

        `since`, a time, where nothing but its name is known; see `has_room`.
        """
        self.cursors[partition] = Cursor(next_sequence)
        if since is not None:
            self._unproven[partition] = since

    def has_room(self) -> bool:
        """May one more partition be followed of which nothing but the name is known?"""
        return len(self._unproven) < self._unproven_max

    def idle_partitions(self, now: float) -> list[Partition]:
        """Where they are many: those of them of which no record has come for long. They may be forgotten."""
        found: list[Partition] = []
        surplus = len(self._unproven) - self._unproven_max // 2
        for partition, since in self._unproven.items():
            if len(found) >= surplus or now - since < IDLE_S:
                break
            found.append(partition)
        return found

    def add_batch(self, batch: RecordBatch) -> list[RecordBatch]:
        """The records that are now in order. The partition must be followed."""
        cursor = self.cursors[batch.partition]
        ahead_bytes = cursor.ahead_bytes
        ready = cursor.add_batch(batch, self._ahead_bytes_max - self._ahead_bytes)
        self._ahead_bytes += cursor.ahead_bytes - ahead_bytes
        if cursor.first_gap() is not None:
            self._planner.note_record_size(batch.partition, batch.content_bytes, len(batch))
        if ready:
            self._unproven.pop(batch.partition, None)
        self._changed[batch.partition] = None
        return ready

    def note_answer(self, now: float) -> None:
        """Records came in that had been asked for; they may be duplicates by now."""
        self._planner.note_answer(now)

    def note_known_end(self, partition: Partition, end_sequence: int) -> None:
        """Records up to, not including, this sequence exist. The partition must be followed."""
        self.cursors[partition].note_known_end(end_sequence)
        self._changed[partition] = None

    def drop_batch(self, batch: RecordBatch) -> None:
        """There is no room for these records: they are remembered as missing."""
        cursor = self.cursors[batch.partition]
        cursor.note_known_end(batch.end_sequence)
        if batch.end_sequence > cursor.next_sequence:
            self._planner.note_dropped(batch.partition, max(batch.first_sequence, cursor.next_sequence))
        self._changed[batch.partition] = None

    def receive_earliest(self, message: wire.DirectEarliest) -> str:
        """Somebody has not got what was asked for. Gives why the message is to be discarded, or nothing."""
        cursor = self.cursors.get(Partition(message.subject, message.partition))
        if message.requestor != self._address:
            return "another requestor"
        if cursor is None:
            return "not asked for"
        self.gap_resolver.add_answer(message, cursor.next_sequence)
        return ""

    def unrecoverable_ranges(self, *, only_new: bool = False) -> list[tuple[Partition, int, int]]:
        """Partitions that stand before records to be had nowhere: with these records' first and end sequence.

        `only_new`: of those alone about which somebody has answered since.
        """
        found = []
        for partition in (
            self.gap_resolver.take_newly_answered() if only_new else self.gap_resolver.answered_partitions()
        ):
            first = self.cursors[partition].next_sequence
            end = self.gap_resolver.resume_sequence(partition, first, self._planner.attempts(partition))
            if end is not None:
                found.append((partition, first, end))
        return found

    def reset_to(self, partition: Partition, next_sequence: int) -> list[RecordBatch]:
        """Gives up the records before `next_sequence`; gives those that are in order from there on."""
        cursor = self.cursors[partition]
        ahead_bytes = cursor.ahead_bytes
        ready = cursor.reset_to(next_sequence)
        self._ahead_bytes += cursor.ahead_bytes - ahead_bytes
        self.gap_resolver.forget_partition(partition)
        self._planner.mark_complete(partition)
        self._changed[partition] = None
        return ready

    def forget_partition(self, partition: Partition) -> None:
        """Stops following a partition."""
        cursor = self.cursors.pop(partition)
        self._ahead_bytes -= cursor.ahead_bytes
        self.gap_resolver.forget_partition(partition)
        self._planner.forget_partition(partition)
        self._changed.pop(partition, None)
        self._unproven.pop(partition, None)

    def refetch_unanswered(self, subscription: wire.Subscription, now: float) -> None:
        """Somebody who answers FETCHes has only now connected: ask again what is unanswered."""
        for partition in self._planner.active_partitions():
            if subscription.covers(Command.FETCH, partition.address):
                self._planner.allow_refetch(partition, self.cursors[partition], now)
                self._changed[partition] = None

    def due_fetches(self, now: float) -> list[wire.Fetch]:
        """The FETCHes that are due. While paused, do not call this: what is due stays due."""
        planned = []
        changed, self._changed = self._changed, {}
        for partition in changed:
            planned += self._plan(partition, now)
        while (partition_in_line := self._planner.next_waiting()) is not None:
            planned += self._plan(partition_in_line, now)
        self.fetches_sent += len(planned)
        return planned

    def tick(self, now: float) -> list[FetchUnanswered]:
        """Notices pages that made no progress, and reports those that have gone unanswered for long."""
        unanswered = []
        for partition in self._planner.expire_pages(now):
            self._changed[partition] = None
            attempts = self._planner.attempts(partition)
            if attempts == UNANSWERED_ATTEMPTS:
                unanswered.append(FetchUnanswered(partition, self.cursors[partition].next_sequence, attempts))
        return unanswered

    def deadline(self) -> float:
        """When `tick` next has something to do."""
        return self._planner.deadline()

    def _plan(self, partition: Partition, now: float) -> list[wire.Fetch]:
        cursor = self.cursors.get(partition)
        planned = None if cursor is None else self._planner.plan_fetch(partition, cursor, now)
        if planned is None:
            return []
        first_sequence, count = planned
        return [wire.Fetch(partition.address, self._address, partition.topic, first_sequence, count)]
