"""Each change that a client asks for becomes exactly its command; it waits for what it needs, or is refused at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata import commands
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.commands import Command, CreateTopic
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.topics import LOGS_MAX, Topic
from dafka.broker.log.durable_waits import DurableWaits
from dafka.broker.metadata import admin as admins
from dafka.broker.metadata import replica_reports
from dafka.broker.metadata.admin import ClusterAdmin
from dafka.broker.metadata.changes import CHANGE_S
from dafka.broker.metadata.replica_reports import ReplicaReports, Replicas, ReplicasRequest
from dafka.errors import ConfigError, NoControllerError, RefusedChangeError, StorageError

PLACED = [["a", "b"], ["b", "a"]]
TUPLES = (("a", "b"), ("b", "a"))


class Cluster:
    """Stands in for the controller: it notes the commands that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Command, str]] = []
        self.refusals: list[Exception] = []
        self.obstacle: Outcome | None = None
        self.frees_after_s = 0.0
        self.answers_after_s = 0.0
        self.table = LogTable("here")
        self.table.add_topic(Topic("orders", "T", 3))
        self.state = SimpleNamespace(deleting=set(), members=SimpleNamespace(check_level=self.check_level))
        self.waits = DurableWaits()
        self.has_joined = trio.Event()
        self.has_joined.set()
        part: Any = self
        tables: Any = SimpleNamespace(log_table=self.table, state=self.state)
        self.admin = ClusterAdmin(tables, self.waits, part, part, self.has_joined, 4)

    @property
    def log(self) -> Log:
        return self.table.logs("orders")[1]

    def check_level(self, level: int) -> Outcome:
        return (self.obstacle or DONE) if level == 2 else DONE

    def find_obstacle(self, _tables: object, command: Command) -> Outcome | None:
        assert isinstance(command, (commands.ForgetBroker, commands.RecoverLog))
        return self.obstacle

    async def wait_until(self, is_reached: Callable[[], bool]) -> None:
        if not is_reached():
            await trio.sleep(self.frees_after_s)
            self.state.deleting.clear()
        assert is_reached()

    async def change(self, command: Command, ordered_by: str = "") -> None:
        await trio.sleep(self.answers_after_s)
        self.asked.append((_without_id(command), ordered_by))
        if self.refusals:
            raise self.refusals.pop()
        if isinstance(command, CreateTopic):
            assert command.topic.name not in self.state.deleting
            self.table.add_topic(command.topic)
        if isinstance(command, commands.DeleteTopic):
            self.state.deleting.add("orders")


def _without_id(command: Command) -> Command:
    """Return a command; the topic that it creates has no id."""
    if not isinstance(command, CreateTopic):
        return command
    assert len(command.topic.topic_id) == 32
    return attrs.evolve(command, topic=attrs.evolve(command.topic, topic_id=""))


Call = Callable[[Cluster], Awaitable[None]]

CALLS: list[tuple[Call, list[Command]]] = [
    (
        lambda each: each.admin.create_topic("new", ordered_by="x"),
        [CreateTopic(Topic("new", "", 4, {}, 0, ()), is_assigned=False)],
    ),
    (
        lambda each: each.admin.create_topic("new", 2, {"a": "b"}, 3, placement=PLACED, ordered_by="x"),
        [CreateTopic(Topic("new", "", 2, {"a": "b"}, 3, TUPLES), is_assigned=True)],
    ),
    (
        lambda each: each.admin.create_topic("new", LOGS_MAX, ordered_by="x"),
        [CreateTopic(Topic("new", "", LOGS_MAX, {}, 0, ()))],
    ),
    (lambda each: each.admin.change_topic("orders", settings={}, ordered_by="x"), [commands.AlterSettings("T", {})]),
    (
        lambda each: each.admin.change_topic("orders", log_count=3, ordered_by="x"),
        [commands.AddLogs("T", 3, (), is_assigned=False)],
    ),
    (
        lambda each: each.admin.change_topic(
            "orders", log_count=LOGS_MAX, settings={"a": "b"}, placement=PLACED, ordered_by="x"
        ),
        [commands.AlterSettings("T", {"a": "b"}), commands.AddLogs("T", LOGS_MAX, TUPLES, is_assigned=True)],
    ),
    (lambda each: each.admin.delete_topic("orders", ordered_by="x"), [commands.DeleteTopic("T")]),
    (
        lambda each: each.admin.change_replicas(each.log, ["b", "a"], ordered_by="x"),
        [commands.ChangeReplicas("T", 1, ("b", "a"), assigned_count=2)],
    ),
    (lambda each: each.admin.change_replicas(each.log, [], ordered_by="x"), [commands.ChangeReplicas("T", 1)]),
    (
        lambda each: each.admin.set_draining("a", is_draining=True, ordered_by="x"),
        [commands.DrainBroker("a", is_draining=True)],
    ),
    (
        lambda each: each.admin.set_draining("a", is_draining=False, ordered_by="x"),
        [commands.DrainBroker("a", is_draining=False)],
    ),
]

