"""Plays the commands of scenarios of metadata: brokers that create, change and delete topics as running ones do.

`python -m tests.broker.core.metadata.script` writes the outputs of all scenarios anew that are not expected to fail.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from dafka.broker.core.metadata.topic_table import TopicTable
from dafka.broker.core.metadata.topics import Deletion, Topic, decode_topic, encode_deletion, encode_topic
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.records import EPOCH_STEP, next_epoch
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.broker.replication.replicator import MISSED_EPOCHS
from dafka.protocol.rendezvous import rank_nodes
from tests.broker.core.replication.brokers import LEASE_S, Broker, KeptLog
from tests.broker.core.replication.history import History
from tests.broker.core.replication.read_log import Indexed
from tests.broker.core.replication.script import BrokerScript, NoChance
from tests.broker.core.replication.transactions import Transactions
from tests.broker.core.replication.world import World
from tests.broker.core.scenarios import find_command, write_outputs

SCENARIOS = Path(__file__).parent / "scenarios"
BEGAN_MS = 1_700_000_000_000
DROPPING_S = 1.0


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
            self.world.offsets.setdefault(each, place)
        super()._move_high_watermark(offset)


class TopicBroker(Broker):
    """A broker with topics. Its disk also has the records of topics that each broker has written."""

    world: Topics

    def __init__(self, name: str, number: int, world: Topics, link: str = "") -> None:
        super().__init__(name, number, world)
        self._link = link or name
        self.awaits_share = False
        self.statements: dict[str, list[tuple[str, bytes]]] = {}
        self.table = TopicTable()
        self.in_use: dict[str, Topic] = {}

    @property
    def link(self) -> str:
        return self._link

    def describe(self) -> Any:
        return attrs.evolve(super().describe(), rack="")

    # Topics, as `Replicator` and `BrokerNode` have them

    def known_logs(self) -> Iterable[str]:
        self.table, self.in_use, self.logs = TopicTable(), {}, {}
        for maker, found in self.statements.items():
            self.learn(maker, found)
        self.table.take_deletions()
        for name in self.table.take_changed():
            if (topic := self.table.find(name)) is not None:
                self.in_use[name] = topic
        return [self.world.add_log(topic, n) for topic in self.in_use.values() for n in range(topic.log_count)]

    def first_replicas(self, log: str) -> tuple[str, ...]:
        topic_id, _, number = log.partition("/")
        return next(each for each in self.in_use.values() if each.topic_id == topic_id).placement[int(number)]

    def learn(self, maker: str, records: Iterable[tuple[str, bytes]]) -> None:
        for key, value in records:
            found = decode_topic(key, value)
            if isinstance(found, Deletion):
                self.table.learn_deletion(found)
            else:
                self.table.learn(
                    found if found.placement else attrs.evolve(found, placement=((maker,),) * found.log_count)
                )

    def settle(self) -> None:
        for name in self.table.take_changed():
            known, found = self.in_use.get(name), self.table.find(name)
            if known is not None and (found is None or found.topic_id != known.topic_id):
                for number in range(known.log_count):
                    self.logs.pop(name_log(known.topic_id, number), None)
            self.in_use.pop(name, None)
            if found is not None:
                self.in_use[name] = found
                for log in [self.world.add_log(found, number) for number in range(found.log_count)]:
                    if log not in self.logs:
                        kept = self.logs[log] = NotedLog(log, self)
                        kept.restore(self.control)
                        kept.act(kept.wake_up().set_alive(self.brokers.alive, self.clock, self.brokers.unwritable))
        for deletion in self.table.take_deletions():
            for number in range(deletion.topic.log_count):
                self.branches.pop(name_log(deletion.topic.topic_id, number), None)

    def state(self, *statements: tuple[str, bytes]) -> None:
        def stored() -> None:
            self.statements.setdefault(self.name, []).extend(statements)
            for other in self.world.running:
                if other is not self:
                    self.world.send(self, other, partial(other.copy_statements, self))

        self.world.write(self, stored)

    def put_topic(self, topic: Topic) -> None:
        self.table.learn(topic)
        self.settle()
        self.state((topic.name, encode_topic(topic)))

    def make_topic(self, name: str, log_count: int, replica_count: int) -> None:
        last = self.table.last_epochs.get(name)
        is_first = last is None or (self.brokers.is_alone and not last)
        first_epoch = 0 if is_first else next_epoch((last or 0) + MISSED_EPOCHS * EPOCH_STEP, 0)
        created_at = BEGAN_MS + round(self.clock * 1000)
        topic_id = f"{len(self.world.histories) + 1:032X}"
        topic = Topic(name, topic_id, log_count, {}, replica_count, created_at=created_at, first_epoch=first_epoch)
        self.put_topic(attrs.evolve(topic, placement=self.place(topic)))

    def place(self, topic: Topic) -> tuple[tuple[str, ...], ...]:
        placed = list(topic.placement[: topic.log_count])
        names = [name_log(topic.topic_id, number) for number in range(len(placed), topic.log_count)]
        brokers = self.brokers
        logs = [] if brokers.is_alone else [each.placed() for each in self.logs.values()]
        arguments = (brokers.all(), brokers.alive, logs, names, topic.replica_count, self.clock, brokers.unwritable)
        chosen = self.balancer.place_logs(*arguments)
        return (*placed, *(tuple(rank_nodes(name, each)) for name, each in zip(names, chosen, strict=True)))

    def add_logs(self, name: str, log_count: int) -> None:
        changed = attrs.evolve(self.in_use[name], log_count=log_count, revision=self.in_use[name].revision + 1)
        self.put_topic(attrs.evolve(changed, placement=self.place(changed)))

    def delete_topic(self, name: str) -> None:
        epochs = [
            kept.replica.latest.leader_epoch.epoch
            for log, kept in self.logs.items()
            if self.world.labels[log].startswith(f"{name}/")
        ]
        statements = []
        for topic in self.table.living(name):
            self.world.deleted.add(topic.topic_id)
            deletion = Deletion(attrs.evolve(topic, revision=topic.revision + 1), {}, max([topic.first_epoch, *epochs]))
            statements.append((deletion.key, encode_deletion(deletion)))
            self.table.learn_deletion(deletion)
        self.settle()
        self.state(*statements)

    def copy_from(self, other: Broker) -> None:
        assert isinstance(other, TopicBroker)
        self.copy_statements(other)
        super().copy_from(other)

    def copy_statements(self, other: TopicBroker) -> None:
        for maker, theirs in other.statements.items():
            known = self.statements.setdefault(maker, [])
            if maker != self.name and len(theirs) > len(known):
                fresh = theirs[len(known) :]
                known.extend(fresh)
                self.learn(maker, fresh)
        self.settle()

    def find(self, label: str) -> KeptLog | None:
        topic, _, number = label.partition("/")
        found = self.in_use.get(topic)
        return None if found is None else self.logs.get(name_log(found.topic_id, int(number)))

    # The disk

    def save(self) -> tuple[Any, ...]:
        return copy.deepcopy((self.control, self.branches, self.statements))

    def restore(self, saved: tuple[Any, ...]) -> None:
        self.control, self.branches, self.statements = copy.deepcopy(saved)


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
        return self.printed

    def broker(self, name: str) -> TopicBroker:
        found = self.world.brokers[name]
        assert isinstance(found, TopicBroker)
        return found

    def do_brokers(self, *names: str) -> None:
        """`brokers NAME...`: start brokers for the first time, that hear each other."""
        for each in names:
            self.world.brokers[each] = TopicBroker(each, len(self.world.brokers), self.world)
        self.do_start(*names)
        if len(self.world.brokers) == len(names):
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
            self.broker(each).start(NotedLog)

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
        self.broker(name).make_topic(topic, int(logs), int(replicas))

    def do_use(self, name: str, topic: str) -> None:
        """`use BROKER TOPIC`: create a topic of one log and three replicas unless this broker knows it."""
        if topic not in self.broker(name).in_use:
            self.do_create(name, topic, "1", "3")

    def do_add_logs(self, name: str, topic: str, count: str) -> None:
        """`add-logs BROKER TOPIC COUNT`: let a topic have so many logs."""
        self.broker(name).add_logs(topic, int(count))

    def do_delete(self, name: str, topic: str) -> None:
        """`delete BROKER TOPIC`: delete a topic."""
        self.broker(name).delete_topic(topic)

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
        found = sorted(each for history in self.world.histories.values() for each in history.acknowledged)
        self.printed.append(" ".join(found) or "nothing")

    def do_check(self) -> None:
        """`check`: tell what is lost or doubled of what clients were told, or `ok`."""
        problems = list(dict.fromkeys(self.world.problems))
        for name, history in self.world.histories.items():
            if name.partition("/")[0] in self.world.deleted:
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
