"""The migrations that create the tables of a store and upgrade older ones (see `schema`).

This module is imported only when a migration is needed, because sqlite-utils takes longer to import than a store takes
to open.
"""

from __future__ import annotations

import sqlite3
import sys

from sqlite_utils import Database, Migrations

from dafka.records import new_address
from dafka.storage.sqlite.schema import APPLICATION_ID, EARLIEST_STORED_AT, LATEST_STORED_AT

migrations = Migrations("dafka")


def migrate(connection: sqlite3.Connection) -> None:
    """Upgrade an empty database, or a store of an older version, to `SCHEMA_VERSION`."""
    migrations.apply(Database(connection))


@migrations()
def create_tables(db: Database) -> None:
    """Create the tables of version 1."""
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
    # WITHOUT ROWID stores the rows in key order, so that a range of sequences is one sequential read. sqlite-utils
    # does not support it.
    db.execute(
        """CREATE TABLE records (
            partition_id INTEGER NOT NULL REFERENCES partitions(id),
            sequence INTEGER NOT NULL,
            stored_at INTEGER NOT NULL,
            content BLOB,
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
    """Upgrade to version 2: add the times of the first and last record, and raise times that decrease."""
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


@migrations()
def add_record_columns(db: Database) -> None:
    """Upgrade to version 3: add keys, headers and timestamps to records, and allow NULL contents.

    No record is read or written, so this is quick for a file of any size. SQLite has no statement that drops the
    constraint of a column; its documentation of ALTER TABLE describes this change of the table's definition.
    """
    for column in ("key BLOB", "headers TEXT", "timestamp INTEGER"):
        db.execute(f"ALTER TABLE records ADD COLUMN {column}")
    ((definition,),) = db.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'records'")
    if "content BLOB NOT NULL" in definition:
        if sys.version_info >= (3, 12):
            db.conn.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, False)
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = 'records'",
            (definition.replace("content BLOB NOT NULL", "content BLOB"),),
        )
        db.execute("PRAGMA writable_schema = OFF")
    db.execute("DROP VIEW topic_records")
    db.create_view(
        "topic_records",
        """SELECT topic, address, sequence, stored_at, content, key, headers, timestamp
           FROM records JOIN partitions ON partitions.id = records.partition_id""",
    )
    db.execute("PRAGMA user_version = 3")


@migrations()
def add_compacted_end(db: Database) -> None:
    """Upgrade to version 4: store the sequence up to which compaction may have removed records.

    Older releases, which would report removed records as damage, refuse the file.
    """
    db.execute("ALTER TABLE partitions ADD COLUMN compacted_end INTEGER NOT NULL DEFAULT 0")
    db.execute("PRAGMA user_version = 4")
