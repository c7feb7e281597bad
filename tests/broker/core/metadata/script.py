"""Plays the commands of scenarios of metadata: brokers that create, change and delete topics as running ones do.

`python -m tests.broker.core.metadata.script` writes the outputs of all scenarios anew.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.brokers import Brokers
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    AddLogs,
    CloseTopic,
    Command,
    CreateTopic,
    DeleteTopic,
    Order,
    RegisterBroker,
    ReplicasChanged,
)
from dafka.broker.core.metadata.completion import CommandCompleter
from dafka.broker.core.metadata.log_replicas import LogReplicas
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.planner import Planner, PlannerSettings
from dafka.broker.core.metadata.store_check import takes_place
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.metadata.voters import VOTERS
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import FIRST_OFFSET, Offset
from dafka.broker.core.replication.records import LeaderAndEpoch
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from tests.broker.core.metadata.checked_broker import CheckedBroker
from tests.broker.core.replication.brokers import ALIVE_S, FULL_BYTES, LEASE_S, Broker, KeptLog
from tests.broker.core.replication.history import History
from tests.broker.core.replication.read_log import Indexed
from tests.broker.core.replication.script import BrokerScript, NoChance
from tests.broker.core.replication.transactions import Transactions
from tests.broker.core.replication.world import World
from tests.broker.core.scenarios import find_command, write_outputs

SCENARIOS = Path(__file__).parent / "scenarios"
DROPPING_S = 1.0
REQUEST_S = 5.0
ASK_AGAIN_S = 0.3
CLUSTER = "C" * 32
METADATA = name_log(CLUSTER, 0)
"""The name of the log of metadata."""


class Topics(World):
    """Brokers, and what a clerk knows who sees all: which logs there are, and what was promised."""

    def __init__(self) -> None:
        super().__init__(0, Availability.MAJORITY, broker_count=1)
        self.draw = NoChance()
        self.settings = ReplicaSettings(preferred_leader_after_s=3600.0)
        self.balances, self.keeps_indexes, self.has_transactions, self.has_leases = True, True, True, True
        self.wanted = 3
        self.brokers: dict[str, Broker] = {}
        self.histories = {}
        self.labels: dict[str, str] = {}
        self.offsets: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.problems: list[str] = []
        self.voters: tuple[str, ...] = ()
        self.members: tuple[str, ...] = ()
        self.orders: dict[str, Order] = {}
        self.outcomes: dict[str, dict[str, Outcome]] = {}
        self.requests = itertools.count()
        self.said: list[str] = []

    def run_until(self, end: float) -> None:
        while True:
            try:
                super().run_until(end)
                return
            except AssertionError as error:
                self.problems.append(str(error) or repr(error))

    def add_log(self, topic: Topic, number: int) -> str:
        name = name_log(topic.topic_id, number)
        if name not in self.histories:
            self.histories[name] = Clerk(name, topic.placement[number], self)
            self.labels[name] = f"{topic.name}/{number}"
        return name

    def form(self, names: tuple[str, ...]) -> None:
        """Form a cluster of brokers, of which 1, 3 or 5 vote on metadata."""
        self.members = names
        self.voters = names[: max(each for each in VOTERS if each <= len(names))]
        self.histories[METADATA] = Clerk(METADATA, self.voters, self)
        self.labels[METADATA] = "$metadata/0"

    @property
    def running(self) -> list[TopicBroker]:
        return [each for each in self.brokers.values() if isinstance(each, TopicBroker) and each.is_up]


class Clerk(History):
    """Notes promises that are broken, and lets the brokers go on."""

    def __init__(self, log: str, replicas: tuple[str, ...], world: Topics) -> None:
        super().__init__(log, replicas, Availability.MAJORITY, Transactions(world.transaction_draw))
        self.world = world
        for name in ("check_row", "check_stored", "check_readable", "check_committed", "check_lease"):
            setattr(self, name, partial(self.note, getattr(self, name)))

    def note(self, check: Callable[..., None], *arguments: Any, **options: Any) -> None:
        try:
            check(*arguments, **options)
        except AssertionError as error:
            self.world.problems.append(str(error) or repr(error))


class NotedLog(KeptLog):
    """A log at a broker. The offsets are noted at which clients were told that their records are."""

    def _move_high_watermark(self, offset: int) -> None:
        assert isinstance(self.world, Topics)
        for place, each in self.waiting:
            if place < offset:
                self.world.offsets.setdefault(each, place)
        super()._move_high_watermark(offset)


class MetadataLog(NotedLog):
    """The log of metadata at a broker. All brokers store it, and apply what is committed."""

    broker: TopicBroker

    def _is_replica(self) -> bool:
        return True

    def drop(self) -> None:
        """Do nothing: all brokers store it."""

    def repeat_acknowledgement(self) -> None:
        """Also announce the high watermark, if this broker leads: brokers that observe the log acknowledge nothing."""
        super().repeat_acknowledgement()
        led = self.led
        for other in self.world.brokers.values():
            if led is not None and isinstance(other, TopicBroker) and other is not self.broker:
                self.world.send(self.broker, other, partial(other.announced, led, self.replica.high_watermark))

    def merge_divergent(self) -> None:
        """Do nothing: a command that was not committed must not take effect later."""

    def _move_high_watermark(self, offset: int) -> None:
        super()._move_high_watermark(offset)
        self.broker.apply()

    @property
    def is_controller(self) -> bool:
        return self.can_append and self.broker.state.applied >= self.ready_from


class TopicBroker(CheckedBroker):
    """A broker of a cluster, whose disk also has the state of the cluster as it has last applied it."""

    world: Topics

    def __init__(self, name: str, number: int, world: Topics, link: str = "") -> None:
        super().__init__(name, number, world, link or name)
        self.has_joined = False
        self.registering_since = 0.0
        self.stored: dict[bytes, bytes] = {}
        self.applied = FIRST_OFFSET
        self.state = ClusterState()
        self.in_use: dict[str, Topic] = {}

    def describe(self) -> Any:
        return attrs.evolve(super().describe(), rack="")

    @property
    def metadata(self) -> MetadataLog | None:
        found = self.logs.get(METADATA)
        return found if isinstance(found, MetadataLog) else None

    # As a store of a cluster starts

    def load(self) -> None:
        self.brokers = Brokers(self.describe(), ALIVE_S)
        self.known_logs()
        self.in_use = {}

    def known_logs(self) -> Iterable[str]:
        self.state, self.logs = ClusterState(), {}
        self.state.restore(self.stored)
        self.has_joined = bool(self.state.cluster_id)  # it joins again if it crashed before that was durable
        self.state.applied = self.applied
        self.state.take_changed()
        self.planner = Planner(self.state, self.brokers, PlannerSettings(full_bytes=FULL_BYTES))
        self.in_use = dict(self.state.topics)
        names = [self.world.add_log(topic, n) for topic in self.in_use.values() for n in range(topic.log_count)]
        return [*([METADATA] if self.has_joined else []), *names]

    def first_replicas(self, log: str) -> tuple[str, ...]:
        topic_id, _, number = log.partition("/")
        topic = self.state.find_id(topic_id)
        return self.world.voters if topic is None else topic.placement[int(number)]

    def found(self, names: Iterable[str]) -> None:
        """Begin with a cluster that some brokers have formed."""
        self.has_joined = True
        self.state.found(CLUSTER)
        for number, each in enumerate(names):
            self.state.apply(Order(RegisterBroker(each, number)))
        self.store()

    def hear(self, other: Broker, *arguments: Any, **options: Any) -> None:
        assert isinstance(other, TopicBroker)
        super().hear(other, *arguments, **options)
        if not self.has_joined and other.has_joined:
            self.found(self.world.members)
            self.keep(METADATA)
            if self.checks_store:
                self.register()
            else:
                self.request(RegisterBroker(self.name, self.number))

    def keep(self, log: str) -> None:
        kept = self.logs[log] = keep_log(log, self)
        kept.restore(self.control)
        kept.act(kept.wake_up().set_alive(self.brokers.alive, self.clock, self.brokers.unwritable))

    def store(self) -> None:
        """Store what has changed of the state of the cluster, and drop the records of topics that are closed then."""
        changes, applied, closed = self.state.take_records(), self.state.applied, self.state.take_closed()
        self.world.deleted.update(each.topic.topic_id for each in closed)

        def stored() -> None:
            for key, value in changes:
                if value is None:
                    self.stored.pop(key, None)
                else:
                    self.stored[key] = value
            self.applied = applied
            for topic in (each.topic for each in closed):
                for number in range(topic.log_count):
                    self.branches.pop(name_log(topic.topic_id, number), None)

        if self.is_up:
            self.world.write(self, stored)
        else:
            stored()

    # Changes of the cluster

    def request(self, command: Command) -> None:
        """Request a command of the controller, again and again for a while."""
        number = next(self.world.requests)
        self._ask(Order(command, str(number)), self.clock + REQUEST_S, self.generation)

    def _ask(self, order: Order, deadline: float, generation: int) -> None:
        if generation != self.generation or order.request_id in self.world.outcomes.get(self.link, {}):
            return
        if self.clock > deadline:
            self.world.said.append(f"{self.link} has no controller for {order.command.KIND}")
            return
        self._send(order)
        self.world.later(ASK_AGAIN_S, partial(self._ask, order, deadline, generation))

    def _send(self, order: Order) -> None:
        leader = "" if self.metadata is None else self.metadata.replica.leader
        if self.metadata is not None and self.metadata.led is not None:
            self.submit(order)
        for found in self.world.running:
            if found is not self and found.name == leader:
                self.world.send(self, found, partial(found.submit, order))

    def register(self) -> None:
        self.registering_since = self.clock
        self._register(self.generation)

    def _register(self, generation: int) -> None:
        registered = self.state.brokers.get(self.name)
        if generation != self.generation or (registered is not None and registered.start == self.starts[-1]):
            return
        age_s = self.clock - self.registering_since
        is_new = self.replaces and self.name not in self.state.brokers
        decided = takes_place(self.brokers.silent_s(self.replaces, self.clock), age_s) if is_new else False
        if self.has_joined and decided is not None:
            replaced = self.replaces if decided else ""
            self._send(Order(RegisterBroker(self.name, -1, self.starts, replaced), f"start-{self.starts[-1]}"))
        self.world.later(ASK_AGAIN_S, partial(self._register, generation))

    def submit(self, order: Order) -> None:
        """Make a change, if this broker is the controller."""
        kept = self.metadata
        if kept is not None and kept.led is not None and kept.is_controller:
            name = f"order-{order.request_id}-{len(self.world.orders)}"
            completer = CommandCompleter(self.state, self.planner, self.brokers, self._latest_epoch)
            command = completer.complete(order.command, self.clock, 0)
            self.world.orders[name] = attrs.evolve(order, command=command, controller_epoch=kept.led.epoch)
            kept.append([Indexed.make(name)])

    def _latest_epoch(self, topic: Topic) -> int:
        kept = [self.logs.get(name_log(topic.topic_id, number)) for number in range(topic.log_count)]
        return max((each.replica.latest.leader_epoch.epoch for each in kept if each is not None), default=0)

    def change_replicas(self) -> None:
        """Order replicas, as the controller, and make the changes that were ordered."""
        if self.metadata is not None and self.metadata.is_controller:
            for command in self.planner.advance(self.clock):
                self.submit(Order(command))
        for kept in self.logs.values():
            kept.continue_change()

    def find_ordered(self, log: str) -> LogReplicas | None:
        topic_id, _, number = log.partition("/")
        topic = self.state.find_id(topic_id)
        return None if topic is None else self.state.replicas.of(topic, int(number))

    def report_change(self, log: str, generation: int, epoch: int) -> None:
        topic_id, _, number = log.partition("/")
        found = self.find_ordered(log)
        if found is not None and found.is_changing:
            self.request(ReplicasChanged(topic_id, int(number), generation, epoch))

    def apply(self) -> None:
        """Apply the committed commands, as `MetadataLog` of a running broker does."""
        kept = self.metadata
        if kept is None:
            return
        for name in kept.records()[self.state.applied : kept.replica.high_watermark]:
            order = self.world.orders[name]
            outcome = self.state.apply(order)
            self.world.outcomes.setdefault(self.link, {})[order.request_id] = outcome
            self.state.applied = Offset(self.state.applied + 1)
            if isinstance(order.command, RegisterBroker) and order.command.store_id == self.name:
                self._learn_registration(order.command, outcome)
            if isinstance(order.command, DeleteTopic) and outcome == DONE and kept.is_controller:
                self.submit(Order(CloseTopic(order.command.topic_id, {}), f"close-{order.request_id}"))
        self.store()
        self._settle()

    def _learn_registration(self, command: RegisterBroker, outcome: Outcome) -> None:
        if outcome.error is ErrorCode.STALE_BROKER_EPOCH and command.starts == self.starts:
            self.world.later(0, partial(self.give_up, keep_log))
        elif outcome == DONE:
            self.number = command.number
            for kept in self.logs.values():
                kept.replica.elections.renumber(self.number)

    def _settle(self) -> None:
        for name in self.state.take_changed():
            known, found = self.in_use.pop(name, None), self.state.find(name)
            if known is not None and (found is None or found.topic_id != known.topic_id):
                for number in range(known.log_count):
                    self.logs.pop(name_log(known.topic_id, number), None)
            if found is not None:
                self.in_use[name] = found
                for log in [self.world.add_log(found, number) for number in range(found.log_count)]:
                    if log not in self.logs:
                        self.keep(log)

    def announced(self, leader_epoch: LeaderAndEpoch, offset: Offset) -> None:
        if self.metadata is not None:
            self.metadata.act(self.metadata.wake_up().announced(leader_epoch, offset))

    def find(self, label: str) -> KeptLog | None:
        topic, _, number = label.partition("/")
        found = self.in_use.get(topic)
        return None if found is None else self.logs.get(name_log(found.topic_id, int(number)))

    # The disk

    def save(self) -> tuple[Any, ...]:
        store = self.starts, self.counters, self.counter, self.written
        return copy.deepcopy((self.control, self.branches, self.stored, self.applied, self.has_joined, store))

    def restore(self, saved: tuple[Any, ...]) -> None:
        found = copy.deepcopy(saved)
        self.control, self.branches, self.stored, self.applied, self.has_joined, store = found
        self.starts, self.counters, self.counter, self.written = store


def keep_log(name: str, broker: Broker) -> KeptLog:
    return MetadataLog(name, broker) if name == METADATA else NotedLog(name, broker)


@attrs.define(slots=False)
class Script(BrokerScript):
    """One run of a scenario."""

    world: Topics = attrs.field(factory=Topics)
    printed: list[str] = attrs.field(factory=list)
    disks: dict[str, tuple[Any, ...]] = attrs.field(factory=dict)
    transactions: int = 0

    def run(self, command: str) -> list[str]:
        self.printed = []
        if run := find_command(self, command):
            run()
        said, self.world.said = self.world.said, []
        return [*said, *self.printed]

    def broker(self, name: str) -> TopicBroker:
        found = self.world.brokers[name]
        assert isinstance(found, TopicBroker)
        return found

    def do_brokers(self, *names: str) -> None:
        """`brokers NAME...`: start brokers for the first time, that hear each other."""
        are_first = not self.world.brokers
        if are_first:
            self.world.form(names)
        for each in names:
            broker = self.world.brokers[each] = TopicBroker(each, len(self.world.brokers), self.world)
            if are_first:
                broker.found(names)
        self.do_start(*names)
        if are_first:
            self._drop()
        self.do_advance("1s")

    def do_clone(self, name: str, _as: str, other: str) -> None:
        """`clone BROKER as NAME`: add a broker whose disk is a copy, with the same name for others."""
        source = self.broker(name)
        found = self.world.brokers[other] = TopicBroker(source.name, source.number, self.world, other)
        found.restore(source.save())
        found.generation = source.generation

    def do_start(self, *names: str) -> None:
        """`start BROKER...`: start brokers."""
        for each in names:
            self.broker(each).start(keep_log)

    def do_cut(self, *arguments: str) -> None:
        """`cut A... | B... | C...`: cut the links between sides."""
        sides = [side.split() for side in " ".join(arguments).split("|")]
        for one in sides:
            for other in sides:
                if one is not other:
                    self.world.down |= {(a, b) for a in one for b in other}

    def do_save(self, name: str) -> None:
        """`save BROKER`: copy its disk."""
        self.disks[name] = self.broker(name).save()

    def do_restore(self, name: str) -> None:
        """`restore BROKER`: put the copy of its disk in place of the disk."""
        self.broker(name).restore(self.disks[name])

    def do_create(self, name: str, topic: str, logs: str, replicas: str) -> None:
        """`create BROKER TOPIC LOGS REPLICAS`: create a topic."""
        topic_id = f"{len(self.world.histories) + next(self.world.requests):032X}"
        self.broker(name).request(CreateTopic(Topic(topic, topic_id, int(logs), {}, int(replicas))))

    def do_use(self, name: str, topic: str) -> None:
        """`use BROKER TOPIC`: create a topic of one log and three replicas unless this broker knows it."""
        if topic not in self.broker(name).in_use:
            self.do_create(name, topic, "1", "3")

    def do_add_logs(self, name: str, topic: str, count: str) -> None:
        """`add-logs BROKER TOPIC COUNT`: let a topic have so many logs."""
        self.broker(name).request(AddLogs(self.broker(name).in_use[topic].topic_id, int(count)))

    def do_delete(self, name: str, topic: str) -> None:
        """`delete BROKER TOPIC`: delete a topic."""
        self.broker(name).request(DeleteTopic(self.broker(name).in_use[topic].topic_id))

    def do_append(self, name: str, label: str, *values: str) -> None:
        """`append BROKER TOPIC/LOG VALUE...`: append records through a broker, or through the leader if it is `any`."""
        self._append(name, label, [Indexed.make(each) for each in values])

    def do_abort(self, name: str, label: str, *values: str) -> None:
        """`abort BROKER TOPIC/LOG VALUE...`: append records in a transaction, and abort it."""
        number = self.transactions
        self.transactions += 1
        found = self._find(name, label)
        if found is not None:
            found.history.transactions.decisions[number] = False
        self._append(name, label, [Indexed.make(each, 7, number) for each in values])
        self.do_advance("300ms")
        self._append(name, label, [Indexed.make(f"end-{number}", 7, number, is_commit=False)])

    def _find(self, name: str, label: str) -> KeptLog | None:
        names = self.world.brokers if name == "any" else (name,)
        logs = [self.broker(each).find(label) for each in names if self.broker(each).is_up]
        return next((each for each in logs if each is not None and each.can_append), None)

    def _append(self, name: str, label: str, ids: list[Indexed]) -> None:
        found = self._find(name, label)
        if found is None or not found.append(ids):
            self.printed.append(f"{name} refuses to append to {label}")

    def do_read(self, name: str, label: str) -> None:
        """`read BROKER TOPIC/LOG`: read a log through a broker, which answers if it leads the log and has its lease."""
        broker = self.broker(name)
        found = broker.find(label)
        is_led = found is not None and found.led is not None and self.world.now >= broker.stopped_until
        if (
            found is not None
            and is_led
            and self.world.now < found.replica.heard_since(broker.rounds.heard_since) + LEASE_S
        ):
            self.printed.append(f"{name} answers {' '.join(found.records()[: found.replica.high_watermark])}")
        else:
            self.printed.append(f"{name} does not answer")

    def do_committed(self, label: str) -> None:
        """`committed TOPIC/LOG`: tell what readers of committed records see at the leader."""
        for broker in self.world.running:
            found = broker.find(label)
            if found is not None and found.led is not None:
                found.check_committed(is_whole=True)
                log = found._led_log(found.led)
                records = found.records()
                visible = [records[offset] for offset, is_visible in log.visible(records, 0) if is_visible]
                self.printed.append(" ".join(each for each in visible if each.is_commit is None))

    def do_move(self, name: str, label: str) -> None:
        """`move BROKER TOPIC/LOG`: let a broker take over a log."""
        found = self.broker(name).find(label)
        assert found is not None
        replica = found.wake_up()
        replica.preference.set((name,), frozenset())
        found.act(replica.elections.transfer_leadership())

    def do_topics(self) -> None:
        """`topics`: tell which topics each broker has."""
        for broker in self.world.running:
            found = [f"{each.name} of {' + '.join(map(' '.join, each.placement))}" for each in broker.in_use.values()]
            self.printed.append(f"{broker.link}: {', '.join(sorted(found)) or 'none'}")

    def do_log(self, label: str) -> None:
        """`log TOPIC/LOG`: tell what each broker lets readers read."""
        for broker in self.world.running:
            found = broker.find(label)
            text = (
                "unknown" if found is None else " ".join(found.records()[: found.replica.high_watermark]) or "nothing"
            )
            self.printed.append(f"{broker.link}: {text}")

    def do_acknowledged(self) -> None:
        """`acknowledged`: tell which records clients were told are safe."""
        histories = [each for name, each in self.world.histories.items() if name != METADATA]
        found = sorted(each for history in histories for each in history.acknowledged)
        self.printed.append(" ".join(found) or "nothing")

    def do_check(self) -> None:
        """`check`: tell what is lost or doubled of what clients were told, or `ok`."""
        problems = list(dict.fromkeys(self.world.problems))
        for name, history in self.world.histories.items():
            if name.partition("/")[0] in {CLUSTER, *self.world.deleted}:
                continue
            label = self.world.labels[name]
            leaders = [log for each in self.world.running if (log := each.find(label)) is not None and log.can_append]
            if len(leaders) != 1:
                problems.append(f"{len(leaders)} brokers lead {label}")
                continue
            records = Counter(leaders[0].records()[: leaders[0].replica.high_watermark])
            lost = sorted(history.acknowledged - records.keys())
            doubled = sorted(each for each, count in records.items() if count > 1)
            places: dict[str, int] = {each: place for place, each in enumerate(records)}
            moved = sorted(
                each for each in history.acknowledged & places.keys() if places[each] != self.world.offsets[each]
            )
            found = ((lost, "lost"), (doubled, "doubled"), (moved, "moved"))
            problems += [f"{label}: {' '.join(each)} {how}" for each, how in found if each]
        self.printed += problems or ["ok"]

    def _drop(self) -> None:
        for broker in self.world.running:
            for log in broker.logs.values():
                log.drop()
        self.world.later(DROPPING_S, self._drop)


if __name__ == "__main__":
    write_outputs(SCENARIOS, lambda: Script().run)
