"""Groups whose coordinator assigns the logs, as clients and administrators see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.config import Config
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, open_door
from tests.waiting import poll_until

HEARTBEAT, DESCRIBE = ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE
INTERVAL_MS = 1234


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door(Config().with_kafka(auto_create_topics="off", consumer_heartbeat_interval_ms=INTERVAL_MS)) as found:
        yield found


def beat(client: Client, group: str, member_id: str, epoch: int, version: int = 1, **fields: Any) -> Any:
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 60_000, "topic_partitions": [], **fields}
    return client.ask(HEARTBEAT, version, group_id=group, member_id=member_id, member_epoch=epoch, **fields)


def test_members_have_the_times_of_their_group(client: Client) -> None:
    client.create_topics("timed", logs=1)
    settings = {"consumer.heartbeat.interval.ms": "100", "consumer.session.timeout.ms": "1000"}
    configs = [{"name": name, "value": value, "config_operation": 0} for name, value in settings.items()]
    resource = {"resource_type": 32, "resource_name": "timed", "configs": configs}
    client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    assert beat(client, "timed", "a", 0, subscribed_topic_names=["timed"])["heartbeat_interval_ms"] == 100
    asked = {"group_ids": ["timed"], "include_authorized_operations": False}
    poll_until(lambda: client.ask(DESCRIBE, 1, **asked)["groups"][0]["members"] == [])


def test_a_member_reads_the_offsets_of_its_group_in_its_epoch(client: Client) -> None:
    client.create_topics("read")
    epoch = beat(client, "reading", "a", 0, subscribed_topic_names=["read"])["member_epoch"]
    topics = [{"name": "read", "partition_indexes": [0]}]
    for version, asked, error in ((9, epoch, 0), (9, epoch - 1, ErrorCode.STALE_MEMBER_EPOCH), (9, -1, 0), (8, 0, 0)):
        member = {"member_id": "a", "member_epoch": asked} if version == 9 else {}
        group = {"group_id": "reading", "topics": topics, **member}
        (found,) = client.ask(ApiKey.OFFSET_FETCH, version, groups=[group], require_stable=False)["groups"]
        assert found["error_code"] == error


def assigned(answer: Any) -> list[int] | None:
    if answer["assignment"] is None:
        return None
    return [number for each in answer["assignment"]["topic_partitions"] for number in each["partitions"]]


def test_members_share_the_logs_of_a_topic(client: Client) -> None:
    client.create_topics("shared", logs=4)
    first = beat(client, "sharing", "a", 0, subscribed_topic_names=["shared"], rack_id="r", instance_id="i")
    assert (first["error_code"], first["member_id"], first["heartbeat_interval_ms"]) == (0, "a", INTERVAL_MS)
    assert assigned(first) == [0, 1, 2, 3]
    (topic,) = first["assignment"]["topic_partitions"]
    assert assigned(beat(client, "sharing", "a", first["member_epoch"])) is None
    second = beat(client, "sharing", "b", 0, subscribed_topic_names=["shared"], server_assignor="range")
    assert assigned(second) == []
    told = beat(client, "sharing", "a", first["member_epoch"])
    kept = {"topic_id": topic["topic_id"], "partitions": assigned(told)}
    assert len(kept["partitions"]) == 2
    done = beat(client, "sharing", "a", told["member_epoch"], topic_partitions=[kept])
    assert done["member_epoch"] == second["member_epoch"]
    got = assigned(beat(client, "sharing", "b", second["member_epoch"]))
    assert sorted(kept["partitions"] + (got or [])) == [0, 1, 2, 3]
    (group,) = client.ask(DESCRIBE, 1, group_ids=["sharing"], include_authorized_operations=False)["groups"]
    assert (group["group_state"], group["assignor_name"]) == ("Stable", "range")
    assert group["group_epoch"] == group["assignment_epoch"] == second["member_epoch"]
    members = {each["member_id"]: each for each in group["members"]}
    assert (members["a"]["instance_id"], members["a"]["rack_id"]) == ("i", "r")
    assert (members["b"]["instance_id"], members["b"]["rack_id"], members["b"]["member_type"]) == (None, None, 1)
    for name in ("assignment", "target_assignment"):
        (shown,) = members["b"][name]["topic_partitions"]
        assert (shown["topic_id"], shown["topic_name"], shown["partitions"]) == (topic["topic_id"], "shared", got)


def test_versions_differ_in_who_chooses_the_id_of_a_member(client: Client) -> None:
    client.create_topics("ids", logs=1)
    fields: dict[str, Any] = {"subscribed_topic_names": ["ids"]}
    assert beat(client, "ids", "", 0, version=0, **fields)["member_id"]
    refused = beat(client, "ids", "", 0, **fields)
    assert refused["error_code"] == ErrorCode.INVALID_REQUEST
    assert "the member id is empty" in refused["error_message"]


def test_each_type_of_group_is_described_by_its_own_api(client: Client) -> None:
    client.create_topics("types", logs=1)
    beat(client, "typed", "a", 0, subscribed_topic_names=["types"])
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [{"name": "types", "partitions": [offset]}]
    client.ask(ApiKey.OFFSET_COMMIT, 8, group_id="classic", topics=topics)
    listed = {each["group_id"]: each["group_type"] for each in client.ask(ApiKey.LIST_GROUPS, 5)["groups"]}
    assert (listed["typed"], listed["classic"]) == ("consumer", "classic")
    (group,) = client.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=["typed"])["groups"]
    assert (group["error_code"], group["group_state"]) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    described = client.ask(DESCRIBE, 0, group_ids=["classic", "none"], include_authorized_operations=False)["groups"]
    assert [each["error_code"] for each in described] == [ErrorCode.GROUP_ID_NOT_FOUND] * 2
    for epoch, error in ((1, ErrorCode.NONE), (7, ErrorCode.STALE_MEMBER_EPOCH)):
        member = {"group_id": "typed", "member_id": "a", "generation_id_or_member_epoch": epoch}
        answer = client.ask(ApiKey.OFFSET_COMMIT, 9, topics=topics, **member)
        assert answer["topics"][0]["partitions"][0]["error_code"] == error
