"""Groups whose clients are upgraded one by one, or downgraded: no client stops, and nobody loses its place."""

from __future__ import annotations

from typing import Any

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.consumer.members import LEAVING_EPOCH, PAUSING_EPOCH
from dafka.broker.core.groups.results import JoinRequest, JoinResult, LeavingMember, SyncRequest, SyncResult
from dafka.broker.core.groups.subscriptions import encode_assignment, read_assignment
from tests.broker.core.groups.consumer.test_heartbeats import commit, latest
from tests.broker.core.groups.consumer.world import GROUP, REBALANCE_MS, SESSION_MS, World, encode_subscription

TOPIC = frozenset({"t"})
CLASSIC_SESSION_MS = 10_000
NONE, REBALANCING, UNKNOWN = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID


@pytest.fixture
def world() -> World:
    world = World(group_initial_rebalance_delay_ms=0)
    world.topics.put("t", 4)
    return world


def join(world: World, member_id: str = "", **fields: Any) -> list[Any]:
    owned = fields.pop("owned", {})
    given: dict[str, Any] = {
        "group_id": GROUP,
        "member_id": member_id,
        "client_id": "classic",
        "session_timeout_ms": CLASSIC_SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": (("range", encode_subscription(TOPIC, owned)), ("sticky", encode_subscription(TOPIC, owned))),
    }
    return world.take(world.coordinator.join_group(f"join {member_id}", JoinRequest(**given | fields), world.now_ms))


def sync(world: World, joined: JoinResult, *assigned: tuple[str, dict[str, list[int]]], **fields: Any) -> Any:
    request = SyncRequest(
        group_id=GROUP,
        generation_id=fields.pop("generation_id", joined.generation_id),
        member_id=joined.member_id,
        assignments=tuple((member_id, encode_assignment(logs)) for member_id, logs in assigned),
        **fields,
    )
    (result,) = world.take(world.coordinator.sync_group("sync", request, world.now_ms))
    return result


def beat(world: World, joined: JoinResult) -> ErrorCode:
    return world.coordinator.heartbeat(GROUP, joined.generation_id, joined.member_id, None, world.now_ms)


def start_classic(world: World) -> JoinResult:
    """Start a classic group with one member, which has all logs."""
    (joined,) = join(world)
    result = sync(world, joined, (joined.member_id, {"t": [0, 1, 2, 3]}))
    assert result.error_code is NONE
    return joined if isinstance(joined, JoinResult) else pytest.fail("no result")


def upgrade(world: World, joined: JoinResult) -> tuple[JoinResult, int]:
    """Add a member of the other protocol, which gets a half. Return the classic one's next result, and the epoch."""
    assert world.beat("new", 0, topics=TOPIC).error_code is NONE
    assert beat(world, joined) is REBALANCING
    (first,) = join(world, joined.member_id, owned={"t": [0, 1, 2, 3]})
    kept = read_assignment(sync(world, first).assignment)
    assert first.generation_id == joined.generation_id
    assert kept is not None
    assert len(kept["t"]) == 2
    assert beat(world, first) is REBALANCING, "it must say that it has given up the others"
    (second,) = join(world, joined.member_id, owned=kept)
    assert read_assignment(sync(world, second).assignment) == kept
    assert beat(world, second) is NONE
    result = world.beat("new", world.group.members["new"].epoch)
    assert len(result.assignment or ()) == 2
    return second, result.member_epoch


def test_a_group_is_upgraded_and_downgraded_while_its_members_read(world: World) -> None:
    joined = start_classic(world)
    second, epoch = upgrade(world, joined)
    assert [each.group_type for each in world.coordinator.list_groups()] == ["consumer"]
    assert second.leader != second.member_id
    assert commit(world, second.member_id, second.generation_id) is NONE
    assert commit(world, second.member_id, second.generation_id - 1) is ErrorCode.ILLEGAL_GENERATION
    world.restart()
    assert beat(world, second) is NONE
    assert world.group.members[second.member_id].classic is not None
    assert not any(b'"group"' in each for each in latest(world))
    assert world.beat("new", LEAVING_EPOCH).error_code is NONE
    assert [(each.group_type, each.state) for each in world.coordinator.list_groups()] == [
        ("classic", "PreparingRebalance")
    ]
    assert not any(b'"consumer-' in each for each in latest(world))
    assert beat(world, second) is REBALANCING
    (third,) = join(world, second.member_id)
    assert third.generation_id > second.generation_id == epoch
    assert third.leader == third.member_id
    assert sync(world, third, (third.member_id, {"t": [0, 1, 2, 3]})).error_code is NONE
    world.restart()
    assert beat(world, third) is NONE


