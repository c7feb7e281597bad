"""Nothing of a record is lost on any way between two storages: appends, copies, exports and imports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.batches import move_records
from dafka.records import Partition, Record, RecordBatch, decode_text, record_bytes
from dafka.storage import Storage, open_storage, read_range
from dafka.storage.memory import MemoryStorage
from dafka.storage.tools.copy import copy_storage
from dafka.storage.tools.json_lines import export_lines, import_lines
from dafka.storage.tools.verify import verify_storage

PARTITION = Partition("orders", "A")

blobs = st.binary(max_size=12) | st.just(b"\0") | st.just(b"x" * 500)
names = st.one_of(st.text(st.characters(codec="utf-8"), max_size=4), st.binary(max_size=4).map(decode_text))
headers = st.lists(st.tuples(names, st.none() | blobs), max_size=4).map(tuple)
timestamps = st.integers(-(2**63), 2**63 - 1)
times = st.integers(1, 2**50)


_T = TypeVar("_T")


@st.composite
def batches(draw: st.DrawFn) -> RecordBatch:
    """A batch of few or many records, of which many are alike, with any of the columns."""
    count = draw(st.sampled_from([1, 2, 3, 40]))

    def column(items: st.SearchStrategy[_T]) -> st.SearchStrategy[list[_T]]:
        some = st.lists(items, min_size=1, max_size=count)
        return some.map(lambda found: (found * count)[:count])

    return RecordBatch(
        PARTITION,
        0,
        draw(column(st.none() | blobs) | column(blobs)),
        keys=draw(st.none() | column(st.none() | blobs) | column(blobs)),
        headers=draw(st.none() | column(headers)),
        timestamps=draw(st.none() | column(st.just(-1) | timestamps)),
        stored_at=sorted(draw(column(times))),
    )


async def read_everything(storage: Storage) -> list[Record]:
    info = (await storage.partitions())[PARTITION]
    found: list[Record] = []
    async for batch in read_range(storage, PARTITION, info.earliest_sequence, info.end_sequence, with_times=True):
        found += batch
    assert info.content_bytes == sum(map(record_bytes, found))
    return found


async def lines_of(storage: Storage) -> AsyncIterator[list[bytes]]:
    async for chunk in export_lines(storage):
        assert chunk.isascii()
        yield chunk.splitlines()


async def expect_round_trips(some: list[RecordBatch], folder: Path) -> None:
    latest = 0
    expected: list[Record] = []
    appended: list[RecordBatch] = []
    for each in some:
        batch = move_records(each, PARTITION, len(expected))
        appended.append(batch)
        for record in batch:
            assert record.stored_at is not None
            latest = max(latest, record.stored_at)
            expected.append(attrs.evolve(record, stored_at=latest))
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(open_storage(url))
            for url in (
                f"sqlite:{folder}/1.db?synchronous=OFF",
                f"sqlite:{folder}/2.db?synchronous=OFF",
                "memory:",
                f"filelog:{folder}/4?fsync=never&segment_bytes=2000",
                f"filelog:{folder}/5?fsync=never",
            )
        ]
        first, second, third, fourth, fifth = opened
        await first.append(appended[:1])
        await first.append(appended[1:])
        await copy_storage(first, third)
        await copy_storage(third, fourth)
        await copy_storage(fourth, fifth)
        await import_lines(second, lines_of(fifth))
        for storage in opened:
            assert await read_everything(storage) == expected
            assert (await verify_storage(storage)).damages == ()
        for record in expected[-3:]:  # short reads take another way than long ones
            for storage in (first, fourth):
                found = await storage.read(PARTITION, record.sequence, 1, with_times=True)
                assert found is not None
                assert list(found) == [record]


@settings(max_examples=6)
@given(some=st.lists(batches(), min_size=1, max_size=4))
def test_every_way_keeps_every_record(some: list[RecordBatch]) -> None:
    with TemporaryDirectory(prefix="dafka-round-trips-") as folder:
        trio.run(expect_round_trips, some, Path(folder))


WHOLE = RecordBatch(PARTITION, 0, [b"0", None], keys=[b"key", None], headers=[(("a", b"1"),), ()], timestamps=[5, 7])


async def test_a_line_has_every_part_of_a_record() -> None:
    storage = MemoryStorage()
    await storage.append([attrs.evolve(WHOLE, stored_at=[8, 9])])
    lines = [line async for some in lines_of(storage) for line in some]
    assert lines == [
        b'{"topic": "orders", "partition": "A", "sequence": 0, "stored_at": 8, "timestamp": 5, "key": "key", '
        b'"headers": [{"name": "a", "value": "1"}], "value": "0"}',
        b'{"topic": "orders", "partition": "A", "sequence": 1, "stored_at": 9, "timestamp": 7, "value": null}',
    ]
