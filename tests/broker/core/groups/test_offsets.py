"""Committed offsets, as clients see them."""

from typing import Any

import attrs
import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import CommitRequest, DeleteOffsetsResult, FetchedOffset, OffsetToCommit
from dafka.broker.core.groups.results import LeavingMember
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.topic_partition import TopicPartition
from tests.broker.core.groups.group_client import NO_DELAY, Groups, two_members

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 1)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
READS_ORDERS = (("range", b"\0\0\0\0\0\1\0\6orders" + b"\xff\xff\xff\xff"),)


def commit(groups: Groups, offset: int = 5, *, log: TopicPartition = ORDERS, **fields: Any) -> ErrorCode:
    request = CommitRequest(**({"group_id": "g", "offsets": {log: OffsetToCommit(offset, 3, "note")}} | fields))
    result = groups.answers[groups.call(groups.coordinator.commit_offsets, request)]
    assert set(result) == {log}
    return ErrorCode(result[log])


def commit_in_transaction(groups: Groups, offset: int, producer_id: int = 7, **fields: Any) -> ErrorCode:
    request = CommitRequest(group_id="g", offsets={ORDERS: OffsetToCommit(offset)}, **fields)
    result = groups.answers[groups.call(groups.coordinator.commit_transaction_offsets, request, producer_id)]
    return ErrorCode(result[ORDERS])


def end_transaction(groups: Groups, *, is_commit: bool, producer_id: int = 7) -> None:
    groups.take(groups.coordinator.end_transaction("g", producer_id, is_commit))


def offset_of(groups: Groups, log: TopicPartition = ORDERS) -> int:
    return groups.coordinator.fetch_offsets("g", [log])[log].offset


def delete(groups: Groups, *logs: TopicPartition, group_id: str = "g") -> DeleteOffsetsResult:
    result = groups.answers[groups.call(lambda token, *_: groups.coordinator.delete_offsets(token, group_id, logs))]
    assert isinstance(result, DeleteOffsetsResult)
    return result


def test_client_without_a_group_commits() -> None:
    groups = Groups()
    assert commit(groups) is ErrorCode.NONE
    assert groups.coordinator.fetch_offsets("g", [ORDERS, PAYMENTS]) == {
        ORDERS: FetchedOffset(5, 3, "note", ErrorCode.NONE),
        PAYMENTS: FetchedOffset(-1, -1, "", ErrorCode.NONE),
    }
    assert groups.coordinator.fetch_offsets("g", None) == {ORDERS: FetchedOffset(5, 3, "note", ErrorCode.NONE)}
    assert groups.coordinator.fetch_offsets("none", [ORDERS])[ORDERS].offset == -1
    assert groups.state == "Empty"


def test_offsets_survive_a_restart() -> None:
    groups = Groups()
    commit(groups, 5)
    commit(groups, 9, offsets={PAYMENTS: OffsetToCommit(9)}, log=PAYMENTS)
    commit(groups, 6)
    restarted = groups.restart()
    assert (offset_of(restarted), offset_of(restarted, PAYMENTS)) == (6, 9)
    assert restarted.state == "Empty"


def test_member_commits_in_its_generation_only() -> None:
    groups = Groups()
    leader, follower = two_members(groups)
    mine: dict[str, Any] = {"member_id": leader.member_id, "generation_id": 2}
    assert commit(groups, **mine) is ErrorCode.NONE
    assert commit(groups, **mine | {"generation_id": 1}) is ErrorCode.ILLEGAL_GENERATION
    assert commit(groups, **mine | {"member_id": "stranger"}) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(groups, **mine, group_instance_id="s") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(groups) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(groups, group_id="") is ErrorCode.INVALID_GROUP_ID
    assert commit(groups, **mine | {"group_id": "other"}) is ErrorCode.ILLEGAL_GENERATION
    again = groups.join(leader.member_id)
    assert commit(groups, 8, **mine) is ErrorCode.NONE
    groups.join(follower.member_id)
    mine["generation_id"] = groups.answers[again].generation_id
    assert commit(groups, 9, **mine) is ErrorCode.REBALANCE_IN_PROGRESS
    assert offset_of(groups) == 8


