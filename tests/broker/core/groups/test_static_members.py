"""Members of groups that have a name, and keep their place when they restart."""

import attrs
import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.results import LeavingMember
from tests.broker.core.groups.group_client import Groups, two_members


def test_static_member_keeps_its_assignment_when_it_restarts() -> None:
    groups = Groups()
    leader, follower = two_members(groups)
    static = groups.join(client_id="e", group_instance_id="s")
    groups.join(leader.member_id)
    groups.join(follower.member_id)
    joined = groups.answers[static]
    groups.synced(attrs.evolve(leader, generation_id=3), {joined.member_id: b"mine"})
    again = groups.joined(client_id="e", group_instance_id="s")
    assert (again.generation_id, again.leader) == (3, leader.member_id)
    assert again.member_id != joined.member_id
    assert groups.synced(again, group_instance_id="s").assignment == b"mine"
    assert groups.beat(joined, "s") is ErrorCode.FENCED_INSTANCE_ID
    assert groups.beat(joined) is ErrorCode.UNKNOWN_MEMBER_ID
    restarted = groups.restart()
    assert restarted.synced(again, group_instance_id="s").assignment == b"mine"


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


def test_static_member_that_is_down_stays_for_its_session() -> None:
    groups = Groups()
    static = groups.joined(group_instance_id="s", session_timeout_ms=60_000, rebalance_timeout_ms=6_000)
    groups.synced(static)
    other = groups.join(session_timeout_ms=100_000, rebalance_timeout_ms=6_000)
    groups.wait(6_000)
    joined = groups.answers[other]
    assert len(joined.members) == 2
    groups.synced(joined, {static.member_id: b"his"})
    groups.wait(53_999)
    assert groups.beat(joined) is ErrorCode.NONE
    groups.wait(1)
    assert groups.beat(joined) is ErrorCode.REBALANCE_IN_PROGRESS


def test_second_client_with_a_static_name_fences_the_first() -> None:
    groups = Groups()
    leader, _ = two_members(groups)
    first = groups.join(group_instance_id="s")
    second = groups.join(group_instance_id="s")
    assert groups.answers[first].error_code is ErrorCode.FENCED_INSTANCE_ID
    assert second not in groups.answers
    assert groups.beat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


def test_administrator_removes_a_static_member_by_name() -> None:
    groups = Groups()
    groups.joined(group_instance_id="s")
    assert groups.leave(LeavingMember("", "s")).members[0].error_code is ErrorCode.NONE
    assert groups.leave(LeavingMember("", "s")).members[0].error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.state == "Empty"


def test_fenced_member_cannot_leave() -> None:
    groups = Groups()
    first = groups.joined(group_instance_id="s")
    groups.synced(first)
    groups.joined(group_instance_id="s")
    (left,) = groups.leave(LeavingMember(first.member_id, "s")).members
    assert left.error_code is ErrorCode.FENCED_INSTANCE_ID
