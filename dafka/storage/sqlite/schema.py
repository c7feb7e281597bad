"""The tables of a SQLite store, their version, and the rows of the table `partitions`.

    partitions      one row per partition: its topic, its address (the producer's), and the range of its records
    records         one row per record, ordered by its key (partition_id, sequence)
    positions       one row per consumer name and partition: the sequence to consume next
    node            one row: the node address that belongs to this store
    topic_records   a view that adds topic and address to each record

The tables are public and versioned (docs/reference/sqlite-schema.md); `migrations` creates them. `topic` and `address`
are TEXT, or BLOB if their bytes are not UTF-8. Times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from types import NoneType
from typing import Any

import attrs

from dafka.errors import StorageError, StorageFormatError
from dafka.records import Partition, decode_text, encode_text
from dafka.storage.base import PartitionInfo
from dafka.storage.sqlite.headers import HEADERS_BYTES

APPLICATION_ID = 0x4441464B
"""'DAFK' in the header of the file, which distinguishes a store from other SQLite databases."""

SCHEMA_VERSION = 4
"""`PRAGMA user_version`, incremented by every migration that affects readers."""

# A process that is killed while it creates a store may leave only the table of the migrations.
_COUNT_TABLES = "SELECT count(*) FROM sqlite_master WHERE tbl_name != '_sqlite_migrations'"

RECORD_BYTES = f"(ifnull(length(content), 0) + ifnull(length(key), 0) + {HEADERS_BYTES})"
"""Computes the size of a record, as the column `content_bytes` counts it."""

IS_DAMAGED = """
    typeof(content) NOT IN ('blob', 'null') OR typeof(stored_at) != 'integer' OR typeof(key) NOT IN ('blob', 'null')
    OR typeof(timestamp) NOT IN ('integer', 'null')
    OR (headers IS NOT NULL AND (typeof(headers) != 'text' OR NOT json_valid(headers)))
"""
"""Whether a record cannot be read: a column has a type that the store never writes."""


def has_tables(connection: sqlite3.Connection, path: str) -> bool:
    """Return whether a database has the tables of a store, or is empty and can become a store.

    Raise `StorageFormatError`, which names the path, if it is not a store, or has another schema version.
    """
    try:
        application_id, version, tables = (
            connection.execute(query).fetchone()[0]
            for query in ("PRAGMA application_id", "PRAGMA user_version", _COUNT_TABLES)
        )
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        raise StorageFormatError(f"{path} is not a dafka store: {error}") from None
    if application_id != APPLICATION_ID:
        if tables or application_id:
            raise StorageFormatError(f"{path} is not a dafka store, but the database of another program")
        return False
    if version != SCHEMA_VERSION:
        raise StorageFormatError(
            f"{path} has schema version {version}, expected {SCHEMA_VERSION}; use the dafka that wrote it"
        )
    return True


def to_column(text: str, field: str) -> str | bytes:
    """Return a topic or an address as the tables store it: text, or bytes that are not UTF-8."""
    data = encode_text(text, field)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def from_column(value: str | bytes) -> str:
    """Return the topic or address that a column stores."""
    return value if isinstance(value, str) else decode_text(value)


def to_columns(partition: Partition) -> tuple[str | bytes, str | bytes]:
    """Return the topic and the address of a partition as the tables store them."""
    return to_column(partition.topic, "topic"), to_column(partition.address, "address")


SEQUENCE_MAX = 2**63 - 1
"""The largest integer in SQLite."""

_COLUMNS = """
    id, topic, address, earliest_sequence, end_sequence, content_bytes, earliest_stored_at, latest_stored_at,
    compacted_end