def test_static_clients_are_upgraded_and_downgraded_when_they_restart(world: World) -> None:
    """A static client of the classic protocol does not say that it leaves: the next one with its id replaces it."""
    (joined,) = join(world, group_instance_id="i")
    sync(world, joined, (joined.member_id, {"t": [0, 1, 2, 3]}), group_instance_id="i")
    upgraded = world.beat("new", 0, topics=TOPIC, instance_id="i")
    assert upgraded.assignment == world.topics.logs_of("t")
    assert world.group.members.keys() == {"new"}
    fenced = world.coordinator.heartbeat(GROUP, joined.generation_id, joined.member_id, "i", world.now_ms)
    assert fenced is ErrorCode.FENCED_INSTANCE_ID
    refused = world.beat("other", 0, topics=TOPIC, instance_id="i")
    assert refused.error_code is ErrorCode.UNRELEASED_INSTANCE_ID
    world.restart()
    assert world.beat("new", PAUSING_EPOCH, instance_id="i").error_code is NONE
    (back,) = join(world, group_instance_id="i")
    assert [each.group_type for each in world.coordinator.list_groups()] == ["classic"]
    (again,) = join(world, back.member_id, group_instance_id="i")
    assert again.leader == again.member_id == back.member_id


def test_a_group_that_was_downgraded_is_stored(world: World) -> None:
    second, _ = upgrade(world, start_classic(world))
    world.beat("new", LEAVING_EPOCH)
    world.restart()
    assert [(each.group_type, each.state) for each in world.coordinator.list_groups()] == [("classic", "Stable")]
    assert beat(world, second) is NONE


def test_a_classic_member_learns_of_changed_topics_and_gets_no_outdated_assignment(world: World) -> None:
    second, _ = upgrade(world, start_classic(world))
    world.topics.put("t", 5)
    assert beat(world, second) is REBALANCING, "nobody else has sent a heartbeat since"
    (third,) = join(world, second.member_id)
    world.topics.put("t", 6)
    world.beat("new", world.group.members["new"].epoch)
    assert sync(world, third).error_code is REBALANCING
    (fourth,) = join(world, second.member_id)
    assert sync(world, fourth).error_code is NONE


def test_waiting_requests_of_a_group_that_is_upgraded_are_answered(world: World) -> None:
    joined = start_classic(world)
    assert join(world, "", group_instance_id="other") == [], "it waits for the first member"
    request_of_new: dict[str, Any] = {"topics": TOPIC}
    before = len(world.records)
    actions_before = world.coordinator._membership.groups[GROUP].joining
    assert actions_before
    results = world.beat_all("new", 0, **request_of_new)
    assert [each.error_code for each in results if isinstance(each, JoinResult)] == [REBALANCING]
    assert len(world.records) > before
    assert world.group.members.keys() > {joined.member_id, "new"}


