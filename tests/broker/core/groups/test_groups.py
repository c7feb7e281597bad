"""Groups, as clients of Kafka's classic protocol see them."""

import json
from typing import Any

import attrs
import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import LeavingMember, SyncResult
from dafka.broker.core.groups.settings import GroupSettings
from tests.broker.core.groups.group_client import BOTH, NO_DELAY, RANGE, Groups, two_members


def test_a_member_that_has_joined_leads_if_the_leader_is_down_and_goes_on_leading() -> None:
    groups = Groups()
    static = groups.joined(group_instance_id="s", session_timeout_ms=60_000, rebalance_timeout_ms=6_000)
    groups.synced(static, group_instance_id="s")
    waiting = groups.join(session_timeout_ms=60_000, rebalance_timeout_ms=6_000)
    groups.wait(6_000)
    other = groups.answers[waiting]
    assert (other.leader, len(other.members)) == (other.member_id, 2)
    groups.synced(other)
    back = groups.join(static.member_id, group_instance_id="s", protocols=(("range", b"other"),))
    assert groups.joined(other.member_id).leader == groups.answers[back].leader == other.member_id


def test_a_static_member_needs_no_id_of_its_own_and_only_a_leader_skips_assigning() -> None:
    groups = Groups()
    leader = groups.joined(group_instance_id="s", requires_known_member_id=True)
    assert leader.error_code is ErrorCode.NONE
    groups.synced(leader, {leader.member_id: b"all"}, group_instance_id="s")
    second = groups.join(group_instance_id="t")
    again = groups.joined(leader.member_id, group_instance_id="s")
    follower = groups.answers[second]
    groups.synced(again, {follower.member_id: b"part"}, group_instance_id="s")
    for name, is_leader in (("s", True), ("t", False)):
        restarted = groups.joined(group_instance_id=name, supports_skipping_assignment=True)
        assert (restarted.generation_id, restarted.skip_assignment) == (2, is_leader)


@pytest.mark.parametrize("request_of", ["join", "sync"])
@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("leaves", ErrorCode.UNKNOWN_MEMBER_ID),
        ("asks again", ErrorCode.REBALANCE_IN_PROGRESS),
        ("is fenced", ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_a_request_that_waits_is_answered_when_its_member_goes(request_of: str, end: str, error: ErrorCode) -> None:
    groups = Groups()
    leader, follower = two_members(groups)
    first = groups.join(group_instance_id="s")
    groups.join(leader.member_id)
    groups.join(follower.member_id)
    static = groups.answers[first]

    def ask() -> int:
        if request_of == "sync":
            return groups.sync(static, group_instance_id="s")
        return groups.join(static.member_id, group_instance_id="s", protocols=(("range", b"other"),))

    waiting = ask()
    assert waiting not in groups.answers
    if end == "leaves":
        groups.leave(LeavingMember(static.member_id, "s"))
    elif end == "asks again":
        ask()
    else:
        groups.join(group_instance_id="s")
    assert groups.answers[waiting].error_code is error


def test_leader_that_does_not_assign_is_removed() -> None:
    groups = Groups()
    leader, follower = two_members(groups, session_timeout_ms=100_000)
    waiting = groups.join(leader.member_id, session_timeout_ms=100_000)
    groups.join(follower.member_id, session_timeout_ms=100_000)
    joined = groups.answers[waiting]
    held = groups.sync(attrs.evolve(joined, member_id=follower.member_id))
    groups.wait(30_000)
    assert groups.answers[held].error_code is ErrorCode.REBALANCE_IN_PROGRESS
    assert groups.joined(follower.member_id).leader == follower.member_id


def test_assignor_with_most_votes_wins() -> None:
    groups = Groups(GroupSettings())
    tokens = [groups.join(protocols=protocols) for protocols in (BOTH, BOTH[::-1], BOTH[::-1])]
    groups.wait(6_000)
    assert {groups.answers[token].protocol_name for token in tokens} == {"sticky"}
    assert {each.metadata for each in groups.answers[tokens[0]].members} == {b"s"}


def test_only_assignors_of_all_members_count() -> None:
    groups = Groups(GroupSettings())
    tokens = [groups.join(protocols=protocols) for protocols in (BOTH[::-1], BOTH[::-1], RANGE)]
    groups.wait(6_000)
    assert {groups.answers[token].protocol_name for token in tokens} == {"range"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "other", "member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger", "group_instance_id": "s"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_join_is_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    groups = Groups()
    groups.joined()
    assert groups.joined(**fields).error_code is error


def test_group_has_limited_size() -> None:
    groups = Groups(attrs.evolve(NO_DELAY, group_max_size=1))
    first = groups.joined()
    assert groups.joined().error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.joined(first.member_id).error_code is ErrorCode.NONE


def test_number_of_groups_is_limited() -> None:
    groups = Groups(attrs.evolve(NO_DELAY, groups_max=1))
    groups.joined()
    assert groups.joined(group_id="another").error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_sync_is_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    groups = Groups()
    _, follower = two_members(groups)
    assert groups.synced(follower, **fields) == SyncResult(error)


def test_generations_begin_again_with_1_after_the_largest_number() -> None:
    groups = Groups()
    joined = groups.joined()
    record = groups.records[-1]
    value = json.loads(record.value or b"") | {"generation_id": 2**31 - 1}
    again = Groups(groups.settings, [record._replace(value=json.dumps(value).encode())])
    groups.synced(joined)
    assert again.joined(joined.member_id, protocols=BOTH).generation_id == 1


def test_groups_are_described_and_listed() -> None:
    groups = Groups()
    leader, _ = two_members(groups, client_host="/127.0.0.1")
    described = groups.coordinator.describe_group("g")
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    assert [member.assignment for member in described.members] == [b"left", b"right"]
    assert {member.client_host for member in described.members} == {"/127.0.0.1"}
    groups.join(group_id="h")
    assert {group.group_id for group in groups.coordinator.list_groups()} == {"g", "h"}
    assert [group.group_id for group in groups.coordinator.list_groups(states=["stable"])] == ["g"]
    assert groups.coordinator.list_groups(types=["consumer"]) == []
    assert len(groups.coordinator.list_groups(types=["Classic"])) == 2
    groups.join(leader.member_id)
    described = groups.coordinator.describe_group("g")
    assert (described.state, described.protocol, described.members[1].assignment) == ("PreparingRebalance", "", b"")
    missing = groups.coordinator.describe_group("none")
    assert (missing.error_code, missing.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


@pytest.mark.parametrize("supports_skipping", [True, False])
def test_static_leader_does_not_assign_again(supports_skipping: bool) -> None:
    groups = Groups()
    first = groups.joined(group_instance_id="s")
    groups.synced(first, {first.member_id: b"all"})
    again = groups.joined(group_instance_id="s", supports_skipping_assignment=supports_skipping)
    assert again.generation_id == 1
    assert again.skip_assignment == supports_skipping
    assert (again.leader == again.member_id) == supports_skipping
    assert bool(again.members) == supports_skipping
    assert groups.synced(again, group_instance_id="s").assignment == b"all"


def test_static_member_with_other_topics_causes_a_rebalance() -> None:
    groups = Groups()
    orders, payments = (("range", b"\0\0\0\0\0\1\0\1" + name) for name in (b"o", b"p"))
    first = groups.joined(group_instance_id="s", protocols=(orders,))
    groups.synced(first)
    assert groups.joined(group_instance_id="s", protocols=(payments,)).generation_id == 2
