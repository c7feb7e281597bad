"""DescribeQuorum: every broker tells who votes on metadata and how far each has its log, as the controller knows it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.broker.replication.virtual_cluster import open_virtual_cluster, wait_for
from tests.kafka.apis.door import Client, Door, open_door
from tests.kafka.server.clients import import_kafka

METADATA = "__cluster_metadata"


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door() as found:
        yield found


@pytest.mark.parametrize("version", range(3))
def test_a_broker_alone_is_its_quorum(door: Door, client: Client, version: int) -> None:
    began = time.time_ns() // 1_000_000
    topics = [
        {"topic_name": name, "partitions": [{"partition_index": number} for number in range(count)]}
        for name, count in ((METADATA, 2), ("other", 1))
    ]
    answer = client.ask(ApiKey.DESCRIBE_QUORUM, version, topics=topics)
    (known, second), (other,) = (each["partitions"] for each in answer["topics"])
    node = door.broker.broker.node
    assert node.metadata.log is not None
    assert (known["error_code"], known["leader_id"], known["observers"]) == (ErrorCode.NONE, 0, [])
    assert known["leader_epoch"] == node.metadata.log.leadership.epoch
    (voter,) = known["current_voters"]
    assert (voter["replica_id"], voter["log_end_offset"]) == (0, known["high_watermark"])
    assert voter["last_fetch_timestamp"] == -1
    assert (voter["last_caught_up_timestamp"] >= began) is (version >= 1)
    if version >= 2:
        assert voter["replica_directory_id"] == uuid.UUID(hex=node.brokers.own.address)
        host, _, port = door.servers.rpartition(":")
        listener = {"name": "PLAINTEXT", "host": host, "port": int(port)}
        assert answer["nodes"] == [{"node_id": 0, "listeners": [listener]}]
    for each in (second, other):
        assert each["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert each["current_voters"] == []


def test_kafka_python_describes_the_quorum(door: Door) -> None:
    admin = import_kafka().KafkaAdminClient(bootstrap_servers=door.servers)
    found = admin.describe_metadata_quorum()
    admin.close()
    ((log,),) = (each["partitions"] for each in found["topics"])
    assert (log["error"], log["leader_id"]) == (None, 0)
    assert [each["replica_id"] for each in log["current_voters"]] == [0]


async def test_every_broker_tells_what_the_controller_knows_and_what_it_knows_if_that_is_silent(
    autojump_clock: MockClock,
) -> None:
    async with open_virtual_cluster() as cluster:
        nodes = await cluster.start("A", "B", "C", "D")
        await wait_for(lambda: sum(map(len, (each.quorum.voters for each in nodes))) == 4 * 3)
        await trio.sleep(5)
        (controller,) = {each.quorum.controller for each in nodes}
        for node in nodes:
            found = await node.replica_reports.find()
            assert [each.number for each in found] == [0, 1, 2, 3]
            assert {each.address for each in found if each.is_voter} == {*node.quorum.voters}
            (end,) = {each.end_offset for each in found}
            assert end == node.quorum.committed
            assert all(0 <= each.silent_ms < 2000 and each.behind_ms == 0 for each in found)
        (leader,) = (each for each in cluster.brokers if cluster.brokers[each].brokers.own.address == controller)
        other = next(each for each in cluster.brokers if each != leader)
        cluster.down |= {(leader, other), (other, leader)}
        found = await cluster.brokers[other].replica_reports.find()
        ends = {each.address[0]: each.end_offset for each in found}
        assert ends.pop(other) == end
        assert {*ends.values()} <= {-1, end}
