"""The answer to each request in each state of a group, from each client, as a table says; a refusal changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import attrs
import pytest

from dafka.broker.core.coordination.effects import Action, Answer, WriteState
from dafka.broker.core.error_codes import ErrorCode as E
from dafka.broker.core.groups.results import CommitRequest, JoinResult, LeavingMember, OffsetToCommit, SyncRequest
from dafka.broker.core.topic_partition import TopicPartition
from dafka.errors import StorageFormatError
from tests.broker.core.groups.group_client import BOTH, RANGE, Groups

ORDERS = TopicPartition("orders", 0)
WAITS = "waits"


class Scene:
    """A group in a state, with a leader, a follower, and a static member `s` of which an earlier client is fenced."""

    def __init__(self, state: str) -> None:
        self.groups = groups = Groups()
        self.state = state
        self.generation = 0
        self.ids = {"stranger": "x", "nobody": ""}
        if state == "Absent":
            self.ids |= dict.fromkeys(["leader", "follower", "static", "fenced"], "gone")
            return
        first = groups.joined()
        groups.synced(first, {first.member_id: b"all"})
        follower, fenced = groups.join(client_id="d"), groups.join(client_id="e", group_instance_id="s")
        leader = groups.joined(first.member_id)
        old = groups.answers[fenced]
        self.ids |= {"leader": leader.member_id, "follower": groups.answers[follower].member_id}
        self.ids |= {"fenced": old.member_id}
        self.generation = leader.generation_id
        for each in ("leader", "follower", "fenced"):
            groups.sync(attrs.evolve(leader, member_id=self.ids[each]), {self.ids[each]: b"part"})
        self.ids["static"] = groups.joined(client_id="e", group_instance_id="s").member_id
        if state == "Empty":
            groups.leave(*(LeavingMember(self.ids[each]) for each in ("leader", "follower")), LeavingMember("", "s"))
            self.generation = groups.coordinator.describe_group("g").generation_id
        if state in {"PreparingRebalance", "CompletingRebalance"}:
            groups.join(self.ids["leader"])
        if state == "CompletingRebalance":
            groups.join(self.ids["follower"])
            groups.join(self.ids["static"], client_id="e", group_instance_id="s")
            self.generation += 1
        assert state in {groups.state, "Absent"}

    def send(self, request: Callable[..., list[Action]], *arguments: Any) -> Any:
        """Return the result; `WAITS` if there is none yet. Fail if it comes before what it depends on is written."""
        token = object()
        actions = request(token, *arguments, self.groups.now_ms)
        kinds = [type(action) for action in actions]
        assert kinds == sorted(kinds, key=lambda kind: kind is not WriteState), "an answer comes before a write"
        self.wrote = WriteState in kinds
        found = [action.result for action in actions if isinstance(action, Answer) and action.token is token]
        return found[0] if found else WAITS

    def described(self) -> object:
        coordinator = self.groups.coordinator
        group = coordinator.describe_group("g")
        return group, coordinator.fetch_offsets("g", None), coordinator.next_deadline_ms()


def heartbeat(scene: Scene, member_id: str, instance_id: str | None, generation: int) -> Any:
    scene.wrote = False
    return scene.groups.coordinator.heartbeat("g", generation, member_id, instance_id, scene.groups.now_ms)


def sync(scene: Scene, member_id: str, instance_id: str | None, generation: int) -> Any:
    request = SyncRequest(group_id="g", generation_id=generation, member_id=member_id, group_instance_id=instance_id)
    result = scene.send(scene.groups.coordinator.sync_group, request)
    return result if result == WAITS else result.error_code


def commit_request(member_id: str, instance_id: str | None, generation: int) -> CommitRequest:
    return CommitRequest(
        group_id="g",
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        offsets={ORDERS: OffsetToCommit(3)},
    )


def commit(scene: Scene, member_id: str, instance_id: str | None, generation: int) -> Any:
    request = commit_request(member_id, instance_id, generation)
    return scene.send(scene.groups.coordinator.commit_offsets, request)[ORDERS]


def commit_in_transaction(scene: Scene, member_id: str, instance_id: str | None, generation: int) -> Any:
    request = commit_request(member_id, instance_id, generation)
    coordinator = scene.groups.coordinator
    return scene.send(lambda token, now_ms: coordinator.commit_transaction_offsets(token, request, 7, now_ms))[ORDERS]


REQUESTS = [heartbeat, sync, commit, commit_in_transaction]

MEMBERS: list[tuple[str, str | None]] = [("leader", None), ("follower", None), ("static", "s"), ("static", None)]
"""Clients that are what they say: their name, and the group instance id that they send."""

OTHERS: list[tuple[str, str | None, E]] = [
    ("stranger", None, E.UNKNOWN_MEMBER_ID),
    ("stranger", "s", E.FENCED_INSTANCE_ID),
    ("stranger", "t", E.UNKNOWN_MEMBER_ID),
    ("fenced", None, E.UNKNOWN_MEMBER_ID),
    ("fenced", "s", E.FENCED_INSTANCE_ID),
    ("leader", "s", E.FENCED_INSTANCE_ID),
    ("leader", "t", E.UNKNOWN_MEMBER_ID),
    ("nobody", "s", E.FENCED_INSTANCE_ID),
]

REBALANCES = E.REBALANCE_IN_PROGRESS
ANSWERS: dict[str, list[Any]] = {
    "PreparingRebalance": [REBALANCES, REBALANCES, E.NONE, E.NONE],
    "CompletingRebalance": [E.NONE, WAITS, REBALANCES, E.NONE],
    "Stable": [E.NONE, E.NONE, E.NONE, E.NONE],
}
"""What members get in their own generation, in the order of `REQUESTS`; leaders need not wait for their assignment."""

UNWRITTEN = [*((state, heartbeat) for state in ANSWERS), ("Stable", sync)]


def test_members_are_answered_by_the_state() -> None:
    for (state, answers), (name, instance_id) in product(ANSWERS.items(), MEMBERS):
        for request_of, answer in zip(REQUESTS, answers, strict=True):
            scene = Scene(state)
            expected = E.NONE if answer == WAITS and name == "leader" else answer
            found = request_of(scene, scene.ids[name], instance_id, scene.generation)
            assert found == expected, (state, request_of, name)
            assert scene.wrote == (expected is E.NONE and (state, request_of) not in UNWRITTEN)


@pytest.mark.parametrize("state", ANSWERS)
def test_other_generations_and_clients_are_refused_and_change_nothing(state: str) -> None:
    scene = Scene(state)
    wrong = [scene.generation - 1, scene.generation + 1]
    cases = [(name, instance, generation, E.ILLEGAL_GENERATION) for name, instance in MEMBERS for generation in wrong]
    for generation in [-1, scene.generation, *wrong]:  # fencing comes before the generation
        cases += [(name, instance, generation, error) for name, instance, error in OTHERS]
    scene.groups.wait(100)
    before = scene.described()
    for request_of, (name, instance_id, generation, error) in product(REQUESTS, cases):
        found = request_of(scene, scene.ids[name], instance_id, generation)
        assert (found, scene.wrote) == (error, False), (request_of, name, instance_id, generation)
        assert scene.described() == before, (request_of, name, instance_id, generation)


def test_clients_that_are_no_members_commit_only_to_groups_without_members() -> None:
    for state, generation, plain, transactional in [
        ("Absent", -1, E.NONE, E.NONE),
        ("Absent", 0, E.ILLEGAL_GENERATION, E.ILLEGAL_GENERATION),
        ("Empty", -1, E.NONE, E.NONE),
        ("Empty", 0, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID),
        *((state, -1, E.UNKNOWN_MEMBER_ID, E.NONE) for state in ANSWERS),
    ]:
        ids = [("", None), ("stranger", None), ("", "s"), ("stranger", "t")]
        for request_of, expected in ((commit, plain), (commit_in_transaction, transactional)):
            for member_id, instance_id in ids if state in {"Absent", "Empty"} else ids[:1]:
                scene = Scene(state)
                assert request_of(scene, member_id, instance_id, generation) is expected
                assert scene.wrote == (expected is E.NONE)
        for request_of, each in product((heartbeat, sync), ("leader", "stranger", "nobody")):
            if state in {"Absent", "Empty"}:
                scene = Scene(state)
                assert request_of(scene, scene.ids[each], None, scene.generation) is E.UNKNOWN_MEMBER_ID


JOINS: list[tuple[str, str | None, dict[str, Any]]] = [
    ("leader", None, {"PreparingRebalance": WAITS, "CompletingRebalance": E.NONE, "Stable": WAITS}),
    ("follower", None, {"PreparingRebalance": WAITS, "CompletingRebalance": E.NONE, "Stable": E.NONE}),
    ("static", "s", {"PreparingRebalance": WAITS, "CompletingRebalance": E.NONE, "Stable": E.NONE}),
    ("stranger", None, dict.fromkeys(ANSWERS, E.UNKNOWN_MEMBER_ID) | {"Absent": E.UNKNOWN_MEMBER_ID}),
    ("fenced", "s", dict.fromkeys(ANSWERS, E.FENCED_INSTANCE_ID) | {"Empty": E.UNKNOWN_MEMBER_ID}),
    ("leader", "s", dict.fromkeys(ANSWERS, E.FENCED_INSTANCE_ID)),
    ("leader", "t", dict.fromkeys(ANSWERS, E.UNKNOWN_MEMBER_ID)),
    ("nobody", None, dict.fromkeys(ANSWERS, WAITS) | {"Absent": E.NONE, "Empty": E.NONE}),
    ("nobody", "t", dict.fromkeys(ANSWERS, WAITS) | {"Absent": E.NONE, "Empty": E.NONE}),
]


def joins(scene: Scene, name: str, instance_id: str | None, **fields: Any) -> tuple[Any, JoinResult | None]:
    token = scene.groups.join(scene.ids[name], group_instance_id=instance_id, **fields)
    result = scene.groups.answers.get(token)
    return (WAITS, None) if result is None else (result.error_code, result)


def test_clients_join_by_the_state() -> None:
    for name, instance_id, answers in JOINS:
        for state, expected in answers.items():
            scene = Scene(state)
            before = scene.generation
            found, result = joins(scene, name, instance_id)
            assert found == expected, (name, state)
            if result is not None and found is E.NONE:
                assert result.generation_id == before + (state not in ANSWERS)
                assert bool(result.members) == (result.leader == result.member_id)
            assert found != WAITS or scene.groups.state == "PreparingRebalance"
    for state in ANSWERS:  # other metadata begins a rebalance
        scene = Scene(state)
        assert joins(scene, "follower", None, protocols=(("range", b"other"),))[0] == WAITS
        assert scene.groups.state == "PreparingRebalance"
        assert heartbeat(scene, scene.ids["leader"], None, scene.generation) is E.REBALANCE_IN_PROGRESS


def test_members_leave_by_their_ids_and_an_administrator_by_the_static_name() -> None:
    """With their errors; nobody is a member of a group that does not exist or is empty."""
    cases: list[tuple[str, str | None, E]] = [
        *((name, None, E.NONE) for name in ("leader", "follower")),
        *((name, "s", E.NONE) for name in ("static", "nobody")),
        *((name, "s", E.FENCED_INSTANCE_ID) for name in ("fenced", "leader")),
        *((name, None, E.UNKNOWN_MEMBER_ID) for name in ("nobody", "stranger")),
        ("nobody", "t", E.UNKNOWN_MEMBER_ID),
    ]
    for state, (name, instance_id, error_alive) in product(["Absent", "Empty", *ANSWERS], cases):
        scene, error = Scene(state), error_alive if state in ANSWERS else E.UNKNOWN_MEMBER_ID
        size = len(scene.groups.coordinator.describe_group("g").members)
        (left,) = scene.groups.leave(LeavingMember(scene.ids[name], instance_id)).members
        assert left == (scene.ids[name], instance_id, error)
        assert len(scene.groups.coordinator.describe_group("g").members) == size - (error is E.NONE)
        assert error is not E.NONE or scene.groups.state == "PreparingRebalance"


def test_only_what_nobody_reads_is_deleted() -> None:
    for state, of_offsets, of_group in [
        ("Absent", E.GROUP_ID_NOT_FOUND, E.GROUP_ID_NOT_FOUND),
        ("Empty", E.NONE, E.NONE),
        *((state, E.GROUP_SUBSCRIBED_TO_TOPIC, E.NON_EMPTY_GROUP) for state in ANSWERS),
    ]:
        scene = Scene(state)
        coordinator = scene.groups.coordinator
        if state == "Empty":
            commit(scene, "", None, -1)
        deleted = scene.send(lambda token, _, delete=coordinator.delete_offsets: delete(token, "g", [ORDERS]))
        assert (deleted.error_code or deleted.partitions[ORDERS]) is of_offsets
        assert scene.wrote == (state == "Empty")
        assert coordinator.fetch_offsets("g", None) == {}
        deleted = scene.send(lambda token, _, delete=coordinator.delete_groups: delete(token, ["g", "h", "g"]))
        assert deleted == {"g": of_group, "h": E.GROUP_ID_NOT_FOUND}
        assert (scene.groups.state == "Dead") == (of_group is not E.NON_EMPTY_GROUP)


def test_a_group_without_a_name_is_refused() -> None:
    groups = Groups()
    coordinator = groups.coordinator
    assert coordinator.heartbeat("", 1, "m", None, 0) is E.INVALID_GROUP_ID
    assert groups.leave(LeavingMember("m"), group_id="").error_code is E.INVALID_GROUP_ID
    request = CommitRequest(group_id="", offsets={ORDERS: OffsetToCommit(3)})
    assert groups.answers[groups.call(coordinator.commit_offsets, request)] == {ORDERS: E.INVALID_GROUP_ID}


def test_an_expected_member_keeps_its_group_and_takes_a_place() -> None:
    groups = Groups(attrs.evolve(Groups().settings, group_max_size=2))
    expected = groups.joined(requires_known_member_id=True)
    coordinator = groups.coordinator
    assert [each.result for each in coordinator.delete_groups(0, ["g"]) if isinstance(each, Answer)] == [
        {"g": E.NON_EMPTY_GROUP}
    ]
    assert groups.joined(requires_known_member_id=True).error_code is E.MEMBER_ID_REQUIRED
    assert groups.joined().error_code is E.GROUP_MAX_SIZE_REACHED
    assert groups.join(expected.member_id, protocols=RANGE) not in groups.answers, "another one is expected"


def test_a_group_is_restored_only_from_state_that_does_not_contradict_itself() -> None:
    groups = Groups()
    alone = groups.joined()
    groups.synced(alone, {alone.member_id: b"left"})
    *_, record = groups.records
    fields = json.loads(record.value or b"")
    changes: list[dict[str, Any]] = [{"state": "Empty"}, {"members": []}, {"leader": "x"}, {"state": "Dead"}]
    for change in changes:
        with pytest.raises(StorageFormatError):
            Groups(groups.settings, [record._replace(value=json.dumps(fields | change).encode())])
    last = json.dumps(fields | {"generation_id": 2**31 - 1}).encode()
    again = Groups(groups.settings, [record._replace(value=last)])
    assert again.joined(alone.member_id, protocols=BOTH).generation_id == 1, "there is no larger number"
