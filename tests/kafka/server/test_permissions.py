"""The permissions of users: clients of Kafka get Kafka's errors for requests that their user is not permitted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from dafka.kafka.protocol.messages.connections import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from dafka.kafka.protocol.messages.logs import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from dafka.testing import RunningKafka
from tests.kafka.server.secured import EVERYTHING, PASSWORD, run_secured, write_user_file
from tests.kafka.server.test_security import Wire

DEADLINE_S = 60

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKafka]:
    path = tmp_path_factory.mktemp("users") / "users"
    write_user_file(
        path,
        root=EVERYTHING,
        reader=Permissions(read=("open-*",), groups=("reader-*",)),
        writer=Permissions(write=("open-*",), transactions=("writer-*",)),
        keeper=Permissions(admin=("open-*",)),
        nobody=Permissions(),
    )
    with run_secured(path.parent, users=str(path)) as found:
        root = Producer(settings("root", found))
        for topic in ("open-1", "secret-1"):
            root.produce(topic, b"value")
        assert root.flush(DEADLINE_S) == 0
        yield found


def settings(user: str, running: RunningKafka, **others: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": running.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in others.items()},
    }


def admin_of(user: str, running: RunningKafka) -> AdminClient:
    return AdminClient(settings(user, running))


def error_of(futures: dict[Any, Any]) -> str:
    (future,) = futures.values()
    try:
        future.result(DEADLINE_S)
    except KafkaException as error:
        return str(error.args[0].name())
    return ""


def write(user: str, running: RunningKafka, topic: str, **others: Any) -> str:
    results: list[str] = []
    producer = Producer(settings(user, running, **others))
    producer.produce(topic, b"value", on_delivery=lambda error, _: results.append(error.name() if error else ""))
    assert producer.flush(DEADLINE_S) == 0
    return results[0]


def read(user: str, running: RunningKafka, topic: str, group: str) -> bytes | str:
    consumer = Consumer(settings(user, running, group_id=group, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    try:
        for _ in range(DEADLINE_S):
            message = consumer.poll(1)
            if message is not None:
                error: Any = message.error()
                return bytes(message.value() or b"") if error is None else str(error.name())
        return "nothing"
    finally:
        consumer.close()


def test_writers_write_and_do_not_read(running: RunningKafka) -> None:
    assert write("writer", running, "open-1") == ""
    assert write("writer", running, "secret-1") == "TOPIC_AUTHORIZATION_FAILED"
    assert read("writer", running, "open-1", "reader-1") == "GROUP_AUTHORIZATION_FAILED"


def test_readers_read_and_do_not_write(running: RunningKafka) -> None:
    assert read("reader", running, "open-1", "reader-1") == b"value"
    assert read("reader", running, "secret-1", "reader-2") == "TOPIC_AUTHORIZATION_FAILED"
    assert read("reader", running, "open-1", "others") == "GROUP_AUTHORIZATION_FAILED"
    assert write("reader", running, "open-1") == "TOPIC_AUTHORIZATION_FAILED"


def test_topics_are_created_only_by_those_who_may_write_to_them(running: RunningKafka) -> None:
    assert write("writer", running, "open-new") == ""
    assert read("reader", running, "open-never", "reader-3") == "UNKNOWN_TOPIC_OR_PART"
    assert "open-never" not in admin_of("root", running).list_topics(timeout=DEADLINE_S).topics


def test_metadata_shows_what_a_user_may_see(running: RunningKafka) -> None:
    def seen(user: str) -> set[str]:
        return set(admin_of(user, running).list_topics(timeout=DEADLINE_S).topics)

    assert {"open-1", "secret-1"} <= seen("root")
    for user in ("reader", "writer", "keeper"):
        assert "open-1" in seen(user)
        assert "secret-1" not in seen(user)
    assert seen("nobody") == set()
    asked = admin_of("reader", running).list_topics("secret-1", timeout=DEADLINE_S).topics["secret-1"]
    error: Any = asked.error
    assert error.name() == "TOPIC_AUTHORIZATION_FAILED"
    assert not asked.partitions


def test_idempotent_producers_need_a_topic_and_transactions_their_id(running: RunningKafka) -> None:
    assert write("writer", running, "open-1", enable_idempotence=True) == ""
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        Producer(settings("writer", running, transactional_id="others")).init_transactions(DEADLINE_S)
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        Producer(settings("reader", running, transactional_id="writer-1")).init_transactions(DEADLINE_S)


def test_topics_are_administered_by_those_who_may(running: RunningKafka) -> None:
    entry = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    for user, topic, expected in [
        ("writer", "open-made", "TOPIC_AUTHORIZATION_FAILED"),
        ("keeper", "secret-made", "TOPIC_AUTHORIZATION_FAILED"),
        ("keeper", "open-made", ""),
    ]:
        admin = admin_of(user, running)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        assert error_of(admin.create_topics([NewTopic(topic, 1, 1)])) == expected
        assert error_of(admin.create_partitions([NewPartitions(topic, 2)])) == expected
        assert error_of(admin.incremental_alter_configs([resource])) == expected
        assert error_of(admin.delete_topics([topic])) == expected


def test_records_are_deleted_by_those_who_may(running: RunningKafka) -> None:
    records = [TopicPartition("open-1", 0, 0)]
    for user, expected in [("writer", "TOPIC_AUTHORIZATION_FAILED"), ("keeper", "")]:
        admin = admin_of(user, running)
        assert error_of(admin.delete_records(records)) == expected


def test_broker_is_described_to_administrators_only(running: RunningKafka) -> None:
    broker = ConfigResource(ResourceType.BROKER, "0")
    for user, expected in [("keeper", "CLUSTER_AUTHORIZATION_FAILED"), ("root", "")]:
        admin = admin_of(user, running)
        assert error_of(admin.describe_configs([broker])) == expected


def test_groups_are_seen_by_those_who_may_use_them(running: RunningKafka) -> None:
    assert read("root", running, "open-1", "roots") == b"value"
    assert read("reader", running, "open-1", "reader-9") == b"value"

    def seen(user: str) -> set[str]:
        admin = admin_of(user, running)
        listed = admin.list_consumer_groups().result(DEADLINE_S).valid
        return {each.group_id for each in listed}

    assert {"roots", "reader-9"} <= seen("root")
    assert "roots" not in seen("reader")
    assert "reader-9" in seen("reader")
    admin = admin_of("reader", running)
    assert error_of(admin.describe_consumer_groups(["roots"])) == "GROUP_AUTHORIZATION_FAILED"
    assert error_of(admin.delete_consumer_groups(["roots"])) == "GROUP_AUTHORIZATION_FAILED"
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("roots")])
    assert error_of(offsets) == "GROUP_AUTHORIZATION_FAILED"


def test_offsets_are_listed_to_those_who_may_see_the_topic(running: RunningKafka) -> None:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
            for name in ("secret-1", "open-1")
        ],
    )
    with Wire(running) as wire:
        log_in(wire, "reader")
        found = {each.name: each.partitions[0] for each in wire.ask(request, ListOffsetsResponse, 1).topics}
    assert found["open-1"].offset > 0
    assert (found["secret-1"].error_code, found["secret-1"].offset) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)


def test_fetch_returns_what_is_permitted_beside_what_is_not(running: RunningKafka) -> None:
    """The other topic's part has an error, and the answer does not wait for records."""
    request = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=10**6,
        topics=[
            FetchTopic(topic=name, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10**6)])
            for name in ("secret-1", "open-1")
        ],
    )
    with Wire(running) as wire:
        log_in(wire, "reader")
        found = {each.topic: each.partitions[0] for each in wire.ask(request, FetchResponse, 4).responses}
        assert found["open-1"].records
        assert (found["secret-1"].error_code, bytes(found["secret-1"].records or b"")) == (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            b"",
        )


