"""Reading records.

Each row that SQLite returns takes the interpreter lock. Next to a busy event loop, that allows a few thousand rows per
second. A run of records is therefore read as one row, whose contents SQLite concatenates without the lock. If that
fails, or the run is short, the records are read row by row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import attrs

from dafka.errors import StorageCorruptError
from dafka.packed_bytes import LENGTH_BYTES, PackedContents, Repeated
from dafka.records import NO_TIMESTAMP, Header, Partition, Record, RecordBatch, record_bytes
from dafka.storage.base import PartitionInfo
from dafka.storage.sqlite.columns import RUN, add_times, add_timestamps, none_if_empty, read_columns, read_lengths
from dafka.storage.sqlite.connection import describe_error, snapshot
from dafka.storage.sqlite.headers import decode_headers
from dafka.storage.sqlite.schema import IS_DAMAGED, SEQUENCE_MAX, PartitionRow, PartitionTable, to_columns

READ_RECORDS_MAX = 10_000
"""The maximum number of records in one read."""

ALIKE_RECORDS_MIN = 1000
"""The minimum number of records with the same timestamp that are read separately."""

RUN_RECORDS_MIN = 32
"""Shorter runs are read row by row: they are quick to read, or so large that another copy would be noticeable."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_TOOBIG}

_SELECT = """
    SELECT sequence, content, key, headers, timestamp, stored_at FROM records
    WHERE partition_id = (SELECT id FROM partitions WHERE topic = ? AND address = ?) AND sequence >= ?
    ORDER BY sequence LIMIT ?
"""

# An aggregate over a range of the key takes the rows in key order. Types are checked through aggregates, because
# checking each row would double the cost: the minimum of blobs and other types is not a blob, and only a sum of
# integers is an integer.

_FIRST_TIMESTAMP = """
    (SELECT timestamp FROM records
     WHERE partition_id = (SELECT id FROM partitions WHERE topic = ?1 AND address = ?2) AND sequence = ?3)
"""

# A record that is not plain, but has a key or headers, has a length of NULL.
_SELECT_LENGTHS = f"""
    SELECT json_group_array(CASE WHEN key IS NULL AND headers IS NULL THEN length(content) END), max(sequence),
           {_FIRST_TIMESTAMP}, typeof(sum(timestamp)), count(timestamp),
           json_group_array(timestamp - {_FIRST_TIMESTAMP})
    {RUN}
"""

# A few rows that show whether all rows are likely to be alike: the first, the second, one in the middle, the last.
_SELECT_SAMPLE = f"""
    SELECT min(length(content)), max(length(content)), count(key) + count(headers), {_FIRST_TIMESTAMP},
           count(timestamp) IN (0, count(*)) AND min(timestamp) IS max(timestamp)
    FROM records
    WHERE partition_id = (SELECT id FROM partitions WHERE topic = ?1 AND address = ?2)
      AND sequence IN (?3, ?3 + 1, (?3 + ?4) / 2, ?4 - 1)
"""

_SELECT_OTHER_TIMESTAMP = f"SELECT sequence {RUN} AND timestamp IS NOT ?5 ORDER BY sequence LIMIT 1"

# Every blob, and nothing else, is at least as great as the empty blob.
_SELECT_ALIKE = f"""
    SELECT count(*), CAST(group_concat(content, '') AS BLOB)
    {RUN}
      AND length(content) = ?5 AND content >= x'' AND timestamp IS ?6 AND key IS NULL AND headers IS NULL
"""

_SELECT_RUN = f"""
    SELECT count(*), max(sequence), typeof(min(content)), CAST(group_concat(content, '') AS BLOB) {RUN}
"""


_SELECT_SIZES = f"""
    SELECT json_group_array(ifnull(length(content), 0) + ifnull(length(key), 0) + ifnull(length(headers), 0)),
           max(sequence)
    {RUN}
"""


