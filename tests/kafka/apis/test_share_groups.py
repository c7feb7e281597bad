"""Share groups, as their members and administrators see them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import DEFAULT_LIMITS, AcknowledgeType
from dafka.broker.core.metadata.group_settings import GROUP_SETTINGS
from dafka.config import Config
from dafka.kafka.protocol.constants import RECORD_LIMIT, ApiKey
from tests.kafka.apis.door import Client, Door, open_door
from tests.kafka.share_member import ShareMember, errors_of
from tests.waiting import poll_until

ACCEPT, RELEASE, REJECT, RENEW = list(AcknowledgeType)[1:]
NONE = ErrorCode.NONE
_names = itertools.count()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door(Config().with_kafka(auto_create_topics="off")) as found:
        yield found


class Sharing:
    """A topic with one log, and the members of a group that reads it."""

    def __init__(self, door: Door, client: Client) -> None:
        self.door, self.client = door, client
        self.name = f"shared-{next(_names)}"
        self.topic, self.group = self.name, f"group-{self.name}"
        client.create_topics(self.topic, logs=1)
        self.members: list[ShareMember] = []

    def join(self, member_id: str) -> ShareMember:
        """Add a member, for which the broker has loaded the group's state."""
        self.members.append(ShareMember(self.door.servers, self.group, self.topic, member_id).begin())
        return self.members[-1]

    def write(self, count: int, **values: Any) -> int:
        """Write a batch of records, and return its offset."""
        return self.client.append(self.topic, encode_batch(0, [b"x"] * count, timestamps=1, **values))

    def write_transaction(self, *, is_committed: bool | None) -> None:
        """Write two records in a transaction, which ends with a marker unless that is None."""
        client, transactional_id = self.client, f"{self.name}-{next(_names)}"
        found = client.ask(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=transactional_id, transaction_timeout_ms=60_000)
        producer = {key: found[key] for key in ("producer_id", "producer_epoch")}
        added = {
            "transactional_id": transactional_id,
            "topics": [{"name": self.topic, "partitions": [0]}],
            **producer,
        }
        client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **{f"v3_and_below_{key}": each for key, each in added.items()})
        batch = encode_batch(0, [b"x"] * 2, timestamps=1, is_transactional=True, base_sequence=0, **producer)
        client.append(self.topic, batch, transactional_id=transactional_id)
        if is_committed is not None:
            ending = {"transactional_id": transactional_id, "committed": is_committed, **producer}
            assert client.ask(ApiKey.END_TXN, 3, **ending)["error_code"] == NONE

    def offsets(self) -> tuple[int, int]:
        """Return the start offset of the group, and its lag."""
        (group,) = self.client.ask(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=[{"group_id": self.group, "topics": self.asked()}]
        )["groups"]
        (topic,) = group["topics"]
        (part,) = topic["partitions"]
        assert (group["error_code"], part["error_code"]) == (NONE, NONE)
        return part["start_offset"], part["lag"]

    def asked(self, **fields: Any) -> list[dict[str, Any]]:
        partitions = [{"partition_index": 0, **fields}] if fields else [0]
        return [{"topic_name": self.topic, "partitions": partitions}]

    def close(self) -> None:
        for each in self.members:
            each.client.socket.close()


@pytest.fixture
def sharing(door: Door, client: Client) -> Iterator[Sharing]:
    found = Sharing(door, client)
    yield found
    found.close()


@pytest.fixture(scope="module")
def client(door: Door) -> Iterator[Client]:
    with door.connect() as found:
        yield found


def counts(member: ShareMember, answer: Any) -> dict[int, int]:
    """Return how often the records in a response were delivered, by offset."""
    return {each.offset: each.delivery_count for each in member.deliveries_in(answer)}


