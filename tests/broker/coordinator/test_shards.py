"""The state of the coordinators in the logs of `$coordinators`: restored and rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dafka.broker.coordinator import coordinator_log as slot_log
from dafka.broker.core.coordination.state_records import COORDINATORS_TOPIC, shard_of
from dafka.broker.core.groups.results import CommitRequest, OffsetToCommit
from dafka.broker.core.topic_partition import TopicPartition
from tests.http.running import STORAGES, open_broker_service

PLACE = TopicPartition("orders", 0)

GROUPS = [f"group-{number}" for number in range(40)]


def commit(group: str, offset: int, leader_epoch: int = -1) -> CommitRequest:
    return CommitRequest(group_id=group, offsets={PLACE: OffsetToCommit(offset, leader_epoch)})


async def test_logs_are_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_log, "REWRITE_RECORDS", 10)
    url = STORAGES[1].format(tmp_path)
    async with open_broker_service(url) as broker:
        log = broker.node.log_table.find_log(COORDINATORS_TOPIC, shard_of("g"))
        assert log is not None
        others = [group for group in GROUPS if shard_of(group) == shard_of("g")]
        for group in others:
            await broker.groups.commit_offsets(commit(group, 7))
        for offset in range(30):
            await broker.groups.commit_offsets(commit("g", offset))
        with trio.fail_after(30):
            while log.index.end_offset - log.index.start_offset > 25:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert log.index.end_offset > 30
    async with open_broker_service(url) as broker:
        assert (await broker.groups.fetch_offsets("g"))[PLACE].offset == 29
        for group in others:
            assert (await broker.groups.fetch_offsets(group))[PLACE].offset == 7


async def test_many_commits_share_a_write() -> None:
    async with open_broker_service() as broker:
        before = broker.node.store.statistics().commits
        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon(broker.groups.commit_offsets, commit(f"group-{number}", number))
        assert broker.node.store.statistics().commits - before < 20
