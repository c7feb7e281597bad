"""Where a stream from the running cluster stands, as Spark's checkpoint keeps it, and how far a micro-batch goes.

In the checkpoint: `{"offsets": {topic: {partition: next offset}}, "timestamp": milliseconds, "begins": {...}}`. The
`timestamp` is when the micro-batch was planned: a record's time does not travel on the wire, and every record of the
micro-batch is given this one, the same when it is done again. `begins` says where partitions begin that this
micro-batch is the first to read, unless at 0.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import attrs

from dafka.spark.offsets import Name, flatten, nest


@attrs.frozen
class Standing:
    """Attributes:
    offsets: by partition, the offset of the next record.
    timestamp: when this was planned, in milliseconds since 1970.
    begins: where partitions begin that were not there before.
    """

    offsets: Mapping[Name, int]
    timestamp: int
    begins: Mapping[Name, int] = attrs.field(factory=dict)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Standing:
        """From Spark's checkpoint."""
        return cls(flatten(document["offsets"]), document["timestamp"], flatten(document.get("begins", {})))

    def as_document(self) -> dict[str, Any]:
        """For Spark's checkpoint: the same is written alike."""
        document: dict[str, Any] = {"offsets": nest(self.offsets), "timestamp": self.timestamp}
        return {**document, "begins": nest(self.begins)} if self.begins else document

    def advance(self, ends: Mapping[Name, int], begins: Mapping[Name, int], records_max: int | None) -> Standing:
        """How far the next micro-batch goes, given how far stores have come and where new partitions begin.

        New partitions of which no beginning is known wait. Gives this standing where there is nothing to read.
        """
        starts = {name: self.offsets.get(name, begins.get(name)) for name in ends}
        available = {name: ends[name] - start for name, start in starts.items() if start is not None}
        shares = share({name: count for name, count in available.items() if count > 0}, records_max)
        if not shares:
            return self
        reached = {name: (starts[name] or 0) + count for name, count in shares.items()}
        new = {name: begins[name] for name in shares if name not in self.offsets and begins[name]}
        # A clock that was set back must not make records late for watermarks.
        return Standing({**self.offsets, **reached}, max(now(), self.timestamp), new)

    def since(self, start: Standing) -> dict[Name, tuple[int, int]]:
        """The records between: by partition, the first offset and the one after the last."""
        ranges = {}
        for name, end in self.offsets.items():
            first = start.offsets.get(name, self.begins.get(name, 0))
            if end > first:
                ranges[name] = first, end
        return ranges


def now() -> int:
    """The time, in milliseconds since 1970."""
    return int(time.time() * 1000)


def share(available: Mapping[Name, int], records_max: int | None) -> dict[Name, int]:
    """How many records of each partition to take where there are too many: evenly, so that a large one starves none."""
    if records_max is None or sum(available.values()) <= records_max:
        return dict(available)
    shares = {}
    left, waiting = records_max, len(available)
    for name in sorted(available, key=lambda each: (available[each], each)):
        count = min(available[name], -(-left // waiting))
        left, waiting = left - count, waiting - 1
        if count:
            shares[name] = count
    return shares


def split(ranges: Mapping[Name, tuple[int, int]], count: int) -> list[tuple[Name, int, int]]:
    """At least so many pieces, if there are as many records: large ranges are cut, in proportion."""
    total = sum(end - first for first, end in ranges.values())
    pieces: list[tuple[Name, int, int]] = []
    for name, (first, end) in ranges.items():
        parts = 1 if count <= len(ranges) else max(min(-(-(end - first) * count // total), end - first), 1)
        bounds = [first + (end - first) * index // parts for index in range(parts + 1)]
        pieces += [(name, begin, stop) for begin, stop in itertools.pairwise(bounds)]
    return pieces
