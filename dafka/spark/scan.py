"""Reading a task's records out of a store, straight into Arrow, without holding more than a few pieces in memory.

SQLite stores are read by ADBC's driver, a window of records at a time: each statement is a read transaction of its
own, so that the store can empty its log while a long task runs. What the driver cannot be trusted with (large records,
damage, a store's retention) is read by the storage itself, which says what is wrong. The two are never open on one file
at the same time: each brings an SQLite of its own, and closing one would take back the other's locks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from urllib.parse import quote

import adbc_driver_sqlite
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement
from adbc_driver_manager import Error as DriverError
from anyio.from_thread import BlockingPortal, start_blocking_portal

from dafka.errors import StorageCorruptError, StorageError
from dafka.spark.offsets import format_name
from dafka.spark.planning import StoreRange, StoreTask, data_loss_error
from dafka.spark.schema import ARROW_TYPES, arrow_schema, escape_name, repeat_text, to_arrow, to_timestamps
from dafka.storage import Storage, open_storage
from dafka.storage.sqlite.schema import to_column

WINDOW_RECORDS = 65_536
WINDOW_BYTES_MAX = 32 * 2**20
"""A window with more is left to the storage, which measures before it reads. Windows are meant to have half of it."""

RECORD_BYTES_MAX = 64 * 2**10
"""A range of larger records likewise."""

# The driver gives whatever stands among blobs as if it were one; the least of blobs and others is none of the blobs.
_MEASURE = """
    SELECT count(*) AS count, coalesce(sum(length(content)), 0) AS size, typeof(min(content)) AS kind
    FROM records WHERE {where}
"""
_WINDOW = "SELECT {columns} FROM records WHERE {where} ORDER BY sequence"
_WHERE = """
    partition_id = (SELECT id FROM partitions WHERE topic = {topic} AND address = {address})
    AND sequence >= {start} AND sequence < {end}
"""
_COLUMNS = {"timestamp": "stored_at", "value": "content"}

_logger = logging.getLogger("dafka.spark")


def scan(task: StoreTask, columns: Sequence[str], *, fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
    """The records of a task as Arrow batches of these columns, in order.

    Raises `StorageError` where a store fails, or records are damaged or no longer held, which is left out where
    `fail_on_data_loss` is False.
    """
    with closing(_OpenStore()) as opened:
        for each in task.ranges:
            start = each.start
            if each.url.startswith("sqlite:") and each.record_bytes <= RECORD_BYTES_MAX:
                for batch in _scan_sqlite(opened, each, columns):
                    start += batch.num_rows
                    yield batch
            if start < each.end:
                yield from _scan_storage(opened, each, start, columns, fail_on_data_loss=fail_on_data_loss)


class _OpenStore:
    """The store that is being read, by the driver or by the storage: it stays open for a task's next range of it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._what: tuple[str, str] | None = None
        self._statement: AdbcStatement | None = None
        self._storage: tuple[BlockingPortal, Storage] | None = None

    def driver(self, url: str) -> AdbcStatement:
        """A statement of ADBC's, each query of it a transaction of its own. Raises its `Error`."""
        if self._statement is None or self._what != ("driver", url):
            self.close()
            path = url.partition(":")[2].partition("?")[0]
            database = self._stack.enter_context(adbc_driver_sqlite.connect(f"file:{quote(os.fsencode(path))}?mode=ro"))
            connection = self._stack.enter_context(AdbcConnection(database))
            self._statement = self._stack.enter_context(AdbcStatement(connection))
            self._statement.set_options(**{"adbc.sqlite.query.batch_rows": str(WINDOW_RECORDS)})
            self._what = "driver", url
        return self._statement

    def storage(self, url: str) -> tuple[BlockingPortal, Storage]:
        """The storage, and the way into its event loop. Raises `StorageError`."""
        if self._storage is None or self._what != ("storage", url):
            self.close()
            portal = self._stack.enter_context(start_blocking_portal("trio"))
            opening = portal.wrap_async_context_manager(open_storage(url, read_only=True))
            self._storage = portal, self._stack.enter_context(opening)
            self._what = "storage", url
        return self._storage

    def close(self) -> None:
        """Closes what is open. May be called again."""
        self._what = self._statement = self._storage = None
        self._stack.close()


