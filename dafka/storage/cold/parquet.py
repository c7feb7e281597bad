"""The Parquet object of a segment: writing it, and reading its records from verified pieces.

An object is a Parquet file. Between its row groups and its footer, where readers of Parquet do not look, it has an
*index*: of each row group, the first sequence, the times, and a CRC-32C of each column. The *tail* is the index with
the footer. The manifest has the CRC of the tail, and the tail has those of the columns. So nothing is used that was not
verified, and only the columns that are read are fetched.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from dafka.batches import encode_batch, encode_records, read_header
from dafka.records import NO_TIMESTAMP, Partition, RecordBatch
from dafka.storage.arrow import (
    ARROW_TYPES,
    RAW_TYPES,
    arrow_schema,
    find_raw_columns,
    to_arrow,
    to_raw_array,
    to_records,
)
from dafka.storage.cold.segments import Segment, digest_of

GROUP_BYTES = 4 * 2**20
"""The size of the contents at which a row group ends, in bytes: what is read at once, and cached."""

GROUP_RECORDS = 2**16
"""The number of records at which a row group ends."""

COMPRESSION_LEVEL = 3
"""The level of zstd, which Spark, DuckDB and Polars read."""

RECORD_COLUMNS = frozenset({"timestamp", "timestampType", "stored_at", "key", "headers", "value", *RAW_TYPES})
"""The columns from which records are made; the others follow from what is read."""

_STATISTICS = ["topic", "partition", "offset", "timestamp", "stored_at"]
"""The columns of which the footer has the least and the greatest value of each row group, so that queries skip some."""

_REPEATED = ["topic", "partition", "timestampType", "stored_at", "key"]
_LENGTH_BYTES = 4


@attrs.frozen
class TransactionRun:
    """Records that are part of a transaction of a client of Kafka."""

    first: int
    end: int
    producer_id: int
    producer_epoch: int


@attrs.frozen
class RowGroup:
    """What the index says of a row group.

    It has the times at which the first and the last record were stored, in milliseconds since 1970, and the CRC-32C of
    each column chunk, in the order of the Parquet schema's leaves.
    """

    first: int
    count: int
    content_bytes: int
    first_at: int
    last_at: int
    crcs: tuple[int, ...]

    @property
    def end(self) -> int:
        """The sequence after the last record."""
        return self.first + self.count


@attrs.frozen
class ColumnChunk:
    """One column of a row group: its positions in the object, and its CRC-32C."""

    column: str
    start: int
    end: int
    crc: int


class SegmentWriter:
    """Collects the records of a segment as the row groups of a Parquet object, in memory."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.content_bytes = 0
        self._runs: list[TransactionRun] = []
        self._waiting: list[RecordBatch] = []
        self._waiting_bytes = self._waiting_records = 0
        self._tables: list[pa.Table] = []
        self._rows: list[tuple[int, int, int, int, int]] = []

    def add(self, batch: RecordBatch) -> None:
        """Add records that continue those before; with `stored_at`."""
        _extend_runs(self._runs, batch)
        self.content_bytes += batch.content_bytes
        self._waiting.append(attrs.evolve(batch, encoded=()))
        self._waiting_bytes += batch.content_bytes
        self._waiting_records += len(batch)
        if self._waiting_bytes >= GROUP_BYTES or self._waiting_records >= GROUP_RECORDS:
            self._end_group()

    def finish(self) -> tuple[Segment, bytes]:
        """Return the segment of all records that were added, at least one, and its object."""
        self._end_group()
        body, footer = self._write_body()
        positions = list(_find_chunks(pq.read_metadata(pa.BufferReader(footer))))
        groups = [
            [*row, [crc32c(body[chunk.start : chunk.end]) for chunk in chunks]]
            for row, chunks in zip(self._rows, positions, strict=True)
        ]
        index = json.dumps({"groups": groups, "transactions": [attrs.astuple(run) for run in self._runs]}).encode()
        tail = index + len(index).to_bytes(_LENGTH_BYTES, "little") + footer
        data = bytes(body) + tail
        segment = Segment(
            partition=self.partition,
            first=self._rows[0][0],
            end=self._rows[-1][0] + self._rows[-1][1],
            start=self._rows[0][0],
            content_bytes=self.content_bytes,
            first_at=self._rows[0][3],
            last_at=self._rows[-1][4],
            object_bytes=len(data),
            tail_bytes=len(tail),
            tail_crc=crc32c(tail),
            digest=digest_of(data),
        )
        return segment, data

    def _end_group(self) -> None:
        if not self._waiting:
            return
        raw = sorted({name for batch in self._waiting for name in find_raw_columns(batch)})
        schema = arrow_schema([*ARROW_TYPES])
        for name in raw:
            schema = schema.append(pa.field(name, RAW_TYPES[name]))
        tables = []
        for batch in self._waiting:
            arrays = to_arrow(batch, [*ARROW_TYPES]).columns + [to_raw_array(batch, name) for name in raw]
            tables.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self._tables.append(pa.Table.from_batches(tables))
        times = [batch.stored_at or (0,) for batch in self._waiting]
        first = self._waiting[0].first_sequence
        self._rows.append((first, self._waiting_records, self._waiting_bytes, times[0][0], times[-1][-1]))
        self._waiting = []
        self._waiting_bytes = self._waiting_records = 0

    def _write_body(self) -> tuple[memoryview, bytes]:
        """Return the Parquet file without its footer, and the footer."""
        sink = pa.BufferOutputStream()
        schema = pa.unify_schemas([table.schema for table in self._tables])
        with pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=_REPEATED,
            write_statistics=_STATISTICS,
            column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
            store_schema=False,
        ) as writer:
            for table in self._tables:
                writer.write_table(_with_schema(table, schema), row_group_size=len(table))
        self._tables = []
        file = memoryview(sink.getvalue())
        footer_bytes = int.from_bytes(file[-8:-4], "little") + 8
        return file[:-footer_bytes], bytes(file[-footer_bytes:])


