"""The index of a broker's log: it is rewritten when most of it is of no use."""

from __future__ import annotations

from pathlib import Path

import trio

from dafka import Config
from dafka.batches import check_crc, encode_batch
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import REWRITE_ENTRIES
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.log.stages import AssignOffsets
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.node import BrokerNode
from dafka.broker.startup import serve_broker
from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.roles.commit_pipeline import Commit
from dafka.storage import open_storage
from dafka.testing.cluster import open_cluster
from tests.broker.nodes.test_broker import DEADLINE_S, encode, log_of, open_broker, read_all

COUNT = REWRITE_ENTRIES + 1000


async def test_rewritten_index_is_trimmed_and_read_back(tmp_path: Path) -> None:
    storage = f"filelog:{tmp_path}/log"
    async with open_broker(storage, Config().with_store(retention_interval_ms=50)) as (_, broker):
        await broker.create_topic("orders").wait()
        log = log_of(broker, "orders")
        batches = []
        for number in range(COUNT):
            data = encode_batch(0, [b""], timestamps=1, producer_id=7, producer_epoch=0, base_sequence=number)
            batches.append((check_crc(data), data))
        await broker.writer.append(log, batches).wait_offset()
        await broker.writer.append(log, encode([b"x"])).wait_offset()
        data = encode_batch(0, [b""], timestamps=1, producer_id=7, producer_epoch=0, base_sequence=COUNT)
        await broker.writer.append(log, [(check_crc(data), data)]).wait_offset()
        assert log.entry_count < 20
        with trio.fail_after(DEADLINE_S):
            while not log.index_trimmed:  # noqa: ASYNC110
                await trio.sleep(0.01)
    async with open_storage(storage, read_only=True) as held:
        assert (await held.partitions("$logs"))[log.index_partition].count == 1
    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        again: BrokerNode = await nursery.start(serve_broker, cluster.config.with_store(storage=storage))
        log = log_of(again, "orders")
        (state,) = log.producers.producers.values()
        sequences = [each.base_sequence for each in state.batches]
        assert sequences == list(range(COUNT - 4, COUNT + 1))
        assert log.high_watermark == COUNT + 2
        assert len(await read_all(again, log, COUNT)) == 2
        nursery.cancel_scope.cancel()


def test_stored_records_get_their_offsets_in_the_write_after_one_that_failed() -> None:
    log_table = LogTable("here")
    log_table.add_topic(Topic("orders", "1D", 1))
    stage, (log,) = AssignOffsets(log_table, LogWaiters()), log_table.logs("orders")
    stage.assign_later(log, RecordBatch(Partition("orders", "producer"), 0, [b"a", b"b"]))
    stage.prepare(Commit())
    stage.failed(Commit(), StorageError("no space left on the disk"))
    assert stage.has_work()
    assert log.index.end_offset == 0
    stage.prepare(Commit())
    stage.done(Commit())
    assert log.index.end_offset == 2
