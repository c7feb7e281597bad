"""Changes of a cluster are told in words: what each command changes, and whether it took effect."""

from __future__ import annotations

from itertools import product

import attrs
import pytest

from dafka.broker.core.acls import Acl, AclEffect, Operation, PatternType, ResourceType
from dafka.broker.core.client_quotas import EntityType, make_entity
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata import history as history_module
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
    name_requester,
)
from dafka.broker.core.metadata.history import RecentChanges, apply_orders, describe_command
from dafka.broker.core.metadata.log_replicas import Reason
from dafka.broker.core.positions import Offset
from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism
from tests.broker.core.metadata.test_cluster_state import begin, draw_orders, parts, topic
from tests.seeds import each_seed


@each_seed(20)
def test_changes_have_the_outcomes_that_brokers_have_found(seed: int) -> None:
    state, again, orders = begin(), begin(), draw_orders(seed)
    changes = list(apply_orders(again, [(Offset(number), order) for number, order in enumerate(orders)]))
    assert [each.outcome for each in changes] == [state.apply(order) for order in orders]
    assert parts(again) == parts(state)
    assert [each.order for each in changes] == orders
    assert all(each.description and "\n" not in each.description for each in changes)


def test_all_changes_from_some_offset_on_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "RECENT_MAX", 5)
    orders = draw_orders(1, 40)
    every = list(apply_orders(begin(), [(Offset(number), order) for number, order in enumerate(orders)]))
    for restart, earlier in product((0, 3, 20), range(8)):
        recent, state = RecentChanges(), begin()
        for order in orders[:restart]:
            state.apply(order)
        recent.restart(Offset(restart))
        for number in range(restart, 26):
            assert recent.apply(state, Offset(number), orders[number]) == every[number].outcome
            assert recent.begin == max(restart, number + 1 - 5)
            assert recent.between(Offset(0), Offset(99)) == every[recent.begin : number + 1]
            assert recent.between(Offset(number - 1), Offset(number)) == every[max(recent.begin, number - 1) : number]
        recent, begin_at = RecentChanges(), 10 - earlier
        recent.restart(Offset(10))
        recent.apply(begin(), Offset(10), orders[10])
        recent.put_before(every[begin_at:10], Offset(begin_at))
        is_kept = earlier + 1 <= 5
        assert recent.begin == (begin_at if is_kept else 10)
        assert [each.offset for each in recent.between(Offset(0), Offset(99))] == [*range(recent.begin, 11)]


ACL = Acl(ResourceType.TOPIC, "or", "User:anne", Operation.READ, PatternType.PREFIXED)
CREDENTIAL = ScramCredential("anne", ScramMechanism.SHA_256, 4096, "secret", "secret", "secret")
DESCRIBED: list[tuple[Command, str]] = [
    (OpenCluster(), "open the cluster for clients"),
    (RegisterBroker("d", 7), "register broker 7 with the store d"),
    (DrainBroker("b", is_draining=True), "drain broker 1"),
    (DrainBroker("x", is_draining=False), "stop draining broker x"),
    (ForgetBroker("c"), "forget broker 2"),
    (SetFeatureLevel(2), "raise the feature level to 2"),
    (RecoverLog("1D", 0, "b"), "continue log 0 of topic orders from broker 1 alone"),
    (ForgetBroker("c", accepts_loss=True), "forget broker 2, and accept the loss of records"),
    (CreateTopic(topic("new", "2D", settings={"b": "2", "a": "1"})), "create topic new, logs: 1, a=1, b=2"),
    (AddLogs("1D", 3), "extend topic orders, logs: 3"),
    (AlterSettings("1D", {"x": "1", "y": "3"}), "set y=3, z to its default for topic orders"),
    (AlterSettings("1D", {"x": "1", "z": "1"}), "set nothing new for topic orders"),
    (
        ChangeReplicas("1D", 0, ("b", "x"), Reason.DRAINED),
        "move log 0 of topic orders to broker 1, broker x: a broker that keeps it is drained",
    ),
    (ReplicasChanged("1D", 0, 1, 1024), "log 0 of topic orders has moved"),
    (DeleteTopic("1D"), "delete topic orders"),
    (DeleteTopic("9D"), "delete the topic with the id 9D"),
    (CloseTopic("3D", {}), "free the name of topic gone"),
    (SnapshotTaken(2000, "checksum"), "agree on the state at offset 2000"),
    (CreateAcls((ACL,)), "create 1 ACL: allow User:anne read on topic or*"),
    (
        DeleteAcls((attrs.evolve(ACL, host="::1", effect=AclEffect.DENY, name="\n"), *[ACL] * 3)),
        "delete 4 ACLs: deny User:anne read on topic \\n* from ::1, allow User:anne read on topic or*, "
        "allow User:anne read on topic or*, ...",
    ),
    (
        AlterClientQuota(
            make_entity({EntityType.USER: "anne", EntityType.CLIENT_ID: None}), {"x": "1", "a": "2.5"}, ("y",)
        ),
        "set the quotas a=2.5, x=1, no y of user anne, client-id by default",
    ),
    (AlterGroupSettings("g\n", {"x": "1", "a": "2"}), "set the settings of group g\\n: a=2, x=1"),
    (AlterGroupSettings("g", {}), "set the settings of group g: defaults"),
    (SetScramCredential(CREDENTIAL), "change the credential of user anne for SCRAM-SHA-256"),
    (
        SetScramCredential(attrs.evolve(CREDENTIAL, mechanism=ScramMechanism.SHA_512)),
        "add a credential of user anne for SCRAM-SHA-512",
    ),
    (
        DeleteScramCredential("anne", ScramMechanism.SHA_256),
        "delete the credential of user anne for SCRAM-SHA-256",
    ),
]


@pytest.mark.parametrize(("command", "description"), DESCRIBED, ids=repr)
def test_each_command_is_described(command: Command, description: str) -> None:
    state = begin()
    for each in (
        CreateTopic(topic(settings={"x": "1", "z": "1"})),
        CreateTopic(topic("gone", "3D")),
        DeleteTopic("3D"),
        SetScramCredential(CREDENTIAL),
    ):
        assert state.apply(Order(each)).error is ErrorCode.NONE
    assert describe_command(command, state) == description


def test_who_orders_a_command_is_named_with_its_address() -> None:
    assert [name_requester(each, "::1") for each in ("anne", None, "")] == ["anne at ::1", "::1", "::1"]


def test_all_commands_are_described() -> None:
    assert {type(command) for command, _ in DESCRIBED} == set(Command.__args__)
