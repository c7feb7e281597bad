"""A storage as lists in memory: what every storage must hold after any history, worked out record by record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from dafka.records import Partition, Record, record_bytes
from dafka.storage import PartitionInfo, RetentionPolicy


@attrs.define
class Log:
    """The records of one partition from `earliest` on; `removed` has the sequences that compaction has removed."""

    earliest: int
    records: list[Record] = attrs.field(factory=list)
    removed: set[int] = attrs.field(factory=set)
    latest_at: int = 0

    @property
    def end(self) -> int:
        return self.earliest + len(self.records)

    def append(self, records: Sequence[Record]) -> None:
        """Append records; times that go back are raised to the latest one."""
        for record in records:
            assert record.stored_at is not None
            self.latest_at = max(self.latest_at, record.stored_at)
            self.records.append(attrs.evolve(record, stored_at=self.latest_at))

    def drop_before(self, sequence: int) -> None:
        count = min(max(sequence - self.earliest, 0), len(self.records))
        del self.records[:count]
        self.earliest += count

    def reset(self, sequence: int) -> None:
        self.earliest, self.records = sequence, []

    def is_held(self, sequence: int) -> bool:
        """Return whether a record is there, and compaction has not removed it."""
        return self.earliest <= sequence < self.end and sequence not in self.removed

    def between(self, first: int, end: int) -> list[Record]:
        records = self.records[max(first - self.earliest, 0) : max(end - self.earliest, 0)]
        return [each for each in records if each.sequence not in self.removed]

    def content_bytes(self, first: int = 0) -> int:
        return sum(map(record_bytes, self.between(first, self.end)))

    def times(self) -> list[int]:
        return [each.stored_at or 0 for each in self.records]

    def info(self) -> PartitionInfo:
        times = self.times()
        edges = (times[0], times[-1]) if times else (None, None)
        return PartitionInfo(self.earliest, self.end, self.content_bytes(), *edges)

    def by_time(self, time_ms: int) -> int:
        """Return the first sequence that was stored at a time or later; the end if there is none."""
        return next((sequence for sequence, at in enumerate(self.times(), self.earliest) if at >= time_ms), self.end)

    def made_at(self, time_ms: int, clock_error_ms: int) -> int | None:
        """Return the first record made at a time or later, among those stored not much earlier."""
        first = self.by_time(max(time_ms - clock_error_ms, 0))
        for record in self.between(first, self.end):
            made_at = record.stored_at if record.timestamp is None else record.timestamp
            if made_at is not None and made_at >= time_ms:
                return record.sequence
        return None

    def skip_removed(self, sequence: int) -> int:
        """Return the first sequence from this one on that is held, or the end."""
        while sequence < self.end and sequence in self.removed:
            sequence += 1
        return sequence

    def is_exceeded(self, policy: RetentionPolicy, now: int, first: int) -> bool:
        """Return whether the records from a sequence on exceed a policy."""
        return first < self.end and (
            (policy.age_ms is not None and self.times()[first - self.earliest] < now - policy.age_ms)
            or (policy.records_max is not None and self.end - first > policy.records_max)
            or (policy.bytes_max is not None and self.content_bytes(first) > policy.bytes_max)
        )

    def kept_from(self, policy: RetentionPolicy, now: int) -> int:
        """Return the first record that an exact storage keeps: one after the other is dropped while it must be."""
        first = self.earliest
        while self.is_exceeded(policy, now, first):
            first += 1
        return first

    def kept_from_segments(self, policy: RetentionPolicy, now: int, bases: Sequence[int]) -> int:
        """Return the first record that a storage keeps that drops whole segments, all but the last one.

        All records go if all of them are too old, or if a limit is 0.
        """
        if not self.is_exceeded(policy, now, self.earliest):
            return self.earliest
        cut_at = -1 if policy.age_ms is None else now - policy.age_ms
        if max(self.times()) < cut_at or policy.records_max == 0 or (policy.bytes_max == 0 and self.content_bytes()):
            return self.end
        return self.end_of_surplus(policy, now, bases[1:])

    def end_of_surplus(self, policy: RetentionPolicy, now: int, ends: Sequence[int]) -> int:
        """Return the end of the last of the first segments, with these ends, that must go; the earliest if none must.

        A segment goes if those after it fill the limits, or if it is too old.
        """
        cut_at = -1 if policy.age_ms is None else now - policy.age_ms
        first = self.earliest
        for end in ends:
            is_filled = (policy.records_max is not None and self.end - end >= policy.records_max) or (
                policy.bytes_max is not None and self.content_bytes(end) >= policy.bytes_max
            )
            if end <= first or not (is_filled or self.times()[end - 1 - self.earliest] < cut_at):
                break
            first = end
        return first


@attrs.define
class Model:
    """All partitions, and the positions of consumers."""

    logs: dict[Partition, Log] = attrs.field(factory=dict)
    positions: dict[str, dict[Partition, int]] = attrs.field(factory=dict)

    def of_topic(self, topic: str | None) -> dict[Partition, Log]:
        return {each: log for each, log in self.logs.items() if topic is None or each.topic == topic}

    def retain(
        self, policy: RetentionPolicy, now: int, topic: str | None, kept: Callable[[Partition, Log], int]
    ) -> dict[Partition, int]:
        """Drop what `kept` does not keep, and return what `Storage.apply_retention` returns."""
        moved = {}
        for partition, log in self.of_topic(topic).items():
            first = kept(partition, log)
            if first > log.earliest:
                moved[partition] = first
                log.drop_before(first)
        return moved
