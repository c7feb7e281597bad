"""On a storage that takes nothing, such as a full disk, every request that waits for something durable is answered."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from dafka import Config
from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.log.durable_waits import DurableWaits
from dafka.errors import StorageError
from dafka.http.api.registry import ROUTES
from dafka.http.websocket.session import _HANDLERS
from dafka.kafka.apis import OFFERED, SERVED
from dafka.kafka.protocol.apis import RESPONSES
from dafka.kafka.protocol.constants import SET, ApiKey
from dafka.kafka.protocol.constants import TOPIC as TOPIC_RESOURCE
from dafka.kafka.protocol.frames import decode_response, encode_request
from dafka.kafka.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from dafka.kafka.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from dafka.kafka.protocol.messages.groups import DeleteGroupsRequest
from dafka.kafka.protocol.messages.logs import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from dafka.kafka.protocol.messages.membership import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from dafka.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from dafka.kafka.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from dafka.kafka.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)
from dafka.kafka.protocol.tables import NIL, Request
from dafka.kafka.server.counters import find_errors
from tests.http.running import RunningWeb, open_web
from tests.http.websocket.clients import open_client

TOPIC = "orders"
ANSWER_S = 20
REASON = "the disk is full"
RETRIABLE = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE,
}


def produce(acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=encode_batch(0, [b"a"], timestamps=5))
    topics = [TopicProduceData(name=TOPIC, partition_data=[data])]
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=topics)


WRITES: Mapping[ApiKey, Callable[[], Request]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.METADATA: lambda: MetadataRequest(
        topics=[MetadataRequestTopic(name="new-by-metadata")], allow_auto_topic_creation=True
    ),
    ApiKey.OFFSET_COMMIT: lambda: OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=TOPIC,
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")],
            )
        ],
    ),
    ApiKey.TXN_OFFSET_COMMIT: lambda: TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=TOPIC,
                partitions=[
                    TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
                ],
            )
        ],
    ),
    ApiKey.JOIN_GROUP: lambda: JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        group_instance_id="m",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    ),
    ApiKey.SYNC_GROUP: lambda: SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[]),
    ApiKey.LEAVE_GROUP: lambda: LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")]),
    ApiKey.CREATE_TOPICS: lambda: CreateTopicsRequest(
        topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=-1, assignments=[], configs=[])]
    ),
    ApiKey.DELETE_TOPICS: lambda: DeleteTopicsRequest(
        topics=[DeleteTopicState(name="deleted", topic_id=NIL)], timeout_ms=1000
    ),
    ApiKey.CREATE_PARTITIONS: lambda: CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=TOPIC, count=4, assignments=None)], timeout_ms=1000, validate_only=False
    ),
    ApiKey.ALTER_CONFIGS: lambda: AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=TOPIC_RESOURCE,
                resource_name=TOPIC,
                configs=[AlterableConfig(name="retention.ms", value="1000000")],
            )
        ],
        validate_only=False,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda: IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=TOPIC_RESOURCE,
                resource_name=TOPIC,
                configs=[IncrementalAlterableConfig(name="retention.ms", config_operation=SET, value="1000000")],
            )
        ],
        validate_only=False,
    ),
    ApiKey.DELETE_RECORDS: lambda: DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=0, offset=1)]),
        ],
        timeout_ms=1000,
    ),
    ApiKey.INIT_PRODUCER_ID: lambda: InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda: AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: lambda: AddOffsetsToTxnRequest(
        transactional_id="t", producer_id=1, producer_epoch=0, group_id="g"
    ),
    ApiKey.END_TXN: lambda: EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True),
    ApiKey.DELETE_GROUPS: lambda: DeleteGroupsRequest(groups_names=["g"]),
    ApiKey.OFFSET_DELETE: lambda: OffsetDeleteRequest(
        group_id="g",
        topics=[OffsetDeleteRequestTopic(name=TOPIC, partitions=[OffsetDeleteRequestPartition(partition_index=0)])],
    ),
}
"""A request of each API that waits for something durable."""

WITHOUT_WAITING = {
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.HEARTBEAT,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.API_VERSIONS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.ELECT_LEADERS,  # the answer says that it has begun
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
}
"""The APIs that write nothing, or do not wait for it."""

ROUTES_THAT_WAIT: Mapping[tuple[str, str], tuple[str, Any]] = {
    ("POST", "/topics"): ("/topics", {"name": "made"}),
    ("PATCH", "/topics/{topic}"): (f"/topics/{TOPIC}", {"settings": {"retention.ms": "1000000"}}),
    ("DELETE", "/topics/{topic}"): ("/topics/deleted", None),
    ("POST", "/topics/{topic}/records"): (f"/topics/{TOPIC}/records", b"a"),
    ("DELETE", "/topics/{topic}/records"): (f"/topics/{TOPIC}/records?before=1&log=0", None),
    ("PUT", "/groups/{group}/offsets"): ("/groups/g/offsets", {"topic": TOPIC, "offsets": {"0": 1}}),
    ("DELETE", "/groups/{group}"): ("/groups/g", None),
}
"""A request of each route that waits for something durable."""

ROUTES_WITHOUT_WAITING = {
    ("POST", "/brokers/{number}/drain"),  # the answer says that it has begun
    ("POST", "/brokers/{number}/undrain"),
    ("PUT", "/topics/{topic}/logs/{log}/replicas"),
    ("POST", "/storage/verification"),
    ("POST", "/session"),
    ("DELETE", "/session"),
}

MESSAGES_THAT_WAIT: Mapping[str, dict[str, Any]] = {
    "Publish": {"type": "publish", "topic": TOPIC, "records": [{"value": "a"}]},
    "InitProducer": {"type": "init_producer"},
    "Commit": {"type": "commit", "group": "g", "topic": TOPIC, "offsets": {"0": 1}},
    "Describe": {"type": "describe", "topic": "described", "create": True},
}
MESSAGES_WITHOUT_WAITING = {"Authenticate", "Subscribe", "Credit", "Unsubscribe", "Watch", "Unwatch", "Ping"}


MEMBERSHIP = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.LEAVE_GROUP}
TRANSACTIONS = {
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
}


class Disk:
    """The disk of a broker, which can be full."""

    def __init__(self, web: RunningWeb, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        broker: Any = web.broker.node
        append = broker.storage.storage.append

        async def append_or_fail(batches: Any) -> None:
            if self.is_full:
                raise StorageError(REASON)
            await append(batches)

        monkeypatch.setattr(broker.storage.storage, "append", append_or_fail)


@asynccontextmanager
async def open_disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RunningWeb, Disk]]:
    monkeypatch.setattr("dafka.broker.log.durable_waits.FAILING_S", 0.3)
    monkeypatch.setattr("dafka.http.logs.group_access.LEADER_WAIT_S", 0.5)
    config = Config().with_store(retry_ms=50)
    async with open_web(config=config) as web:
        for topic in (TOPIC, "deleted"):
            await web.broker.node.create_topic(topic, 1).wait()
        target = f"/topics/{TOPIC}/records"
        assert (await web.request("POST", target, b"first")).status == 200
        assert (await web.request("POST", target, b"second")).status == 200
        commit = {"topic": TOPIC, "offsets": {"0": 1}}
        assert (await web.request("PUT", "/groups/g/offsets", document=commit)).status == 200
        yield web, Disk(web, monkeypatch)


async def ask(web: RunningWeb, request: Request) -> list[int]:
    """Return the errors in the answer to a request of Kafka's protocol."""
    key = ApiKey(request.API_KEY)
    host, port = web.broker.bootstrap_servers.split(":")
    with trio.fail_after(ANSWER_S):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            version = OFFERED[key].last
            await stream.send_all(encode_request(request, version, 7, "test"))
            received = b""
            while len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
                data = await stream.receive_some()
                assert data, "the broker has ended the connection"
                received += data
    return find_errors(decode_response(received[4:], RESPONSES[key], version))


