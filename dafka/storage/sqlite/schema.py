"""The tables of a SQLite store: public, versioned, and made by migrations (docs/reference/sqlite-schema.md).

    partitions      one row a partition: its topic, its address (the producer's), what is held of it
    records         one row a record, in the order of its key (partition_id, sequence)
    positions       one row a consumer's name and partition: the sequence it wants next
    node            one row: the node address that belongs to this store
    topic_records   a view that puts topic and address beside each record

`topic` and `address` are TEXT, or BLOB where their octets are not UTF-8. Times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from types import NoneType
from typing import Any

import attrs

from dafka.errors import StorageError, StorageFormatError
from dafka.records import Partition, decode_text, encode_text
from dafka.storage.base import PartitionInfo

APPLICATION_ID = 0x4441464B
"""'DAFK', in the file's header: tells a store from any other SQLite database."""

SCHEMA_VERSION = 2
"""`PRAGMA user_version`: counts up with every migration that a reader must know of."""

EARLIEST_STORED_AT = """
    (SELECT stored_at FROM records WHERE partition_id = partitions.id AND sequence = partitions.earliest_sequence)
"""
"""What version 2 keeps in a column of this name, found where there is none yet."""

LATEST_STORED_AT = """
    (SELECT stored_at FROM records WHERE partition_id = partitions.id AND sequence = partitions.end_sequence - 1)
"""
"""Likewise, as far as the record is held."""

# A process killed while it made a store may leave the migrations' own table, and nothing else.
_COUNT_TABLES = "SELECT count(*) FROM sqlite_master WHERE tbl_name != '_sqlite_migrations'"


def read_version(connection: sqlite3.Connection, path: str) -> int:
    """The schema's version; 0 is an empty database, which can become a store.

    Raises `StorageFormatError` where it is anything else, or of a newer version.
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
            raise StorageFormatError(f"{path} is not a dafka store, but another program's database")
        return 0
    if version > SCHEMA_VERSION:
        raise StorageFormatError(
            f"{path} has schema version {version}; this dafka knows versions up to {SCHEMA_VERSION}"
        )
    return int(version)


def to_column(text: str, field: str) -> str | bytes:
    """A topic or an address as it stands in the tables: text, or octets where they are not UTF-8."""
    octets = encode_text(text, field)
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return octets


def from_column(value: str | bytes) -> str:
    """The topic or address that stands in the tables."""
    return value if isinstance(value, str) else decode_text(value)


def to_columns(partition: Partition) -> tuple[str | bytes, str | bytes]:
    """A partition as it stands in the tables."""
    return to_column(partition.topic, "topic"), to_column(partition.address, "address")


SEQUENCE_MAX = 2**63 - 1

_NUMBER = {int}
_NUMBER_OR_NONE = {int, NoneType}


@attrs.frozen
class Held:
    """A partition's row. `latest_stored_at` outlives the records, so that times never go back; 0 before the first."""

    row_id: int
    info: PartitionInfo
    latest_stored_at: int = 0


class PartitionRows:
    """Selects partitions' rows from a file of this schema version; knows those it has seen by their id."""

    def __init__(self, version: int) -> None:
        self._columns = "id, topic, address, earliest_sequence, end_sequence, content_bytes, " + (
            "earliest_stored_at, latest_stored_at" if version > 1 else f"{EARLIEST_STORED_AT}, {LATEST_STORED_AT}"
        )
        self._partitions: dict[int, Partition] = {}

    def select(self, reader: sqlite3.Connection) -> dict[Partition, Held]:
        """Every row. Raises `sqlite3.DataError` where one is damaged, as all of these do."""
        return {partition: Held(row_id, info, at) for partition, row_id, info, at in self._take(reader)}

    def select_one(self, reader: sqlite3.Connection, partition: Partition) -> Held | None:
        """One partition's row."""
        found = list(self._take(reader, "WHERE topic = ? AND address = ?", to_columns(partition)))
        return Held(*found[0][1:]) if found else None

    def select_infos(self, reader: sqlite3.Connection, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        """What is held of every partition, or of a topic's."""
        if topic is None:
            found = self._take(reader)
        else:
            found = self._take(reader, "WHERE topic = ?", to_columns(Partition(topic, ""))[:1])
        return {partition: info for partition, _, info, _ in found}

    def _take(
        self, reader: sqlite3.Connection, where: str = "", arguments: tuple[str | bytes, ...] = ()
    ) -> Iterator[tuple[Partition, int, PartitionInfo, int]]:
        statement = f"SELECT {self._columns} FROM partitions {where}"
        with closing(reader.execute(statement, arguments)) as rows:  # or a damaged row would keep the file open
            yield from map(self._read_row, rows)

    def _read_row(self, row: tuple[Any, ...]) -> tuple[Partition, int, PartitionInfo, int]:
        row_id, topic, address, earliest, end, content_bytes, earliest_at, latest_at = row
        partition = self._partitions.get(row_id)  # a row keeps its partition for good
        if partition is None:
            partition = self._partitions[row_id] = _partition(row_id, topic, address)
        if (
            {type(earliest), type(end), type(content_bytes)} != _NUMBER
            or not {type(earliest_at), type(latest_at)} <= _NUMBER_OR_NONE
            or not 0 <= earliest <= end
            or content_bytes < 0
        ):
            raise sqlite3.DataError(f"the row of partition {row_id} is damaged")
        if earliest == end:
            info = PartitionInfo(earliest, end, content_bytes)
        else:
            info = PartitionInfo(earliest, end, content_bytes, earliest_at, latest_at)
        return partition, row_id, info, latest_at or 0


def _partition(row_id: int, topic: object, address: object) -> Partition:
    if not isinstance(topic, str | bytes) or not isinstance(address, str | bytes):
        raise sqlite3.DataError(f"the name of partition {row_id} is damaged")
    return Partition(from_column(topic), from_column(address))


def insert_partition(writer: sqlite3.Connection, partition: Partition, first_sequence: int) -> Held:
    """Inserts the row of a partition that has no record yet."""
    if first_sequence > SEQUENCE_MAX:
        raise StorageError(f"{partition}: sequence {first_sequence} is more than SQLite can count")
    statement = """
        INSERT INTO partitions (topic, address, earliest_sequence, end_sequence, content_bytes)
        VALUES (?, ?, ?, ?, 0)
    """
    cursor = writer.execute(statement, (*to_columns(partition), first_sequence, first_sequence))
    assert cursor.lastrowid is not None
    return Held(cursor.lastrowid, PartitionInfo(first_sequence, first_sequence))


def update_partition(writer: sqlite3.Connection, held: Held) -> None:
    """Writes a row back."""
    info = held.info
    latest_stored_at = held.latest_stored_at if info.count else held.latest_stored_at or None
    writer.execute(
        """UPDATE partitions SET earliest_sequence = ?, end_sequence = ?, content_bytes = ?,
                  earliest_stored_at = ?, latest_stored_at = ?
           WHERE id = ?""",
        (
            info.earliest_sequence,
            info.end_sequence,
            info.content_bytes,
            info.earliest_stored_at,
            latest_stored_at,
            held.row_id,
        ),
    )


def select_identity(reader: sqlite3.Connection) -> str:
    """The store's node address."""
    row = reader.execute("SELECT address FROM node").fetchone()
    if row is None or not isinstance(row[0], str):
        raise sqlite3.DataError("the store's node address is damaged")
    return row[0]