_SELECT_READABLE = f"""
    SELECT sequence FROM records
    WHERE partition_id = ? AND sequence >= ? AND sequence < ? AND NOT ({IS_DAMAGED})
    ORDER BY sequence LIMIT 1
"""

_SELECT_TIME = """
    SELECT sequence, stored_at FROM records
    WHERE partition_id = ? AND sequence >= ? AND sequence < ?
    ORDER BY sequence LIMIT 1
"""


@attrs.frozen
class RangeRead:
    """One read of a partition: at most `count` records, of about `bytes_max` bytes, from a sequence on."""

    reader: sqlite3.Connection
    table: PartitionTable
    partition: Partition
    first_sequence: int
    count: int
    bytes_max: int
    with_times: bool = False

    def run(self, info: PartitionInfo) -> RecordBatch | None:
        """See `Storage.read`. `info` gives the average size of the partition's records."""
        if self.first_sequence > SEQUENCE_MAX or self.count < 1:
            return None
        if self.first_sequence < info.compacted_end:
            return self._read_compacted()
        # SQLite reads a whole row even if only its length is needed, so limit the rows to those that are likely to fit.
        fitting = self.bytes_max * info.count // info.content_bytes if info.content_bytes else self.count
        count = min(self.count, READ_RECORDS_MAX, max(fitting, 1))
        if count >= RUN_RECORDS_MIN:
            run = self._read_run(count, info)
            if run is not None:
                return run
        records, problem = self._read_rows(count)
        if records:
            return self._make_batch(records[-1].sequence + 1, records)
        is_compacted = self._raise_if_damaged(problem)
        if is_compacted and problem is None:  # meanwhile
            return self._read_compacted()
        if problem is not None:  # a kind of damage that no query shows
            raise self._corrupt_error(problem) from problem
        return None

    def _read_compacted(self) -> RecordBatch | None:
        """Read a range from which compaction may have removed records: missing rows are removed records."""
        first_sequence = self.first_sequence
        with snapshot(self.reader):  # otherwise a concurrent trim would make all rows look removed
            row = self._select_partition()
            if row is None:
                return None
            end = min(first_sequence + min(self.count, READ_RECORDS_MAX), row.info.compacted_end, row.info.end_sequence)
            records, problem = self._read_rows(end - first_sequence, end)
            after = records[-1].sequence + 1 if records else first_sequence
            following = self.reader.execute(_SELECT_TIME, (row.row_id, after, row.info.end_sequence)).fetchone()
        found, stored_at = following or (end, row.latest_stored_at)
        if problem is not None and found == first_sequence:
            self._raise_if_damaged(problem)
            raise self._corrupt_error(problem)
        end = min(end, found)  # the rows ended before a record that is too large or damaged
        return self._make_batch(end, records, stored_at)

    def _make_batch(self, end_sequence: int, records: list[Record], next_stored_at: int = 0) -> RecordBatch:
        """Return the batch with these records up to a sequence. Removed ones have the time of the next record."""
        count = end_sequence - self.first_sequence
        mask = bytearray(b"\1" * count)
        values: list[bytes | None] = [None] * count
        keys: list[bytes | None] = [None] * count
        headers: list[tuple[Header, ...]] = [()] * count
        timestamps = [NO_TIMESTAMP] * count
        times: list[int] = []
        for record in records:
            number = record.sequence - self.first_sequence
            mask[number] = 0
            values[number], keys[number], headers[number] = record.value, record.key, record.headers
            timestamps[number] = NO_TIMESTAMP if record.timestamp is None else record.timestamp
            times += [record.stored_at or 0] * (number + 1 - len(times))
        times += [next_stored_at] * (count - len(times))
        return RecordBatch(
            self.partition,
            self.first_sequence,
            values,
            keys=none_if_empty(keys),
            headers=headers if any(headers) else None,
            timestamps=timestamps if any(record.timestamp is not None for record in records) else None,
            stored_at=times if self.with_times else None,
            compacted=bytes(mask) if 1 in mask else None,
        )

    def _read_rows(
        self, count: int, end_sequence: int | None = None
    ) -> tuple[list[Record], sqlite3.Error | ValueError | None]:
        """Return the records before the first damaged one, and a description of its damage.

        If an end is given, records before it may be missing.
        """
        first_sequence = self.first_sequence
        records: list[Record] = []
        size = 0
        try:
            with closing(self.reader.execute(_SELECT, (*to_columns(self.partition), first_sequence, count))) as found:
                for sequence, *columns in found:
                    if sequence != first_sequence + len(records) if end_sequence is None else sequence >= end_sequence:
                        break
                    record = _read_row(self.partition, sequence, *columns)
                    size += record_bytes(record)
                    if records and size > self.bytes_max:
                        break
                    records.append(record)
        except sqlite3.Error as error:
            if not records and error.sqlite_errorcode & 0xFF not in _DAMAGE:
                raise
            return records, error
        except ValueError as error:
            return records, error
        return records, None

    def _read_run(self, count: int, info: PartitionInfo) -> RecordBatch | None:
        """Read the records as one row. Return None if there are too few, or if anything is unexpected."""
        first_sequence = self.first_sequence
        key = (*to_columns(self.partition), first_sequence)
        try:
            run = self._read_alike(min(count, info.end_sequence - first_sequence))
            if run is not None:
                return self._with_times(run)
            lengths_text, last, *times = self.reader.execute(_SELECT_LENGTHS, (*key, first_sequence + count)).fetchone()
            is_plain = "null" not in lengths_text
            if not is_plain:
                lengths_text, last = self.reader.execute(_SELECT_SIZES, (*key, first_sequence + count)).fetchone()
            lengths, size = read_lengths(lengths_text, self.bytes_max)
            kept = len(lengths) // LENGTH_BYTES
            end_sequence = first_sequence + kept
            if kept < RUN_RECORDS_MIN or last < end_sequence - 1:
                return None
            if not is_plain:
                return self._with_times(read_columns(self.reader, self.partition, first_sequence, end_sequence))
            found, last, kind, data = self.reader.execute(_SELECT_RUN, (*key, end_sequence)).fetchone()
            if (found, last, kind, len(data)) != (kept, end_sequence - 1, "blob", size):
                return None
            timestamps = add_timestamps(*times)
            return self._with_times(
                RecordBatch(
                    self.partition,
                    first_sequence,
                    PackedContents(data, lengths),
                    timestamps=None if timestamps is None else timestamps[:kept],
                )
            )
        except (sqlite3.DatabaseError, TypeError, ValueError):
            return None

    def _with_times(self, run: RecordBatch) -> RecordBatch | None:
        """Return a run with times if they are wanted; None if one of them is damaged."""
        return add_times(self.reader, run) if self.with_times else run

    def _read_alike(self, count: int) -> RecordBatch | None:
        """Read records that differ only in the bytes of their values. Return None if they differ more, or are few."""
        if count < RUN_RECORDS_MIN:
            return None
        first_sequence = self.first_sequence
        key = (*to_columns(self.partition), first_sequence)
        sample = self.reader.execute(_SELECT_SAMPLE, (*key, first_sequence + count)).fetchone()
        length, longest, others, timestamp, is_same_time = sample
        if not length or length != longest or others:
            return None
        count = min(count, max(self.bytes_max // length, 1))
        if not is_same_time:
            row = self.reader.execute(_SELECT_OTHER_TIMESTAMP, (*key, first_sequence + count, timestamp)).fetchone()
            count = count if row is None else row[0] - first_sequence
            if count < ALIKE_RECORDS_MIN:
                return None
        wanted = (*key, first_sequence + count, length, timestamp)
        found, data = self.reader.execute(_SELECT_ALIKE, wanted).fetchone()
        if found != count or len(data) != count * length:
            return None
        return RecordBatch(
            self.partition,
            first_sequence,
            PackedContents(data, length.to_bytes(LENGTH_BYTES, "big") * count),
            timestamps=None if timestamp is None else Repeated(timestamp, count),
        )

    def _select_partition(self) -> PartitionRow | None:
        """Return the row of the partition if it holds the first record."""
        row = self.table.select_one(self.reader, self.partition)
        is_held = row is not None and row.info.earliest_sequence <= self.first_sequence < row.info.end_sequence
        return row if is_held else None

    def _raise_if_damaged(self, problem: sqlite3.Error | ValueError | None) -> bool:
        """Raise `StorageCorruptError` if the first record is listed as held although it could not be read.

        Return whether compaction may have removed it.
        """
        first_sequence = self.first_sequence
        failure = problem if isinstance(problem, sqlite3.Error) else None
        with snapshot(self.reader):  # an append between the two queries would look like damage
            row = self._select_partition()
            if row is None:
                return False
            end_sequence = row.info.end_sequence
            if failure is None and first_sequence < row.info.compacted_end:
                return True

            def find_readable(sequence: int) -> int | None:
                try:
                    found = self.reader.execute(_SELECT_READABLE, (row.row_id, sequence, end_sequence)).fetchone()
                except sqlite3.DatabaseError:
                    return None
                return end_sequence if found is None else int(found[0])

            readable = find_readable(first_sequence) if failure is None else None
            if readable is None:
                readable = _find_next_readable(find_readable, first_sequence, end_sequence)
        if readable > first_sequence:
            last = readable - 1
            which = f"sequence {last} is" if last == first_sequence else f"sequences {first_sequence} to {last} are"
            reason = "missing" if failure is None else describe_error(failure)
            raise StorageCorruptError(f"{self.partition}: {which} damaged: {reason}", readable)
        return False

    def _corrupt_error(self, problem: Exception) -> StorageCorruptError:
        return StorageCorruptError(
            f"{self.partition}: sequence {self.first_sequence} is damaged: {problem}", self.first_sequence + 1
        )


def _read_row(
    partition: Partition,
    sequence: int,
    content: object,
    key: object,
    headers: object,
    timestamp: object,
    stored_at: object,
) -> Record:
    """Return a record. Raise `ValueError` if its row is damaged."""
    if (
        (content is None or type(content) is bytes)
        and (key is None or type(key) is bytes)
        and (timestamp is None or type(timestamp) is int)
        and type(stored_at) is int
    ):
        return Record(partition, sequence, content, key, decode_headers(headers), timestamp, stored_at)
    raise ValueError("a column has a type that a store does not write")


def _find_next_readable(find_readable: Callable[[int], int | None], damaged: int, end_sequence: int) -> int:
    """Return the first readable record after a damaged one, by binary search: damage affects whole pages."""
    step = 1
    found: int | None = None
    while found is None and damaged + step < end_sequence:
        found = find_readable(damaged + step)
        if found is None:
            damaged += step
            step *= 2
    if found is None:
        return end_sequence
    good = damaged + step
    while good - damaged > 1:
        middle = (damaged + good) // 2
        readable = find_readable(middle)
        if readable is None:
            damaged = middle
        else:
            good, found = middle, readable
    return found


def find_sequence_by_time(
    reader: sqlite3.Connection, table: PartitionTable, partition: Partition, stored_at: int
) -> int:
    """See `Storage.find_sequence_by_time`. A binary search over the records of the partition."""
    with snapshot(reader):
        row = table.select_one(reader, partition)
        if row is None:
            return 0
        low, high = row.info.earliest_sequence, row.info.end_sequence
        if row.latest_stored_at < stored_at:
            return high
        while low < high:
            middle = (low + high) // 2
            found = reader.execute(_SELECT_TIME, (row.row_id, middle, high)).fetchone()
            if found is None:
                high = middle
                continue
            sequence, time_ms = found
            if type(time_ms) is not int:
                raise sqlite3.DataError(f"the time of sequence {sequence} of {partition} is damaged")
            if time_ms < stored_at:
                low = sequence + 1
            else:
                high = middle
    return low
