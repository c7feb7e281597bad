"""The state of a cluster is a function of the committed commands, and of nothing else."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest

from dafka.broker.core.acls import Acl, AclEffect, Operation, PatternType, ResourceType
from dafka.broker.core.client_quotas import EntityType, QuotaEntity, QuotaKey, make_entity
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    AddLogs,
    AlterClientQuota,
    AlterGroupSettings,
    AlterSettings,
    ChangeReplicas,
    CloseTopic,
    Command,
    CreateAcls,
    CreateTopic,
    DeleteAcls,
    DeleteScramCredential,
    DeleteTopic,
    DrainBroker,
    ForgetBroker,
    OpenCluster,
    Order,
    RecoverLog,
    RegisterBroker,
    ReplicasChanged,
    SetFeatureLevel,
    SetScramCredential,
    SnapshotTaken,
)
from dafka.broker.core.metadata.features import FeatureLevels, FeatureSupport
from dafka.broker.core.metadata.log_replicas import LogKey, LogReplicas, Reason, recovery_of
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.metadata.registered_brokers import RegisteredBroker
from dafka.broker.core.metadata.topics import LOGS_MAX, Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism
from dafka.config.settings import BROKER_NUMBER_MAX
from dafka.errors import StorageFormatError
from dafka.records import Partition
from tests.seeds import each_seed

CLUSTER = "C" * 32
RANGES = [FeatureLevels(*each) for each in ((1, 1), (1, 2), (2, 3), (1, 3), (3, 2))]
SUPPORT = FeatureSupport(FeatureLevels(1, 4))
NAMES, IDS = ["orders", "visits"], ["1D", "2D", "3D", "4D"]
EPOCHS = [0, 1024, 2048, 4096]


def draw_placement(draw: Random, count: int) -> tuple[tuple[str, ...], ...]:
    """Return replicas, most often ones that are possible."""
    if draw.random() < 0.2:
        return tuple(tuple(draw.choices("abcx", k=draw.randint(0, 3))) for _ in range(draw.randint(0, 3)))
    return tuple(tuple(draw.sample("abc", draw.randint(1, 3))) for _ in range(count))


def draw_acls(draw: Random) -> tuple[Acl, ...]:
    return tuple(
        Acl(
            draw.choice([ResourceType.TOPIC, ResourceType.GROUP]),
            draw.choice(["a", "a/b", "*"]),
            draw.choice(["User:a", "User:a/b", "User:*"]),
            draw.choice([Operation.READ, Operation.ALL]),
            draw.choice([PatternType.LITERAL, PatternType.PREFIXED]),
            draw.choice(["*", "::1", "10.0.0.1"]),
            draw.choice([AclEffect.ALLOW, AclEffect.DENY]),
        )
        for _ in range(draw.randint(0, 3))
    )


KEYS = [each.value for each in QuotaKey]


def draw_entity(draw: Random) -> QuotaEntity:
    kinds = draw.choice([[EntityType.IP], [EntityType.USER], [EntityType.CLIENT_ID], [*EntityType][:2]])
    return make_entity({each: draw.choice(["a", 'b",', None]) for each in kinds})


def draw_credential(draw: Random) -> ScramCredential:
    return ScramCredential(
        draw.choice("ab"), draw.choice([*ScramMechanism]), draw.randint(4096, 4098), "YQ==", "b", "c"
    )


def draw_command(draw: Random) -> Command:
    topic_id, log, store, is_so = draw.choice(IDS), draw.randint(0, 3), draw.choice("abc"), draw.random() < 0.5
    (replicas,) = draw_placement(draw, 1)[:1] or [()]
    settings = {"retention.ms": draw.choice("12")} if is_so else {}
    fields = settings, draw.randint(0, 3), draw_placement(draw, log)
    new = Topic(draw.choice(NAMES), topic_id, log, *fields, first_epoch=draw.choice(EPOCHS))
    create = CreateTopic(new, draw.random() < 0.5)
    close = CloseTopic(topic_id, {each: draw.randint(0, 9) for each in draw.sample("PQ", draw.randint(0, 2))})
    reason = draw.choice([Reason.ASKED, Reason.DEAD])
    change = ChangeReplicas(topic_id, log, replicas, reason, draw.randint(0, 1), draw.randint(0, 4))
    delete = DeleteTopic(topic_id, draw.choice(EPOCHS))
    others: list[Command] = [
        OpenCluster(draw.randint(1, 3)),
        RegisterBroker(store, draw.randint(-1, 2), features=draw.choice(RANGES)),
        SetFeatureLevel(draw.randint(0, 4)),
        DrainBroker(store, is_so),
        ForgetBroker(store, is_so) if draw.random() < 0.3 else delete,
        AddLogs(topic_id, draw.randint(0, 4), draw_placement(draw, log), is_so),
        AlterSettings(topic_id, {"retention.ms": "9"}),
        ReplicasChanged(topic_id, log, draw.randint(0, 4), 1024),
        RecoverLog(topic_id, log, store),
        delete,
        SnapshotTaken(draw.randint(0, 9), "checksum"),
        CreateAcls(draw_acls(draw)),
        DeleteAcls(draw_acls(draw)),
        SetScramCredential(draw_credential(draw)),
        AlterClientQuota(
            draw_entity(draw),
            {draw.choice(KEYS): draw.choice(["1", "2.5"]) for _ in range(draw.randint(0, 2))},
            tuple(draw.sample(KEYS, draw.randint(0, 2))),
        ),
        DeleteScramCredential(draw.choice("ab"), draw.choice([*ScramMechanism])),
        AlterGroupSettings(draw.choice(["g", "g/h"]), {"x": draw.choice("12")} if is_so else {}),
    ]
    return draw.choice([create, create, close, close, change, change, *others])


def draw_orders(seed: int, count: int = 60) -> list[Order]:
    """Return the orders of a history. Most are of the controller that has the power."""
    draw, epoch = Random(seed), 0
    found = []
    for _ in range(count):
        epoch += draw.random() < 0.05
        found.append(Order(draw_command(draw), controller_epoch=max(epoch - (draw.random() < 0.05), 0)))
    return found


def begin() -> ClusterState:
    state = ClusterState(SUPPORT)
    state.found(CLUSTER)
    for number, each in enumerate("abc"):
        assert state.apply(Order(RegisterBroker(each, number, features=FeatureLevels(1, 3)))) == DONE
    return state


def credentials_in(state: ClusterState) -> dict[str, dict[ScramMechanism, ScramCredential]]:
    return {user: dict(each) for user, each in state.access.list_credentials().items()}


def parts(state: ClusterState) -> dict[str, Any]:
    """Return everything that a state says."""
    names = ("brokers", "forgotten_ids", "topics", "deleting", "deleted_ids", "producer_starts", "last_epochs")
    others = ("cluster_id", "is_open", "snapshots")
    replicas = {"replicas": dict(state.replicas), "changing": dict(state.replicas.changing)}
    found = {name: getattr(state, name) for name in (*names, *others)} | {"level": state.members.feature_level}
    found |= {"acls": {*state.access.list_acls()}, "credentials": credentials_in(state)}
    found["quotas"] = {each.entity: each.limits for each in state.quotas.list_quotas()}
    found["groups"] = {each: state.group_settings.find(each) for each in state.group_settings.groups()}
    return {**found, **replicas, "counts": +state.replicas.counts}


def topic(name: str = "orders", topic_id: str = "1D", *placement: tuple[str, ...], **fields: Any) -> Topic:
    placed = placement or (("a", "b", "c"),)
    return Topic(name, topic_id, len(placed), placement=placed, **fields)


@each_seed(25)
def test_a_state_is_what_its_stored_keys_and_values_say(seed: int) -> None:
    state, stored, follower = begin(), dict[bytes, bytes](), begin()
    for order in (None, *draw_orders(seed)):
        outcome = DONE if order is None else state.apply(order)
        for key, value in state.take_records():
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = value
        assert (outcome.error is ErrorCode.NONE) == (not outcome.reason)
        again = ClusterState(SUPPORT)
        again.restore({**stored, b"store": b"of other things", b"topics": b""})
        assert again.records == stored
        assert parts(again) == parts(state)
        assert again.take_changed() == list(again.topics)
        assert [again.find_id(each.topic_id) for each in state.topics.values()] == list(state.topics.values())
        before = dict(follower.replicas)
        follower.restore(stored)
        assert parts(follower) == parts(state)
        changed = {key for key, _ in before.items() ^ dict(follower.replicas).items()}
        assert changed <= set(follower.replicas.take_touched())


@each_seed(50)
def test_all_brokers_support_the_feature_level_which_never_falls(seed: int) -> None:
    state, level = begin(), 0
    members = state.members
    for order in draw_orders(seed):
        outcome = state.apply(order)
        assert members.feature_level >= level
        level = members.feature_level
        assert not state.is_open or level
        assert all(not level or each.features.has(level) for each in state.brokers.values())
        if isinstance(order.command, SetFeatureLevel) and outcome == DONE:
            assert level == order.command.level
        if isinstance(order.command, DrainBroker) and outcome.error is not ErrorCode.NOT_CONTROLLER:
            broker = state.brokers.get(order.command.store_id)
            assert (outcome == DONE) == (broker is not None)
            assert broker is None or broker.is_draining == order.command.is_draining


@attrs.define
class RegistrationModel:
    """The brokers of a cluster: what each has sent, and what was ordered for it."""

    brokers: dict[str, RegisteredBroker]
    level: int = 0
    forgotten: set[str] = attrs.field(factory=set)

    def apply(self, command: Command) -> ErrorCode:
        known = self.brokers.get(getattr(command, "store_id", ""))
        match command:
            case RegisterBroker():
                return self._register(command, known)
            case SetFeatureLevel(level):
                if level < max(self.level, 1) or not all(each.features.has(level) for each in self.brokers.values()):
                    return ErrorCode.INVALID_UPDATE_VERSION
                self.level = level
            case DrainBroker(store_id, is_draining):
                if known is None:
                    return ErrorCode.BROKER_ID_NOT_REGISTERED
                self.brokers[store_id] = attrs.evolve(known, is_draining=is_draining)
            case ForgetBroker(store_id):
                if store_id not in {*self.brokers, *self.forgotten}:
                    return ErrorCode.BROKER_ID_NOT_REGISTERED
                self._forget(store_id)
        return ErrorCode.NONE

    def _register(self, command: RegisterBroker, known: RegisteredBroker | None) -> ErrorCode:
        store_id, number, features = command.store_id, command.number, command.features
        if store_id in self.forgotten or (number not in {-1, known.number} if known else number < 0):
            return ErrorCode.INVALID_REGISTRATION
        numbers = {each.number for each in self.brokers.values() if each.store_id != command.replaces}
        if known is None and number in numbers:
            return ErrorCode.DUPLICATE_BROKER_REGISTRATION
        if known is not None and known.start and known.start not in command.starts:
            return ErrorCode.STALE_BROKER_EPOCH
        others = [each.features for key, each in self.brokers.items() if key not in {store_id, command.replaces}]
        levels = [each for each in range(1, 9) if all(one.has(each) for one in (*others, features))]
        if not levels or (self.level and not features.has(self.level)):
            return ErrorCode.UNSUPPORTED_VERSION
        start = ("", *command.starts)[-1]
        if known is None:
            former = self._forget(command.replaces)
            known = RegisteredBroker(store_id, number, former_ids=former)
        self.brokers[store_id] = attrs.evolve(known, start=start, features=features)
        return ErrorCode.NONE

    def _forget(self, store_id: str) -> tuple[str, ...]:
        found = self.brokers.pop(store_id, None)
        self.forgotten |= {store_id} if found else set()
        return (*found.former_ids, store_id) if found else ()


@each_seed(100)
def test_brokers_register_drain_and_leave_as_a_model_says(seed: int) -> None:
    draw, state = Random(seed), begin()
    model = RegistrationModel(dict(state.brokers))
    for _ in range(40):
        store, number = draw.choice("abcdef"), draw.randint(-1, 4)
        replaces = draw.choice("abcdef") if store not in model.brokers and draw.random() < 0.5 else ""
        starts = tuple(draw.sample("xyz", draw.randint(0, 3)))
        register = RegisterBroker(store, number, starts, replaces, draw.choice([RANGES[3], *RANGES]))
        drain, forget = DrainBroker(store, is_draining=draw.random() < 0.7), ForgetBroker(store)
        level = SetFeatureLevel(draw.randint(0, 4))
        commands: list[Command] = [*[register] * 6, drain, drain, forget, level]
        command = draw.choice(commands)
        assert state.apply(Order(command)).error is model.apply(command)
        assert (state.brokers, state.forgotten_ids) == (model.brokers, model.forgotten)
        assert state.members.feature_level == model.level
        for each in "abcdef":
            successors = [found for found in model.brokers.values() if each in found.former_ids]
            assert state.members.find_store(each) == model.brokers.get(each, next(iter(successors), None))


@each_seed(50)
def test_an_order_that_is_refused_or_made_again_changes_nothing(seed: int) -> None:
    state, latest = begin(), 0
    state.take_records()
    for order in draw_orders(seed):
        before = {name: dict(each) if isinstance(each, dict) else each for name, each in parts(state).items()}
        outcome = state.apply(order)
        has_lost_power = order.controller_epoch < latest
        assert (outcome.reason == "another broker had become the controller") == has_lost_power
        assert outcome.error is ErrorCode.NOT_CONTROLLER or not has_lost_power
        latest = max(latest, order.controller_epoch)
        if outcome != DONE:
            assert {**parts(state), "deleted_ids": before["deleted_ids"]} == before
            continue
        state.take_records()
        assert state.apply(order) == DONE or isinstance(order.command, AlterSettings)
        assert all(value is not None for _, value in state.take_records())


@each_seed(100)
def test_names_numbers_and_ids_belong_to_one(seed: int) -> None:
    state, deleted, forgotten = begin(), set[str](), set[str]()
    for order in draw_orders(seed):
        replicas, last_epochs = dict(state.replicas), dict(state.last_epochs)
        placements = {each.topic_id: each.placement for each in state.topics.values()}
        outcome = state.apply(order)
        assert all(state.last_epochs[name] >= epoch for name, epoch in last_epochs.items()), "none is used again"
        offsets = [each.offset for each in state.snapshots]
        assert offsets == sorted(set(offsets))
        for key, found in state.replicas:
            known = replicas.get(key, LogReplicas(()))
            if isinstance(order.command, CreateTopic | AddLogs) and key not in replicas:
                assert found.assigned_count == len(found.replicas) * order.command.is_assigned
            is_recovered = isinstance(order.command, RecoverLog) and outcome == DONE and found != known
            assert recovery_of(found.generation) == recovery_of(known.generation) + is_recovered
            assert found.generation >= known.generation
        ids = [each.topic_id for each in state.topics.values()]
        numbers = [each.number for each in state.brokers.values()]
        assert len(set(ids)) == len(ids)
        assert len(set(numbers)) == len(numbers)
        assert state.members.free_number() not in numbers
        assert [state.members.find_number(number) for number in numbers] == [*state.brokers.values()]
        assert state.topics.keys().isdisjoint(state.deleting)
        assert state.deleted_ids >= deleted
        assert state.deleted_ids.isdisjoint(ids)
        deleted = set(state.deleted_ids)
        assert state.forgotten_ids >= forgotten
        assert state.forgotten_ids.isdisjoint(state.brokers)
        forgotten = set(state.forgotten_ids)
        for each in state.topics.values():
            assert len(each.placement) == each.log_count >= 1
            former = placements.get(each.topic_id, ())
            assert each.placement[: len(former)] == former, "the first replicas of a log never change"
            assert {"a", "b", "c"} >= {store for replicas in each.placement for store in replicas}


def test_one_change_of_replicas_follows_another() -> None:
    """The former replicas are those from before all changes that are not made yet."""
    state = begin()
    state.apply(Order(CreateTopic(topic("orders", "1D", ("a", "b")))))
    found = []
    commands: list[Command] = [
        ChangeReplicas("1D", 0, ("b", "a"), generation=1),  # no change: only their order is different
        ChangeReplicas("1D", 0, ("b", "c"), Reason.DEAD, generation=1),
        ReplicasChanged("1D", 0, 0, 1024),  # of an earlier one
        ChangeReplicas("1D", 0, ("a", "b"), assigned_count=2, generation=2),  # cancelled
        ReplicasChanged("1D", 0, 2, 2048),
        ReplicasChanged("1D", 0, 2, 2048),
        DeleteTopic("1D"),
    ]
    for command in commands:
        assert state.apply(Order(command)) == DONE
        found.append(dict(state.replicas).get(LogKey("1D", 0)))
    changed = LogReplicas(("b", "c"), 1, ("b", "a"), Reason.DEAD)
    cancelled = LogReplicas(("a", "b"), 2, ("b", "a"), Reason.ASKED, 2)
    made = attrs.evolve(cancelled, former=())
    assert found == [LogReplicas(("b", "a")), changed, changed, cancelled, made, made, None]
    assert (changed.added, changed.removed, made.added, made.removed) == (("c",), ("a",), (), ())


def test_the_name_of_a_deleted_topic_is_free_when_its_records_are_known() -> None:
    state = begin()
    state.apply(Order(CreateTopic(topic(first_epoch=1024))))
    assert state.apply(Order(DeleteTopic("1D", 512))) == DONE
    assert state.take_changed() == ["orders"]
    assert state.is_deleted("a/1D/0")
    assert not state.take_closed()
    refused = state.apply(Order(CreateTopic(topic(topic_id="2D"))))
    assert refused == (ErrorCode.NOT_CONTROLLER, "the topic 'orders' is still being deleted: try again")
    assert state.apply(Order(CloseTopic("1D", {"P": 7}))) == DONE
    (closed,) = state.take_closed()
    assert (closed.topic.topic_id, closed.producer_ends) == ("1D", {"P": 7})
    assert state.producer_starts == {Partition("orders", "P"): 7}
    assert state.last_epochs == {"orders": 1024}
    assert state.apply(Order(CreateTopic(topic(topic_id="2D")))) == DONE
    state.apply(Order(DeleteTopic("2D", 4096)))
    state.apply(Order(CloseTopic("2D", {"P": 3, "Q": 1})))
    assert state.producer_starts == {Partition("orders", "P"): 7, Partition("orders", "Q"): 1}
    assert state.last_epochs == {"orders": 4096}


def test_ids_have_the_names_of_topics_until_these_are_deleted() -> None:
    state = begin()
    state.apply(Order(CreateTopic(topic())))
    assert [state.name_of(each) for each in (CLUSTER, "1D", "2D")] == ["$metadata", "orders", ""]
    state.apply(Order(DeleteTopic("1D")))
    assert state.name_of("1D") == ""


def test_partitions_of_logs_that_the_state_does_not_have_are_orphans() -> None:
    state = begin()
    state.apply(Order(CreateTopic(topic())))
    state.apply(Order(CreateTopic(topic("visits", "2D"))))
    state.apply(Order(DeleteTopic("2D")))
    for name, address, is_orphan in [
        ("orders", "a/1D/0", False),
        ("orders", "a/9D/0", True),
        ("visits", "a/2D/0", False),
        ("orders", "P", False),
        (INDEX_TOPIC, "a/9D/0", False),
        ("$metadata", f"a/{CLUSTER}/0", False),
    ]:
        assert state.is_orphan(Partition(name, address)) == is_orphan


REFUSED: list[tuple[Command, ErrorCode, str]] = [
    (RegisterBroker("a", 2), ErrorCode.INVALID_REGISTRATION, "its number in the cluster is 0"),
    (RegisterBroker("d", 2), ErrorCode.DUPLICATE_BROKER_REGISTRATION, "the broker c has the number 2"),
    (RegisterBroker("d", -1), ErrorCode.INVALID_REGISTRATION, "a number is from 0 to 1023, not -1"),
    (RegisterBroker("d", BROKER_NUMBER_MAX + 1), ErrorCode.INVALID_REGISTRATION, "not 1024"),
    (
        RegisterBroker("d", 3, features=FeatureLevels(4, 5)),
        ErrorCode.UNSUPPORTED_VERSION,
        "this broker supports the feature level 4 to 5, and the others do not",
    ),
    (SetFeatureLevel(0), ErrorCode.INVALID_UPDATE_VERSION, "the feature level 0 is not supported by"),
    (SetFeatureLevel(4), ErrorCode.INVALID_UPDATE_VERSION, "by broker 0, broker 1, broker 2: update dafka there first"),
    (RegisterBroker("f", 3), ErrorCode.INVALID_REGISTRATION, "the cluster has forgotten this store"),
    (DrainBroker("d", is_draining=True), ErrorCode.BROKER_ID_NOT_REGISTERED, "there is no such broker"),
    (ForgetBroker("d"), ErrorCode.BROKER_ID_NOT_REGISTERED, "there is no such broker"),
    (CreateTopic(topic("orders", "2D")), ErrorCode.TOPIC_ALREADY_EXISTS, "there is a topic 'orders' already"),
    (CreateTopic(topic("new", "2D", ("d",))), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "are different brokers"),
    (CreateTopic(topic("new", "2D", ("a", "a"))), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "are different brokers"),
    (CreateTopic(topic("new", "2D", ())), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "are different brokers"),
    (CreateTopic(Topic("new", "2D", LOGS_MAX + 1)), ErrorCode.INVALID_PARTITIONS, f"1 to {LOGS_MAX} logs, not 10001"),
    (CreateTopic(Topic("new", "2D", 0)), ErrorCode.INVALID_PARTITIONS, "not 0"),
    (AddLogs("1D", 0), ErrorCode.INVALID_PARTITIONS, f"can have from 1 to {LOGS_MAX} logs, not 0"),
    (AddLogs("1D", LOGS_MAX + 1), ErrorCode.INVALID_PARTITIONS, "not 10001"),
    (AddLogs("1D", 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "are different brokers"),
    (AddLogs("9D", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic"),
    (AlterSettings("9D", {}), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic"),
    (ChangeReplicas("1D", 1, ("a",)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic"),
    (ChangeReplicas("1D", 0, ("x",), generation=1), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "are different brokers"),
    (ChangeReplicas("1D", 0, ("f",), generation=1), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "are different brokers"),
    (ChangeReplicas("1D", 0, ("a",), generation=2), ErrorCode.REASSIGNMENT_IN_PROGRESS, "at the same time: try again"),
    (ReplicasChanged("1D", 1, 1, 1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic"),
    (RecoverLog("1D", 0, "x"), ErrorCode.BROKER_ID_NOT_REGISTERED, "there is no such broker"),
    (RecoverLog("1D", 1, "a"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic"),
    (DeleteTopic("9D"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic"),
    (CloseTopic("1D", {}), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic"),
]


@pytest.mark.parametrize(("command", "error", "reason"), REFUSED, ids=repr)
def test_what_cannot_take_effect_is_refused_with_its_reason(command: Command, error: ErrorCode, reason: str) -> None:
    state = begin()
    for each in (CreateTopic(topic()), RegisterBroker("f", 3), ForgetBroker("f")):
        assert state.apply(Order(each)) == DONE
    state.take_records()
    outcome = state.apply(Order(command))
    assert outcome.error is error
    assert reason in outcome.reason
    assert state.take_records() == []


def test_a_broker_that_does_not_support_the_feature_level_is_refused() -> None:
    state = begin()
    assert state.apply(Order(SetFeatureLevel(2))) == DONE
    for levels, advice in (((1, 1), "supports 1: update dafka on"), ((3, 4), "supports 3 to 4: raise it with")):
        outcome = state.apply(Order(RegisterBroker("a", features=FeatureLevels(*levels))))
        assert outcome.error is ErrorCode.UNSUPPORTED_VERSION
        assert f"the cluster has the feature level 2, and this broker {advice}" in outcome.reason
        other = ClusterState(FeatureSupport(FeatureLevels(*levels)))
        with pytest.raises(StorageFormatError, match=advice):
            other.restore(state.records)
        with pytest.raises(StorageFormatError, match=advice):
            other.apply(Order(SetFeatureLevel(2)))
    assert "never lowered" in state.apply(Order(SetFeatureLevel(1))).reason


def test_a_malformed_state_is_refused() -> None:
    for key, value in [
        (b"cluster", b"{"),
        (b"broker/a", b"{}"),
        (b"topic/1D", b"[]"),
        (b"deleted/1D", b'{"topic": 1}'),
        (b"replicas/1D/0", b"{}"),
    ]:
        with pytest.raises(StorageFormatError, match="the stored state of the cluster is malformed"):
            ClusterState().restore({key: value})