def test_every_request_is_known_to_wait_or_not() -> None:
    """A new API, route or message comes here."""
    assert WRITES.keys() | WITHOUT_WAITING == SERVED
    assert not WRITES.keys() & WITHOUT_WAITING
    others = {(each.method, each.path) for each in ROUTES if each.method != "GET"}
    assert ROUTES_THAT_WAIT.keys() | ROUTES_WITHOUT_WAITING == others
    assert MESSAGES_THAT_WAIT.keys() | MESSAGES_WITHOUT_WAITING == {each.__name__ for each in _HANDLERS}


@pytest.mark.parametrize("is_known", [False, True], ids=["begins to fail", "has failed"])
async def test_every_api_answers(monkeypatch: pytest.MonkeyPatch, *, is_known: bool) -> None:
    refused: dict[ApiKey, list[int]] = {}

    async def ask_and_note(web: RunningWeb, key: ApiKey) -> None:
        refused[key] = await ask(web, WRITES[key]())

    async with open_disk(monkeypatch) as (web, disk):
        await fill(web, disk, is_known=is_known)
        async with trio.open_nursery() as nursery:
            for key in WRITES:
                nursery.start_soon(ask_and_note, web, key)
        assert refused.keys() == WRITES.keys()
        # Those of groups and transactions may come before InitProducerId and JoinGroup, and are refused then.
        others = {key for key, errors in refused.items() if not set(errors) & RETRIABLE}
        assert others <= {*MEMBERSHIP, *TRANSACTIONS}, refused
        disk.is_full = False
        await wait_recovered(web)
        assert await ask(web, produce()) == []
        assert await ask(web, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)) == []


