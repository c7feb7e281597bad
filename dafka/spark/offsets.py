"""Offsets of streaming queries: their form in Spark's checkpoints, and how far a micro-batch reads.

An offset is a record's sequence. Offsets are written as `{topic: {partition: offset}}`, where the offset is that of
the next record to read. `escape_name` says how names that are not UTF-8 are written.

A stream of stores keeps exactly this in its checkpoint. A stream of a running cluster keeps a `ClusterOffset`:
`{"offsets": {topic: {partition: next offset}}, "timestamp": milliseconds, "begins": {topic: {partition: offset}}}`.
`timestamp` is when the micro-batch was planned. The wire carries no record times, so all records of the micro-batch
get this one, also if the micro-batch is run again. `begins` has the first offset of each partition that this
micro-batch is the first to read, unless it is 0.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import attrs

EARLIEST = -2
"""The offset that means the first record held, as in Spark's Kafka source."""

LATEST = -1
"""The offset that means the end of the partition, as in Spark's Kafka source."""

PartitionName = tuple[str, str]
"""A partition's topic and address, as they appear in Spark's columns."""

Offsets = dict[str, dict[str, int]]
"""Offsets by topic and partition, as in Spark's checkpoints."""


def flatten_offsets(offsets: Offsets) -> dict[PartitionName, int]:
    """Return the offsets of a checkpoint by partition."""
    return {(topic, address): offset for topic, by_address in offsets.items() for address, offset in by_address.items()}


def nest_offsets(by_partition: Mapping[PartitionName, int]) -> Offsets:
    """Return offsets in the form of a checkpoint, sorted, so that equal offsets are written as equal text."""
    offsets: Offsets = {}
    for (topic, address), offset in sorted(by_partition.items()):
        offsets.setdefault(topic, {})[address] = offset
    return offsets


def format_name(name: PartitionName) -> str:
    """Return a partition's name as it is written in messages."""
    return f"{name[0]}/{name[1]}"


def limit_rows(
    starts: Mapping[PartitionName, int], ends: Mapping[PartitionName, int], rows_max: int | None
) -> dict[PartitionName, int]:
    """Limit a micro-batch to `rows_max` records in total.

    As in Spark's Kafka source, each partition contributes in proportion to its unread records. Partitions that cover
    the same hours are therefore read at the same pace, and none falls behind the watermark of the others. Each
    partition contributes at least one record, so that a large one does not starve the rest. If there are more
    partitions than `rows_max`, the largest contribute one record each.

    Args:
        starts: The offset of the next record of each partition.
        ends: The offset after the last record that is available.
        rows_max: The limit in records, or None for no limit.

    Returns:
        The offset after the last record that the micro-batch reads of each partition.
    """
    unread = {name: end - starts[name] for name, end in ends.items() if end > starts[name]}
    total = sum(unread.values())
    if rows_max is None or total <= rows_max:
        return dict(ends)
    largest_first = sorted(unread, key=lambda name: (-unread[name], name))
    taken = dict.fromkeys(largest_first[:rows_max], 1)
    rows_left, rows_unread = rows_max - len(taken), total - len(taken)
    if rows_left:
        shares = {name: divmod((unread[name] - 1) * rows_left, rows_unread) for name in taken}
        for name, (share, _) in shares.items():
            taken[name] += share
        largest_remainder_first = sorted(shares, key=lambda name: (-shares[name][1], name))
        for name in largest_remainder_first[: rows_max - sum(taken.values())]:
            taken[name] += 1
    return {name: starts[name] + taken.get(name, 0) for name in ends}


@attrs.frozen
class ClusterOffset:
    """The position of a stream that reads a running cluster, as Spark's checkpoint keeps it.

    Attributes:
        offsets: The offset of the next record, by partition.
        timestamp: The time at which the micro-batch that ends here was planned, in milliseconds since 1970.
        first_offsets: The first offset of partitions that this micro-batch is the first to read, unless it is 0.
    """

    offsets: Mapping[PartitionName, int]
    timestamp: int
    first_offsets: Mapping[PartitionName, int] = attrs.field(factory=dict)

    @classmethod
    def from_checkpoint(cls, document: Mapping[str, Any]) -> ClusterOffset:
        """Return the offset that a checkpoint's document describes."""
        return cls(
            flatten_offsets(document["offsets"]), document["timestamp"], flatten_offsets(document.get("begins", {}))
        )

    def to_checkpoint(self) -> dict[str, Any]:
        """Return the document for a checkpoint; equal offsets give equal documents."""
        document: dict[str, Any] = {"offsets": nest_offsets(self.offsets), "timestamp": self.timestamp}
        return {**document, "begins": nest_offsets(self.first_offsets)} if self.first_offsets else document

    def advance(
        self, ends: Mapping[PartitionName, int], earliest: Mapping[PartitionName, int], rows_max: int | None
    ) -> ClusterOffset:
        """Plan the next micro-batch.

        Args:
            ends: The offset after the last stored record of each partition.
            earliest: The first offset of new partitions. New partitions that are not among them are left for later.
            rows_max: The limit of the micro-batch in records, or None for no limit.

        Returns:
            The offset at which the micro-batch ends; this one if there is nothing to read.
        """
        starts = {**earliest, **self.offsets}
        known = {name: end for name, end in ends.items() if name in starts}
        limited = limit_rows(starts, known, rows_max)
        reached = {name: end for name, end in limited.items() if end > starts[name]}
        if not reached:
            return self
        new = {name: earliest[name] for name in reached if name not in self.offsets and earliest[name]}
        # If the clock was set back, the records must not be late for the query's watermark.
        return ClusterOffset({**self.offsets, **reached}, max(now_ms(), self.timestamp), new)

    def ranges_since(self, start: ClusterOffset) -> dict[PartitionName, tuple[int, int]]:
        """Return the records from `start` up to here: the first offset and the end offset of each partition."""
        ranges = {}
        for name, end in self.offsets.items():
            first = start.offsets.get(name, self.first_offsets.get(name, 0))
            if end > first:
                ranges[name] = first, end
        return ranges


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return int(time.time() * 1000)


def split_ranges(ranges: Mapping[PartitionName, tuple[int, int]], count: int) -> list[tuple[PartitionName, int, int]]:
    """Split ranges in proportion to their sizes into at least `count` pieces, if there are as many records."""
    total = sum(end - first for first, end in ranges.values())
    pieces: list[tuple[PartitionName, int, int]] = []
    for name, (first, end) in ranges.items():
        parts = 1 if count <= len(ranges) else max(min(-(-(end - first) * count // total), end - first), 1)
        bounds = [first + (end - first) * index // parts for index in range(parts + 1)]
        pieces += [(name, start, stop) for start, stop in itertools.pairwise(bounds)]
    return pieces
