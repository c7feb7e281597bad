"""Two copies of records have the same checksum, whatever their batches, and other records have another one."""

from __future__ import annotations

from typing import TypeAlias

import trio
from hypothesis import given
from hypothesis import strategies as st

from dafka.records import Header, Partition, RecordBatch
from dafka.storage.memory import MemoryStorage
from dafka.storage.tools.checksum import RecordsChecksum, compute_checksum

PARTITION = Partition("orders", "P")
PARTS = st.none() | st.binary(max_size=2)
HEADERS = st.lists(st.tuples(st.text("ab", max_size=2), PARTS), max_size=2).map(tuple)
RECORDS = st.lists(st.tuples(PARTS, PARTS, HEADERS), max_size=4)
Parts: TypeAlias = tuple[bytes | None, bytes | None, tuple[Header, ...]]


async def store(records: list[Parts], size: int) -> MemoryStorage:
    """Return a storage with records, in batches of a size."""
    storage = MemoryStorage()
    for first in range(0, len(records), size):
        values, keys, headers = zip(*records[first : first + size], strict=True)
        await storage.append([RecordBatch(PARTITION, first, values, keys=keys, headers=headers)])
    return storage


@given(RECORDS, RECORDS, st.integers(1, 4))
def test_records_decide_and_not_their_batches(one: list[Parts], other: list[Parts], size: int) -> None:
    async def find(records: list[Parts], size: int) -> RecordsChecksum:
        return await compute_checksum(await store(records, size), PARTITION, 0, 10)

    assert trio.run(find, one, size) == trio.run(find, one, 4)
    assert (trio.run(find, one, size) == trio.run(find, other, 4)) == (one == other)


async def test_what_is_not_stored_is_left_out() -> None:
    storage = await store([(b"%d" % number, None, ()) for number in range(9)], 3)
    await storage.trim(PARTITION, 3)
    found = await compute_checksum(storage, PARTITION, 0, 20)
    assert (found.first_sequence, found.end_sequence) == (3, 9)
    assert found == await compute_checksum(storage, PARTITION, 3, 9)
    assert found.checksum != (await compute_checksum(storage, PARTITION, 4, 9)).checksum
    nothing = await compute_checksum(storage, Partition("orders", "unknown"), 0, 20)
    assert (nothing.first_sequence, nothing.end_sequence) == (0, 0)
