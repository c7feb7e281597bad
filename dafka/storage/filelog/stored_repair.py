"""Making the `.stored` file of a segment fit it again after a power failure or damage."""

from __future__ import annotations

import os
from collections.abc import Callable

from dafka.storage.filelog.files import replace_file, write_at
from dafka.storage.filelog.segment import Segment
from dafka.storage.filelog.stored import ROW_BYTES, StoredRow, StoredRows
from dafka.storage.plugin_helpers import now_ms


def repair_stored_file(
    segment: Segment, latest_at: int, find_later_time: Callable[[], int] = now_ms
) -> tuple[int, StoredRow]:
    """Make the `.stored` file of a segment fit it, and return its size in bytes and its last row. Raises `OSError`.

    The last record was stored at `latest_at` or later. If no record with a row comes before records without one, they
    count as stored at `find_later_time()`.
    """
    log, base = segment.log, segment.base
    with segment.pool.open_file(log.stored_path(base), is_created=True) as fd:
        rows = StoredRows(fd, base, log.segment_seed(base))
        return repair_rows(fd, rows, segment.end_sequence, segment.count_bytes, latest_at, find_later_time)


def repair_rows(
    fd: int,
    rows: StoredRows,
    end_sequence: int,
    count_bytes: Callable[[int, int], int],
    latest_at: int,
    find_later_time: Callable[[], int],
) -> tuple[int, StoredRow]:
    """Make the rows of a file fit a segment with this end; see `repair_stored_file`."""
    size = os.fstat(fd).st_size
    kept, last, missing = 0, StoredRow(rows.base, 0, 0), b""
    if end_sequence > rows.base:
        kept = rows.find_sequence(end_sequence - 1)
        row = rows.row_at(kept) if kept < rows.count else None
        if row is not None and row.end_sequence == end_sequence and row.stored_at >= latest_at:
            kept, last = kept + 1, row
        else:
            before = rows.last_before(kept)
            stored_at = max(latest_at, before.stored_at if row is None else row.stored_at) or find_later_time()
            content_bytes = before.content_bytes + count_bytes(before.end_sequence, end_sequence)
            last = StoredRow(end_sequence, stored_at, content_bytes)
            missing = last.encode(rows.seed)
    if kept * ROW_BYTES < size:
        os.ftruncate(fd, kept * ROW_BYTES)
    if missing:
        write_at(fd, [missing], kept * ROW_BYTES)
    return kept * ROW_BYTES + len(missing), last


def drop_bad_rows(segment: Segment) -> None:
    """Rewrite the `.stored` file of a segment without rows that are damaged or contradict others. Raises `OSError`.

    After a power failure, a row may be there that an append wrote and took back, and that the row of a later append
    has replaced.
    """
    log, base = segment.log, segment.base
    path, seed = log.stored_path(base), log.segment_seed(base)
    with segment.pool.open_file(path, is_created=True) as fd:
        rows = StoredRows(fd, base, seed)
        good = drop_replaced([row for _, row in rows.iterate(0)])
    if len(good) < rows.count:
        replace_file(path, b"".join([row.encode(seed) for row in good]))
        segment.pool.drop(path)


def drop_replaced(rows: list[StoredRow]) -> list[StoredRow]:
    """Drop each row with an earlier time than one before it, or with no lower end than one after it."""
    in_time: list[StoredRow] = []
    for row in rows:
        if not in_time or row.stored_at >= in_time[-1].stored_at:
            in_time.append(row)
    kept: list[StoredRow] = []
    for row in reversed(in_time):
        if not kept or row.end_sequence < kept[-1].end_sequence:
            kept.append(row)
    return kept[::-1]