class SegmentIndex:
    """The verified tail of an object: where its columns are, and how to verify them."""

    def __init__(self, segment: Segment, tail: bytes) -> None:
        footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
        footer = tail[-footer_bytes:]
        index_end = len(tail) - footer_bytes - _LENGTH_BYTES
        index_bytes = int.from_bytes(tail[index_end : index_end + _LENGTH_BYTES], "little")
        document = json.loads(tail[index_end - index_bytes : index_end])
        self._segment = segment
        self._metadata = pq.read_metadata(pa.BufferReader(footer))
        self.groups = [
            RowGroup(first, count, content_bytes, first_at, last_at, tuple(crcs))
            for first, count, content_bytes, first_at, last_at, crcs in document["groups"]
        ]
        self._runs = [TransactionRun(*each) for each in document["transactions"]]
        self._chunks = [
            [attrs.evolve(chunk, crc=crc) for chunk, crc in zip(chunks, group.crcs, strict=True)]
            for group, chunks in zip(self.groups, _find_chunks(self._metadata), strict=True)
        ]
        self.columns = frozenset(chunk.column for chunk in self._chunks[0])
        self.memory_bytes = 4 * len(tail)

    def find(self, sequence: int) -> int:
        """Return the number of the row group with a record of the segment."""
        return bisect_right(self.groups, sequence, key=lambda each: each.first) - 1

    def find_by_time(self, stored_at: int) -> int:
        """Return the number of the first row group with a record that was stored at a time or later."""
        return bisect_left(self.groups, stored_at, key=lambda each: each.last_at)

    def chunks(self, number: int, columns: Collection[str]) -> list[ColumnChunk]:
        """Return where columns of a row group are."""
        return [chunk for chunk in self._chunks[number] if chunk.column in columns]

    def read_table(self, number: int, pieces: Mapping[int, bytes], columns: Collection[str]) -> pa.Table:
        """Return columns of a row group from their verified chunks, by position.

        Raise `pa.ArrowException` or `OSError` if the chunks are not what the footer says.
        """
        file = pa.PythonFile(_Pieces(pieces, self._segment.object_bytes), mode="r")
        parquet = pq.ParquetFile(file, metadata=self._metadata, pre_buffer=False)
        return parquet.read_row_group(number, columns=[*columns], use_threads=False)

    def to_records(self, number: int, table: pa.Table) -> RecordBatch:
        """Return the records of a row group, with their times."""
        return to_records(self._segment.partition, self.groups[number].first, table, with_times=True)

    def with_transactions(self, batch: RecordBatch) -> RecordBatch:
        """Return records with record batches that say which of them are part of transactions, if any are."""
        runs = [run for run in self._runs if run.first < batch.end_sequence and run.end > batch.first_sequence]
        if not runs:
            return batch
        encoded: list[bytes] = []
        sequence = batch.first_sequence
        for run in runs:
            part = batch.between(run.first, run.end)
            if part.first_sequence > sequence:
                encoded += encode_records(batch.between(sequence, part.first_sequence))
            encoded.append(
                encode_batch(
                    part.first_sequence,
                    part.values,
                    keys=part.keys,
                    headers=part.headers,
                    timestamps=NO_TIMESTAMP if part.timestamps is None else part.timestamps,
                    producer_id=run.producer_id,
                    producer_epoch=run.producer_epoch,
                    is_transactional=True,
                )
            )
            sequence = part.end_sequence
        if sequence < batch.end_sequence:
            encoded += encode_records(batch.between(sequence, batch.end_sequence))
        return attrs.evolve(batch, encoded=tuple(encoded))


def _extend_runs(runs: list[TransactionRun], batch: RecordBatch) -> None:
    """Add the transactions of further records."""
    for data in batch.encoded:
        header = read_header(data)
        if not header.is_transactional:
            continue
        first, end = header.base_offset, header.base_offset + header.count
        run = TransactionRun(first, end, header.producer_id, header.producer_epoch)
        if runs and runs[-1] == attrs.evolve(run, first=runs[-1].first, end=first):
            runs[-1] = attrs.evolve(runs[-1], end=end)
        else:
            runs.append(run)


def _with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema, in its order. Missing columns are filled with nulls."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(schema.names)


def _find_chunks(metadata: pq.FileMetaData) -> Iterable[list[ColumnChunk]]:
    """Yield the column chunks of each row group, without their CRCs."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = []
        for leaf in range(group.num_columns):
            chunk = group.column(leaf)
            start = chunk.data_page_offset
            if chunk.dictionary_page_offset is not None:
                start = min(start, chunk.dictionary_page_offset)
            name = chunk.path_in_schema.partition(".")[0]
            chunks.append(ColumnChunk(name, start, start + chunk.total_compressed_size, 0))
        yield chunks


class _Pieces(io.RawIOBase):
    """A file of which only some pieces are there."""

    def __init__(self, pieces: Mapping[int, bytes], size: int) -> None:
        self._starts = sorted(pieces)
        self._pieces = pieces
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        number = bisect_right(self._starts, self._position) - 1
        start = self._starts[number] if number >= 0 else 0
        data = self._pieces[start][self._position - start :][: size if size >= 0 else None] if number >= 0 else b""
        self._position += len(data)
        return data