def test_a_classic_member_that_is_silent_or_does_not_join_again_is_removed(world: World) -> None:
    second, epoch = upgrade(world, start_classic(world))
    world.pass_time(CLASSIC_SESSION_MS - 1)
    assert beat(world, second) is NONE
    world.topics.put("t", 5)
    for _ in range(REBALANCE_MS // 5000):
        world.beat("new", world.group.members["new"].epoch)
        assert beat(world, second) is REBALANCING
        world.pass_time(5000)
    assert beat(world, second) is UNKNOWN
    assert world.group.members.keys() == {"new"}
    assert epoch < world.group.epoch
    third, _ = upgrade_again(world)
    world.pass_time(CLASSIC_SESSION_MS)
    assert beat(world, third) is UNKNOWN
    assert world.group.members.keys() == {"new"}
    world.pass_time(SESSION_MS)
    assert not world.group.members


def upgrade_again(world: World) -> tuple[JoinResult, SyncResult]:
    """Add a classic member, which first learns its id."""
    world.beat("new", world.group.members["new"].epoch)
    (asked,) = join(world, requires_known_member_id=True)
    assert asked.error_code is ErrorCode.MEMBER_ID_REQUIRED
    assert asked.member_id not in world.group.members
    (joined,) = join(world, asked.member_id, requires_known_member_id=True)
    assert joined.error_code is NONE
    return joined, sync(world, joined)


def test_what_a_consumer_group_refuses_classic_clients(world: World) -> None:
    world.beat("new", 0, topics=TOPIC)
    wrong: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("range", b"?"),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "unknown"}, UNKNOWN),
        ({"member_id": "unknown", "group_instance_id": "i"}, UNKNOWN),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ]
    for fields, error in wrong:
        (result,) = join(world, **{"member_id": "", **fields})
        assert result.error_code is error, fields
    (joined,) = join(world, group_instance_id="i")
    (again,) = join(world, group_instance_id="i")
    assert joined.member_id != again.member_id
    assert join(world, joined.member_id, group_instance_id="i")[0].error_code is ErrorCode.FENCED_INSTANCE_ID
    assert sync(world, joined).error_code is UNKNOWN
    assert sync(world, again, generation_id=99).error_code is ErrorCode.ILLEGAL_GENERATION
    assert sync(world, again, protocol_name="sticky").error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync(world, again, protocol_type="connect").error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.coordinator.heartbeat(GROUP, 1, "new", None, world.now_ms) is UNKNOWN
    full = World(group_max_size=1)
    full.beat("new", 0, topics=TOPIC)
    assert join(full)[0].error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_administrators_remove_members_by_instance(world: World) -> None:
    world.beat("new", 0, topics=TOPIC, instance_id="i")
    (joined,) = join(world, group_instance_id="j")
    leaving = [
        (("", "i"), NONE),
        (("", "k"), UNKNOWN),
        (("unknown", None), UNKNOWN),
        ((joined.member_id, "i"), UNKNOWN),
        ((joined.member_id, "j"), NONE),
    ]
    members = tuple(LeavingMember(*each) for each, _ in leaving)
    (result,) = world.take(world.coordinator.leave_group("leave", GROUP, members, world.now_ms))[-1:]
    assert [each.error_code for each in result.members] == [error for _, error in leaving]
    assert not world.group.members


def test_groups_without_members_change_their_type_and_keep_their_offsets(world: World) -> None:
    joined = start_classic(world)
    assert commit(world, joined.member_id, joined.generation_id) is NONE
    leaving = (LeavingMember(joined.member_id),)
    world.take(world.coordinator.leave_group("leave", GROUP, leaving, world.now_ms))
    assert world.beat("new", 0, topics=frozenset(), pattern="(").error_code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert [each.group_type for each in world.coordinator.list_groups()] == ["classic"]
    assert world.beat("new", 0, topics=TOPIC).error_code is NONE
    world.beat("new", LEAVING_EPOCH)
    assert [each.group_type for each in world.coordinator.list_groups()] == ["consumer"]
    assert join(world, session_timeout_ms=1)[0].error_code is ErrorCode.INVALID_SESSION_TIMEOUT
    assert [each.group_type for each in world.coordinator.list_groups()] == ["consumer"]
    start_classic(world)
    assert [each.group_type for each in world.coordinator.list_groups()] == ["classic"]
    assert len(world.coordinator.fetch_offsets(GROUP, None)) == 1


def test_a_classic_group_of_other_programs_stays_one(world: World) -> None:
    join(world, protocol_type="connect", protocols=(("default", b"opaque"),))
    result = world.beat("new", 0, topics=TOPIC)
    assert result.error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert "are no consumers" in str(result.error_message)
    assert [each.group_type for each in world.coordinator.list_groups()] == ["classic"]


def test_a_classic_group_stays_one_if_the_first_new_client_is_refused(world: World) -> None:
    full = World(group_initial_rebalance_delay_ms=0, group_max_size=1)
    full.topics.put("t", 4)
    joined = start_classic(full)
    results = full.beat_all("new", 0, topics=TOPIC)
    assert [each.error_code for each in results] == [ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert [each.group_type for each in full.coordinator.list_groups()] == ["classic"]
    assert beat(full, joined) is REBALANCING, "it joins again"
    (again,) = join(full, joined.member_id)
    assert sync(full, again, (joined.member_id, {"t": [0, 1, 2, 3]})).error_code is NONE