CHECKABLE: list[tuple[Callable[[Cluster, bool], Awaitable[None]], Command]] = [
    (
        lambda each, dry: each.admin.recover_log(each.log, "a", is_dry_run=dry, ordered_by="x"),
        commands.RecoverLog("T", 1, "a"),
    ),
    (lambda each, dry: each.admin.forget_broker("a", is_dry_run=dry, ordered_by="x"), commands.ForgetBroker("a")),
    (
        lambda each, dry: each.admin.forget_broker("a", accepts_loss=True, is_dry_run=dry, ordered_by="x"),
        commands.ForgetBroker("a", accepts_loss=True),
    ),
    (lambda each, dry: each.admin.set_feature_level(2, is_dry_run=dry, ordered_by="x"), commands.SetFeatureLevel(2)),
]
"""Changes of which it can be checked whether they can be made."""


def _not_dry(call: Callable[[Cluster, bool], Awaitable[None]]) -> Call:
    return lambda each: call(each, False)


CALLS += [(_not_dry(call), [command]) for call, command in CHECKABLE]


async def test_each_change_becomes_its_commands_when_the_broker_has_joined_and_can_store_them(
    autojump_clock: MockClock,
) -> None:
    for call, expected in CALLS:
        cluster = Cluster()
        cluster.has_joined = cluster.admin._has_joined = trio.Event()
        cluster.waits.problem = "the disk is full"
        with pytest.raises(StorageError, match="the disk is full"):
            await call(cluster)
        assert cluster.asked == []
        cluster.waits.record_success()
        with trio.move_on_after(CHANGE_S - 1):
            await call(cluster)
        assert cluster.asked == []
        cluster.has_joined.set()
        cluster.answers_after_s = 1.5 * CHANGE_S / len(expected)
        await call(cluster)
        assert cluster.asked == [(each, "x") for each in expected]
        cluster = Cluster()
        cluster.answers_after_s = 2 * CHANGE_S + 1
        with pytest.raises(StorageError, match="may be stored later"):
            await call(cluster)


