"""Offsets of streaming queries: their form in Spark's checkpoints, and the ranges of micro-batches.

An offset is a record's sequence. Offsets are written as `{topic: {partition: offset}}`, with the offset of the next
record to read. `escape_name` defines the form of names that are not UTF-8.

Spark's checkpoint has the end of each micro-batch, and a repeated micro-batch is planned only from it: for the first
micro-batch of a query, Spark does not even keep the start. The end is a `StreamOffset`, written as

- `offsets`: the next offset of each partition;
- `begins`: the first offset of each partition that the micro-batch reads;
- `tasks`: the minimum number of tasks of the micro-batch;
- `timestamp`: when it was planned, in milliseconds since 1970. The wire carries no times of storing, so all records
  from a running cluster get this time, even if the micro-batch is repeated;
- `unread` and `stores`, if stores are followed: the stored but unread records, and the identities of the stores.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import attrs

from dafka.errors import ConfigError
from dafka.records import Partition
from dafka.storage.arrow import escape_name
from dafka.storage.plugin_helpers import now_ms

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


def name_partition(partition: Partition) -> PartitionName:
    """Return a partition's topic and address, escaped."""
    return escape_name(partition.topic), escape_name(partition.address)


def format_name(name: PartitionName) -> str:
    """Return a partition's name as it is written in messages."""
    return f"{name[0]}/{name[1]}"


def limit_rows(
    starts: Mapping[PartitionName, int], ends: Mapping[PartitionName, int], rows_max: int | None
) -> dict[PartitionName, int]:
    """Limit a micro-batch to `rows_max` records in total.

    As in Spark's Kafka source, each partition contributes in proportion to its unread records. Partitions that cover
    the same hours are therefore read at the same pace, and no partition is late for the watermark of the others. Each
    partition contributes at least one record, so that a large one does not starve the rest. If there are more
    partitions than `rows_max`, the largest contribute one record each.

    Return the offset after the last record that the micro-batch reads of each partition.
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


@attrs.frozen(kw_only=True)
class StreamOffset:
    """The position of a stream, and all data on which the micro-batch that ends there depends.

    The module describes the fields. `unread` has the ends of partitions with stored records after this position.
    """

    offsets: Mapping[PartitionName, int]
    begins: Mapping[PartitionName, int] = attrs.field(factory=dict)
    tasks_min: int
    timestamp: int
    unread: Mapping[PartitionName, int] = attrs.field(factory=dict)
    stores: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def from_checkpoint(cls, document: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that a checkpoint's document describes; raise `ConfigError` if the document is invalid."""
        try:
            return cls(
                offsets=flatten_offsets(document["offsets"]),
                begins=flatten_offsets(document["begins"]),
                tasks_min=document["tasks"],
                timestamp=document["timestamp"],
                unread=flatten_offsets(document.get("unread", {})),
                stores=document.get("stores", {}),
            )
        except KeyError as error:
            raise ConfigError(
                f"option checkpointLocation: the checkpoint has an offset without {error}, of an earlier version of "
                "dafka; start the query with a new checkpoint, and with startingOffsets"
            ) from None

    def to_checkpoint(self) -> dict[str, Any]:
        """Return the document for a checkpoint; equal offsets give equal documents."""
        document: dict[str, Any] = {
            "offsets": nest_offsets(self.offsets),
            "begins": nest_offsets(self.begins),
            "tasks": self.tasks_min,
            "timestamp": self.timestamp,
        }
        if self.unread:
            document["unread"] = nest_offsets(self.unread)
        if self.stores:
            document["stores"] = dict(sorted(self.stores.items()))
        return document

    def advance(
        self,
        ends: Mapping[PartitionName, int],
        earliest: Mapping[PartitionName, int],
        rows_max: int | None,
        tasks_min: int,
    ) -> StreamOffset:
        """Return the offset at which the next micro-batch ends; this one if there is nothing to read.

        `earliest` has the first offset of new partitions. Other new partitions are read later.
        """
        starts = {**earliest, **self.offsets}
        known = {name: end for name, end in ends.items() if name in starts}
        limited = limit_rows(starts, known, rows_max)
        reached = {name: end for name, end in limited.items() if end > starts[name]}
        if not reached:
            return self
        return StreamOffset(
            offsets={**self.offsets, **reached},
            begins={name: starts[name] for name in reached},
            tasks_min=tasks_min,
            # If the clock was set back, the records must not be late for the query's watermark.
            timestamp=max(now_ms(), self.timestamp),
        )

    def ranges(self) -> dict[PartitionName, tuple[int, int]]:
        """Return the first offset and the end offset of each partition that the micro-batch reads."""
        return {name: (first, self.offsets[name]) for name, first in sorted(self.begins.items())}


def split_ranges(ranges: Mapping[PartitionName, tuple[int, int]], count: int) -> list[tuple[PartitionName, int, int]]:
    """Split ranges in proportion to their sizes into at least `count` pieces, if there are as many records."""
    total = sum(end - first for first, end in ranges.values())
    pieces: list[tuple[PartitionName, int, int]] = []
    for name, (first, end) in ranges.items():
        parts = 1 if count <= len(ranges) else max(min(-(-(end - first) * count // total), end - first), 1)
        bounds = [first + (end - first) * index // parts for index in range(parts + 1)]
        pieces += [(name, start, stop) for start, stop in itertools.pairwise(bounds)]
    return pieces
