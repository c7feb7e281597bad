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

from dafka.errors import StorageFormatError
from dafka.records import Partition, decode_text, encode_text

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
