"""Reads a task's records from stores into Arrow batches, a window of records at a time.

SQLite stores are read with the ADBC driver. Each window is a separate read transaction, so that the store can truncate
its write-ahead log while a long task runs. The storage plugin reads ranges that the driver cannot read or check: large
records, damaged records, and ranges that retention has shortened. From a cold tier, only the requested columns are
fetched, as Parquet.

The driver and the plugin are never open on one file at the same time. Each has its own copy of SQLite, and closing the
file in one would release the locks of the other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from urllib.parse import quote

import adbc_driver_sqlite
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement
from adbc_driver_manager import Error as DriverError
from anyio.from_thread import BlockingPortal

from dafka.errors import StorageCorruptError, StorageError
from dafka.spark.offsets import format_name, name_partition
from dafka.spark.planning import StoreRange, StoreTask, data_loss_error, warn_of_skipped
from dafka.spark.portal import open_portal
from dafka.spark.schema import needs_stored_at
from dafka.storage import Storage, open_storage
from dafka.storage.arrow import (
    ARROW_TYPES,
    CREATE_TIME,
    LOG_APPEND_TIME,
    TIMESTAMP_MAX,
    arrow_schema,
    escape_name,
    repeat_text,
    to_arrow,
    to_header_array,
    to_timestamps,
)
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.sqlite.headers import decode_headers
from dafka.storage.sqlite.schema import to_column

WINDOW_RECORDS = 65_536
"""The limit of a window, in records."""

WINDOW_BYTES_MAX = 32 * 2**20
"""The limit of a window, in bytes of contents. Windows are planned for half of it; the storage reads larger ones."""

RECORD_BYTES_MAX = 64 * 2**10
"""The average size of records from which the storage reads a range, in bytes."""

# The driver returns values of any type as blobs. SQLite sorts blobs last, so if the minimum is a blob, all values are,
# except those that are NULL.
_MEASURE = "SELECT count(*) AS count, {sizes} AS size, {kinds} AS kinds FROM records WHERE {where}"
_WINDOW = "SELECT {columns} FROM records WHERE {where} ORDER BY sequence"
_WHERE = """
    partition_id = (SELECT id FROM partitions WHERE topic = {topic} AND address = {address})
    AND sequence >= {start} AND sequence < {end}
"""
_BLOBS = {"value": "content", "key": "key"}
_HAS_OWN_TIME = f"(timestamp IS NOT NULL AND abs(timestamp) <= {TIMESTAMP_MAX})"
_COLUMNS = {
    "timestamp": f"CASE WHEN {_HAS_OWN_TIME} THEN timestamp ELSE stored_at END",
    "timestampType": f"iif({_HAS_OWN_TIME}, {CREATE_TIME}, {LOG_APPEND_TIME})",
    "stored_at": "stored_at",
    "key": "key",
    "headers": "headers",
    "value": "content",
}
_COLUMNS_BEFORE_3 = {
    **_COLUMNS,
    "timestamp": "stored_at",
    "timestampType": str(LOG_APPEND_TIME),
    "key": "NULL",
    "headers": "NULL",
}
"""The columns in version 3 of the schema, which added keys, headers and timestamps, and in earlier versions."""

_logger = logging.getLogger("dafka.spark")


def scan_task(task: StoreTask, columns: Sequence[str], *, fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task as Arrow batches of these columns, in order.

    Raise `StorageError` if a store cannot be read, or if records are damaged or no longer stored. Unless
    `fail_on_data_loss`, such records are skipped with a warning.
    """
    with closing(_OpenStore()) as opened:
        for each in task.ranges:
            start = each.start
            if each.is_cold:
                for batch in _scan_cold(opened, each, columns):
                    start += batch.num_rows
                    yield batch
            elif each.url.startswith("sqlite:") and each.record_bytes <= RECORD_BYTES_MAX:
                for end, batch in _scan_sqlite(opened, each, columns):
                    start = end
                    yield batch
            if start < each.end:
                yield from _scan_storage(opened, each, start, columns, fail_on_data_loss=fail_on_data_loss)


