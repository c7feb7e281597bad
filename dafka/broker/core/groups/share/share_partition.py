"""A share partition: which records of a log the members of a share group get, have, and have acknowledged.

The leader of the log has it. Records are acquired by a member for a time. A member accepts, releases or rejects them.
If it does nothing, they become available again. A record that is delivered too often is archived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.runs import RecordState, Run, RunTable
from dafka.broker.core.groups.share.state import ShareState, restore_runs, store_runs
from dafka.broker.core.positions import OFFSET_MAX


class AcknowledgeType(IntEnum):
    """What a member says of records. The numbers are Kafka's."""

    GAP = 0
    """There is no record at the offset."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3

    RENEW = 4
    """The member needs more time."""


class ShareEvent(Enum):
    """What happens to records of a share partition, as metrics count it."""

    ACQUIRED = "acquired"
    ACCEPTED = "accepted"
    RELEASED = "released"
    REJECTED = "rejected"
    RENEWED = "renewed"
    SKIPPED = "skipped"
    """A member says that there is no record."""

    EXPIRED = "expired"
    """The lock of a member has expired."""

    GIVEN_UP = "given_up"
    """They were rejected, or delivered as often as the group allows."""

    DEAD_LETTERED = "dead_lettered"
    UNDELIVERABLE = "undeliverable"
    """Their dead letters were refused."""


_ACKNOWLEDGED = {
    AcknowledgeType.GAP: ShareEvent.SKIPPED,
    AcknowledgeType.ACCEPT: ShareEvent.ACCEPTED,
    AcknowledgeType.RELEASE: ShareEvent.RELEASED,
    AcknowledgeType.REJECT: ShareEvent.REJECTED,
    AcknowledgeType.RENEW: ShareEvent.RENEWED,
}


class Acknowledgement(NamedTuple):
    """What a member says of a range of offsets, up to `end`."""

    first: int
    end: int
    kind: AcknowledgeType


class FetchedBatch(NamedTuple):
    """A batch that was read, up to `end`. It is not delivered unless it `has_records` for clients."""

    first: int
    end: int
    has_records: bool = True


class AcquiredRange(NamedTuple):
    """Records that a member gets, up to `end`, and how often they were delivered, now included."""

    first: int
    end: int
    delivery_count: int


@attrs.frozen(kw_only=True)
class ShareLimits:
    """The limits of a share group.

    Attributes:
        lock_ms: How long a member has records.
        delivery_count_max: How often a record is delivered.
        in_flight_max: How many offsets there can be from the first record that has not ended to the last delivered one.
        has_dead_letters: Whether records that it gives up get dead letters.
    """

    lock_ms: int = 30_000
    delivery_count_max: int = 5
    in_flight_max: int = 2_000
    has_dead_letters: bool = False


DEFAULT_LIMITS = ShareLimits()
"""Kafka's default limits."""


