"""Inserting the records of a batch by one INSERT.

SQLite processes all rows of a statement without the interpreter lock, which stepping row by row would pass back and
forth with the event loop. So each column is bound as a whole, and an expression extracts the value of each row. The
rows come from a JSON array with an element for each record. The first irregular column, such as contents of different
lengths, has its numbers in that array. Each other irregular column has a table of digits, which is slower.
"""

from __future__ import annotations

import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from dafka.packed_bytes import Repeated, has_null, pack
from dafka.records import NO_TIMESTAMP, Header, RecordBatch
from dafka.storage.sqlite.headers import encode_headers

INSERT_BYTES_MAX = 16 * 2**20
"""The maximum size of the records in one INSERT, in bytes. They are copied once; SQLite's own limit is 10^9 bytes."""

INSERT_RECORDS_MAX = 50_000
"""The maximum number of records in one INSERT."""

RUNS_MAX = 8
"""The maximum number of runs of equal numbers in a column that the positions of the rows distinguish."""

NUMBER_DIGITS = 20
"""The width of a number in a table of digits: any number of 64 bits, with its sign."""

_INTO = "INSERT INTO records (partition_id, sequence, stored_at, content, key, headers, timestamp)"

_INSERT_ONE = f"{_INTO} VALUES (?, ?, ?, ?, ?, ?, ?)"


def insert_records(writer: sqlite3.Connection, row_id: int, batch: RecordBatch, stored_at: int | Sequence[int]) -> None:
    """Insert the records of a batch in the open transaction. They have one time of storing, or each has its own."""
    for run in batch.held_runs():
        for first in range(run.first_sequence, run.end_sequence, INSERT_RECORDS_MAX):
            for part in run.between(first, first + INSERT_RECORDS_MAX).parts(INSERT_BYTES_MAX):
                start = part.first_sequence - batch.first_sequence
                times = stored_at if isinstance(stored_at, int) else stored_at[start : start + len(part)]
                _insert_part(writer, row_id, part, times)


def _insert_part(writer: sqlite3.Connection, row_id: int, part: RecordBatch, stored_at: int | Sequence[int]) -> None:
    headers = _encode_all(part.headers)
    if len(part) == 1:
        (record,) = part
        time_ms = stored_at if isinstance(stored_at, int) else stored_at[0]
        text = None if headers is None else headers[0]
        row = (row_id, part.first_sequence, time_ms, record.value, record.key, text, record.timestamp)
        writer.execute(_INSERT_ONE, row)
        return
    rows = _Rows(len(part))
    columns = (
        rows.constant(row_id),
        f"{rows.constant(part.first_sequence)} + key",
        rows.constant(stored_at) if isinstance(stored_at, int) else rows.numbers(stored_at),
        rows.blobs(part.values),
        "NULL" if part.keys is None else rows.blobs(part.keys),
        "NULL" if headers is None else rows.texts(headers),
        "NULL" if part.timestamps is None else rows.numbers(part.timestamps),
    )
    writer.execute(f"{_INTO} SELECT {', '.join(columns)} FROM json_each(?1)", rows.parameters())


def _encode_all(headers: Sequence[tuple[Header, ...]] | None) -> list[str | None] | None:
    """Return the headers of each record as the column stores them, or None if there are none."""
    if headers is None:
        return None
    texts: dict[tuple[Header, ...], str | None] = {}  # many records often share the same headers
    found = []
    for each in headers:
        if each not in texts:
            texts[each] = encode_headers(each)
        found.append(texts[each])
    return found if any(texts.values()) else None


_NULL = -1
"""The number that represents NULL."""

assert NO_TIMESTAMP == _NULL


def _as_column(numbers: Sequence[int]) -> array[int]:
    if isinstance(numbers, array):
        return numbers
    try:
        return array("q", [numbers.value]) * len(numbers) if isinstance(numbers, Repeated) else array("q", numbers)
    except OverflowError:
        raise OverflowError("a time is too large for SQLite, expected at most 64 bits") from None


def _run_starts(column: array[int]) -> list[int]:
    """Return the starts of the runs of equal numbers; nothing if the runs are many or do not increase."""
    starts: list[int] = []
    start = 0
    while start < len(column) and len(starts) < RUNS_MAX:
        starts.append(start)
        start = bisect_right(column, column[start], start)
    ends = [*starts[1:], start]
    runs = (column[first : first + 1] * (end - first) for first, end in zip(starts, ends, strict=True))
    is_all = start == len(column) and b"".join(run.tobytes() for run in runs) == column.tobytes()
    return starts if is_all else []


class _Rows:
    """The rows of a statement. Each method binds the values of one column, and returns the expression for one value."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._elements: Sequence[int] | None = None
        self._bound: list[object] = []

    def parameters(self) -> list[object]:
        """Return the parameters of the statement. The first is the JSON array."""
        if self._elements is None:
            return [f"[{'0,' * (self._count - 1)}0]", *self._bound]
        return [repr(list(self._elements)), *self._bound]  # the repr of a list of integers is valid JSON

    def constant(self, value: object) -> str:
        """Bind a value that every row has."""
        self._bound.append(value)
        return f"?{len(self._bound) + 1}"

    def numbers(self, numbers: Sequence[int]) -> str:
        """Bind a number for each row; -1 is NULL."""
        column = _as_column(numbers)
        starts = _run_starts(column)
        if not starts:
            return self._number_of_row(column, has_null=_NULL in column)
        runs = [self.constant(None if column[start] == _NULL else column[start]) for start in starts]
        cases = " ".join(f"WHEN key < {end} THEN {run}" for run, end in zip(runs, starts[1:], strict=False))
        return f"CASE {cases} ELSE {runs[-1]} END" if cases else runs[-1]

    def _number_of_row(self, numbers: Sequence[int], *, has_null: bool) -> str:
        if self._elements is None:
            self._elements = numbers
            number = "value"
        else:
            table = self.constant((f"%{NUMBER_DIGITS}d".encode() * self._count) % tuple(numbers))
            number = f"CAST(substr({table}, key * {NUMBER_DIGITS} + 1, {NUMBER_DIGITS}) AS INTEGER)"
        return f"nullif({number}, {_NULL})" if has_null else number

    def blobs(self, blobs: Sequence[bytes | None]) -> str:
        """Bind bytes, or None for NULL, for each row."""
        known: Sequence[bytes] = (
            [blob for blob in blobs if blob is not None] if has_null(blobs) else blobs  # type: ignore[assignment]
        )
        if not known:
            return "NULL"
        packed = pack(known)
        data = self.constant(packed.data or b"\0")  # of empty bytes, `substr` would return NULL
        is_whole = len(packed) == self._count
        length = packed.common_length()
        if is_whole and length is not None:
            size = self.constant(length)
            return f"substr({data}, key * {size} + 1, {size})"
        # The position of the bytes (from 1, upper 32 bits) and their length.
        positions = [start + 1 << 32 | end - start for start, end in pairwise(packed.ends)]
        if not is_whole:
            following = iter(positions)
            positions = [_NULL if blob is None else next(following) for blob in blobs]
        position = self._number_of_row(positions, has_null=not is_whole)
        return f"substr({data}, {position} >> 32, {position} & 4294967295)"

    def texts(self, texts: Sequence[str | None]) -> str:
        """Bind text, or None for NULL, for each row."""
        different = set(texts)
        if len(different) == 1:
            return self.constant(different.pop())
        return f"CAST({self.blobs([None if text is None else text.encode() for text in texts])} AS TEXT)"