def fetch_of(*topics: str, epoch: int = 0, session_id: int = 0) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchTopic(topic=name, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10**6)])
            for name in topics
        ],
    )


def test_session_of_fetches_has_no_topic_that_is_not_permitted(running: RunningKafka) -> None:
    with Wire(running) as wire:
        log_in(wire, "reader")
        assert wire.ask(fetch_of("open-1", "secret-1"), FetchResponse, 11).session_id == 0
        begun = wire.ask(fetch_of("open-1"), FetchResponse, 11)
        assert begun.session_id > 0
        added = wire.ask(fetch_of("secret-1", epoch=1, session_id=begun.session_id), FetchResponse, 11)
        assert (added.error_code, added.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    with Wire(running) as wire:
        log_in(wire, "root")
        other = wire.ask(fetch_of("secret-1"), FetchResponse, 11)
        assert other.responses[0].partitions[0].records
    with Wire(running) as wire:  # the session of another user
        log_in(wire, "reader")
        again = fetch_of("open-1", epoch=1, session_id=other.session_id)
        for topic in wire.ask(again, FetchResponse, 11).responses:
            if topic.topic == "secret-1":
                assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                assert not topic.partitions[0].records


def test_permission_that_is_taken_away_ends_a_session_of_fetches(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user_file(path, root=EVERYTHING, reader=Permissions(read=("orders",)))
    with run_secured(tmp_path, users=str(path)) as running, Wire(running) as wire:
        assert write("root", running, "orders") == ""
        log_in(wire, "reader")
        session_id = wire.ask(fetch_of("orders"), FetchResponse, 11).session_id
        write_user_file(path, root=EVERYTHING, reader=Permissions(read=("others",)))
        for epoch in range(1, 1000):
            answer = wire.ask(fetch_of(epoch=epoch, session_id=session_id), FetchResponse, 11)
            parts = [part for topic in answer.responses for part in topic.partitions]
            if [part.error_code for part in parts] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]:
                assert not parts[0].records
                return
            time.sleep(0.03)
        raise AssertionError("the permission was never taken away")


def test_topic_that_a_user_may_not_see_cannot_be_told_from_none_by_its_id(running: RunningKafka) -> None:
    with Wire(running) as wire:
        log_in(wire, "root")
        known = wire.ask(MetadataRequest(topics=None), MetadataResponse, 12)
        topic_id = next(each.topic_id for each in known.topics if each.name == "secret-1")
    with Wire(running) as wire:
        log_in(wire, "reader")
        asked = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
        (found,) = wire.ask(asked, MetadataResponse, 12).topics
        assert (found.name, found.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("user", ["reader", "nobody"])
def test_oldest_metadata_shows_what_a_user_may_see(running: RunningKafka, user: str) -> None:
    """In version 0, no names ask for all topics."""
    with Wire(running) as wire:
        log_in(wire, user)
        found = wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name="secret-1")]), MetadataResponse, 0)
        assert {each.name: each.error_code for each in found.topics} == {
            "secret-1": ErrorCode.TOPIC_AUTHORIZATION_FAILED
        }
        assert "secret-1" not in {
            each.name for each in wire.ask(MetadataRequest(topics=[]), MetadataResponse, 0).topics
        }


def log_in(wire: Wire, user: str) -> None:
    wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    token = f"\0{user}\0{PASSWORD}".encode()
    assert wire.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 1).error_code == 0
