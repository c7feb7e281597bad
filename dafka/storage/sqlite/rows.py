"""Rows of the table `partitions`: taken in, checked, and written back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from types import NoneType
from typing import Any

import attrs

from dafka.errors import StorageError
from dafka.records import Partition
from dafka.storage.base import PartitionInfo
from dafka.storage.sqlite.schema import EARLIEST_STORED_AT, LATEST_STORED_AT, from_column, to_columns

SEQUENCE_MAX = 2**63 - 1

_NUMBER = {int}
_NUMBER_OR_NONE = {int, NoneType}


@attrs.frozen
class Held:
    """A partition's row. `latest_stored_at` outlives the records, so that times never go back; 0 before the first."""

    row_id: int
    info: PartitionInfo
    latest_stored_at: int = 0


class RowReader:
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


def begin_partition(writer: sqlite3.Connection, partition: Partition, first_sequence: int) -> Held:
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