def test_members_share_the_records_of_a_log(sharing: Sharing) -> None:
    one, two = sharing.join("one"), sharing.join("two")
    sharing.write(4)
    sharing.write(4)
    first = counts(one, one.fetch(max_records=4))
    second = counts(two, two.fetch(max_records=4))
    assert (first, second) == (dict.fromkeys(range(4), 1), dict.fromkeys(range(4, 8), 1))
    assert counts(one, one.fetch(max_wait_ms=0)) == {}
    assert errors_of(two.acknowledge({0: dict.fromkeys(range(4, 8), ACCEPT)})) == {0: NONE}
    assert sharing.offsets() == (0, 4)
    assert errors_of(two.acknowledge({0: {0: ACCEPT}})) == {0: ErrorCode.INVALID_RECORD_STATE}
    answer = one.fetch({0: {0: ACCEPT, 1: RELEASE, 2: REJECT, 3: ACCEPT}}, max_wait_ms=0)
    assert errors_of(answer, "acknowledge_error_code") == {0: NONE}
    assert counts(one, answer) == {1: 2}
    assert answer["acquisition_lock_timeout_ms"] == DEFAULT_LIMITS.lock_ms
    assert sharing.offsets() == (1, 1)
    assert errors_of(one.acknowledge({0: {1: RENEW}})) == {0: ErrorCode.INVALID_REQUEST}
    renewed = one.acknowledge({0: {1: RENEW}}, is_renew_ack=True)
    assert (errors_of(renewed), renewed["acquisition_lock_timeout_ms"]) == ({0: NONE}, DEFAULT_LIMITS.lock_ms)
    assert errors_of(one.acknowledge({0: {1: ACCEPT}}, version=1)) == {0: NONE}
    assert sharing.offsets() == (8, 0)


def test_a_member_that_leaves_or_loses_its_connection_releases_what_it_has(sharing: Sharing, client: Client) -> None:
    set_group(client, sharing.group, share_record_lock_duration_ms="3600000")
    sharing.join("other")
    for number, end in enumerate(("fetch", "acknowledge", "connection")):
        member = sharing.join(f"member-{number}")
        sharing.write(2) if not number else None
        assert set(counts(member, member.fetch()).values()) == {number + 1}
        if end == "fetch":
            assert member.fetch(is_last=True)["error_code"] == NONE
        elif end == "acknowledge":
            assert member.acknowledge({}, is_last=True)["error_code"] == NONE
        else:
            member.client.socket.close()
    last = sharing.join("last")
    assert counts(last, last.fetch(max_wait_ms=50_000)) == {0: 4, 1: 4}
    last.fetch(is_last=True)
    final = sharing.join("final")
    assert counts(final, final.fetch(is_last=False)) == {0: 5, 1: 5}
    final.fetch(is_last=True)
    poll_until(lambda: sharing.offsets() == (2, 0))  # its end is answered before it is stored


def test_a_fetch_waits_until_there_are_records(sharing: Sharing) -> None:
    one, two = sharing.join("one"), sharing.join("two")
    one.begin_fetch()
    sharing.write(3)
    assert counts(one, one.end_fetch()) == {0: 1, 1: 1, 2: 1}
    two.begin_fetch()
    assert errors_of(one.acknowledge({0: {0: ACCEPT, 2: RELEASE}})) == {0: NONE}
    assert counts(two, two.end_fetch()) == {2: 2}


def test_batches_are_acquired_completely_unless_the_limit_is_exact(sharing: Sharing) -> None:
    member = sharing.join("one")
    sharing.write(7)
    sharing.write(2)
    sharing.write(2)
    first = member.fetch(max_records=3)
    ((part,),) = [topic["partitions"] for topic in first["responses"]]
    assert [(each["first_offset"], each["last_offset"]) for each in part["acquired_records"]] == [(0, 6)]
    second = member.fetch(max_records=3, batch_size=2)
    ((part,),) = [topic["partitions"] for topic in second["responses"]]
    assert [(each["first_offset"], each["last_offset"]) for each in part["acquired_records"]] == [(7, 8), (9, 10)]
    sharing.write(5)
    assert counts(member, member.fetch(max_records=3, share_acquire_mode=RECORD_LIMIT)) == {11: 1, 12: 1, 13: 1}
    assert counts(member, member.fetch()) == {14: 1, 15: 1}


def test_a_delivery_does_not_count_if_another_broker_could_have_delivered_the_records(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, leases = sharing.join("one"), sharing.door.broker.broker.node.leases
    sharing.write(2)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "holds_lease", lambda log: log.topic != sharing.topic)
        answer = member.fetch()
        assert (errors_of(answer), counts(member, answer)) == ({0: ErrorCode.NOT_LEADER_OR_FOLLOWER}, {})
    assert counts(member, member.fetch()) == {0: 1, 1: 1}


def test_markers_of_transactions_are_not_delivered(sharing: Sharing) -> None:
    member = sharing.join("one")
    for is_committed in (False, True):
        sharing.write_transaction(is_committed=is_committed)
    delivered: dict[int, int] = {}
    while len(delivered) < 4:
        delivered |= counts(member, member.fetch())
    assert delivered == {0: 1, 1: 1, 3: 1, 4: 1}
    member.acknowledge({0: dict.fromkeys(delivered, ACCEPT)})
    while sharing.offsets() != (6, 0):
        assert counts(member, member.fetch()) == {}


