"""What a share partition must do, offset by offset, and a log with gaps for it to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.runs import ENDED, RecordState
from dafka.broker.core.groups.share.share_partition import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRange,
    FetchedBatch,
    ShareLimits,
    SharePartition,
)


def make_log(draw: Random, end: int) -> list[FetchedBatch]:
    """Return the batches of a log. There are gaps between some, and some have no records for clients."""
    found, offset = list[FetchedBatch](), 0
    while offset < end:
        offset += draw.choice((0, 0, 0, 1, 3))
        size = draw.randint(1, 6)
        found.append(FetchedBatch(offset, offset + size, has_records=draw.random() < 0.85))
        offset += size
    return found


def read(log: Sequence[FetchedBatch], draw: Random, offset: int, end: int) -> list[FetchedBatch]:
    """Return some batches from an offset on, as a read of the log up to its end does."""
    rest = [each for each in log if each.end > offset]
    return rest[: draw.randint(1, 4)] or [FetchedBatch(offset, end, has_records=False)]


@attrs.define
class Offset:
    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    member_id: str = ""
    deadline_ms: int = 0


class Model:
    """A share partition with one object for each offset."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.log_start = 0
        self.offsets: dict[int, Offset] = {}
        self.given_up: set[int] = set()

    @property
    def end(self) -> int:
        return self.start + len(self.offsets)

    def next_offset(self, limits: ShareLimits) -> int | None:
        for number in range(self.start, self.end):
            if self.offsets[number].state is RecordState.AVAILABLE:
                return number
        return self.end if len(self.offsets) < limits.in_flight_max else None

    def acquire(
        self,
        member_id: str,
        offset: int,
        batches: Sequence[FetchedBatch],
        limits: ShareLimits,
        now_ms: int,
        records_max: int,
        is_exact: bool,
    ) -> list[tuple[int, int]]:
        """Return the offsets acquired, each with its count."""
        found: list[tuple[int, int]] = []
        for batch in batches:
            if len(found) >= records_max or offset > self.end:
                break
            for number in range(offset, batch.first if batch.has_records else batch.end):
                self._archive(number)
            self._advance()
            if batch.first >= self.end and len(self.offsets) >= limits.in_flight_max:
                break
            offset = batch.end
            for number in range(max(batch.first, self.start), batch.end if batch.has_records else 0):
                if number >= self.end:
                    if len(self.offsets) >= limits.in_flight_max or (is_exact and len(found) >= records_max):
                        break
                    self.offsets[number] = Offset()
                each = self.offsets[number]
                if each.state is RecordState.AVAILABLE and each.count >= limits.delivery_count_max:
                    self._end(number, AcknowledgeType.RELEASE, limits, now_ms)
                elif each.state is RecordState.AVAILABLE and not (is_exact and len(found) >= records_max):
                    self.offsets[number] = Offset(
                        RecordState.ACQUIRED, each.count + 1, member_id, now_ms + limits.lock_ms
                    )
                    found.append((number, each.count + 1))
        self._advance()
        return found

    def acknowledge(
        self, member_id: str, acknowledgements: Sequence[Acknowledgement], limits: ShareLimits, now_ms: int
    ) -> ErrorCode:
        self.expire(limits, now_ms)
        named = [number for first, end, _ in acknowledgements for number in range(first, end)]
        if named != sorted(set(named)) or min(named, default=0) < 0:
            return ErrorCode.INVALID_REQUEST
        for number in named:
            each = self.offsets.get(number, Offset())
            if each.state is not RecordState.ACQUIRED or each.member_id != member_id:
                return ErrorCode.INVALID_RECORD_STATE
        for first, end, kind in acknowledgements:
            for number in range(first, end):
                self._end(number, kind, limits, now_ms)
        self._advance()
        return ErrorCode.NONE

    def acquired_by(self, member_id: str) -> list[int]:
        return [number for number, each in self.offsets.items() if each.member_id == member_id]

    def withdraw(self, member_id: str, numbers: Iterable[int]) -> None:
        for number in set(numbers) & set(self.acquired_by(member_id)):
            self.offsets[number] = Offset(count=self.offsets[number].count - 1)
        self._advance()

    def release(self, member_id: str, limits: ShareLimits) -> None:
        for number, each in self.offsets.items():
            if each.state is RecordState.ACQUIRED and each.member_id == member_id:
                self._end(number, AcknowledgeType.RELEASE, limits, 0)
        self._advance()

    def expire(self, limits: ShareLimits, now_ms: int) -> None:
        for number, each in self.offsets.items():
            if each.state is RecordState.ACQUIRED and each.deadline_ms <= now_ms:
                self._end(number, AcknowledgeType.RELEASE, limits, 0)
        self._advance()

    def advance_log_start(self, offset: int) -> None:
        self.log_start = max(self.log_start, offset)
        self._advance()

    def restart(self) -> None:
        """Forget the deliveries that have not ended, and what was never delivered."""
        for number, each in self.offsets.items():
            if each.state is RecordState.ACQUIRED:
                self.offsets[number] = Offset(count=each.count - 1)
        while self.offsets and self.offsets[self.end - 1] == Offset():
            del self.offsets[self.end - 1]

    def _end(self, number: int, kind: AcknowledgeType, limits: ShareLimits, now_ms: int) -> None:
        each = self.offsets[number]
        if kind is AcknowledgeType.RENEW:
            self.offsets[number] = attrs.evolve(each, deadline_ms=now_ms + limits.lock_ms)
        elif kind is AcknowledgeType.ACCEPT:
            self.offsets[number] = Offset(RecordState.ACKNOWLEDGED)
        elif kind is AcknowledgeType.RELEASE and each.count < limits.delivery_count_max:
            self.offsets[number] = Offset(count=each.count)
        elif kind is not AcknowledgeType.GAP and limits.has_dead_letters:
            self.offsets[number] = Offset(RecordState.ARCHIVING, each.count)
            self.given_up.add(number)
        else:
            self.offsets[number] = Offset(RecordState.ARCHIVED)
            self.given_up |= set() if kind is AcknowledgeType.GAP else {number}

    def end_dead_letters(self, first: int, end: int) -> None:
        for number in range(first, end):
            if self.offsets.get(number, Offset()).state is RecordState.ARCHIVING:
                self.offsets[number] = Offset(RecordState.ARCHIVED)
        self._advance()

    def _archive(self, number: int) -> None:
        if number >= self.start and self.offsets.get(number, Offset()).state is RecordState.AVAILABLE:
            self.offsets[number] = Offset(RecordState.ARCHIVED)

    def _advance(self) -> None:
        for number in range(self.start, self.log_start):
            self._archive(number)
        while self.offsets and self.offsets[self.start].state in ENDED:
            del self.offsets[self.start]
            self.start += 1


def expand(partition: SharePartition) -> dict[int, Offset]:
    """Return what a share partition says of each offset."""
    return {
        number: Offset(run.state, run.delivery_count, run.member_id, run.deadline_ms)
        for run in partition.runs
        for number in range(run.first, run.end)
    }


def expand_ranges(ranges: Sequence[AcquiredRange]) -> list[tuple[int, int]]:
    return [(number, count) for first, end, count in ranges for number in range(first, end)]