@pytest.mark.parametrize("is_known", [False, True], ids=["begins to fail", "has failed"])
async def test_every_route_answers(monkeypatch: pytest.MonkeyPatch, *, is_known: bool) -> None:
    async with open_disk(monkeypatch) as (web, disk):
        await fill(web, disk, is_known=is_known)
        found: dict[tuple[str, str], tuple[int, str]] = {}

        async def ask_and_note(place: tuple[str, str], target: str, sent: Any) -> None:
            body = {"body": sent} if isinstance(sent, bytes) else {"document": sent}
            answer = await web.request(place[0], target, **body)
            found[place] = answer.status, answer.code

        async with trio.open_nursery() as nursery:
            for place, request in ROUTES_THAT_WAIT.items():
                nursery.start_soon(ask_and_note, place, *request)
        assert found == dict.fromkeys(ROUTES_THAT_WAIT, (503, "storage_failed"))
        disk.is_full = False
        await wait_recovered(web)
        for place in (("POST", "/topics/{topic}/records"), ("PUT", "/groups/{group}/offsets")):
            target, sent = ROUTES_THAT_WAIT[place]
            body = {"body": sent} if isinstance(sent, bytes) else {"document": sent}
            assert (await web.request(place[0], target, **body)).status == 200


@pytest.mark.parametrize("is_known", [False, True], ids=["begins to fail", "has failed"])
async def test_every_message_is_answered(monkeypatch: pytest.MonkeyPatch, *, is_known: bool) -> None:
    async with open_disk(monkeypatch) as (web, disk):
        await fill(web, disk, is_known=is_known)
        for message in MESSAGES_THAT_WAIT.values():
            fields = {name: value for name, value in message.items() if name != "type"}
            async with open_client(web) as client:
                answer = await client.ask(message["type"], **fields)
                assert answer["type"] == "error", answer
                assert answer["code"] in {"storage_failed", "conflict"}, answer
        disk.is_full = False
        await wait_recovered(web)
        async with open_client(web) as client:
            assert (await client.ask("publish", topic=TOPIC, records=[{"value": "a"}]))["type"] == "published"


async def test_a_client_without_acknowledgements_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next answers would wait, too."""
    async with open_disk(monkeypatch) as (web, disk):
        disk.is_full = True
        with pytest.raises(AssertionError, match="has ended the connection"):
            await ask(web, produce(acks=0))


async def test_waits_end_in_time(autojump_clock: trio.testing.MockClock) -> None:
    """A storage that hangs does not fail."""
    waits, begun = DurableWaits(), autojump_clock.current_time()
    with pytest.raises(StorageError, match="it is not durable after 30 s; it may be stored later"), waits.bounded():
        await trio.sleep_forever()
    assert autojump_clock.current_time() - begun == pytest.approx(30)
    waits.check()


async def test_a_short_failure_ends_no_wait(autojump_clock: trio.testing.MockClock) -> None:
    waits, durable = DurableWaits(), trio.Event()

    async def fail_for(seconds: int) -> None:
        for _ in range(seconds):
            waits.record_failure(REASON)
            await trio.sleep(1)
        waits.record_success()
        durable.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_for, 4)
        with waits.bounded():
            await durable.wait()
    waits.check()
    durable = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_for, 8)
        with pytest.raises(StorageError, match=f"{REASON}; it may be stored later"), waits.bounded():
            await durable.wait()
        with pytest.raises(StorageError, match=f"nothing can be stored at present: {REASON}"):
            waits.check()


async def fill(web: RunningWeb, disk: Disk, *, is_known: bool) -> None:
    """Fill the disk; if it is to be known, write something before."""
    disk.is_full = True
    if is_known:
        answer = await web.request("POST", f"/topics/{TOPIC}/records", b"a")
        assert (answer.status, answer.code) == (503, "storage_failed")
        assert REASON in answer.document["error"]["message"]


async def wait_recovered(web: RunningWeb) -> None:
    """Wait until the broker has noticed that its disk takes records again."""
    with trio.fail_after(ANSWER_S):
        while not web.broker.node.storage.can_write:  # noqa: ASYNC110 (nothing else tells)
            await trio.sleep(0.02)