def test_a_group_can_begin_at_the_first_record_and_get_only_committed_ones(sharing: Sharing, client: Client) -> None:
    set_group(
        client,
        sharing.group,
        share_auto_offset_reset="earliest",
        share_isolation_level="read_committed",
        share_delivery_count_limit="1",
        share_record_lock_duration_ms="45000",
    )
    sharing.write(1)
    sharing.write_transaction(is_committed=False)
    sharing.write_transaction(is_committed=True)
    sharing.write(1)
    sharing.write_transaction(is_committed=None)
    sharing.members.append(ShareMember(sharing.door.servers, sharing.group, sharing.topic, "one").join())
    member, delivered = sharing.members[0], dict[int, int]()
    while len(delivered) < 4:
        answer = member.fetch()
        delivered |= counts(member, answer)
        assert answer["acquisition_lock_timeout_ms"] == 45_000
    assert delivered == dict.fromkeys((0, 4, 5, 7), 1)
    member.acknowledge({0: dict.fromkeys(delivered, RELEASE)})
    assert counts(member, member.fetch()) == {}
    assert sharing.offsets()[0] == 8


def test_all_acknowledgements_of_a_log_that_is_named_twice_count(sharing: Sharing, client: Client) -> None:
    member = sharing.join("one")
    sharing.write(2)
    assert len(counts(member, member.fetch())) == 2
    topics = [*member.topics({0: {0: ACCEPT}}), *member.topics({0: {1: ACCEPT}})]
    request = {**member.acknowledging({}), "topics": topics}
    assert errors_of(client.ask(ApiKey.SHARE_ACKNOWLEDGE, 2, **request)) == {0: NONE}
    assert sharing.offsets() == (2, 0)


def test_a_fetch_passes_over_batches_that_are_not_delivered(sharing: Sharing, client: Client) -> None:
    set_group(client, sharing.group, share_auto_offset_reset="earliest", share_isolation_level="read_committed")
    member = sharing.join("one")
    for is_committed in (False, False, True):
        sharing.write_transaction(is_committed=is_committed)
    assert counts(member, member.fetch(max_bytes=1, max_wait_ms=0)) == {6: 1, 7: 1}


def test_only_the_first_log_of_a_response_may_exceed_its_size(sharing: Sharing, client: Client) -> None:
    client.create_topics(topic := f"{sharing.topic}-two", logs=2)
    member = ShareMember(sharing.door.servers, sharing.group, topic, "one").join()
    sharing.members.append(member)
    broker = sharing.door.broker.broker
    topic_id = broker.node.topics[topic].topic_id
    for number in member.logs:
        while sharing.door.call(broker.shares.served, sharing.group, topic_id, number) is None:
            member.fetch(max_wait_ms=0)
    batch = encode_batch(0, [b"x"], timestamps=1)
    for number in member.logs:
        client.append(topic, batch, number)
    answers = [member.fetch(max_bytes=2 * len(batch)) for _ in member.logs]  # ranges of records need bytes, too
    assert [{each.log for each in member.deliveries_in(answer)} for answer in answers] == [{0}, {1}]


def test_a_group_can_begin_at_the_first_record_that_is_not_too_old(sharing: Sharing, client: Client) -> None:
    set_group(client, sharing.group, share_auto_offset_reset="by_duration:PT1H")
    now_ms = time.time_ns() // 10**6
    for age_s in (7200, 3700, 3500, 0):
        sharing.client.append(sharing.topic, encode_batch(0, [b"x"], timestamps=now_ms - age_s * 1000))
    member = ShareMember(sharing.door.servers, sharing.group, sharing.topic, "one").join()
    sharing.members.append(member)
    delivered: dict[int, int] = {}
    while len(delivered) < 2:
        delivered |= counts(member, member.fetch())
    assert delivered == {2: 1, 3: 1}