class _OpenStore:
    """The store that is being read, opened by the driver or by the storage plugin.

    It stays open for the next range of the task. Opening another store, or the same one in the other way, closes it.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._opened: tuple[str, str] | None = None
        self._statement: tuple[AdbcStatement, Mapping[str, str]] | None = None
        self._storage: tuple[BlockingPortal, Storage] | None = None

    def use_driver(self, url: str) -> tuple[AdbcStatement, Mapping[str, str]]:
        """Return an ADBC statement, whose queries are single transactions, and the expression for each column.

        Raise `DriverError` if the store cannot be opened.
        """
        if self._statement is None or self._opened != ("driver", url):
            self.close()
            path = url.partition(":")[2].partition("?")[0]
            database = self._stack.enter_context(adbc_driver_sqlite.connect(f"file:{quote(os.fsencode(path))}?mode=ro"))
            connection = self._stack.enter_context(AdbcConnection(database))
            statement = self._stack.enter_context(AdbcStatement(connection))
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(WINDOW_RECORDS)})
            # Records of a file that is upgraded later have no keys, headers and timestamps either.
            ((version,),) = (row.values() for row in _query(statement, "PRAGMA user_version").to_pylist())
            self._statement = statement, _COLUMNS if version >= 3 else _COLUMNS_BEFORE_3
            self._opened = "driver", url
        return self._statement

    def use_storage(self, url: str) -> tuple[BlockingPortal, Storage]:
        """Return the storage and the portal to its event loop; raise `StorageError` if it cannot be opened."""
        if self._storage is None or self._opened != ("storage", url):
            self.close()
            portal = self._stack.enter_context(open_portal())
            opening = portal.wrap_async_context_manager(open_storage(url, read_only=True))
            self._storage = portal, self._stack.enter_context(opening)
            self._opened = "storage", url
        return self._storage

    def close(self) -> None:
        """Close the store; calling this again is harmless."""
        self._opened = self._statement = self._storage = None
        self._stack.close()


def _scan_sqlite(opened: _OpenStore, each: StoreRange, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the windows of a range, each with its end, up to the first one that the driver cannot read."""
    step = max(min(WINDOW_RECORDS, WINDOW_BYTES_MAX // (2 * each.record_bytes + 1)), 1)
    try:
        statement, expressions = opened.use_driver(each.url)
        selected = ["sequence", *(f"{expressions[name]} AS {name}" for name in columns if name in expressions)]
        measured = [expressions[name] for name in columns if name in _BLOBS or name == "headers"]
        # Rows that compaction has removed look like lost rows; only the storage can distinguish them.
        for start in range(each.start, each.end, step):
            end = min(start + step, each.end)
            where = _WHERE.format(
                topic=_literal(each.partition.topic, "topic"),
                address=_literal(each.partition.address, "address"),
                start=start,
                end=end,
            )
            if measured and not _is_plain_window(statement, measured, where, end - start):
                return
            table = _query(statement, _WINDOW.format(columns=", ".join(selected), where=where))
            batch = _to_batch(table, each, start, end, columns)
            if batch is None:
                return
            yield end, batch
    except (DriverError, pa.ArrowException, OSError) as error:  # the last two if the driver fails between rows
        _logger.info("%s: reading with the storage plugin, because the ADBC driver failed: %s", each.url, error)


def _is_plain_window(statement: AdbcStatement, expressions: Sequence[str], where: str, count: int) -> bool:
    """Return whether a window has all records with the right column types, and is not too large."""
    sizes = " + ".join(f"coalesce(sum(length({each})), 0)" for each in expressions)
    kinds = " || ".join(
        f"CASE typeof(max({each})) WHEN 'text' THEN '' WHEN 'null' THEN '' ELSE 'x' END"
        if each == "headers"
        else f"CASE typeof(min({each})) WHEN 'blob' THEN '' WHEN 'null' THEN '' ELSE 'x' END"
        for each in expressions
    )
    (measured,) = _query(statement, _MEASURE.format(sizes=sizes, kinds=kinds, where=where)).to_pylist()
    return bool(measured["count"] == count and measured["size"] <= WINDOW_BYTES_MAX and not measured["kinds"])


def _query(statement: AdbcStatement, sql: str) -> pa.Table:
    """Return the result of a query. The driver's own DB-API would load pandas in every worker."""
    statement.set_sql_query(sql)
    stream, _ = statement.execute_query()
    with pa.RecordBatchReader.from_stream(stream) as reader:
        return reader.read_all()


def _to_batch(table: pa.Table, each: StoreRange, start: int, end: int, columns: Sequence[str]) -> pa.RecordBatch | None:
    """Return a window's rows in the columns that Spark requested, or None if they are not the expected records."""
    count = end - start
    found = dict(zip(("offset", *(name for name in columns if name in _COLUMNS)), table.columns, strict=True))
    if len(table) != count or found["offset"].type != pa.int64() or found["offset"][-1].as_py() != end - 1:
        return None
    arrays: list[pa.Array] = []
    for name in columns:
        if name in found:
            column = _to_array(name, found[name])
            if column is None:
                return None
            arrays.append(column)
        else:
            text = each.partition.topic if name == "topic" else each.partition.address
            arrays.append(repeat_text(escape_name(text), count))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _to_array(name: str, found: pa.ChunkedArray) -> pa.Array | None:  # noqa: PLR0911 (one return for each kind of column)
    """Return a column of the driver as Spark needs it, or None if it is not of the expected type."""
    column = found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
    if name in _BLOBS or name == "headers":
        if column.null_count == len(column):  # the driver guesses the type of such a column
            return pa.nulls(len(column), ARROW_TYPES[name])
        if name == "headers":
            return _decode_headers(column) if column.type == pa.string() else None
        return column if column.type == ARROW_TYPES[name] else None
    if column.null_count or column.type != pa.int64():
        return None
    if name == "timestampType":
        return column.cast(ARROW_TYPES[name])
    if name == "offset":
        return column
    try:
        return to_timestamps(column)
    except pa.ArrowInvalid:
        return None


def _decode_headers(column: pa.Array) -> pa.Array | None:
    try:
        return to_header_array([decode_headers(text) for text in column.to_pylist()])
    except ValueError:
        return None


def _scan_cold(opened: _OpenStore, each: StoreRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range of the cold tier, fetching only these columns.

    It ends before the first records that are damaged or no longer exist.
    """
    portal, storage = opened.use_storage(each.url)
    start = each.start
    while start < each.end and isinstance(storage, TieredStorage):
        try:
            batch = portal.call(storage.read_columns, each.partition, start, each.end, columns)
        except StorageCorruptError:
            return
        if batch is None:
            return
        yield batch
        start += batch.num_rows


def _scan_storage(
    opened: _OpenStore, each: StoreRange, start: int, columns: Sequence[str], *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range from `start` on, as the storage plugin reads them."""
    name = name_partition(each.partition)
    portal, storage = opened.use_storage(each.url)
    while start < each.end:
        read = partial(storage.read, each.partition, start, each.end - start, with_times=needs_stored_at(columns))
        try:
            batch = portal.call(read)
        except StorageCorruptError as error:
            if fail_on_data_loss:
                raise StorageError(f"{error} (set failOnDataLoss to false to skip them)") from None
            _logger.warning("Records skipped: %s", error)
            start = error.end_sequence
            continue
        if batch is not None:
            try:
                converted = to_arrow(batch, columns)
            except pa.ArrowInvalid as error:
                raise StorageError(f"{format_name(name)}: the records from {start} on fit no column: {error}") from None
            yield converted
            start = batch.end_sequence
            continue
        info = portal.call(storage.partitions, each.partition.topic).get(each.partition)
        if info is None or info.end_sequence < each.end or info.earliest_sequence <= start:
            raise StorageError(f"{each.url} no longer holds {format_name(name)} up to offset {each.end - 1}")
        if fail_on_data_loss:
            raise data_loss_error(name, start, info.earliest_sequence)
        warn_of_skipped(name, start, min(info.earliest_sequence, each.end))
        start = info.earliest_sequence


def _literal(text: str, field: str) -> str:
    """Return a topic or an address as a safe SQL literal, whatever its characters."""
    value = to_column(text, field)
    return f"CAST(x'{value.encode().hex()}' AS TEXT)" if isinstance(value, str) else f"x'{value.hex()}'"