class SharePartition:
    """One share partition, in one leader epoch of its log, restored from its stored state.

    `revision` is the number of changes to store. What a member has acknowledged counts when `store` of that revision,
    or of a later one, is committed. `counts` counts records by what happens to them.

    Records that are given up stay `ARCHIVING` while they wait for their dead letters, if the group has these. So the
    next leader stores what this one has not.
    """

    def __init__(self, state: ShareState, leader_epoch: int, counts: Counter[ShareEvent] | None = None) -> None:
        self.counts = Counter() if counts is None else counts
        self._may_await_letters = True  # the loaded state can have some
        self.state_id = state.state_id
        self.leader_epoch = leader_epoch
        self.revision = 0
        self._runs = RunTable(state.start_offset, restore_runs(state))
        self._next_deadline_ms: int | None = None
        self._log_start = 0

    @property
    def start_offset(self) -> int:
        """The offset of the first record whose state has not ended."""
        return self._runs.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last record that was delivered."""
        return self._runs.end_offset

    @property
    def runs(self) -> Iterable[Run]:
        """The states of the records between these offsets."""
        return self._runs

    def store(self) -> ShareState:
        """Return the state to store."""
        epoch = self.leader_epoch
        return ShareState(self.state_id, epoch, epoch, self.start_offset, store_runs(self._runs))

    def awaiting_dead_letters(self) -> list[Run]:
        """Return the records that wait for their dead letters."""
        if not self._may_await_letters:
            return []
        found = [run for run in self._runs if run.state is RecordState.ARCHIVING]
        self._may_await_letters = bool(found)
        return found

    def end_dead_letters(self, first: int, end: int) -> None:
        """Archive the records in a range that have waited for their dead letters."""
        for run in self._runs.between(first, end):
            if run.state is RecordState.ARCHIVING:
                self._runs.put(Run(run.first, run.end, RecordState.ARCHIVED))
        self.revision += 1
        self._advance()

    def next_offset(self, limits: ShareLimits) -> int | None:
        """Return the first offset that a member can acquire; None if too many records are in flight."""
        available = next((run.first for run in self._runs if run.state is RecordState.AVAILABLE), None)
        if available is None and self.end_offset - self.start_offset < limits.in_flight_max:
            return self.end_offset
        return available

    def find_end(self, count: int, end_offset: int) -> int:
        """Return the offset after a number of available records, or the end of the log if there are fewer."""
        for run in self._runs:
            if run.state is RecordState.AVAILABLE:
                if run.end - run.first >= count:
                    return min(run.first + count, end_offset)
                count -= run.end - run.first
        return min(self.end_offset + count, end_offset)

    def next_deadline_ms(self) -> int | None:
        """Return when to call `expire`: no lock expires before. It is None if no record is acquired."""
        return self._next_deadline_ms

    def acquire(
        self,
        member_id: str,
        offset: int,
        batches: Sequence[FetchedBatch],
        limits: ShareLimits,
        now_ms: int,
        *,
        records_max: int,
        range_max: int,
        is_exact: bool = False,
    ) -> list[AcquiredRange]:
        """Acquire available records for a member.

        The batches were read from an offset on that was the `next_offset`, in order. There are no records between them.
        The last batch is acquired completely, even if these are more records than `records_max`, unless the limit
        `is_exact` or too many records are in flight. The ranges returned have up to `range_max` records, unless a batch
        has more.
        """
        found, count = list[AcquiredRange](), 0
        for batch in batches:
            if count >= records_max or offset > self.end_offset:  # the one before is cut at the limit
                break
            self._archive(offset, batch.first if batch.has_records else batch.end)
            self._advance()
            if batch.first >= self.end_offset >= self.start_offset + limits.in_flight_max:
                break
            offset = batch.end
            first, end = self.end_offset, min(batch.end, self.start_offset + limits.in_flight_max)
            fresh = [Run(first, end)] if end > first else []
            first = max(batch.first, self.start_offset)
            for run in [*self._runs.between(first, batch.end), *fresh]:
                if run.state is not RecordState.AVAILABLE or not batch.has_records:
                    continue
                if run.delivery_count >= limits.delivery_count_max:  # the limit was lowered
                    self._end_delivery(run, AcknowledgeType.RELEASE, limits, now_ms)
                    self.revision += 1
                    continue
                end = min(run.end, run.first + records_max - count) if is_exact else run.end
                if end > run.first:
                    acquired = Run(run.first, end, RecordState.ACQUIRED, run.delivery_count + 1, member_id)
                    self._lock(acquired, now_ms + limits.lock_ms)
                    add_range(found, AcquiredRange(run.first, end, acquired.delivery_count), range_max)
                    count += end - run.first
        self.counts[ShareEvent.ACQUIRED] += count
        self._advance()
        return found

    def acknowledge(
        self, member_id: str, acknowledgements: Sequence[Acknowledgement], limits: ShareLimits, now_ms: int
    ) -> ErrorCode:
        """Change the state of records that a member has. Return the error; nothing changes if there is one.

        The ranges are in order, and do not overlap.
        """
        self.expire(limits, now_ms)
        previous_end = 0
        for first, end, _ in acknowledgements:
            if not previous_end <= first < end:
                return ErrorCode.INVALID_REQUEST
            previous_end = end
        if not all(self._is_acquired(member_id, first, end) for first, end, _ in acknowledgements):
            return ErrorCode.INVALID_RECORD_STATE
        for first, end, kind in acknowledgements:
            self.counts[_ACKNOWLEDGED[kind]] += end - first
            for run in self._runs.between(first, end):
                self._end_delivery(run, kind, limits, now_ms)
        self.revision += any(each.kind is not AcknowledgeType.RENEW for each in acknowledgements)
        self._advance()
        return ErrorCode.NONE

    def find_acquired(
        self,
        member_id: str,
        acknowledgements: Iterable[Acknowledgement],
        others: AcknowledgeType | None,
        limits: ShareLimits,
        now_ms: int,
    ) -> list[Acknowledgement]:
        """Return the parts of acknowledgements for records that a member has, in order.

        The ranges do not overlap. `others` is what the member says of all other records that it has; None for nothing.
        """
        self.expire(limits, now_ms)
        asked = sorted(acknowledgements)
        if others is not None:
            asked = list(_fill_gaps(asked, self.start_offset, self.end_offset, others))
        return [
            Acknowledgement(run.first, run.end, kind)
            for first, end, kind in asked
            for run in self._runs.between(first, end)
            if run.member_id == member_id
        ]

    def withdraw(self, member_id: str, ranges: Iterable[AcquiredRange]) -> None:
        """Take back records that a member has acquired, but not got. That delivery does not count."""
        for first, end, _ in ranges:
            for run in self._runs.between(first, end):
                if run.member_id == member_id:
                    self._runs.put(Run(run.first, run.end, RecordState.AVAILABLE, run.delivery_count - 1))
        self._advance()

    def count_acquired(self) -> int:
        """Return the number of acquired offsets."""
        return sum(run.end - run.first for run in self._runs if run.state is RecordState.ACQUIRED)

    def count_available(self, end_offset: int) -> int:
        """Return the number of available offsets, with those up to the end of the log that were not delivered."""
        released = sum(run.end - run.first for run in self._runs if run.state is RecordState.AVAILABLE)
        return released + max(end_offset - self.end_offset, 0)

    def release(self, member_id: str, limits: ShareLimits) -> bool:
        """Release all records that a member has. Return whether there were any."""
        return self._release([run for run in self._runs if run.member_id == member_id], limits)

    def expire(self, limits: ShareLimits, now_ms: int) -> bool:
        """Release the records whose locks have expired. Return whether there were any."""
        if self._next_deadline_ms is None or now_ms < self._next_deadline_ms:
            return False
        acquired = [run for run in self._runs if run.state is RecordState.ACQUIRED]
        expired = [run for run in acquired if run.deadline_ms <= now_ms]
        self._next_deadline_ms = min((run.deadline_ms for run in acquired if run.deadline_ms > now_ms), default=None)
        self.counts[ShareEvent.EXPIRED] += sum(run.end - run.first for run in expired)
        return self._release(expired, limits)

    def advance_log_start(self, offset: int) -> None:
        """Archive the deleted records before an offset. Members keep the records that they have acquired."""
        if offset > self._log_start:
            self._log_start = offset
            self._advance()

    def _is_acquired(self, member_id: str, first: int, end: int) -> bool:
        runs = self._runs.between(first, end)
        is_complete = bool(runs) and runs[0].first == first and runs[-1].end == end
        return is_complete and all(run.member_id == member_id and run.state is RecordState.ACQUIRED for run in runs)

    def _lock(self, run: Run, deadline_ms: int) -> None:
        """Lock acquired records until a deadline."""
        self._runs.put(attrs.evolve(run, deadline_ms=deadline_ms))
        if self._next_deadline_ms is None or deadline_ms < self._next_deadline_ms:
            self._next_deadline_ms = deadline_ms

    def _release(self, runs: Sequence[Run], limits: ShareLimits) -> bool:
        for run in runs:
            self._end_delivery(run, AcknowledgeType.RELEASE, limits, 0)
        self.revision += bool(runs)
        self._advance()
        return bool(runs)

    def _end_delivery(self, run: Run, kind: AcknowledgeType, limits: ShareLimits, now_ms: int) -> None:
        if kind is AcknowledgeType.RENEW:
            self._lock(run, now_ms + limits.lock_ms)
        elif kind is AcknowledgeType.ACCEPT:
            self._runs.put(Run(run.first, run.end, RecordState.ACKNOWLEDGED))
        elif kind is AcknowledgeType.RELEASE and run.delivery_count < limits.delivery_count_max:
            self._runs.put(Run(run.first, run.end, RecordState.AVAILABLE, run.delivery_count))
        elif kind is AcknowledgeType.GAP:
            self._runs.put(Run(run.first, run.end, RecordState.ARCHIVED))
        else:
            self.counts[ShareEvent.GIVEN_UP] += run.end - run.first
            if limits.has_dead_letters:
                self._runs.put(Run(run.first, run.end, RecordState.ARCHIVING, run.delivery_count))
                self._may_await_letters = True
            else:
                self._runs.put(Run(run.first, run.end, RecordState.ARCHIVED))

    def _archive(self, first: int, end: int) -> None:
        """Archive available offsets in a range in which there are no records. The range can be empty."""
        if first >= end:
            return
        for run in self._runs.between(first, end):
            if run.state is RecordState.AVAILABLE:
                self._runs.put(Run(run.first, run.end, RecordState.ARCHIVED))
        if end > self.end_offset:
            self._runs.put(Run(self.end_offset, end, RecordState.ARCHIVED))

    def _advance(self) -> None:
        """Advance the start offset to the first record whose state has not ended."""
        if self._log_start > self.start_offset:
            self._archive(self.start_offset, self._log_start)
        self._runs.drop_ended()


def _fill_gaps(
    ranges: Iterable[Acknowledgement], first: int, end: int, kind: AcknowledgeType
) -> Iterator[Acknowledgement]:
    """Yield ranges that are in order, and between them the rest of the offsets from the first one to the end."""
    for each in ranges:
        if first < each.first:
            yield Acknowledgement(first, each.first, kind)
        yield each
        first = max(first, each.end)
    if first < end:
        yield Acknowledgement(first, end, kind)


def add_range(ranges: list[AcquiredRange], added: AcquiredRange, range_max: int = OFFSET_MAX) -> None:
    """Add a range. It extends the last range if they have the same count and are not too large together."""
    last = ranges[-1] if ranges else AcquiredRange(-1, -1, -1)
    is_joined = (last.end, last.delivery_count) == (added.first, added.delivery_count)
    if is_joined and added.end - last.first <= range_max:
        ranges[-1] = last._replace(end=added.end)
    else:
        ranges.append(added)
