"""Stores for Spark's tests: each content tells its partition and sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage

A, B = "A" * 32, "B" * 32
TIME = 1_700_000_000_000
"""The first record's time, in milliseconds since 1970."""


def content(topic: str, address: str, sequence: int) -> bytes:
    return f"{topic}/{address[:1]}/{sequence}".encode("utf-8", "surrogateescape")


def batch(
    topic: str, address: str, start: int, end: int, *, step_ms: int = 1, contents: Sequence[bytes] | None = None
) -> RecordBatch:
    """Records whose times are `step_ms` apart."""
    return RecordBatch(
        Partition(topic, address),
        start,
        contents or [content(topic, address, sequence) for sequence in range(start, end)],
        [TIME + sequence * step_ms for sequence in range(start, end)],
    )


def fill(url: str, *batches: RecordBatch) -> str:
    """Appends to a store, and gives its URL."""

    async def program() -> None:
        async with open_storage(url) as storage:
            for each in batches:
                await storage.append([each])

    trio.run(program)
    return url


def trim(url: str, earliest: Mapping[Partition, int]) -> None:
    async def program() -> None:
        async with open_storage(url) as storage:
            for partition, sequence in earliest.items():
                await storage.trim(partition, sequence)

    trio.run(program)
