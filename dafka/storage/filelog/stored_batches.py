"""Reads record batches as they are stored: one read of the file, and no decoding."""

from __future__ import annotations

import os
from contextlib import suppress

from crc32c import crc32c

from dafka.batches import HEADER_BYTES
from dafka.storage.capabilities import StoredBatches
from dafka.storage.filelog.partition import PartitionLog
from dafka.storage.filelog.reading import LogReader
from dafka.storage.filelog.segment import CRC_END, parse_header


def read_batches(
    reader: LogReader, log: PartitionLog, first_sequence: int, end_sequence: int, bytes_max: int
) -> StoredBatches | None:
    """See `ReadsStoredBatches.read_batches`. Raises `OSError`."""
    head = log.head
    if not head.earliest <= first_sequence < head.end:
        return None
    with suppress(FileNotFoundError), reader.open_segment(log, head, first_sequence) as segment:
        block = reader.locate(segment, segment.open_buffer(), first_sequence)
        if block is None or block.first_sequence != first_sequence:
            return None
        size = max(block.size, min(bytes_max, segment.limit - block.position))
        data = memoryview(bytearray(size))
        data = data[: os.preadv(segment.fd, [data], block.position)]
        found = _select(data, first_sequence, min(end_sequence, segment.end_sequence))
        if found is not None:
            reader.keep_cursor(segment, found.end_sequence, block.position + len(found.data))
        return found
    return None


def _select(data: memoryview, sequence: int, end_sequence: int) -> StoredBatches | None:
    """Return the good batches with these sequences at the beginning of data, if there are any."""
    position, is_full = 0, False
    while sequence < end_sequence and not is_full:
        is_full = position + HEADER_BYTES > len(data)
        block = None if is_full else parse_header(data, position, position)
        if block is None or block.first_sequence != sequence or block.end_sequence > end_sequence:
            break
        is_full = block.next_position > len(data)
        if is_full or crc32c(data[position + CRC_END : block.next_position]) != block.crc:
            break
        position, sequence = block.next_position, block.end_sequence
    return StoredBatches(data[:position], sequence, is_full) if position else None