"""

_NUMBER = {int}
_NUMBER_OR_NONE = {int, NoneType}


@attrs.frozen
class PartitionRow:
    """A row of the table `partitions`."""

    row_id: int
    info: PartitionInfo
    latest_stored_at: int = 0
    """The time of the last record ever appended, 0 if there was none.

    It is kept when the records are dropped, so that times never decrease.
    """


class PartitionTable:
    """Reads rows of the table `partitions`. Every method raises `sqlite3.DataError` if a row is damaged."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[object, object], Partition] = {}

    def select_all(self, reader: sqlite3.Connection) -> dict[Partition, PartitionRow]:
        """Return every row."""
        return dict(self._select(reader))

    def select_one(self, reader: sqlite3.Connection, partition: Partition) -> PartitionRow | None:
        """Return the row of one partition, or None if there is none."""
        found = list(self._select(reader, "WHERE topic = ? AND address = ?", to_columns(partition)))
        return found[0][1] if found else None

    def select_infos(self, reader: sqlite3.Connection, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """Return what is held of each partition, or of each partition of a topic."""
        if topic is None:
            found = self._select(reader)
        else:
            found = self._select(reader, "WHERE topic = ?", to_columns(Partition(topic, ""))[:1])
        return {partition: row.info for partition, row in found}

    def _select(
        self, reader: sqlite3.Connection, where: str = "", arguments: tuple[str | bytes, ...] = ()
    ) -> Iterator[tuple[Partition, PartitionRow]]:
        statement = f"SELECT {_COLUMNS} FROM partitions {where}"
        with closing(reader.execute(statement, arguments)) as rows:  # a damaged row must not keep the cursor open
            yield from map(self._read_row, rows)

    def _read_row(self, row: tuple[Any, ...]) -> tuple[Partition, PartitionRow]:
        row_id, topic, address, earliest, end, content_bytes, earliest_at, latest_at, compacted = row
        partition = self._partitions.get((topic, address))
        if partition is None:
            partition = self._partitions[topic, address] = _partition(row_id, topic, address)
        if (
            {type(earliest), type(end), type(content_bytes), type(compacted)} != _NUMBER
            or not {type(earliest_at), type(latest_at)} <= _NUMBER_OR_NONE
            or not 0 <= earliest <= end
            or content_bytes < 0
        ):
            raise sqlite3.DataError(f"the row of partition {row_id} is damaged")
        first_at, last_at = (earliest_at, latest_at) if earliest < end else (None, None)
        info = PartitionInfo(earliest, end, content_bytes, first_at, last_at, latest_at, compacted_end=compacted)
        return partition, PartitionRow(row_id, info, latest_at or 0)


def _partition(row_id: int, topic: object, address: object) -> Partition:
    if not isinstance(topic, str | bytes) or not isinstance(address, str | bytes):
        raise sqlite3.DataError(f"the name of partition {row_id} is damaged")
    return Partition(from_column(topic), from_column(address))


def check_sequence(partition: Partition, sequence: int) -> None:
    """Raise `StorageError` if a sequence is too large for SQLite."""
    if sequence > SEQUENCE_MAX:
        raise StorageError(f"{partition}: sequence {sequence} is too large for SQLite, expected at most {SEQUENCE_MAX}")


def insert_partition(writer: sqlite3.Connection, partition: Partition, first_sequence: int) -> PartitionRow:
    """Insert the row of a new partition without records."""
    statement = """
        INSERT INTO partitions (topic, address, earliest_sequence, end_sequence, content_bytes)
        VALUES (?, ?, ?, ?, 0)
    """
    cursor = writer.execute(statement, (*to_columns(partition), first_sequence, first_sequence))
    assert cursor.lastrowid is not None
    return PartitionRow(cursor.lastrowid, PartitionInfo(first_sequence, first_sequence))


def update_partition(writer: sqlite3.Connection, row: PartitionRow) -> None:
    """Write a changed row."""
    info = row.info
    latest_stored_at = row.latest_stored_at if info.count else row.latest_stored_at or None
    writer.execute(
        """UPDATE partitions SET earliest_sequence = ?, end_sequence = ?, content_bytes = ?,
                  earliest_stored_at = ?, latest_stored_at = ?, compacted_end = ?
           WHERE id = ?""",
        (
            info.earliest_sequence,
            info.end_sequence,
            info.content_bytes,
            info.earliest_stored_at,
            latest_stored_at,
            info.compacted_end,
            row.row_id,
        ),
    )


def delete_partitions(writer: sqlite3.Connection, rows: Iterable[PartitionRow]) -> None:
    """Delete rows, and the records that remain of their partitions."""
    ids = [(row.row_id,) for row in rows]
    writer.executemany("DELETE FROM records WHERE partition_id = ?", ids)
    writer.executemany("DELETE FROM partitions WHERE id = ?", ids)


def select_identity(reader: sqlite3.Connection) -> str:
    """Return the node address of the store."""
    row = reader.execute("SELECT address FROM node").fetchone()
    if row is None or not isinstance(row[0], str):
        raise sqlite3.DataError("the store's node address is damaged")
    return row[0]
