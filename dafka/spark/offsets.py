"""Where reading begins and ends: `earliest`, `latest`, or an offset for each partition, as Spark's Kafka source has it.

An offset is a record's sequence. In Spark's checkpoints, as in options, positions are `{topic: {partition: offset}}`,
where the offset is that of the next record to be read. A name whose octets are not UTF-8 is written as `printable`
shows it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import attrs

EARLIEST = -2
LATEST = -1


PartitionName = tuple[str, str]
"""A partition: its topic and its address, as Spark's columns show them."""

Offsets = dict[str, dict[str, int]]
"""RequestedOffsets as they stand in Spark's checkpoints."""


def flatten_offsets(offsets: Offsets) -> dict[PartitionName, int]:
    """RequestedOffsets of a checkpoint, by partition."""
    return {(topic, address): offset for topic, by_address in offsets.items() for address, offset in by_address.items()}


def nest_offsets(positions: Mapping[PartitionName, int]) -> Offsets:
    """RequestedOffsets as a checkpoint has them, in order, so that the same are written alike."""
    offsets: Offsets = {}
    for (topic, address), offset in sorted(positions.items()):
        offsets.setdefault(topic, {})[address] = offset
    return offsets


def format_name(name: PartitionName) -> str:
    """A partition for a sentence."""
    return f"{name[0]}/{name[1]}"


def limit_rows(
    starts: Mapping[PartitionName, int], ends: Mapping[PartitionName, int], rows_max: int | None
) -> dict[PartitionName, int]:
    """New ends, with at most `rows_max` records before them altogether; None is no limit.

    Partitions give in proportion to what they have, as those of Spark's Kafka source do: so those that cover the same
    hours are read through them side by side, and none is late for the others' watermark. Each gives at least one
    record, so that a large partition starves none; where there are more partitions than records to take, those that
    have the most give one.
    """
    waiting = {name: end - starts[name] for name, end in ends.items() if end > starts[name]}
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return dict(ends)
    largest_first = sorted(waiting, key=lambda name: (-waiting[name], name))
    taken = dict.fromkeys(largest_first[:rows_max], 1)
    rows_left, rows_waiting = rows_max - len(taken), total - len(taken)
    if rows_left:
        shares = {name: divmod((waiting[name] - 1) * rows_left, rows_waiting) for name in taken}
        for name, (share, _) in shares.items():
            taken[name] += share
        largest_rest_first = sorted(shares, key=lambda name: (-shares[name][1], name))
        for name in largest_rest_first[: rows_max - sum(taken.values())]:
            taken[name] += 1
    return {name: starts[name] + taken.get(name, 0) for name in ends}


@attrs.frozen
class ClusterOffset:
    """Attributes:
    offsets: by partition, the offset of the next record.
    timestamp: when this was planned, in milliseconds since 1970.
    begins: where partitions begin that were not there before.
    """

    offsets: Mapping[PartitionName, int]
    timestamp: int
    begins: Mapping[PartitionName, int] = attrs.field(factory=dict)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ClusterOffset:
        """From Spark's checkpoint."""
        return cls(
            flatten_offsets(document["offsets"]), document["timestamp"], flatten_offsets(document.get("begins", {}))
        )

    def as_document(self) -> dict[str, Any]:
        """For Spark's checkpoint: the same is written alike."""
        document: dict[str, Any] = {"offsets": nest_offsets(self.offsets), "timestamp": self.timestamp}
        return {**document, "begins": nest_offsets(self.begins)} if self.begins else document

    def advance(
        self, ends: Mapping[PartitionName, int], begins: Mapping[PartitionName, int], records_max: int | None
    ) -> ClusterOffset:
        """How far the next micro-batch goes, given how far stores have come and where new partitions begin.

        New partitions of which no beginning is known wait. Gives this standing where there is nothing to read.
        """
        begun = {**begins, **self.offsets}
        known = {name: end for name, end in ends.items() if name in begun}
        taken = limit_rows(begun, known, records_max)
        reached = {name: end for name, end in taken.items() if end > begun[name]}
        if not reached:
            return self
        new = {name: begins[name] for name in reached if name not in self.offsets and begins[name]}
        # A clock that was set back must not make records late for watermarks.
        return ClusterOffset({**self.offsets, **reached}, max(now_ms(), self.timestamp), new)

    def since(self, start: ClusterOffset) -> dict[PartitionName, tuple[int, int]]:
        """The records between: by partition, the first offset and the one after the last."""
        ranges = {}
        for name, end in self.offsets.items():
            first = start.offsets.get(name, self.begins.get(name, 0))
            if end > first:
                ranges[name] = first, end
        return ranges


def now_ms() -> int:
    """The time, in milliseconds since 1970."""
    return int(time.time() * 1000)


def split_ranges(ranges: Mapping[PartitionName, tuple[int, int]], count: int) -> list[tuple[PartitionName, int, int]]:
    """At least so many pieces, if there are as many records: large ranges are cut, in proportion."""
    total = sum(end - first for first, end in ranges.values())
    pieces: list[tuple[PartitionName, int, int]] = []
    for name, (first, end) in ranges.items():
        parts = 1 if count <= len(ranges) else max(min(-(-(end - first) * count // total), end - first), 1)
        bounds = [first + (end - first) * index // parts for index in range(parts + 1)]
        pieces += [(name, begin, stop) for begin, stop in itertools.pairwise(bounds)]
    return pieces
