"""The state of the coordinators in the logs of `$coordinators`: restored and rewritten."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from dafka.batches import check_crc, encode_batch
from dafka.broker.coordinator import coordinator_log as slot_log
from dafka.broker.coordinator.coordinator_log import CoordinatorLog
from dafka.broker.core.coordination.state_records import COORDINATORS_TOPIC, StateRecord, shard_of
from dafka.broker.core.groups.results import CommitRequest, OffsetToCommit
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.log.deletion import RecordDeletion
from dafka.broker.log.writer import PendingAppend
from dafka.broker.node import BrokerNode
from dafka.errors import NotLeaderError, StorageError, TopicDeletedError
from tests.broker.nodes.test_broker import open_broker
from tests.http.running import STORAGES, open_broker_service

PLACE = TopicPartition("orders", 0)

GROUPS = [f"group-{number}" for number in range(40)]


def commit(group: str, offset: int, leader_epoch: int = -1) -> CommitRequest:
    return CommitRequest(group_id=group, offsets={PLACE: OffsetToCommit(offset, leader_epoch)})


async def append(node: BrokerNode, log: Log, records: list[StateRecord], epoch: int = 0) -> None:
    headers = [[("leader-epoch", b"%d" % epoch)] for _ in records] if epoch else None
    data = encode_batch(
        0, [each.value for each in records], keys=[each.key for each in records], headers=headers, timestamps=0
    )
    await node.writer.append(log, [(check_crc(data), data)]).wait_offset()


async def test_logs_are_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_log, "REWRITE_RECORDS", 10)
    url = STORAGES[1].format(tmp_path)
    async with open_broker_service(url) as broker:
        log = broker.node.log_table.find_log(COORDINATORS_TOPIC, shard_of("g"))
        assert log is not None
        others = [group for group in GROUPS if shard_of(group) == shard_of("g")]
        for group in others:
            await broker.groups.commit_offsets(commit(group, 7))
        delete_before, failures = RecordDeletion.delete_before, [StorageError("the disk fails once")]

        async def delete(deletion: RecordDeletion, log: Log, offset: Offset) -> None:
            if failures:
                raise failures.pop()
            await delete_before(deletion, log, offset)

        monkeypatch.setattr(RecordDeletion, "delete_before", delete)
        for offset in range(200):
            await broker.groups.commit_offsets(commit("g", offset))
        with trio.fail_after(30):
            while log.index.end_offset - log.index.start_offset > 60:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert log.index.end_offset > 200
        assert not failures
    async with open_broker_service(url) as broker:
        assert (await broker.groups.fetch_offsets("g"))[PLACE].offset == 199
        for group in others:
            assert (await broker.groups.fetch_offsets(group))[PLACE].offset == 7


async def test_records_of_a_deposed_leader_do_not_count() -> None:
    def record(key: bytes, value: bytes | None) -> StateRecord:
        return StateRecord("", key, value)

    async with open_broker("memory:") as (_, broker):
        (log,) = await broker.admin.ensure_internal_topic("$test", 1)
        await append(broker, log, [record(b"a", b"0"), record(b"b", b"0")])
        await append(broker, log, [record(b"a", b"5")], epoch=5)
        await append(broker, log, [record(b"a", b"3"), record(b"b", None)], epoch=3)
        await append(broker, log, [record(b"c", b"5")], epoch=5)
        await append(broker, log, [record(b"c", b"0")])
        loaded = CoordinatorLog(log, broker.writer, broker.reader, broker.deletion)
        await loaded.load()
        assert loaded.values == {b"a": b"5", b"b": b"0", b"c": b"5"}


async def test_a_new_leader_reads_what_is_committed_together_with_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_broker("memory:") as (_, broker):
        (log,) = await broker.admin.ensure_internal_topic("$test", 1)
        log.leadership = attrs.evolve(log.leadership, epoch=5)
        wait = PendingAppend.wait_offset

        async def wait_longer(appended: PendingAppend) -> Offset:
            monkeypatch.setattr(PendingAppend, "wait_offset", wait)
            await append(broker, log, [StateRecord("", b"a", b"5")], epoch=5)
            return await wait(appended)

        monkeypatch.setattr(PendingAppend, "wait_offset", wait_longer)
        loaded = CoordinatorLog(log, broker.writer, broker.reader, broker.deletion)
        await loaded.load()
        assert loaded.values[b"a"] == b"5"

        async def lose(_appended: PendingAppend) -> Offset:
            raise TopicDeletedError("$test")

        monkeypatch.setattr(PendingAppend, "wait_offset", lose)
        with pytest.raises(NotLeaderError):
            await loaded.load()


async def test_many_commits_share_a_write() -> None:
    async with open_broker_service() as broker:
        before = broker.node.store.statistics().commits
        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon(broker.groups.commit_offsets, commit(f"group-{number}", number))
        assert broker.node.store.statistics().commits - before < 20