def test_commit_is_a_heartbeat() -> None:
    groups = Groups()
    leader, _ = two_members(groups)
    for _ in range(3):
        groups.wait(9_000)
        commit(groups, member_id=leader.member_id, generation_id=2)
    assert groups.beat(leader) is not ErrorCode.UNKNOWN_MEMBER_ID


def test_long_metadata_are_refused() -> None:
    groups = Groups()
    assert commit(groups, offsets={ORDERS: OffsetToCommit(1, -1, "x" * 4097)}) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert offset_of(groups) == -1
    assert commit(groups, offsets={ORDERS: OffsetToCommit(1, -1, "x" * 4096)}) is ErrorCode.NONE
    assert commit(groups, offsets={ORDERS: OffsetToCommit(1, -1, None)}) is ErrorCode.NONE


def test_offsets_of_a_transaction_count_when_it_is_committed() -> None:
    groups = Groups()
    commit(groups, 5)
    commit_in_transaction(groups, 9)
    assert offset_of(groups) == 5
    unstable = groups.coordinator.fetch_offsets("g", [ORDERS, PAYMENTS], require_stable=True)
    assert unstable[ORDERS] == FetchedOffset(-1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert unstable[PAYMENTS].error_code is ErrorCode.NONE
    assert set(groups.coordinator.fetch_offsets("g", None, require_stable=True)) == {ORDERS}
    groups = groups.restart()
    end_transaction(groups, is_commit=True)
    assert offset_of(groups) == 9
    assert groups.coordinator.fetch_offsets("g", [ORDERS], require_stable=True)[ORDERS].offset == 9
    assert offset_of(groups.restart()) == 9


def test_offsets_of_an_aborted_transaction_are_forgotten() -> None:
    groups = Groups()
    commit_in_transaction(groups, 9)
    end_transaction(groups, is_commit=False)
    assert offset_of(groups) == -1
    end_transaction(groups, is_commit=True)
    assert offset_of(groups.restart()) == -1


def test_later_commit_wins_over_an_earlier_transaction() -> None:
    groups = Groups()
    commit_in_transaction(groups, 9)
    commit(groups, 12)
    groups = groups.restart()
    end_transaction(groups, is_commit=True)
    assert offset_of(groups) == 12
    commit_in_transaction(groups, 20, producer_id=1)
    commit_in_transaction(groups, 30, producer_id=2)
    end_transaction(groups, is_commit=True, producer_id=2)
    end_transaction(groups, is_commit=True, producer_id=1)
    assert offset_of(groups) == 30


def test_transactions_commit_for_old_and_new_clients() -> None:
    groups = Groups()
    leader, _ = two_members(groups)
    assert commit_in_transaction(groups, 1) is ErrorCode.NONE
    mine: dict[str, Any] = {"member_id": leader.member_id, "generation_id": 2}
    assert commit_in_transaction(groups, 1, **mine) is ErrorCode.NONE
    assert commit_in_transaction(groups, 1, **mine | {"generation_id": 1}) is ErrorCode.ILLEGAL_GENERATION


def test_offsets_of_read_topics_are_not_deleted() -> None:
    groups = Groups()
    leader, follower = two_members(groups, protocols=READS_ORDERS)
    for log in (ORDERS, PAYMENTS):
        commit(groups, offsets={log: OffsetToCommit(1)}, log=log, member_id=leader.member_id, generation_id=2)
    errors = delete(groups, ORDERS, PAYMENTS).partitions
    assert errors == {ORDERS: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, PAYMENTS: ErrorCode.NONE}
    assert (offset_of(groups), offset_of(groups, PAYMENTS)) == (1, -1)
    groups.leave(LeavingMember(leader.member_id), LeavingMember(follower.member_id))
    assert delete(groups, ORDERS).partitions == {ORDERS: ErrorCode.NONE}
    assert offset_of(groups.restart()) == -1
    assert delete(groups, ORDERS, group_id="none").error_code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    "metadata", [b"", b"\0\0\0\0", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\7orders", b"\xff" * 9]
)
def test_offsets_stay_if_what_members_read_is_unknown(metadata: bytes) -> None:
    groups = Groups()
    two_members(groups, protocols=(("range", metadata),))
    assert delete(groups, ORDERS).partitions == {ORDERS: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_groups_of_other_kinds_keep_offsets_while_they_have_members() -> None:
    groups = Groups()
    two_members(groups, protocol_type="connect")
    assert delete(groups, ORDERS).error_code is ErrorCode.NON_EMPTY_GROUP


def test_offsets_of_a_deleted_topic_are_forgotten() -> None:
    groups = Groups()
    commit(groups)
    commit_in_transaction(groups, 9)
    commit(groups, offsets={PAYMENTS: OffsetToCommit(1)}, log=PAYMENTS)
    groups.take(groups.coordinator.delete_topics({"1D"}, "orders"))
    end_transaction(groups, is_commit=True)
    assert (offset_of(groups), offset_of(groups, PAYMENTS)) == (-1, 1)


def test_offsets_of_another_topic_of_that_name_stay() -> None:
    groups = Groups()
    commit(groups, offsets={ORDERS: OffsetToCommit(4, topic_id="2D")})
    groups.take(groups.coordinator.delete_topics({"1D"}, "orders"))
    assert offset_of(groups) == 4
    assert groups.restart().coordinator.fetch_offsets("g", [ORDERS])[ORDERS].topic_id == "2D"
    groups.take(groups.coordinator.delete_topics({"1D", "2D"}))
    assert offset_of(groups) == -1


def test_offsets_without_a_group_expire_after_their_commit() -> None:
    groups = Groups()
    commit(groups)
    groups.wait(4 * DAY_MS)
    commit(groups, offsets={PAYMENTS: OffsetToCommit(1)}, log=PAYMENTS)
    groups.wait(3 * DAY_MS + HOUR_MS)
    assert (offset_of(groups), offset_of(groups, PAYMENTS)) == (-1, 1)
    groups.wait(4 * DAY_MS)
    assert groups.state == "Dead"
    assert groups.restart().state == "Dead"


def test_offsets_of_a_group_expire_after_its_last_member_left() -> None:
    groups = Groups()
    leader, follower = two_members(groups, session_timeout_ms=1_000_000)
    commit(groups, member_id=leader.member_id, generation_id=2)
    for _ in range(10):
        groups.wait(DAY_MS // 100)
        groups.beat(leader)
        groups.beat(follower)
    groups.leave(LeavingMember(leader.member_id), LeavingMember(follower.member_id))
    groups.wait(7 * DAY_MS - HOUR_MS)
    assert offset_of(groups) == 5
    groups.wait(2 * HOUR_MS)
    assert offset_of(groups) == -1
    assert groups.state == "Dead"


def test_offsets_of_a_topic_that_is_not_read_any_more_expire() -> None:
    groups = Groups(attrs.evolve(NO_DELAY, offsets_retention_ms=5_000, offsets_retention_check_interval_ms=1_000))
    leader, _ = two_members(groups, protocols=READS_ORDERS)
    for log in (ORDERS, PAYMENTS):
        commit(groups, offsets={log: OffsetToCommit(1)}, log=log, member_id=leader.member_id, generation_id=2)
    groups.wait(6_000)
    assert (offset_of(groups), offset_of(groups, PAYMENTS)) == (1, -1)


def test_old_clients_say_how_long_offsets_are_kept() -> None:
    groups = Groups(GroupSettings(offsets_retention_check_interval_ms=1_000))
    commit(groups, retention_ms=HOUR_MS)
    commit(groups, offsets={PAYMENTS: OffsetToCommit(1)}, log=PAYMENTS, retention_ms=-1)
    groups.wait(HOUR_MS - 1)
    assert offset_of(groups) == 5
    groups.wait(1_000)
    assert (offset_of(groups), offset_of(groups, PAYMENTS)) == (-1, 1)


def test_offsets_of_open_transactions_do_not_expire() -> None:
    groups = Groups()
    commit_in_transaction(groups, 9)
    groups.wait(8 * DAY_MS)
    assert groups.state == "Empty"
    end_transaction(groups, is_commit=True)
    assert offset_of(groups) == 9
