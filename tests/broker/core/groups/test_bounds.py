"""What ends in a group by itself ends exactly at its time, not a millisecond earlier, also after a restart."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import CommitRequest, OffsetToCommit
from dafka.broker.core.groups.results import LeavingMember
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.topic_partition import TopicPartition
from tests.broker.core.groups.group_client import NO_DELAY, Groups, two_members

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 1)
KEPT_MS = 5_000
KEEPS_OFFSETS = GroupSettings(
    group_initial_rebalance_delay_ms=0, offsets_retention_ms=KEPT_MS, offsets_retention_check_interval_ms=1
)


def size(groups: Groups) -> int:
    return len(groups.coordinator.describe_group("g").members)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_session_ends_at_its_timeout_and_each_sign_of_life_begins_it_again(is_restarted: bool) -> None:
    groups = Groups()
    leader = groups.joined(session_timeout_ms=10_000, rebalance_timeout_ms=30_000)
    groups.synced(leader)
    groups.wait(9_999)
    assert groups.beat(leader) is ErrorCode.NONE
    groups.wait(9_999)
    member: dict[str, Any] = {"generation_id": 1, "member_id": leader.member_id}
    groups.call(groups.coordinator.commit_offsets, CommitRequest(group_id="g", offsets={}, **member))
    groups.wait(9_999)
    groups.synced(leader)
    groups.wait(9_999)
    groups.joined(leader.member_id)  # the leader begins a generation
    if is_restarted:
        groups = groups.restart()
        groups.now_ms = 0
    groups.wait(9_999)
    assert size(groups) == 1
    groups.wait(1)
    assert (size(groups), groups.state) == (0, "Empty")


def test_a_member_id_that_was_given_is_expected_for_a_session() -> None:
    groups = Groups()
    given = [groups.joined(requires_known_member_id=True, session_timeout_ms=7_000) for _ in range(2)]
    groups.wait(6_999)
    assert groups.join(given[0].member_id) not in groups.answers  # the other one is expected
    groups.wait(1)
    assert size(groups) == 1
    assert groups.joined(given[1].member_id).error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_the_longest_timeout_of_all_members() -> None:
    groups = Groups()
    first = groups.joined(session_timeout_ms=100_000, rebalance_timeout_ms=20_000)
    groups.synced(first)
    second = groups.join(rebalance_timeout_ms=6_000)
    groups.wait(19_999)
    assert second not in groups.answers
    groups.wait(1)
    assert groups.answers[second].leader == groups.answers[second].member_id
    assert size(groups) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
def test_members_that_do_not_fetch_their_assignment_are_removed_after_the_rebalance_timeout(is_restarted: bool) -> None:
    groups = Groups()
    groups.joined(session_timeout_ms=100_000, rebalance_timeout_ms=20_000)
    if is_restarted:
        groups.wait(15_000)
        groups = groups.restart()
        groups.now_ms = 0
    groups.wait(19_999)
    assert size(groups) == 1
    groups.wait(1)
    assert size(groups) == 0


@pytest.mark.parametrize("instance_id", [None, "s"])
def test_a_newcomer_waits_at_most_as_long_as_the_settings_say(instance_id: str | None) -> None:
    groups = Groups(attrs.evolve(NO_DELAY, new_member_join_timeout_ms=8_000))
    groups.synced(groups.joined(session_timeout_ms=100_000, rebalance_timeout_ms=100_000))
    second = groups.join(rebalance_timeout_ms=100_000, group_instance_id=instance_id)
    if instance_id is not None:  # its client restarts
        second = groups.join(rebalance_timeout_ms=100_000, group_instance_id=instance_id)
    groups.wait(7_999)
    assert second not in groups.answers
    groups.wait(1)
    assert groups.answers[second].error_code is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("others_at", [[], [2_999], [2_999, 5_999], [2_999, 5_999, 8_999]])
def test_the_first_rebalance_is_delayed_while_members_come_up_to_the_rebalance_timeout(others_at: list[int]) -> None:
    groups = Groups(GroupSettings())
    first = groups.join(rebalance_timeout_ms=10_000)
    for at_ms in others_at:
        groups.wait(at_ms - groups.now_ms)
        groups.join(rebalance_timeout_ms=10_000)
    end_ms = min(3_000 * (len(others_at) + 1), 10_000)
    groups.wait(end_ms - 1 - groups.now_ms)
    assert first not in groups.answers
    groups.wait(1)
    assert len(groups.answers[first].members) == len(others_at) + 1


def offsets(groups: Groups) -> set[TopicPartition]:
    return set(groups.coordinator.fetch_offsets("g", None))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_offsets_of_no_members_end_with_their_retention_since_the_commit(is_restarted: bool) -> None:
    groups = Groups(KEEPS_OFFSETS)
    given = {ORDERS: OffsetToCommit(1), PAYMENTS: OffsetToCommit(1)}
    groups.call(groups.coordinator.commit_offsets, CommitRequest(group_id="g", offsets=given))
    groups.wait(3)
    only = CommitRequest(group_id="g", offsets={PAYMENTS: OffsetToCommit(2)}, retention_ms=-1)
    groups.call(groups.coordinator.commit_offsets, only)
    groups.wait(KEPT_MS - 4)
    if is_restarted:
        groups = Groups(KEEPS_OFFSETS, groups.records, groups.now_ms)
    assert offsets(groups) == {ORDERS, PAYMENTS}
    groups.wait(1)
    assert offsets(groups) == offsets(groups.restart()) == {PAYMENTS}
    groups.wait(2)
    assert (offsets(groups), groups.state) == ({PAYMENTS}, "Empty")
    groups.wait(1)
    assert (offsets(groups), groups.state, groups.restart().state) == (set(), "Dead", "Dead")


def test_clients_that_say_how_long_offsets_are_kept_are_obeyed() -> None:
    groups = Groups(KEEPS_OFFSETS)
    request = CommitRequest(group_id="g", offsets={ORDERS: OffsetToCommit(1)}, retention_ms=9_000)
    groups.call(groups.coordinator.commit_offsets, request)
    groups.call(groups.coordinator.commit_offsets, attrs.evolve(request, group_id="h", retention_ms=0))
    groups.wait(1)
    assert groups.coordinator.fetch_offsets("h", None) == {}
    groups.wait(8_998)
    assert offsets(groups) == {ORDERS}
    groups.wait(1)
    assert offsets(groups) == set()


@pytest.mark.parametrize("protocol_type", ["consumer", "connect"])
def test_offsets_of_a_group_end_with_their_retention_since_its_last_member_left(protocol_type: str) -> None:
    groups = Groups(KEEPS_OFFSETS)
    reads_orders = (("range", b"\0\0\0\0\0\1\0\6orders" + b"\xff\xff\xff\xff"),)
    fields: dict[str, Any] = {
        "session_timeout_ms": 1_000_000,
        "protocol_type": protocol_type,
        "protocols": reads_orders,
    }
    leader, follower = two_members(groups, **fields)
    member: dict[str, Any] = {"generation_id": 2, "member_id": leader.member_id}
    given = {ORDERS: OffsetToCommit(1), PAYMENTS: OffsetToCommit(1)}
    groups.call(groups.coordinator.commit_offsets, CommitRequest(group_id="g", offsets=given, **member))
    groups.wait(KEPT_MS)
    kept = {ORDERS} if protocol_type == "consumer" else {ORDERS, PAYMENTS}  # what others read is unknown
    assert offsets(groups) == kept
    groups.leave(LeavingMember(leader.member_id), LeavingMember(follower.member_id))
    groups.wait(KEPT_MS - 1)
    assert offsets(groups) == kept
    groups.wait(1)
    assert (offsets(groups), groups.state) == (set(), "Dead")


def test_offsets_of_open_transactions_stay_and_keep_the_committed_ones() -> None:
    groups = Groups(KEEPS_OFFSETS)
    request = CommitRequest(group_id="g", offsets={ORDERS: OffsetToCommit(1)})
    groups.call(groups.coordinator.commit_offsets, request)
    groups.call(lambda token, now: groups.coordinator.commit_transaction_offsets(token, request, 7, now))
    groups.wait(3 * KEPT_MS)
    assert offsets(groups) == {ORDERS}
    groups.take(groups.coordinator.end_transaction("g", 7, False))
    groups.wait(1)
    assert groups.state == "Dead"
