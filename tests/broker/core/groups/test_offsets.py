"""Committed offsets, as clients see them."""

from typing import Any

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import CommitRequest, DeleteOffsetsResult, OffsetToCommit
from dafka.broker.core.groups.results import LeavingMember
from dafka.broker.core.topic_partition import TopicPartition
from tests.broker.core.groups.group_client import Groups, two_members

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 1)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
READS_ORDERS = (("range", b"\0\0\0\0\0\1\0\6orders" + b"\xff\xff\xff\xff"),)


def commit(groups: Groups, offset: int = 5, *, log: TopicPartition = ORDERS, **fields: Any) -> ErrorCode:
    request = CommitRequest(**({"group_id": "g", "offsets": {log: OffsetToCommit(offset, 3, "note")}} | fields))
    result = groups.answers[groups.call(groups.coordinator.commit_offsets, request)]
    assert set(result) == {log}
    return ErrorCode(result[log])


def offset_of(groups: Groups, log: TopicPartition = ORDERS) -> int:
    return groups.coordinator.fetch_offsets("g", [log])[log].offset


def delete(groups: Groups, *logs: TopicPartition, group_id: str = "g") -> DeleteOffsetsResult:
    result = groups.answers[groups.call(lambda token, *_: groups.coordinator.delete_offsets(token, group_id, logs))]
    assert isinstance(result, DeleteOffsetsResult)
    return result


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
