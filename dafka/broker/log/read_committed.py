"""Separates the committed record batches of a log from those of aborted transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dafka.batches import BatchHeader

Batch = tuple[BatchHeader, bytes]


def split_committed(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]]) -> Iterator[tuple[Batch, bool]]:
    """Yield the batches of a log without transaction markers, and whether each is committed.

    Args:
        batches: The batches, in order, up to the last stable offset at most.
        aborted: The producers of aborted transactions and the offsets of their first records, in order of the offsets.

    Yields:
        A batch, and whether its records are committed.
    """
    begun = 0
    aborting = set[int]()
    for header, data in batches:
        while begun < len(aborted) and aborted[begun][1] < header.end_offset:
            aborting.add(aborted[begun][0])
            begun += 1
        if header.is_control:
            aborting.discard(header.producer_id)
        else:
            yield (header, data), not header.is_transactional or header.producer_id not in aborting
