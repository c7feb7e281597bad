"""The tables of a SQLite store: public, versioned, and made by migrations (docs/sqlite-schema.md).

    partitions      one row a partition: its topic, its address (the producer's), what is held of it
    records         one row a record, in the order of its key (partition_id, sequence)
    positions       one row a consumer's name and partition: the sequence it wants next
    node            one row: the node address that belongs to this store
    topic_records   a view that puts topic and address beside each record

`topic` and `address` are TEXT, or BLOB where their octets are not UTF-8. Times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

import sqlite3

from sqlite_utils import Database, Migrations

from dafka.errors import StorageFormatError
from dafka.records import Partition, decode_text, encode_text, new_address

APPLICATION_ID = 0x4441464B
"""'DAFK', in the file's header: tells a store from any other SQLite database."""

SCHEMA_VERSION = 2
"""`PRAGMA user_version`: counts up with every migration that a reader must know of."""

migrations = Migrations("dafka")

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


@migrations()
def create_tables(db: Database) -> None:
    """Version 1."""
    db.table("partitions").create(
        {
            "id": int,
            "topic": str,
            "address": str,
            "earliest_sequence": int,
            "end_sequence": int,
            "content_bytes": int,
        },
        pk="id",
        not_null={"topic", "address", "earliest_sequence", "end_sequence", "content_bytes"},
    )
    db.table("partitions").create_index(["topic", "address"], unique=True)
    # sqlite-utils has no WITHOUT ROWID: one tree in key order, so that a range of sequences is one sequential read.
    db.execute(
        """CREATE TABLE records (
            partition_id INTEGER NOT NULL REFERENCES partitions(id),
            sequence INTEGER NOT NULL,
            stored_at INTEGER NOT NULL,
            content BLOB NOT NULL,
            PRIMARY KEY (partition_id, sequence)
        ) WITHOUT ROWID"""
    )
    db.table("positions").create(
        {"name": str, "topic": str, "address": str, "next_sequence": int, "saved_at": int},
        pk=("name", "topic", "address"),
        not_null={"next_sequence", "saved_at"},
    )
    db.table("node").insert({"address": new_address()}, pk="address")
    db.create_view(
        "topic_records",
        """SELECT topic, address, sequence, stored_at, content
           FROM records JOIN partitions ON partitions.id = records.partition_id""",
    )
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("PRAGMA user_version = 1")


@migrations()
def add_partition_times(db: Database) -> None:
    """Version 2: when a partition's first and last records were stored; times within it never go back."""
    db.table("partitions").add_column("earliest_stored_at", int)
    db.table("partitions").add_column("latest_stored_at", int)
    db.execute(
        """UPDATE records SET stored_at = raised.latest
           FROM (
               SELECT partition_id, sequence, stored_at,
                      max(stored_at) OVER (PARTITION BY partition_id ORDER BY sequence) AS latest
               FROM records
           ) AS raised
           WHERE raised.stored_at < raised.latest
             AND records.partition_id = raised.partition_id AND records.sequence = raised.sequence"""
    )
    db.execute(
        f"UPDATE partitions SET earliest_stored_at = {EARLIEST_STORED_AT}, latest_stored_at = {LATEST_STORED_AT}"
    )
    db.execute("PRAGMA user_version = 2")


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