async def test_a_dry_run_changes_nothing_and_is_refused_as_the_change_would_be(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    monkeypatch.setattr(admins, "find_obstacle", cluster.find_obstacle)
    for call, _ in CHECKABLE:
        cluster.obstacle = None
        await call(cluster, True)
        cluster.obstacle = Outcome(ErrorCode.INVALID_REQUEST, "impossible")
        with pytest.raises(RefusedChangeError, match="impossible") as refused:
            await call(cluster, True)
        assert refused.value.error_code is ErrorCode.INVALID_REQUEST
        assert cluster.asked == []
        await call(cluster, False)  # the controller has the answer
        assert cluster.asked.pop()


async def test_a_topic_that_is_not_possible_is_refused_without_the_controller(autojump_clock: MockClock) -> None:
    cluster = Cluster()
    calls: list[Awaitable[None]] = [
        *[cluster.admin.create_topic("new", count) for count in (-1, LOGS_MAX + 1)],
        *[cluster.admin.create_topic(name) for name in ("orders", "", "a/b", "$new")],
        *[cluster.admin.change_topic("orders", log_count=count, settings={}) for count in (0, 2, LOGS_MAX + 1)],
        cluster.admin.delete_topic(METADATA_TOPIC),
    ]
    for call in calls:
        with pytest.raises(ConfigError):
            await call
    assert cluster.asked == []


async def test_a_name_is_waited_for_until_it_is_free_and_a_lost_controller_is_asked_again(
    autojump_clock: MockClock,
) -> None:
    for delay_s, is_in_time in ((0, True), (CHANGE_S - 1, True), (CHANGE_S + 1, False)):
        cluster = Cluster()
        cluster.frees_after_s = delay_s
        cluster.state.deleting.add("new")
        lost = RefusedChangeError("not the controller", ErrorCode.NOT_CONTROLLER)
        cluster.refusals = [lost, lost]
        for call, count in ((cluster.admin.create_topic("new"), 3), (cluster.admin.delete_topic("orders"), 1)):
            cluster.asked.clear()
            try:
                await call
                assert is_in_time
                assert len(cluster.asked) == count
            except NoControllerError:
                assert not is_in_time
            assert "orders" not in cluster.state.deleting or not is_in_time
            cluster.state.deleting = set()
            cluster.refusals = []
    cluster = Cluster()
    cluster.refusals = [RefusedChangeError("too many", ErrorCode.POLICY_VIOLATION)]
    with pytest.raises(RefusedChangeError, match="too many"):
        await cluster.admin.create_topic("new")


async def test_an_internal_topic_is_created_once_however_often_the_controller_is_missing(
    autojump_clock: MockClock,
) -> None:
    cluster = Cluster()
    cluster.admin._has_joined = trio.Event()
    with trio.move_on_after(60):
        await cluster.admin.ensure_internal_topic("$new", 5)
    assert cluster.asked == []
    cluster.admin._has_joined.set()
    cluster.refusals = [NoControllerError("none"), RefusedChangeError("moved", ErrorCode.NOT_CONTROLLER)]
    for _ in range(2):
        assert [log.number for log in await cluster.admin.ensure_internal_topic("$new", 5)] == [*range(5)]
    assert cluster.asked == [(CreateTopic(Topic("$new", "", 5)), "")] * 3


async def test_the_controller_is_asked_for_its_report_and_only_its_answer_counts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer, or without a controller, a broker reports what it knows itself."""
    own: list[Any] = ["own"]
    theirs: Any = ("theirs",)
    table, sent = LogTable("here"), list[tuple[str, object]]()
    monkeypatch.setattr(replica_reports, "describe_metadata_replicas", lambda *_: own)
    handlers = dict[object, Callable[[str, Any], None]]()
    messenger: Any = SimpleNamespace(
        on=handlers.__setitem__, send=lambda address, message: sent.append((address, message))
    )
    tables: Any = SimpleNamespace(log_table=table)
    reports = ReplicaReports(tables, messenger)
    report = Replicas(theirs)
    handlers[Replicas]("leader", report)
    assert await reports.find() == own
    table.add_topic(Topic(METADATA_TOPIC, "M", 1))
    (log,) = table.logs(METADATA_TOPIC)
    for leader, is_led, sender in (
        ("leader", False, "leader"),
        ("leader", False, "other"),
        ("leader", False, ""),
        ("here", True, "here"),
        ("", False, "leader"),
        ("leader", False, "leader"),
    ):
        log.leadership = attrs.evolve(log.leadership, leader=leader, is_led=is_led)
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            found: list[object] = []

            async def find(found: list[object] = found) -> None:
                found.extend(await reports.find())

            nursery.start_soon(find)
            await trio.testing.wait_all_tasks_blocked()
            is_asked = leader == "leader"
            assert sent == ([("leader", ReplicasRequest())] if is_asked else [])
            sent.clear()
            if sender:
                handlers[Replicas](sender, report)
        has_answer = is_asked and sender == leader
        assert found == ([*theirs] if has_answer else own)
        assert trio.current_time() - begun == (replica_reports.WAIT_S if is_asked and not has_answer else 0)
    handlers[ReplicasRequest]("another", ReplicasRequest())
    assert sent == [("another", Replicas(tuple(own)))]