def test_members_have_the_times_of_their_group(sharing: Sharing, client: Client) -> None:
    set_group(client, sharing.group, share_heartbeat_interval_ms="100", share_session_timeout_ms="1000")
    silent = ShareMember(sharing.door.servers, sharing.group, sharing.topic, "silent")
    sharing.members.append(silent)
    joining = {"member_id": "silent", "member_epoch": 0, "subscribed_topic_names": [sharing.topic]}
    answer = silent.client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, group_id=sharing.group, **joining)
    assert answer["heartbeat_interval_ms"] == 100
    silent.epoch = answer["member_epoch"]
    asked = {"group_ids": [sharing.group], "include_authorized_operations": False}
    poll_until(lambda: client.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, **asked)["groups"][0]["members"] == [])
    assert silent.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_can_forbid_to_renew_locks(sharing: Sharing, client: Client) -> None:
    set_group(client, sharing.group, share_renew_acknowledge_enable="false")
    member = sharing.join("one")
    sharing.write(1)
    assert counts(member, member.fetch()) == {0: 1}
    assert errors_of(member.acknowledge({0: {0: RENEW}}, is_renew_ack=True)) == {0: ErrorCode.INVALID_REQUEST}
    assert errors_of(member.acknowledge({0: {0: ACCEPT}})) == {0: NONE}


def set_group(client: Client, group: str, **settings: str) -> None:
    """Set settings of a group, whose names have underscores here. A share partition takes them over at once."""
    configs = [
        {"name": name.replace("_", "."), "value": value, "config_operation": 0} for name, value in settings.items()
    ]
    resource = {"resource_type": 32, "resource_name": group, "configs": configs}
    answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    assert [each["error_code"] for each in answer["responses"]] == [NONE]


def test_settings_of_groups_are_described_set_and_deleted(sharing: Sharing, client: Client) -> None:
    group, name = sharing.group, "share.delivery.count.limit"
    resource = {"resource_type": 32, "resource_name": group}

    def describe() -> dict[str, tuple[str, int]]:
        asked = {**resource, "configuration_keys": None}
        (found,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked])["results"]
        assert found["error_code"] == NONE
        return {each["name"]: (each["value"], each["config_source"]) for each in found["configs"]}

    def change(is_trial: bool = False, **fields: Any) -> tuple[int, str | None]:
        config = {"name": name, "value": "9", "config_operation": 0, **fields}
        asked = {**resource, "configs": [config]}
        (found,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[asked], validate_only=is_trial)[
            "responses"
        ]
        return found["error_code"], found["error_message"]

    defaults = describe()
    assert defaults == {each: (rule.default(Config()), 5) for each, rule in GROUP_SETTINGS.items()}
    assert change(is_trial=True) == (NONE, None)
    assert describe() == defaults
    assert change() == (NONE, None)
    assert describe() == defaults | {name: ("9", 8)}
    listed = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[32])["config_resources"]
    assert group in [each["resource_name"] for each in listed]
    for fields, message in (
        ({"value": "many"}, f"{name}: expected a number from 1 to 1000, not 'many'"),
        ({"name": "retention.ms"}, "there is no setting 'retention.ms' of groups"),
        ({"config_operation": 2}, "settings are set and deleted"),
    ):
        error, found = change(**fields)
        assert (error, message in (found or "")) == (ErrorCode.INVALID_CONFIG, True)
    assert change(config_operation=1) == (NONE, None)
    replaced = {**resource, "configs": [{"name": "share.isolation.level", "value": "read_committed"}]}
    client.ask(ApiKey.ALTER_CONFIGS, 1, resources=[replaced], validate_only=False)
    assert describe() == defaults | {"share.isolation.level": ("read_committed", 8)}


