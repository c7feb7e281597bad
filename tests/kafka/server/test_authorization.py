"""Each API refuses what a user may not do, also when it is the first one that a client asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dafka.batches import encode_batch
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis import SERVED
from dafka.kafka.protocol.apis import RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages import (
    cluster,
    configs,
    groups,
    logs,
    membership,
    offsets,
    reassignments,
    topics,
    transactions,
)
from dafka.kafka.protocol.tables import NIL, Request
from dafka.kafka.server.counters import find_errors
from dafka.testing import RunningKafka
from tests.kafka.server.secured import EVERYTHING, run_secured, write_user_file
from tests.kafka.server.test_permissions import fetch_of, log_in, write
from tests.kafka.server.test_security import Wire

TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

COMMIT = offsets.OffsetCommitRequest(
    group_id="g",
    topics=[
        offsets.OffsetCommitRequestTopic(
            name="t",
            partitions=[
                offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
            ],
        )
    ],
)
PRODUCE = logs.ProduceRequest(
    acks=-1,
    timeout_ms=1000,
    topic_data=[
        logs.TopicProduceData(
            name="t",
            partition_data=[logs.PartitionProduceData(index=0, records=encode_batch(0, [b"x"], timestamps=1))],
        )
    ],
)
TRANSACTIONAL = logs.ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1000, topic_data=PRODUCE.topic_data)
EPOCHS = logs.OffsetForLeaderEpochRequest(
    topics=[
        logs.OffsetForLeaderTopic(topic="t", partitions=[logs.OffsetForLeaderPartition(partition=0, leader_epoch=0)])
    ]
)
DELETE_RECORDS = logs.DeleteRecordsRequest(
    topics=[logs.DeleteRecordsTopic(name="t", partitions=[logs.DeleteRecordsPartition(partition_index=0, offset=1)])],
    timeout_ms=1000,
)
DELETE_OFFSETS = offsets.OffsetDeleteRequest(
    group_id="g",
    topics=[
        offsets.OffsetDeleteRequestTopic(name="t", partitions=[offsets.OffsetDeleteRequestPartition(partition_index=0)])
    ],
)
TXN_COMMIT = offsets.TxnOffsetCommitRequest(
    transactional_id="x",
    group_id="g",
    producer_id=1,
    producer_epoch=0,
    topics=[
        offsets.TxnOffsetCommitRequestTopic(
            name="t",
            partitions=[
                offsets.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
            ],
        )
    ],
)
JOIN = membership.JoinGroupRequest(
    group_id="g",
    session_timeout_ms=10_000,
    member_id="",
    protocol_type="consumer",
    protocols=[membership.JoinGroupRequestProtocol(name="range", metadata=b"")],
)
SYNC = membership.SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[])
ADD = transactions.AddPartitionsToTxnRequest(
    v3_and_below_transactional_id="x",
    v3_and_below_producer_id=1,
    v3_and_below_producer_epoch=0,
    v3_and_below_topics=[transactions.AddPartitionsToTxnTopic(name="t", partitions=[0])],
)
CREATE = topics.CreateTopicsRequest(
    topics=[topics.CreatableTopic(name="n", num_partitions=1, replication_factor=1, assignments=[], configs=[])]
)
LIST_OFFSETS = logs.ListOffsetsRequest(
    replica_id=-1,
    topics=[logs.ListOffsetsTopic(name="t", partitions=[logs.ListOffsetsPartition(partition_index=0, timestamp=-1)])],
)
FETCH_OFFSETS = offsets.OffsetFetchRequest(
    group_id="g", topics=[offsets.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
)
FETCH_ALL_OFFSETS = offsets.OffsetFetchRequest(groups=[offsets.OffsetFetchRequestGroup(group_id="g", topics=None)])
DELETE_BY_ID = topics.DeleteTopicsRequest(topics=[topics.DeleteTopicState(name="t", topic_id=NIL)], timeout_ms=1000)
LEAVE = membership.LeaveGroupRequest(group_id="g", member_id="m")
ALTER = configs.AlterConfigsRequest(
    resources=[configs.AlterConfigsResource(resource_type=2, resource_name="t", configs=[])], validate_only=False
)
ALTER_SOME = configs.IncrementalAlterConfigsRequest(
    resources=[configs.IncrementalAlterConfigsResource(resource_type=2, resource_name="t", configs=[])],
    validate_only=False,
)
DESCRIBE = configs.DescribeConfigsRequest(
    resources=[configs.DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)]
)
ADD_LOGS = topics.CreatePartitionsRequest(
    topics=[topics.CreatePartitionsTopic(name="t", count=2, assignments=None)], timeout_ms=1000, validate_only=False
)
REASSIGN = reassignments.AlterPartitionReassignmentsRequest(
    topics=[
        reassignments.ReassignableTopic(
            name="t", partitions=[reassignments.ReassignablePartition(partition_index=0, replicas=[0])]
        )
    ]
)
ELECT = reassignments.ElectLeadersRequest(topic_partitions=[reassignments.ElectableTopic(topic="t", partitions=[0])])
ELECT_ALL = reassignments.ElectLeadersRequest(topic_partitions=None)
END = transactions.EndTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0, committed=True)
ADD_OFFSETS = transactions.AddOffsetsToTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0, group_id="g")
IDEMPOTENT = transactions.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
BEGIN = transactions.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)

REFUSED: list[tuple[Request, int, ErrorCode]] = [
    (PRODUCE, 7, TOPIC),
    (TRANSACTIONAL, 7, TRANSACTION),
    (fetch_of("t"), 11, TOPIC),
    (LIST_OFFSETS, 1, TOPIC),
    (EPOCHS, 2, TOPIC),
    (DELETE_RECORDS, 1, TOPIC),
    (COMMIT, 2, GROUP),
    (FETCH_OFFSETS, 1, GROUP),
    (FETCH_ALL_OFFSETS, 8, GROUP),
    (DELETE_OFFSETS, 0, GROUP),
    (membership.FindCoordinatorRequest(key="g", key_type=0), 2, GROUP),
    (membership.FindCoordinatorRequest(coordinator_keys=["x"], key_type=1), 4, TRANSACTION),
    (JOIN, 5, GROUP),
    (SYNC, 3, GROUP),
    (membership.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3, GROUP),
    (LEAVE, 2, GROUP),
    (groups.DescribeGroupsRequest(groups=["g"]), 4, GROUP),
    (groups.DeleteGroupsRequest(groups_names=["g"]), 1, GROUP),
    (CREATE, 4, TOPIC),
    (topics.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 3, TOPIC),
    (DELETE_BY_ID, 6, TOPIC),
    (ADD_LOGS, 1, TOPIC),
    (REASSIGN, 0, TOPIC),
    (ELECT, 2, TOPIC),
    (ELECT_ALL, 2, CLUSTER),
    (DESCRIBE, 1, TOPIC),
    (ALTER, 1, TOPIC),
    (ALTER_SOME, 0, TOPIC),
    (IDEMPOTENT, 1, CLUSTER),
    (BEGIN, 1, TRANSACTION),
    (ADD, 2, TRANSACTION),
    (ADD_OFFSETS, 2, TRANSACTION),
    (END, 2, TRANSACTION),
    (TXN_COMMIT, 2, TRANSACTION),
    (transactions.DescribeTransactionsRequest(transactional_ids=["x"]), 0, TRANSACTION),
    (topics.DescribeTopicPartitionsRequest(topics=[topics.TopicRequest(name="t")]), 0, TOPIC),
    (cluster.DescribeLogDirsRequest(topics=None), 3, CLUSTER),
    (
        transactions.DescribeProducersRequest(topics=[transactions.TopicRequest(name="t", partition_indexes=[0])]),
        0,
        TOPIC,
    ),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKafka]:
    path = tmp_path_factory.mktemp("users") / "users"
    write_user_file(path, root=EVERYTHING, nobody=Permissions())
    with run_secured(path.parent, users=str(path)) as found:
        assert write("root", found, "t") == ""
        yield found


@pytest.mark.parametrize(
    ("request_", "version", "error"), REFUSED, ids=[f"{each.API_KEY.name}-{version}" for each, version, _ in REFUSED]
)
def test_api_refuses_a_user_without_permissions(
    running: RunningKafka, request_: Request, version: int, error: ErrorCode
) -> None:
    with Wire(running) as wire:
        log_in(wire, "nobody")
        answer = wire.ask(request_, RESPONSES[request_.API_KEY], version)
    assert set(find_errors(answer)) == {error}


def test_nothing_is_listed_to_a_user_without_permissions(running: RunningKafka) -> None:
    with Wire(running) as wire:
        log_in(wire, "nobody")
        listed = wire.ask(configs.ListConfigResourcesRequest(), configs.ListConfigResourcesResponse, 1)
        assert listed.config_resources == []
        partitions = topics.DescribeTopicPartitionsRequest(topics=[])
        assert wire.ask(partitions, topics.DescribeTopicPartitionsResponse, 0).topics == []
        assert wire.ask(groups.ListGroupsRequest(), groups.ListGroupsResponse, 1).groups == []


def test_all_apis_are_tried() -> None:
    tried_by_filters = {
        ApiKey.METADATA,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    }
    for_everybody = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DESCRIBE_CLUSTER}
    tried = {each.API_KEY for each, _, _ in REFUSED}
    assert not SERVED - tried - tried_by_filters - for_everybody
