"""A request waits, and its user loses the permission for what it waits for: the response has none of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from dafka import Config
from dafka.batches import encode_batch
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import AcknowledgeType
from dafka.kafka.protocol.constants import ApiKey
from dafka.steady_clock import steady_now_ms
from tests.kafka.apis.door import Client, Door, open_door
from tests.kafka.share_member import ShareMember, errors_of
from tests.waiting import poll_until

TOPIC, GROUP = "orders", "workers"
EVERYTHING = Permissions(*[("*",)] * 5)
WITHOUT_GROUP, WITHOUT_TOPIC = attrs.evolve(EVERYTHING, groups=()), attrs.evolve(EVERYTHING, read=())


@attrs.define
class Clock:
    """A clock that stands still until a test lets it go on."""

    is_still: bool = True
    _begun_ms: int = attrs.field(factory=steady_now_ms)

    def now_ms(self) -> int:
        return self._begun_ms if self.is_still else steady_now_ms()


@pytest.fixture
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    config = Config().with_kafka(rebalance_delay_ms=1000)
    with open_door(config, users=tmp_path_factory.mktemp("lost") / "users") as found:
        found.permit(anne=EVERYTHING, root=EVERYTHING)
        yield found


@pytest.fixture
def root(door: Door) -> Iterator[Client]:
    with door.connect("root") as found:
        found.create_topics(TOPIC, logs=1)
        yield found


@contextmanager
def share_member(door: Door, user: str) -> Iterator[ShareMember]:
    member = ShareMember(door.servers, GROUP, TOPIC, user)
    with member.client:
        member.client.log_in(user)
        yield member.begin()


@pytest.mark.parametrize("permissions", [WITHOUT_GROUP, WITHOUT_TOPIC])
def test_share_fetch_delivers_and_locks_nothing(door: Door, root: Client, permissions: Permissions) -> None:
    with share_member(door, "anne") as member, share_member(door, "root") as other:
        watchers = door.broker.broker.node.watchers
        for each in (member, other):  # with a session
            each.fetch()
        before = door.call(len, watchers)
        member.begin_fetch(max_wait_ms=10**7)
        poll_until(lambda: door.call(len, watchers) > before)
        door.permit(anne=permissions, root=EVERYTHING)
        root.append(TOPIC, encode_batch(0, [b"secret"], timestamps=1))
        answer = member.end_fetch()
        if permissions is WITHOUT_GROUP:
            assert (answer["error_code"], answer["responses"]) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])
        else:
            assert errors_of(answer) == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert b"secret" not in repr(answer).encode()
        assert [each.value for each in other.deliveries_in(other.fetch(max_wait_ms=10**7))] == [b"secret"]


def test_records_of_a_topic_without_permission_are_not_acknowledged_and_its_logs_stay_in_the_session(
    door: Door, root: Client
) -> None:
    refused = {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    with share_member(door, "anne") as member:
        root.append(TOPIC, encode_batch(0, [b"one", b"two"], timestamps=1))
        one, two = (each.offset for each in member.deliveries_in(member.fetch(max_wait_ms=10**7)))
        door.permit(anne=WITHOUT_TOPIC, root=EVERYTHING)
        assert errors_of(member.acknowledge({0: {one: AcknowledgeType.ACCEPT}})) == refused
        answer = member.fetch({0: {two: AcknowledgeType.ACCEPT}}, max_wait_ms=10**7)
        assert errors_of(answer, "acknowledge_error_code") == errors_of(answer) == refused
        assert errors_of(member.fetch(max_wait_ms=10**7)) == refused, "in each response"
        door.permit(anne=EVERYTHING, root=EVERYTHING)
        root.append(TOPIC, encode_batch(0, [b"three"], timestamps=1))
        answer = member.fetch({0: {one: AcknowledgeType.ACCEPT}}, max_wait_ms=10**7)
        assert errors_of(answer, "acknowledge_error_code") == errors_of(answer) == {0: ErrorCode.NONE}
        assert [each.value for each in member.deliveries_in(answer)] == [b"three"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of groups. While it stands still, a group waits for more members."""
    found = Clock()
    for module in ("groups", "coordinator_shard"):
        monkeypatch.setattr(f"dafka.broker.coordinator.{module}.steady_now_ms", found.now_ms)
    return found


def joining(**values: Any) -> dict[str, Any]:
    protocols = [{"name": "range", "metadata": b"topics"}]
    times = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
    return {"group_id": GROUP, "member_id": "", "protocol_type": "consumer", "protocols": protocols, **times, **values}


def wait_joined(door: Door, count: int) -> None:
    """Wait until a number of members have joined a group that waits for more."""

    def has_members() -> bool:
        found = [each.describe_group(GROUP) for each in door.broker.broker.groups.coordinators()]
        return [len(each.members) for each in found if each.state == "PreparingRebalance"] == [count]

    poll_until(lambda: door.call(has_members))


def test_a_group_is_joined_by_members_that_may_use_it(door: Door, clock: Clock) -> None:
    with door.connect("anne") as client:
        client.send(ApiKey.JOIN_GROUP, 3, **joining())
        wait_joined(door, 1)
        door.permit(anne=WITHOUT_GROUP)
        clock.is_still = False
        answer = client.receive_answer(ApiKey.JOIN_GROUP, 3)
    assert (answer["error_code"], answer["members"]) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])


def test_an_assignment_is_answered_to_members_that_may_use_the_group(door: Door, root: Client, clock: Clock) -> None:
    with door.connect("anne") as client:
        for number, each in enumerate((root, client)):
            each.send(ApiKey.JOIN_GROUP, 3, **joining())
            wait_joined(door, number + 1)
        clock.is_still = False
        leader, joined = (each.receive_answer(ApiKey.JOIN_GROUP, 3) for each in (root, client))
        syncing = {key: joined[key] for key in ("member_id", "generation_id")}
        client.send(ApiKey.SYNC_GROUP, 2, group_id=GROUP, assignments=[], **syncing)
        door.permit(anne=WITHOUT_GROUP, root=EVERYTHING)
        assignments = [{"member_id": each["member_id"], "assignment": b"secret"} for each in leader["members"]]
        syncing = {key: leader[key] for key in ("member_id", "generation_id")}
        assert root.ask(ApiKey.SYNC_GROUP, 2, group_id=GROUP, assignments=assignments, **syncing)["error_code"] == 0
        answer = client.receive_answer(ApiKey.SYNC_GROUP, 2)
    assert (answer["error_code"], answer["assignment"]) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, b"")
