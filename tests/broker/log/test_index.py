"""The index of a broker's log: it is rewritten when most of it is of no use."""

from __future__ import annotations

from functools import partial

import pytest
from trio.testing import MockClock

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.log.stages import AssignOffsets
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.roles.commit_pipeline import Commit
from tests.broker.replication.virtual_cluster import batch, open_virtual_cluster, wait_for


async def test_rewritten_index_is_trimmed_and_read_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.broker.log.stages.OffsetAssigner", partial(OffsetAssigner, rewrite_entries=20))
    async with open_virtual_cluster("A", "A", store_retention_interval_ms=50) as cluster:
        for number in range(60):
            sent = batch(b"%d" % number, producer=(7, 0, number))
            await cluster.brokers["A"].writer.append(cluster.log("A"), sent).wait_offset()
        before = cluster.log("A")
        await wait_for(lambda: before.index_trimmed == before.index_first > 0)
        info = await cluster.disks["A"].find_partition(before.index_partition)
        assert info is not None
        assert (info.earliest_sequence, info.count < 60) == (before.index_first, True)
        await cluster.stop("A")
        await cluster.start("A")
        log = cluster.log("A")
        (state,) = log.producers.producers.values()
        assert [each.base_sequence for each in state.batches] == list(range(55, 60))
        assert (log.high_watermark, log.index_first, log.index_trimmed) == (
            60,
            info.earliest_sequence,
            info.earliest_sequence,
        )
        assert await cluster.read("A") == [b"%d" % number for number in range(60)]


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
