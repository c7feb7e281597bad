"""Plays the commands of scenarios: simulated brokers without any chance, and what each of them does.

`python -m tests.broker.core.replication.script` writes the outputs of all scenarios anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from dafka.broker.core.metadata.log_replicas import RECOVERY_STEP, recovery_of
from dafka.broker.core.replication.effects import (
    Acknowledge,
    AdvanceHighWatermark,
    Lead,
    ReplicaAction,
    StepDown,
    WriteControl,
)
from dafka.broker.core.replication.records import EpochEnd, EpochStart, LeaderAndEpoch, VoteRequest
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.broker.core.replication.states import State
from dafka.broker.core.replication.transitions import Transition
from tests.broker.core.replication.brokers import LEASE_S, Broker, KeptLog
from tests.broker.core.replication.history import History, Violation
from tests.broker.core.replication.read_log import Indexed
from tests.broker.core.replication.transactions import Transactions
from tests.broker.core.replication.world import World
from tests.broker.core.scenarios import UnknownCommandError, find_command, write_outputs

SCENARIOS = Path(__file__).parent / "scenarios"
LOG = "orders/0"


class NoChance(random.Random):
    """Draws what is usual, always the same."""

    def random(self) -> float:
        return 0.25

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2

    def randint(self, _a: int, b: int) -> int:
        return b

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1 / lambd


def name_epoch(leader_epoch: LeaderAndEpoch) -> str:
    """Return an epoch as its round and its leader: brokers use different epochs of a round."""
    return f"{leader_epoch.epoch // 1024}/{leader_epoch.leader}"


def name_end(log_end: EpochEnd) -> str:
    return f"{name_epoch(log_end.leader_epoch)}:{log_end.end_offset}" if log_end.leader_epoch.leader else "nothing"


def describe_control(write: WriteControl) -> str:
    record = write.record
    epoch = name_epoch(record.leader_epoch)
    if isinstance(record, VoteRequest | EpochStart):
        replicas = " ".join(record.replicas)
        learners = f", {' '.join(record.learners)} learning" if record.learners else ""
        if isinstance(record, VoteRequest):
            return f"requests votes for {epoch} of {replicas}{learners}{', a transfer' if record.is_transfer else ''}"
        return f"starts {epoch} after {name_end(record.parent)} of {replicas}{learners}"
    sets = "" if len(record.replica_sets) == 1 else f", voters {' | '.join(map(' '.join, record.replica_sets))}"
    return f"votes for {epoch} at {name_end(record.log_end)}{sets}"


def describe(action: ReplicaAction) -> str:
    if isinstance(action, WriteControl):
        return describe_control(action)
    if isinstance(action, Acknowledge):
        return f"acknowledges {name_epoch(action.leader_epoch)}:{action.end_offset}"
    if isinstance(action, Lead):
        return f"leads {name_epoch(action.start.leader_epoch)}"
    if isinstance(action, StepDown):
        return f"no longer leads {name_epoch(action.leader_epoch)}"
    assert isinstance(action, AdvanceHighWatermark)
    return f"commits {action.offset}"


class ScriptedWorld(World):
    """Brokers with given names and one log, which report what they do."""

    def __init__(
        self, names: Sequence[str], replicas: Sequence[str], settings: ReplicaSettings, report: Callable[[str], None]
    ) -> None:
        super().__init__(0, settings.availability, broker_count=len(names))
        self.draw = NoChance()
        self.settings = settings
        self.report = report
        self.reported: dict[str, ReplicaAction] = {}
        self.brokers = {name: Broker(name, number, self) for number, name in enumerate(names)}
        transactions = Transactions(self.transaction_draw)
        self.histories = {LOG: History(LOG, tuple(replicas), settings.availability, transactions)}
        self.has_leases = settings.availability is Availability.MAJORITY

    def record(self, broker: str, transition: Transition, effects: Iterable[ReplicaAction]) -> None:
        """Report what a replica does, unless it only repeats itself."""
        if transition is Transition.WITHDRAW:
            self.report(f"{broker} withdraws its request")
        for each in effects:
            if not isinstance(each, Acknowledge) or self.reported.get(broker) != each:
                self.report(f"{broker} {describe(each)}")
            if isinstance(each, Acknowledge):
                self.reported[broker] = each


class ScriptedLog(KeptLog):
    """A log at a scripted broker."""

    def check_transition(self, transition: Transition, state: State, effects: tuple[ReplicaAction, ...]) -> None:
        super().check_transition(transition, state, effects)
        assert isinstance(self.world, ScriptedWorld)
        self.world.record(self.broker.name, transition, effects)


def parse_s(text: str) -> float:
    """Return seconds, as in `500ms`, `2s` or `-1h`."""
    for unit, seconds in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * seconds
    raise UnknownCommandError(text)


@attrs.define(slots=False)
class BrokerScript:
    """One run of a scenario, with the commands that scenarios of logs and of topics share."""

    world: Any

    def do_advance(self, time: str) -> None:
        """`advance TIME`: let time pass."""
        self.world.run_until(self.world.now + parse_s(time))

    def do_stop(self, *names: str) -> None:
        """`stop BROKER...`: kill brokers."""
        for each in names:
            self.world.brokers[each].crash()

    def do_freeze(self, name: str, time: str) -> None:
        """`freeze BROKER TIME`: stop its process for a while."""
        self.world.brokers[name].stopped_until = self.world.now + parse_s(time)

    def do_clock(self, name: str, time: str) -> None:
        """`clock BROKER TIME`: set its clock forward or back."""
        self.world.brokers[name].clock_s += parse_s(time)

    def do_heal(self) -> None:
        """`heal`: repair all links."""
        self.world.down.clear()

    def do_delay(self, *names: str) -> None:
        """`delay BROKER...`: these, and no others, get no records."""
        self.world.stalled = set(names)


@attrs.define(slots=False)
class Script(BrokerScript):
    """One run of a scenario."""

    world: ScriptedWorld = attrs.field(init=False)
    began_at: float = 0.0
    printed: list[str] = attrs.field(factory=list)
    acknowledged: set[str] = attrs.field(factory=set)

    def run(self, command: str) -> list[str]:
        self.printed = []
        run = find_command(self, command)
        if run is None:
            return []
        is_running = not command.startswith("brokers ")
        if is_running:
            self.began_at = self.world.now
        try:
            run()
            if is_running:
                self.world.run_until(self.world.now)
        except Violation as violation:
            self.printed.append(f"violation: {violation}")
        if new := self.world.histories[LOG].acknowledged - self.acknowledged:
            self.acknowledged |= new
            self.printed.append(f"acknowledged: {' '.join(sorted(new))}")
        return self.printed

    def report(self, text: str) -> None:
        self.printed.append(f"{round((self.world.now - self.began_at) * 1000)}ms {text}")

    def log(self, name: str) -> KeptLog:
        return self.world.brokers[name].logs[LOG]

    def do_brokers(self, *arguments: str) -> None:
        """`brokers NAME... [of REPLICA...] [branch] [prefer=TIME]`: start brokers. The first replica leads."""
        names: list[str] = []
        replicas: list[str] = []
        settings, found = ReplicaSettings(preferred_leader_after_s=3600.0), names
        for each in arguments:
            if each == "of":
                found = replicas
            elif each == "branch":
                settings = attrs.evolve(settings, availability=Availability.BRANCH)
            elif each.startswith("prefer="):
                settings = attrs.evolve(settings, preferred_leader_after_s=parse_s(each.removeprefix("prefer=")))
            else:
                found.append(each)
        self.world = ScriptedWorld(names, replicas or names, settings, self.report)
        for number, broker in enumerate(self.world.brokers.values()):
            broker.generation = 1  # it has run before, and knows the others
            self.world.later(0.01 * number, partial(start, broker))
        self.world.run_until(1.0)

    def do_append(self, name: str, *values: str) -> None:
        """`append BROKER VALUE...`: a client appends records."""
        if not self.log(name).append([Indexed.make(each) for each in values]):
            self.report(f"{name} refuses to append")

    def do_start(self, *names: str) -> None:
        """`start BROKER...`: start brokers again."""
        for each in names:
            start(self.world.brokers[each])

    def do_cut(self, *arguments: str) -> None:
        """`cut A... | B...`: cut the links between two sides; with `>`, only from the first one to the second one."""
        mark = "|" if "|" in arguments else ">"
        place = arguments.index(mark)
        for one in arguments[:place]:
            for other in arguments[place + 1 :]:
                self.world.down |= {(one, other)} if mark == ">" else {(one, other), (other, one)}

    def do_freeze(self, name: str, time: str) -> None:
        super().do_freeze(name, time)
        broker = self.world.brokers[name]
        self.world.call_at(broker.stopped_until, broker.check_leases)

    def do_fill(self, name: str, time: str) -> None:
        """`fill BROKER TIME`: its disk is full for a while."""
        self.world.brokers[name].full_until = self.world.now + parse_s(time)

    def do_deafen(self, name: str, maker: str) -> None:
        """`deafen BROKER MAKER`: it does not get the control records of another one."""
        self.world.deaf.add((name, maker))

    def do_undeafen(self) -> None:
        """`undeafen`: all get all control records."""
        self.world.deaf.clear()

    def do_clock(self, name: str, time: str) -> None:
        self.world.has_leases = False  # they need clocks that run
        super().do_clock(name, time)

    def do_replicas(self, name: str, *replicas: str) -> None:
        """`replicas LEADER REPLICA...`: change the replicas."""
        log = self.log(name)
        log.act(log.wake_up().elections.change_replicas(replicas, log.replica.newest.generation + 1))

    def do_recover(self, name: str) -> None:
        """`recover BROKER`: continue the log with a broker alone, as an operator says that the others are lost."""
        log = self.log(name)
        recovery = recovery_of(log.replica.newest.generation) + 1
        log.act(log.wake_up().elections.recover(recovery * RECOVERY_STEP))

    def do_transfer(self, name: str) -> None:
        """`transfer BROKER`: a broker that is preferred wants to lead."""
        log = self.log(name)
        replica = log.wake_up()
        replica.preference.set((name,), frozenset())
        log.act(replica.elections.transfer_leadership())

    def do_hand_over(self, leader: str, name: str) -> None:
        """`hand-over LEADER BROKER`: a broker, which should be the leader, asks another one to lead."""
        log = self.log(name)
        log.act(log.wake_up().elections.transfer_leadership(leader))

    def do_drop(self) -> None:
        """`drop`: brokers that are no replicas drop the log, if they may."""
        for name, broker in self.world.brokers.items():
            log = broker.logs[LOG]
            if broker.is_up and log.branches:
                log.drop()
                if not log.branches:
                    self.report(f"{name} drops the log")

    def do_lease(self) -> None:
        """`lease`: tell which brokers may answer readers about the end of the log."""
        for name, broker in self.world.brokers.items():
            log = broker.logs[LOG]
            if broker.is_up and log.led is not None:
                end = log.replica.heard_since(broker.rounds.heard_since) + LEASE_S
                left = (end - self.world.now) * 1000
                text = "a lease without end" if left == float("inf") else f"a lease for {round(left)}ms"
                self.printed.append(f"{name} has {text if left > 0 else 'no lease'}")

    def do_in_sync(self, name: str) -> None:
        """`in-sync LEADER`: tell which replicas are in sync."""
        replica = self.log(name).replica
        self.printed.append(" ".join(replica.in_sync()) or "unknown")

    def do_log(self) -> None:
        """`log`: tell what each broker has: what is readable stands before the bar."""
        for name, broker in self.world.brokers.items():
            if not broker.is_up:
                self.printed.append(f"{name} down")
                continue
            log = broker.logs[LOG]
            replica = log.replica
            records = log.records()
            mark = replica.high_watermark
            text = " ".join([*records[:mark], "|", *records[mark:]])
            chain = {each.leader_epoch for each in replica.epoch_tree.chain(replica.local_epochs.log_end()) or ()}
            beside = [
                f" beside {name_epoch(each)}: {' '.join(ids)}"
                for each, (_, ids) in sorted(log.branches.items())
                if each not in chain and ids
            ]
            end = name_epoch(replica.local_epochs.log_end().leader_epoch)
            self.printed.append(f"{name} {replica.elections.state.name} {end}: {text}{''.join(beside)}")

    def do_epochs(self) -> None:
        """`epochs`: tell which epochs have begun."""
        starts = self.world.histories[LOG].epoch_tree.starts
        self.printed += [f"{name_epoch(each)} after {name_end(starts[each].parent)}" for each in sorted(starts)]


def start(broker: Broker) -> None:
    broker.start(ScriptedLog)


if __name__ == "__main__":
    write_outputs(SCENARIOS, lambda: Script().run)
