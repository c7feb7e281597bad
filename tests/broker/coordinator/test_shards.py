"""The shards of a real broker write what many requests change together."""

from __future__ import annotations

import trio

from dafka.broker.core.groups.results import CommitRequest, OffsetToCommit
from dafka.broker.core.topic_partition import TopicPartition
from tests.http.running import open_broker_service


async def test_many_commits_share_a_write() -> None:
    offsets = {TopicPartition("orders", 0): OffsetToCommit(7)}
    async with open_broker_service() as broker:
        before = broker.node.store.statistics().commits
        async with trio.open_nursery() as nursery:
            for number in range(500):
                request = CommitRequest(group_id=f"group-{number}", offsets=offsets)
                nursery.start_soon(broker.groups.commit_offsets, request)
        assert broker.node.store.statistics().commits - before < 20
