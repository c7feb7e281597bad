"""Stores of Spark's tests: each content names its partition and sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import trio

from dafka.records import NO_TIMESTAMP, Header, Partition, Record, RecordBatch
from dafka.storage import open_storage

A, B = "A" * 32, "B" * 32
TIME = 1_700_000_000_000
"""The time of each partition's first record, in milliseconds since 1970."""

HEADERS: list[tuple[Header, ...]] = [
    (),
    (("trace", b"1"), ("trace", None)),
    (("na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve", b"\xff\0"),),
]


def content(topic: str, address: str, sequence: int) -> bytes:
    return f"{topic}/{address[:1]}/{sequence}".encode("utf-8", "surrogateescape")


def batch(
    topic: str, address: str, start: int, end: int, *, step_ms: int = 1, contents: Sequence[bytes] | None = None
) -> RecordBatch:
    """Return records whose times are `step_ms` apart."""
    return RecordBatch(
        Partition(topic, address),
        start,
        contents or [content(topic, address, sequence) for sequence in range(start, end)],
        stored_at=[TIME + sequence * step_ms for sequence in range(start, end)],
    )


def whole_batch(topic: str, address: str, start: int, end: int) -> RecordBatch:
    """Return records of all kinds: with and without keys, headers and timestamps, and tombstones."""
    sequences = range(start, end)
    return attrs.evolve(
        batch(topic, address, start, end),
        values=[None if sequence % 5 == 0 else content(topic, address, sequence) for sequence in sequences],
        keys=[(None, b"", b"key %d" % sequence, b"\xff")[sequence % 4] for sequence in sequences],
        headers=[HEADERS[sequence % len(HEADERS)] for sequence in sequences],
        timestamps=[NO_TIMESTAMP if sequence % 7 == 0 else TIME // 2 - 1000 * sequence for sequence in sequences],
    )


def fill(url: str, *batches: RecordBatch) -> str:
    """Append batches to a store, and return its URL."""

    async def program() -> None:
        async with open_storage(url) as storage:
            for each in batches:
                await storage.append([each])

    trio.run(program)
    return url


def trim(url: str, earliest: Mapping[Partition, int]) -> None:
    """Drop the records before these sequences from a store."""

    async def program() -> None:
        async with open_storage(url) as storage:
            for partition, sequence in earliest.items():
                await storage.trim(partition, sequence)

    trio.run(program)


async def read_store(path: Path) -> dict[Partition, list[bytes]]:
    """Return the values of all partitions in an SQLite store, in order, without tombstones."""
    return {
        partition: [record.value for record in records if record.value is not None]
        for partition, records in (await read_records(path)).items()
    }


async def read_records(path: Path) -> dict[Partition, list[Record]]:
    """Return the records of all partitions in an SQLite store, in order; its process may be running."""
    stored: dict[Partition, list[Record]] = {}
    async with open_storage(f"sqlite:{path}", read_only=True) as storage:
        for partition, info in (await storage.partitions()).items():
            records = stored[partition] = []
            position = info.earliest_sequence
            while position < info.end_sequence:
                batch = await storage.read(partition, position, info.end_sequence - position)
                assert batch is not None
                records += batch
                position = batch.end_sequence
    return stored
