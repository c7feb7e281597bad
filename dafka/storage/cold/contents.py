"""What a cold tier holds, by partition: an index of the segments of a manifest."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence

import attrs

from dafka.records import Partition
from dafka.storage.base import PartitionInfo, RetentionPolicy
from dafka.storage.cold.segments import Segment


@attrs.frozen
class ColdRange:
    """The records of a partition in the cold tier: segments in order, each of which continues the one before."""

    segments: tuple[Segment, ...]
    content_bytes: int
    object_bytes: int

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> ColdRange:
        """Return the range of at least one segment, which may come in any order."""
        ordered = tuple(sorted(segments, key=lambda each: each.first))
        return cls(ordered, sum(each.content_bytes for each in ordered), sum(each.object_bytes for each in ordered))

    @property
    def start(self) -> int:
        """The sequence of the first record."""
        return self.segments[0].start

    @property
    def end(self) -> int:
        """The sequence after the last record."""
        return self.segments[-1].end

    @property
    def count(self) -> int:
        """The number of records."""
        return self.end - self.start

    def find(self, sequence: int) -> Segment | None:
        """Return the segment with a record; None if there is none."""
        if not self.start <= sequence < self.end:
            return None
        return self.segments[bisect_right(self.segments, sequence, key=lambda each: each.first) - 1]

    def find_by_time(self, stored_at: int) -> Segment | None:
        """Return the first segment with a record that was stored at a time or later; None if all are older."""
        number = bisect_left(self.segments, stored_at, key=lambda each: each.last_at)
        return self.segments[number] if number < len(self.segments) else None

    def is_apart(self, hot: PartitionInfo) -> bool:
        """Return whether records between the cold tier and the hot storage are missing: only the latter counts then."""
        return hot.earliest_sequence > self.end

    def find_surplus(self, both: PartitionInfo, policy: RetentionPolicy, cut_at: int | None) -> Sequence[Segment]:
        """Return the segments that a policy does not keep, the oldest ones.

        `both` describes the partition in both tiers. Records that were stored before `cut_at` are too old.
        """
        records, content_bytes = both.count, both.content_bytes
        for number, segment in enumerate(self.segments):
            records -= segment.count
            content_bytes -= segment.content_bytes
            is_old = cut_at is not None and segment.last_at < cut_at
            is_many = policy.records_max is not None and records >= policy.records_max
            is_large = policy.bytes_max is not None and content_bytes >= policy.bytes_max
            if not (is_old or is_many or is_large):
                return self.segments[:number]
        return self.segments


class ColdContents:
    """The ranges of all partitions. Changing it replaces them, so that a range that was returned stays as it is."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._ranges: dict[str, dict[Partition, ColdRange]] = {}
        self.replace((), list(segments))

    def find(self, partition: Partition) -> ColdRange | None:
        """Return what is held of a partition; None if nothing is."""
        return self._ranges.get(partition.topic, {}).get(partition)

    def find_segment(self, partition: Partition, sequence: int) -> Segment | None:
        """Return the segment with a record; None if there is none."""
        found = self.find(partition)
        return None if found is None else found.find(sequence)

    def ranges(self, topic: str | None = None) -> dict[Partition, ColdRange]:
        """Return what is held of all partitions, or of those of a topic."""
        if topic is not None:
            return dict(self._ranges.get(topic, {}))
        return {partition: found for ranges in self._ranges.values() for partition, found in ranges.items()}

    def replace(self, removed: Collection[Segment], added: Sequence[Segment]) -> None:
        """Remove segments, and add others, which may be there already."""
        gone = {*removed, *added}
        changed: dict[Partition, list[Segment]] = {}
        for segment in (*removed, *added):
            if segment.partition not in changed:
                found = self.find(segment.partition)
                kept = () if found is None else found.segments
                changed[segment.partition] = [each for each in kept if each not in gone]
        for segment in added:
            changed[segment.partition].append(segment)
        for partition, segments in changed.items():
            ranges = self._ranges.setdefault(partition.topic, {})
            if segments:
                ranges[partition] = ColdRange.of(segments)
            else:
                ranges.pop(partition, None)
                if not ranges:
                    del self._ranges[partition.topic]
