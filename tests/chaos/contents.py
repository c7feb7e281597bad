"""The contents that producers publish. Each contains its partition and sequence; their lengths vary."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from dafka.records import RecordBatch

_FILLER = b"the quick brown fox jumps over the lazy dog, and the dog never notices"

_SHOWN = 60
"""Bytes of a wrong content that are shown."""


def contents_of(address: str, first: int, end: int) -> list[bytes]:
    prefix = address[:8].encode() + b":%d:"
    filler = _FILLER
    return [prefix % sequence + filler[: 20 + sequence * 7919 % 50] for sequence in range(first, end)]


def find_wrong(batch: RecordBatch) -> str:
    """Return what is wrong with the contents of a batch; empty if they are right."""
    expected = contents_of(batch.partition.address, batch.first_sequence, batch.end_sequence)
    found = list(batch.values)
    if found == expected:
        return ""
    for sequence, (is_content, ought) in enumerate(zip(found, expected, strict=True), batch.first_sequence):
        if is_content != ought:
            return f"record {sequence} of {batch.partition} is {(is_content or b'')[:_SHOWN]!r}, not {ought[:_SHOWN]!r}"
    return ""


@attrs.define
class Sequel:
    """The records delivered of each partition, which must follow each other without a gap.

    Attributes:
        ends: The next sequence, by address.
    """

    ends: dict[str, int] = attrs.field(factory=dict)

    def take(self, batch: RecordBatch) -> str:
        """Return what is wrong with a batch; empty if it is right. The first one of a partition may begin anywhere."""
        address = batch.partition.address
        expected = self.ends.get(address, batch.first_sequence)
        self.ends[address] = max(expected, batch.end_sequence)
        if batch.first_sequence < expected:
            return f"record {batch.first_sequence} of {batch.partition} came again, after {expected - 1}"
        if batch.first_sequence > expected:
            return f"record {batch.first_sequence} of {batch.partition} came where {expected} was due"
        return find_wrong(batch)

    def take_all(self, batches: Iterable[RecordBatch]) -> list[str]:
        return [problem for batch in batches if (problem := self.take(batch))]
