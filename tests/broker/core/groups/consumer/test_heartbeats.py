"""What members of consumer groups are answered: epochs, refusals, time limits, static members and patterns."""

from __future__ import annotations

from typing import Any

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.group import ConsumerGroupState
from dafka.broker.core.groups.consumer.members import LEAVING_EPOCH, NOTHING, PAUSING_EPOCH, MemberState
from dafka.broker.core.groups.results import CommitRequest, OffsetToCommit
from dafka.broker.core.patterns import LENGTH_MAX
from dafka.broker.core.topic_partition import TopicPartition
from tests.broker.core.groups.consumer.world import GROUP, REBALANCE_MS, SESSION_MS, World

TOPIC = frozenset({"t"})
NONE, FENCED, UNKNOWN = ErrorCode.NONE, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID


@pytest.fixture
def world() -> World:
    world = World()
    world.topics.put("t", 4)
    return world


def join(world: World, member_id: str = "a", **fields: Any) -> int:
    result = world.beat(member_id, 0, topics=TOPIC, **fields)
    assert result.error_code is NONE
    return result.member_epoch


def commit(world: World, member_id: str, epoch: int, *, producer_id: int | None = None) -> ErrorCode:
    log = TopicPartition("t", 0)
    request = CommitRequest(group_id=GROUP, generation_id=epoch, member_id=member_id, offsets={log: OffsetToCommit(1)})
    coordinator, now_ms = world.coordinator, world.now_ms
    if producer_id is None:
        actions = coordinator.commit_offsets(0, request, now_ms)
    else:
        actions = coordinator.commit_transaction_offsets(0, request, producer_id, now_ms)
    (errors,) = world.take(actions)
    found: ErrorCode = errors[log]
    return found


JOIN: dict[str, Any] = {"topics": TOPIC}