def _scan_sqlite(opened: _OpenStore, each: StoreRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The first windows of a range; ends before one that is not as it should be."""
    selected = ["sequence", *(_COLUMNS[name] for name in columns if name in _COLUMNS)]
    step = max(min(WINDOW_RECORDS, WINDOW_BYTES_MAX // (2 * each.record_bytes + 1)), 1)
    try:
        statement = opened.driver(each.url)
        for start in range(each.start, each.end, step):
            end = min(start + step, each.end)
            where = _WHERE.format(
                topic=_literal(each.partition.topic, "topic"),
                address=_literal(each.partition.address, "address"),
                start=start,
                end=end,
            )
            if "value" in columns and not _is_fit(statement, where, end - start):
                return
            table = _query(statement, _WINDOW.format(columns=", ".join(selected), where=where))
            batch = _shape(table, each, start, end, columns)
            if batch is None:
                return
            yield batch
    except (DriverError, pa.ArrowException, OSError) as error:  # the latter two where it fails amid its rows
        _logger.info("%s: read by the storage, for ADBC says: %s", each.url, error)


def _is_fit(statement: AdbcStatement, where: str, count: int) -> bool:
    """Are these contents so many blobs, and no more octets than a window may have?"""
    (measured,) = _query(statement, _MEASURE.format(where=where)).to_pylist()
    return bool(measured["count"] == count and measured["size"] <= WINDOW_BYTES_MAX and measured["kind"] == "blob")


def _query(statement: AdbcStatement, sql: str) -> pa.Table:
    """What a query gives. The driver's own DB-API would do the same, and load pandas in every worker for it."""
    statement.set_sql_query(sql)
    stream, _ = statement.execute_query()
    with pa.RecordBatchReader.from_stream(stream) as reader:
        return reader.read_all()


def _shape(table: pa.Table, each: StoreRange, start: int, end: int, columns: Sequence[str]) -> pa.RecordBatch | None:
    """A window's rows as Spark wants them; None where they are not the records that they should be."""
    count = end - start
    found = dict(zip(("offset", *(name for name in columns if name in _COLUMNS)), table.columns, strict=True))
    if len(table) != count or found["offset"].type != pa.int64() or found["offset"][-1].as_py() != end - 1:
        return None
    arrays: list[pa.Array] = []
    for name in columns:
        if name in found:
            column = found[name].combine_chunks() if found[name].num_chunks != 1 else found[name].chunk(0)
            if column.null_count or column.type != (ARROW_TYPES["value"] if name == "value" else pa.int64()):
                return None
            if name == "timestamp":
                try:
                    column = to_timestamps(column)
                except pa.ArrowInvalid:
                    return None
            arrays.append(column)
        else:
            text = each.partition.topic if name == "topic" else each.partition.address
            arrays.append(repeat_text(escape_name(text), count))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _scan_storage(
    opened: _OpenStore, each: StoreRange, start: int, columns: Sequence[str], *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """A range from `start` on, as the storage gives it."""
    name = escape_name(each.partition.topic), escape_name(each.partition.address)
    portal, storage = opened.storage(each.url)
    while start < each.end:
        read = partial(storage.read, each.partition, start, each.end - start, with_times="timestamp" in columns)
        try:
            batch = portal.call(read)
        except StorageCorruptError as error:
            if fail_on_data_loss:
                raise StorageError(f"{error}; with failOnDataLoss=false they are left out") from None
            _logger.warning("left out: %s", error)
            start = error.end_sequence
            continue
        if batch is not None:
            try:
                shaped = to_arrow(batch, columns)
            except pa.ArrowInvalid as error:
                raise StorageError(f"{format_name(name)}: what is at {start} fits no column: {error}") from None
            yield shaped
            start = batch.end_sequence
            continue
        info = portal.call(storage.partitions, each.partition.topic).get(each.partition)
        if info is None or info.end_sequence < each.end or info.earliest_sequence <= start:
            raise StorageError(f"{each.url} no longer holds {format_name(name)} up to offset {each.end - 1}")
        if fail_on_data_loss:
            raise data_loss_error(name, start, info.earliest_sequence)
        _logger.warning(
            "%s: records %d to %d are gone, and left out", format_name(name), start, info.earliest_sequence - 1
        )
        start = info.earliest_sequence


def _literal(text: str, field: str) -> str:
    """A topic or an address as an SQL literal, whatever is in it."""
    value = to_column(text, field)
    return f"CAST(x'{value.encode().hex()}' AS TEXT)" if isinstance(value, str) else f"x'{value.hex()}'"
