"""The migrations that create the tables of a store (see `schema`). Later versions add theirs at the end.

This module is imported only when a migration is needed, because sqlite-utils takes longer to import than a store takes
to open.
"""

from __future__ import annotations

import sqlite3

from sqlite_utils import Database, Migrations

from dafka.records import new_address
from dafka.storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION

migrations = Migrations("dafka")


def migrate(connection: sqlite3.Connection) -> None:
    """Make an empty database a store of the version `SCHEMA_VERSION`, with a new node address."""
    migrations.apply(Database(connection))


@migrations()
def create_tables(db: Database) -> None:
    """Create the tables."""
    db.table("partitions").create(
        {
            "id": int,
            "topic": str,
            "address": str,
            "earliest_sequence": int,
            "end_sequence": int,
            "content_bytes": int,
            "earliest_stored_at": int,
            "latest_stored_at": int,
            "compacted_end": int,
        },
        pk="id",
        not_null={"topic", "address", "earliest_sequence", "end_sequence", "content_bytes", "compacted_end"},
        defaults={"compacted_end": 0},
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
            key BLOB,
            headers TEXT,
            timestamp INTEGER,
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
        """SELECT topic, address, sequence, stored_at, content, key, headers, timestamp
           FROM records JOIN partitions ON partitions.id = records.partition_id""",
    )
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