@pytest.mark.parametrize(
    ("member_id", "epoch", "fields", "error", "message"),
    [
        ("a", -3, {}, ErrorCode.INVALID_REQUEST, "the member epoch -3 is not 0 to join"),
        ("", 1, {}, ErrorCode.INVALID_REQUEST, "the member id is empty"),
        ("a", PAUSING_EPOCH, {}, ErrorCode.INVALID_REQUEST, "only a static member"),
        ("a", 0, {**JOIN, "rebalance_timeout_ms": None}, ErrorCode.INVALID_REQUEST, "rebalance timeout"),
        ("a", 0, {**JOIN, "owned": None}, ErrorCode.INVALID_REQUEST, "no partitions"),
        ("a", 0, {}, ErrorCode.INVALID_REQUEST, "subscribe to topics"),
        ("a", 0, {"topics": frozenset(), "pattern": ""}, ErrorCode.INVALID_REQUEST, "subscribe to topics"),
        ("a", 0, {**JOIN, "assignor": "own"}, ErrorCode.UNSUPPORTED_ASSIGNOR, "'own', only uniform, range"),
        ("a", 0, {"pattern": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION, "'(' is not a regular expression of RE2"),
        ("a", 0, {"pattern": "x" * (LENGTH_MAX + 1)}, ErrorCode.INVALID_REGULAR_EXPRESSION, "at most 1000 characters"),
        ("a", 1, {}, UNKNOWN, None),
        ("a", LEAVING_EPOCH, {}, UNKNOWN, None),
        ("a", PAUSING_EPOCH, {"instance_id": "i"}, UNKNOWN, None),
    ],
)
def test_what_no_group_accepts_changes_nothing(
    world: World, member_id: str, epoch: int, fields: dict[str, Any], error: ErrorCode, message: str | None
) -> None:
    for has_group in (False, True):
        if has_group:
            join(world, "other")
        before = list(world.records)
        result = world.beat(member_id, epoch, **fields)
        assert result.error_code is error
        assert result.error_message is None if message is None else message in str(result.error_message)
        assert world.records == before


def test_a_member_is_told_its_assignment_when_it_joins_asks_for_it_or_gets_another(world: World) -> None:
    logs = world.topics.logs_of("t")
    first = world.beat("a", 0, topics=TOPIC)
    assert (first.member_id, first.member_epoch, first.assignment) == ("a", 1, logs)
    assert world.beat("a", 1).assignment is None
    complete: dict[str, Any] = {"topics": TOPIC, "rebalance_timeout_ms": REBALANCE_MS, "owned": logs}
    for left_out in complete:
        fields = {name: value for name, value in complete.items() if name != left_out}
        assert world.beat("a", 1, **fields).assignment is None
    assert world.beat("a", 1, **complete).assignment == logs
    assert world.beat("a", 0, topics=TOPIC).assignment == logs, "it has joined again"
    assert world.beat("b", 0, topics=TOPIC).assignment == NOTHING
    revoking = world.beat("a", 1)
    assert revoking.assignment is not None
    assert (revoking.member_epoch, len(revoking.assignment)) == (1, 2)


def test_heartbeats_of_other_epochs_are_fenced_unless_only_the_response_was_lost(world: World) -> None:
    logs = world.topics.logs_of("t")
    assert join(world) == 1
    join(world, "b")
    kept = world.beat("a", 1).assignment
    assert kept is not None
    assert world.beat("a", 1, owned=kept).member_epoch == 2
    for epoch, owned, error in (
        (3, None, FENCED),
        (1, None, FENCED),
        (1, logs, FENCED),
        (1, kept, NONE),
        (2, None, NONE),
    ):
        assert world.beat("a", epoch, owned=owned).error_code is error, (epoch, owned)
    world.restart()
    assert world.beat("a", 1, owned=kept).error_code is NONE
    assert world.beat("a", 1, owned=logs).error_code is FENCED


@pytest.mark.parametrize("restarts", [False, True])
def test_members_that_are_silent_or_keep_what_they_must_give_up_are_removed(world: World, *, restarts: bool) -> None:
    join(world)
    join(world, "b")
    assert world.beat("a", 1).assignment is not None
    begun_ms = 0
    for _ in range(REBALANCE_MS // 10_000):
        world.pass_time(10_000 - 1)
        assert world.group.members.keys() == {"a", "b"}
        for each in "ab":
            assert world.beat(each, world.group.members[each].epoch).error_code is NONE
        if restarts and not begun_ms:
            world.restart()  # the time begins again
            begun_ms = world.now_ms
    world.pass_time(begun_ms + REBALANCE_MS - 1 - world.now_ms)
    assert world.group.members.keys() == {"a", "b"}
    world.pass_time(1)
    assert world.group.members.keys() == {"b"}
    world.pass_time(SESSION_MS)
    assert world.group.state is ConsumerGroupState.EMPTY
    assert not [each for each in latest(world) if b"consumer-member" in each]


def latest(world: World) -> list[bytes]:
    """Return the keys of the records that are not tombstones."""
    return [key for key, each in {each.key: each for each in world.records}.items() if each.value is not None]


def test_static_members_come_back_with_what_they_had(world: World) -> None:
    join(world, "a", instance_id="i")
    join(world, "b")
    world.beat("a", 1)
    for member_id, epoch, error in (("x", 0, ErrorCode.UNRELEASED_INSTANCE_ID), ("x", 1, ErrorCode.FENCED_INSTANCE_ID)):
        fields = JOIN if epoch == 0 else {}
        assert world.beat(member_id, epoch, instance_id="i", **fields).error_code is error
    assert world.beat("x", PAUSING_EPOCH, instance_id="i").error_code is ErrorCode.FENCED_INSTANCE_ID
    kept = world.group.members["a"].assigned
    assert world.beat("a", PAUSING_EPOCH, instance_id="i").member_epoch == PAUSING_EPOCH
    assert world.beat("a", 1, instance_id="i").error_code is FENCED
    assert world.group.members["a"].state is MemberState.STABLE
    world.restart()
    epoch = world.group.epoch
    back = world.beat("c", 0, instance_id="i", topics=TOPIC)
    assert (back.member_id, back.assignment, world.group.epoch) == ("c", kept, epoch)
    assert world.group.members.keys() == {"b", "c"}
    world.restart()
    assert world.group.members.keys() == {"b", "c"}
    assert world.beat("c", PAUSING_EPOCH, instance_id="i").error_code is NONE
    world.pass_time(SESSION_MS)
    assert not world.group.members
    assert world.group.find_static("i") is None


def test_a_pattern_matches_whole_names_of_topics_that_the_member_may_read(world: World) -> None:
    for name in ("t2", "hidden", "xt"):
        world.topics.put(name, 1)
    fields: dict[str, Any] = {"may_read": lambda name: name != "hidden"}
    result = world.beat("a", 0, pattern="t.*|hidden", **fields)
    assert result.assignment == world.topics.logs_of("t", "t2")
    world.topics.put("t3", 1)
    assert world.beat("a", 1, **fields).assignment == world.topics.logs_of("t", "t2", "t3")
    fields = {"may_read": lambda name: name != "t3"}
    world.restart()
    assert world.group.members["a"].subscription.matching == {"t", "t2", "t3"}
    fields |= {"topics": frozenset({"xt"}), "pattern": "t2", "owned": world.topics.logs_of("t2")}
    both = world.beat("a", world.group.members["a"].epoch, **fields)
    assert both.assignment == world.topics.logs_of("t2", "xt")


def test_a_pattern_follows_what_the_user_may_read(world: World) -> None:
    world.topics.put("t2", 1)
    world.beat("a", 0, pattern="t.*", may_read=set[str]().__contains__)
    for readable in ({"t"}, {"t", "t2"}, {"t2"}, set[str](), {"t", "t2"}):
        world.beat("a", world.group.members["a"].epoch, may_read=readable.__contains__)
        assert world.group.members["a"].subscription.matching == readable
        assert world.group.subscribed_topics() == readable


def test_a_group_has_no_more_members_than_it_may_and_there_are_no_more_groups(world: World) -> None:
    small = World(group_max_size=1, groups_max=1)
    join(small)
    assert small.beat("b", 0, topics=TOPIC).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert small.beat("a", 0, topics=TOPIC).error_code is NONE
    assert World(groups_max=0).beat("a", 0, topics=TOPIC).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_ids_are_made_for_clients_that_choose_none(world: World) -> None:
    assert world.beat("", 0, topics=TOPIC).member_id == "made-0"


def test_only_members_commit_in_their_epoch(world: World) -> None:
    epoch = join(world)
    assert commit(world, "a", epoch) is NONE
    assert commit(world, "a", epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "b", epoch) is UNKNOWN
    assert commit(world, "", -1) is UNKNOWN, "an administrator changes offsets of groups without members"
    assert commit(world, "a", epoch - 1, producer_id=1) is ErrorCode.ILLEGAL_GENERATION
    world.beat("a", LEAVING_EPOCH)
    assert commit(world, "", -1) is commit(world, "a", -1) is NONE


def test_only_members_read_offsets_in_their_epoch(world: World) -> None:
    epoch, stale = join(world), ErrorCode.STALE_MEMBER_EPOCH
    for member_id, asked, error in (("a", epoch, NONE), ("a", epoch - 1, stale), ("b", epoch, UNKNOWN)):
        assert world.coordinator.check_reader(GROUP, member_id, asked) is error
        assert world.coordinator.check_reader("other", member_id, asked) is NONE


def test_groups_are_listed_described_and_deleted_with_classic_ones(world: World) -> None:
    join(world)
    commit(world, "a", 1)
    coordinator = world.coordinator
    for types, states, is_listed in (
        (["Consumer"], [], True),
        (["classic"], [], False),
        ([], ["stable"], True),
        ([], ["empty"], False),
    ):
        listed = coordinator.list_groups(states, types)
        assert [(each.group_id, each.group_type) for each in listed] == ([(GROUP, "consumer")] if is_listed else [])
    described = coordinator.describe_consumer_group(GROUP)
    assert (described.state, described.epoch, described.target_epoch, described.assignor) == ("Stable", 1, 1, "uniform")
    assert [(each.member.member_id, each.target) for each in described.members] == [("a", world.topics.logs_of("t"))]
    assert coordinator.describe_consumer_group("none").error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.take(coordinator.delete_groups(0, [GROUP])) == [{GROUP: ErrorCode.NON_EMPTY_GROUP}]
    (kept,) = world.take(coordinator.delete_offsets(0, GROUP, [TopicPartition("t", 0)]))
    assert kept.partitions == {TopicPartition("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    world.beat("a", LEAVING_EPOCH)
    assert world.take(coordinator.delete_groups(0, [GROUP])) == [{GROUP: NONE}]
    assert latest(world) == []
