"""Rewriting segments of version 1 as segments of record batches.

A segment is rewritten in a temporary file, which replaces it once it is durable. Its `.stored` file is put in place
first; a segment of version 1 ignores it. So each segment is complete in one of the two forms at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from dafka.batches import ENCODED_BYTES_MAX, encode_records
from dafka.errors import EncodingError
from dafka.records import RecordBatch, join
from dafka.storage.base import Damage
from dafka.storage.filelog.files import temporary_path, write_at
from dafka.storage.filelog.index import OFFSET_MAX
from dafka.storage.filelog.partition import PartitionLog
from dafka.storage.filelog.segment import BODY_READ_BYTES, Segment
from dafka.storage.filelog.stored import StoredRow
from dafka.storage.filelog.versions import is_of_batches
from dafka.storage.filelog.writer import LogWriter

MIGRATED_RECORDS_MAX = 2**14
"""The number of records that are read and encoded together."""


class _CannotMigrateError(Exception):
    """A segment must stay as it is; the message says why."""


def find_old_segments(writer: LogWriter) -> Iterator[tuple[PartitionLog, int]]:
    """Yield the partition and the first sequence of each segment of version 1. Raises `OSError`."""
    for log in writer.list_logs(None):
        for base in log.list_bases():
            with writer.reader.open_segment(log, log.head, base) as segment:
                is_old = not is_of_batches(segment)
            if is_old:
                yield log, base


def migrate_segment(writer: LogWriter, log: PartitionLog, base: int) -> Damage | int:
    """Rewrite a segment of version 1.

    Args:
        writer: The writer of the file log.
        log: The partition.
        base: The first sequence of the segment.

    Returns:
        The number of records, or the reason why the segment was not rewritten.

    Raises:
        OSError: If a file cannot be read or written. The segment is unchanged.
    """
    temporary = temporary_path(log.log_path(base))
    try:
        with writer.reader.open_segment(log, log.head, base) as segment:
            end = segment.end_sequence
            with open(temporary, "wb", buffering=0) as file:
                rows = _write_batches(segment, file.fileno())
                os.fsync(file.fileno())
        writer.replace_segment(log, base, temporary, rows)
    except _CannotMigrateError as error:
        return Damage(log.log_path(base), f"stays as it is: {error}")
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    return end - base


def _write_batches(segment: Segment, fd: int) -> bytes:
    """Write the records of a segment to a file, and return the contents of the `.stored` file."""
    seed = segment.log.segment_seed(segment.base)
    position = content_bytes = 0
    rows: list[bytes] = []
    before: StoredRow | None = None
    for records, run_rows in _read_parts(segment):
        try:
            encoded = encode_records(records)
        except EncodingError as error:
            raise _CannotMigrateError(str(error)) from None
        write_at(fd, encoded, position)
        position += sum(map(len, encoded))
        if position > OFFSET_MAX:
            raise _CannotMigrateError(f"it would have more than {OFFSET_MAX} bytes")
        for row in run_rows:
            content_bytes += row.content_bytes
            if before is not None and before.stored_at != row.stored_at:
                rows.append(before.encode(seed))
            before = row._replace(content_bytes=content_bytes)
    if before is not None:
        rows.append(before.encode(seed))
    return b"".join(rows)


def _read_parts(segment: Segment) -> Iterator[tuple[RecordBatch, list[StoredRow]]]:
    """Yield all records of a segment, in parts, and rows with the end, time and size of each of its entries."""
    buffer = segment.open_buffer(BODY_READ_BYTES)
    expected, size = segment.base, 0
    parts: list[RecordBatch] = []
    rows: list[StoredRow] = []
    for block in segment.iterate(buffer, 0, segment.base):
        records = segment.decode(buffer, block)
        if records is None or block.first_sequence != expected:
            break
        if parts and (
            size + block.size > ENCODED_BYTES_MAX or expected - parts[0].first_sequence > MIGRATED_RECORDS_MAX
        ):
            yield join(parts), rows
            parts, rows, size = [], [], 0
        parts.append(records)
        rows.append(StoredRow(block.end_sequence, block.stored_at, block.content_bytes))
        expected, size = block.end_sequence, size + block.size
    if parts:
        yield join(parts), rows
    if expected != segment.end_sequence:
        raise _CannotMigrateError(f"it is damaged at sequence {expected}")