def test_requests_that_follow_no_session_are_refused(sharing: Sharing) -> None:
    member = sharing.join("one")
    member.session_epoch += 1
    assert member.fetch()["error_code"] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    member.member_id = "two"
    assert member.fetch()["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge({0: {0: ACCEPT}}, is_last=True)["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
    member.session_epoch = 0
    for answer in (member.fetch({0: {0: ACCEPT}}), member.acknowledge({0: {0: ACCEPT}})):
        assert (answer["error_code"], "acknowledges nothing" in answer["error_message"]) == (
            ErrorCode.INVALID_REQUEST,
            True,
        )
    member.member_id = ""
    assert "the member id is empty" in member.fetch()["error_message"]


def test_administrators_see_and_move_a_group(sharing: Sharing, client: Client) -> None:
    member = sharing.join("one")
    sharing.write(9)
    assert len(counts(member, member.fetch())) == 9
    group, topic = sharing.group, sharing.topic
    listed = {each["group_id"]: each for each in client.ask(ApiKey.LIST_GROUPS, 5, types_filter=["share"])["groups"]}
    assert (listed[group]["group_type"], listed[group]["group_state"]) == ("share", "Stable")
    asked = {"group_ids": [group, "none"], "include_authorized_operations": False}
    found, missing = client.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, **asked)["groups"]
    assert (found["group_state"], found["assignor_name"]) == ("Stable", "simple")
    assert [each["member_id"] for each in found["members"]] == ["one"]
    assert found["members"][0]["assignment"]["topic_partitions"][0]["partitions"] == [0]
    assert missing["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    (other,) = client.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=[group])["groups"]
    assert other["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    alter = {"group_id": group, "topics": sharing.asked(start_offset=4)}
    refused = client.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, **alter)
    assert refused["error_code"] == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    altered = client.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, **alter)
    assert altered["error_code"] == altered["responses"][0]["partitions"][0]["error_code"] == NONE
    assert sharing.offsets() == (4, 5)
    other_member = sharing.join("two")
    assert set(counts(other_member, other_member.fetch())) == {4, 5, 6, 7, 8}
    late = member.acknowledge({0: {0: ACCEPT}})
    assert errors_of(late) == {0: ErrorCode.INVALID_RECORD_STATE}
    other_member.leave()
    for name, error in ((topic, NONE), ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)):
        deleted = client.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=[{"topic_name": name}])
        assert deleted["responses"][0]["error_code"] == error
    assert sharing.offsets() == (-1, -1)
    every = client.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, groups=[{"group_id": group, "topics": None}])
    assert every["groups"][0]["topics"] == []
    (removed,) = client.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group])["results"]
    assert removed["error_code"] == NONE
    asked = {"groups": [{"group_id": group, "topics": None}]}
    assert client.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, **asked)["groups"][0]["error_code"] == (
        ErrorCode.GROUP_ID_NOT_FOUND
    )


def test_an_administrator_sets_where_a_group_begins_before_it_exists(sharing: Sharing, client: Client) -> None:
    sharing.write(9)
    topics = sharing.asked(start_offset=4)

    def alter(group: str, topics: list[dict[str, Any]]) -> int:
        return int(client.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=topics)["error_code"])

    assert alter(sharing.group, topics) == NONE
    assert sharing.offsets() == (4, 5)
    (found,) = client.ask(
        ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=[sharing.group], include_authorized_operations=False
    )["groups"]
    assert (found["error_code"], found["group_state"]) == (NONE, "Empty")
    member = sharing.join("one")
    assert set(counts(member, member.fetch())) == {4, 5, 6, 7, 8}
    assert alter("", topics) == ErrorCode.INVALID_GROUP_ID
    other = f"consumers-{sharing.group}"
    committed = [
        {"name": sharing.topic, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}
    ]
    client.ask(ApiKey.OFFSET_COMMIT, 7, group_id=other, topics=committed)
    assert alter(other, topics) == ErrorCode.GROUP_ID_NOT_FOUND


def test_records_that_were_deleted_are_skipped(sharing: Sharing, client: Client) -> None:
    member = sharing.join("one")
    sharing.write(3)
    assert set(counts(member, member.fetch())) == {0, 1, 2}
    sharing.write(3)
    partitions = [{"partition_index": 0, "offset": 5}]
    client.ask(ApiKey.DELETE_RECORDS, 2, topics=[{"name": sharing.topic, "partitions": partitions}], timeout_ms=10_000)
    assert counts(member, member.fetch()) == {5: 1}
    said = {0: RELEASE, 1: ACCEPT, 2: RELEASE, 5: ACCEPT}
    assert errors_of(member.acknowledge({0: said})) == {0: NONE}
    assert counts(member, member.fetch(max_wait_ms=0)) == {}
    assert sharing.offsets() == (6, 0)


def test_a_topic_that_is_deleted_is_forgotten(sharing: Sharing, client: Client) -> None:
    member = sharing.join("one")
    sharing.write(1)
    delivered = member.fetch()
    assert counts(member, delivered) == {0: 1}
    client.ask(ApiKey.DELETE_TOPICS, 4, topic_names=[sharing.topic], timeout_ms=10_000)
    assert errors_of(member.fetch()) == {0: ErrorCode.UNKNOWN_TOPIC_ID}
    assert errors_of(member.acknowledge({0: {0: ACCEPT}})) == {0: ErrorCode.UNKNOWN_TOPIC_ID}
    client.create_topics(sharing.topic, logs=2)
    member.logs = []
    member.join()
    assert member.logs == [0, 1]
    assert sharing.offsets() == (-1, -1)
