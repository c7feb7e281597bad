"""A compacted log is replicated: other brokers hold what is left, and lead it with the same offsets."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from dafka.batches import check_crc, decode_held, encode_batch, read_header
from dafka.batches.decoding import decode_batch
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.broker.log.compaction import LogCompaction
from dafka.broker.node import BrokerNode
from dafka.config import Config
from dafka.records import Partition
from dafka.storage.capabilities import Compactable, CompactsPartitions
from dafka.storage.compaction import CompactionPolicy
from tests.broker.nodes.broker_cluster import PATIENCE_S, open_broker_cluster
from tests.waiting import wait_until

COUNT, KEYS = 200, 9


async def append(broker: BrokerNode, log: Log, first: int, count: int) -> int:
    """Append records whose values are their offsets."""
    numbers = range(first, first + count)
    keys = [b"key %d" % (number % KEYS) for number in numbers]
    data = encode_batch(0, [b"%d" % number for number in numbers], keys=keys, timestamps=1000)
    with trio.fail_after(PATIENCE_S):
        return await broker.writer.append(log, [(check_crc(data), data)]).wait_offset()


async def read_all(broker: BrokerNode, log: Log) -> dict[int, bytes]:
    """Return the values of a log up to its high watermark, by their offsets."""
    found: dict[int, bytes] = {}
    end = 0
    while end < log.high_watermark:
        for data in await broker.reader.read(log, Offset(end), log.high_watermark, 2**20):
            header = read_header(data)
            assert header.base_offset == end
            end = header.end_offset
            parts = [(header.base_offset, decode_batch(data, bytes_max=2**20))] if not header.is_compacted else []
            for offset, columns in parts or decode_held(header, data, bytes_max=2**20):
                found.update(enumerate((value or b"" for value in columns.values), offset))
    return found


def is_right(found: dict[int, bytes], end: int) -> bool:
    """Return whether each offset has its own value, and the last record of each key is there."""
    return all(value == b"%d" % offset for offset, value in found.items()) and {*range(end - KEYS, end)} <= set(found)


async def compact(broker: BrokerNode, log: Log) -> None:
    compaction = LogCompaction(
        broker.log_table, broker.reader, broker.storage.storage, broker.store.compactor, Config()
    )
    await compaction.compact_log(log, CompactionPolicy(dirty_ratio=0))


async def test_brokers_that_come_late_lead_what_is_left(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path, "sqlite") as cluster:
        first = await cluster.start("a")
        await first.create_topic("prices", 1).wait()
        ((leader, log),) = await cluster.wait_led("prices")
        for number in range(0, COUNT, 20):
            assert await append(leader, log, number, 20) == number
        await compact(leader, log)
        held = await read_all(leader, log)
        assert is_right(held, COUNT)
        assert len(held) <= KEYS + 1
        await cluster.start_all("b", "c")
        await wait_until(lambda: [len(log.leadership.in_sync) for _, log in cluster.logs("prices")] == [3])
        await cluster.stop("a")
        ((leader, log),) = await cluster.wait_led("prices")
        assert leader is not first
        assert await read_all(leader, log) == held
        assert await append(leader, log, COUNT, 20) == COUNT
        await compact(leader, log)
        found = await read_all(leader, log)
        assert is_right(found, COUNT + 20)
        assert len(found) <= 2 * KEYS + 2
        again = await cluster.start("a")
        await wait_until(lambda: [len(log.leadership.in_sync) for _, log in cluster.logs("prices")] == [3])
        assert again.find_topic("prices") is not None


async def test_records_that_are_not_in_the_index_yet_are_not_taken_for_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker_cluster(tmp_path, "sqlite") as cluster:
        broker = await cluster.start("a")
        await broker.create_topic("prices", 1).wait()
        ((_, log),) = await cluster.wait_led("prices")
        await append(broker, log, 0, COUNT)
        storage = broker.storage.storage
        assert isinstance(storage, CompactsPartitions)
        find = storage.find_compactable

        async def find_more(partition: Partition, clean_end: int) -> Compactable | None:
            found = await find(partition, clean_end)
            return None if found is None else attrs.evolve(found, end_sequence=COUNT + 20)

        monkeypatch.setattr(storage, "find_compactable", find_more)
        await compact(broker, log)
        (clean_ends,) = [await storage.load_positions(each) for each in await storage.position_names()]
        assert list(clean_ends.values()) == [COUNT]
