"""Simulated brokers that replicate logs with the real state machines.

A broker's partitions are lists: its control records, and for each log an index partition for each branch, whose entries
stand for the records that they name. Brokers copy them from each other as stores do: what is durable at one becomes
durable at others some time later, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.log_replicas import LogReplicas, next_replicas
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.effects import (
    Acknowledge,
    AdvanceHighWatermark,
    Lead,
    ReplicaAction,
    StepDown,
    WriteControl,
)
from dafka.broker.core.replication.leader_lease import LeaseRounds, RoundAnswer
from dafka.broker.core.replication.records import ControlRecord, EpochEnd, EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.replicated_logs import is_obsolete
from dafka.broker.core.replication.states import State
from dafka.broker.core.replication.transitions import Transition
from tests.broker.core.replication.history import Violation
from tests.broker.core.replication.read_log import Indexed, ReadLog

if TYPE_CHECKING:
    from tests.broker.core.replication.world import World

HEARTBEAT_S = 0.2
ALIVE_S = 0.7
LEASE_S = ALIVE_S - HEARTBEAT_S
BALANCE_S = 0.5
FULL_BYTES = 100


NOTHING_ORDERED = LogReplicas(())


class KeptLog:
    """One log at one broker, from a start to the next crash."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.world = broker.world
        self.history = self.world.histories[name]
        self.branches = broker.branches.setdefault(name, {})  # durable records, after the offset of the first one
        self.replica = Replica(name, broker.name, broker.number, broker.first_replicas(name), self.world.settings)
        self.replica.elections.on_transition = self.check_transition
        self.copying: set[LeaderAndEpoch] = set()
        self.dropped = 0
        self.led: LeaderAndEpoch | None = None
        self.led_since = 0.0
        self.appended_end = 0
        self.ready_from = 0  # how far the log reached when this broker began to lead it, and to serve readers
        self.waiting: list[tuple[int, str]] = []
        self.appending = 0
        self.readable = self.stable = 0  # the high watermark and the last stable offset that readers have seen
        self.is_restless = True
        self._read: ReadLog | None = None

    def restore(self, control: dict[str, list[ControlRecord]]) -> None:
        """Take over what is on the disk: perhaps without the control records that say nothing any more."""
        found = [(maker, each) for maker, made in control.items() for each in made if each.log == self.name]
        latest = max((each.leader_epoch.epoch for _, each in found if isinstance(each, EpochStart)), default=0)
        if self.world.compacts:
            found = [(maker, each) for maker, each in found if not is_obsolete(each, latest)]
        own = [each for maker, each in found if maker == self.broker.name]
        self.replica.elections.restore(own, [(maker, each) for maker, each in found if maker != self.broker.name])
        self._restore_held()
        self.act([*self.replica.resume(), *self.replica.set_alive({self.broker.name}, self.broker.clock)])

    def check_transition(self, transition: Transition, state: State, effects: tuple[ReplicaAction, ...]) -> None:
        before = self.replica.elections.state
        self.world.transitions[transition, before.name] += 1
        if not transition.value.allows(before.name, state.name, effects):
            raise Violation(f"{transition.name} from {before} to {state} with {effects} is not in the table")

    def wake_up(self) -> Replica:
        """Return the replica, which something happens to, and which may have been settled until now."""
        if not self.is_restless:
            self.is_restless = True
            self.replica.elections.idle(self.broker.ticked_at)
        return self.replica

    def let_time_pass(self, *, has_changed: bool) -> None:
        """Tell the replica which brokers are alive, if that has changed; otherwise advance it, unless it is settled."""
        broker, replica = self.broker, self.replica
        ordered = broker.find_ordered(self.name) or NOTHING_ORDERED
        leaving = set(replica.latest.replicas if ordered.replicas else ()).difference(ordered.replicas)
        if replica.preference.set(ordered.replicas, broker.ineligible().union(leaving)):
            self.wake_up()
        if has_changed:
            self.act(self.wake_up().set_alive(broker.brokers.alive, broker.clock, broker.brokers.replaceable))
        elif self.is_restless or replica.settled_until <= broker.clock:
            self.wake_up()
            self.is_restless = False
            self.act(replica.elections.advance(broker.clock))

    def _restore_held(self) -> None:
        self.replica.restore_local({branch: Offset(start + len(ids)) for branch, (start, ids) in self.branches.items()})

    def act(self, actions: list[ReplicaAction]) -> None:
        for action in actions:
            if isinstance(action, WriteControl):
                self.broker.write_control(action.record)
            elif isinstance(action, Acknowledge):
                self._acknowledge(action.leader_epoch, action.end_offset)
            elif isinstance(action, Lead):
                self._lead(action.start)
            elif isinstance(action, StepDown):
                self.led, self.waiting, self._read = None, [], None
            elif isinstance(action, AdvanceHighWatermark):
                self._move_high_watermark(action.offset)

    def repeat_acknowledgement(self) -> None:
        """Acknowledge again what others may have missed, which leaves a settled replica settled."""
        self.act(self.replica.repeat_acknowledgement())

    def _acknowledge(self, branch: LeaderAndEpoch, end_offset: int) -> None:
        """Let everybody know: the leader at once, others perhaps."""
        for other in self.world.brokers.values():
            if other is not self.broker and (other.name == branch.leader or self.world.draw.random() < 0.3):
                self.world.send(
                    self.broker, other, partial(other.acknowledged, self.name, self.broker.name, branch, end_offset)
                )

    def _move_high_watermark(self, offset: int) -> None:
        self.history.check_readable(self, offset)
        while self.led is not None and self.waiting and self.waiting[0][0] < offset:
            self.history.acknowledged.add(self.waiting.pop(0)[1])

    # Leading

    def _lead(self, row: EpochStart) -> None:
        branch, start = row.leader_epoch, row.parent.end_offset
        self.led, self.waiting, self._read = branch, [], None
        self.led_since = self.world.now
        self.appended_end = start + len(self.branches[branch][1]) if branch in self.branches else start
        self.ready_from = self.appended_end

        def stored() -> None:
            self.branches.setdefault(branch, (start, []))
            self.act(self.wake_up().stored(branch, start))
            self._push(branch)

        self.world.write(self.broker, stored)

    @property
    def can_append(self) -> bool:
        is_begun = self.led is not None and self.led in self.branches
        return is_begun and self.replica.may_append and not self.broker.is_full

    def append(self, ids: list[Indexed]) -> bool:
        branch = self.led
        if branch is None or not self.can_append:
            return False
        if self.world.keeps_indexes:
            log = self._led_log(branch)
            for each in ids:
                log.append(each)
        self.waiting.extend((self.appended_end + place, each) for place, each in enumerate(ids))
        self.appended_end += len(ids)
        self.appending += 1

        def stored() -> None:
            self.appending -= 1
            if branch not in self.branches:
                raise Violation("a broker has dropped a branch to which it appends")
            start, held = self.branches[branch]
            self.history.check_stored(branch, len(held), ids)
            held.extend(ids)
            self.act(self.wake_up().stored(branch, Offset(start + len(held))))
            self._push(branch)

        self.world.write(self.broker, stored)
        return True

    def _push(self, branch: LeaderAndEpoch) -> None:
        for other in self.world.brokers.values():
            if other is not self.broker:
                self.world.send(self.broker, other, partial(other.copy_branch, self.broker, self.name, branch))

    def merge_divergent(self) -> None:
        if self.led is None or not self.replica.may_append or self.appending or len(self.branches) < 2:
            return
        on_chain = {
            each.leader_epoch: each.end_offset
            for each in self.replica.epoch_tree.chain(self.replica.local_epochs.log_end()) or ()
        }
        if all(start + len(ids) <= on_chain.get(branch, -1) for branch, (start, ids) in self.branches.items()):
            return
        if self.replica.local_epochs.log_end().leader_epoch != self.led:
            raise Violation(f"{self.broker.name} leads {self.led}, and holds {self.replica.local_epochs.log_end()}")
        known = self.find_healed()
        for branch in sorted(self.branches):
            if not self.replica.local_epochs.is_complete(branch) and self._is_all_before_held(branch):
                continue  # its records come behind those of the branches before it
            missing = [
                Indexed.make(each)
                for each in self.branches[branch][1]
                if each not in known and each.transaction is None
            ]
            if missing:
                self.append(missing)
                return

    def find_healed(self) -> set[str]:
        """Return the records that need no healing, by their identity: a leader before may have healed some."""
        return set(self.records())

    def _is_all_before_held(self, branch: LeaderAndEpoch) -> bool:
        """Return whether all that is before a branch is held: brokers that are no replicas any more may drop it."""
        table = self.replica.epoch_tree
        row = table.starts.get(branch)
        chain = None if row is None else table.chain(row.parent)
        kept = [each.branches.get(self.name, {}) for each in self.world.brokers.values()]

        def is_held(tip: EpochEnd) -> bool:
            found = (branches[tip.leader_epoch] for branches in kept if tip.leader_epoch in branches)
            return any(start + len(ids) >= tip.end_offset for start, ids in found)

        return chain is None or all(is_held(each) for each in chain if each.end_offset)

    # Following

    def copy_branches(self, other: KeptLog) -> None:
        branches = self.branches
        for branch, (_, ids) in other.branches.items():
            if branch not in branches or len(branches[branch][1]) < len(ids):
                self.copy_branch(other, branch)

    def copy_branch(self, other: KeptLog, branch: LeaderAndEpoch) -> None:
        """Copy a branch, as far as another broker holds it, if this one is a replica."""
        found = other.branches.get(branch)
        if found is None or branch == self.led or branch in self.copying or self.broker.is_full:
            return
        start, ids = found
        first = len(self.branches[branch][1]) if branch in self.branches else 0
        is_known = branch in self.branches
        if (is_known and len(ids) <= first) or not self._is_replica():
            return
        if self.broker.name in self.world.stalled or self.world.is_skipped():
            return
        fresh = ids[first:]
        if len(fresh) > 1 and self.world.draw.random() < 0.3:
            fresh = fresh[: self.world.draw.randint(1, len(fresh))]
        self.copying.add(branch)
        dropped = self.dropped

        def stored() -> None:
            if dropped != self.dropped:
                return
            self.copying.discard(branch)
            held = self.branches.setdefault(branch, (start, []))[1]
            assert len(held) == first
            self.history.check_stored(branch, first, fresh)
            held.extend(fresh)
            self.act(self.wake_up().stored(branch, Offset(start + len(held))))

        self.world.write(self.broker, stored)

    def _is_replica(self) -> bool:
        return self.broker.name in self.replica.replicas

    def drop(self) -> None:
        """Drop everything, if this broker is no replica any more and may do so."""
        if self.branches and self.replica.may_drop:
            self.branches.clear()
            self.copying.clear()
            self.dropped += 1
            self.readable = self.stable = 0
            self._read = None
            self._restore_held()

    # What readers of committed records see

    def _led_log(self, branch: LeaderAndEpoch) -> ReadLog:
        if self._read is None:
            self._read = ReadLog(self.broker.name, branch, self.world.rewrite_entries)
            self._read.restore(self.replica.epoch_tree, self.branches, is_led=True)
        return self._read

    def _followed_log(self) -> ReadLog | None:
        tip = self.replica.local_epochs.log_end()
        if tip.leader_epoch not in self.branches:
            return None
        if self._read is None or self._read.leader_epoch != tip.leader_epoch:
            self._read = ReadLog(self.broker.name, tip.leader_epoch, self.world.rewrite_entries)
            self._read.restore(self.replica.epoch_tree, self.branches, is_led=False)
        else:
            self._read.follow(*self.branches[tip.leader_epoch])
        return self._read

    def check_sometimes(self) -> None:
        draw = self.world.transaction_draw
        if self.world.has_transactions and draw.random() < 0.2:
            self.check_committed(is_whole=draw.random() < 0.1)

    def check_committed(self, *, is_whole: bool = False) -> int | None:
        branch, replica = self.led, self.replica
        if branch is not None and branch not in self.branches:
            return None
        if branch is not None and (not replica.may_append or replica.high_watermark < self.ready_from):
            return None
        before = self._read
        log = self._followed_log() if branch is None else self._led_log(branch)
        if log is None:
            return None
        log.state.high_watermark = min(replica.high_watermark, log.state.index.end_offset)
        from_offset = 0 if is_whole or log is not before else self.stable
        self.history.check_committed(self, log, from_offset=from_offset, is_leader=branch is not None)
        return log.state.last_stable_offset

    # What is there

    def holds(self, tip: EpochEnd) -> bool:
        start, ids = self.branches.get(tip.leader_epoch, (0, []))
        return start + len(ids) >= tip.end_offset

    def records(self) -> list[Indexed]:
        found: list[Indexed] = []
        for branch, end in self.replica.epoch_tree.chain(self.replica.local_epochs.log_end()) or ():
            if branch in self.branches:
                start, ids = self.branches[branch]
                found = ids[: end - start] + found
        return found

    def continue_change(self) -> None:
        """Make the change of replicas that was ordered, if this broker leads the log, and report it when it is made."""
        ordered, replica = self.broker.find_ordered(self.name), self.replica
        if ordered is None or self.led is None:
            return
        present = replica.latest
        is_made = present.generation == ordered.generation and set(present.replicas) == set(ordered.replicas)
        if is_made and not present.learners and replica.has_established_replicas:
            self.broker.report_change(self.name, ordered.generation, present.leader_epoch.epoch)
        in_sync = replica.in_sync(max_lag=5, within_s=1.0)
        replicas = next_replicas(ordered, present, present.generation, self.broker.name, in_sync)
        if replicas is not None:
            self.act(self.wake_up().elections.change_replicas(replicas, ordered.generation))


class Broker:
    """One broker. Its control records, by the broker that made them, and the branches of its logs are durable."""

    def __init__(self, name: str, number: int, world: World) -> None:
        self.name = name
        self.number = number
        self.world = world
        self.control: dict[str, list[ControlRecord]] = {}
        self.branches: dict[str, dict[LeaderAndEpoch, tuple[int, list[Indexed]]]] = {}
        self.generation = 0  # how often it has started
        self.is_up = False
        self.is_draining = False
        self.ordered: dict[str, LogReplicas] = {}  # as far as this broker has applied the log of metadata
        self.clock_s = 0.0  # how much its clock is ahead
        self.full_until = self.stopped_until = 0.0
        self.logs: dict[str, KeptLog] = {}

    @property
    def is_running(self) -> bool:
        return self.is_up and self.world.now >= self.stopped_until

    @property
    def is_full(self) -> bool:
        return self.world.now < self.full_until

    @property
    def clock(self) -> float:
        return self.world.now + self.clock_s

    @property
    def link(self) -> str:
        """Its name in the network. Brokers with one disk have one name otherwise."""
        return self.name

    def known_logs(self) -> Iterable[str]:
        return self.world.histories

    def first_replicas(self, log: str) -> tuple[str, ...]:
        return self.world.histories[log].replicas

    def describe(self) -> BrokerRegistration:
        return BrokerRegistration(
            address=self.name,
            number=self.number,
            rack=f"r{self.number % 2}" if self.world.balances else "",
            free_bytes=0 if self.is_full else 1000 + self.number,
            is_draining=self.is_draining,
        )

    def start(self, kept_log: Callable[[str, Broker], KeptLog] = KeptLog) -> None:
        """Start, unless it is up."""
        if self.is_up:
            return
        self.generation += 1
        self.is_up = True
        self.brokers = Brokers(self.describe(), ALIVE_S)
        self.rounds = LeaseRounds(self.generation * 10**6)
        self.heard_rounds: dict[str, int] = {}
        self.stopped_until = 0.0
        for other in self.world.brokers.values() if self.generation > 1 else ():
            self.brokers.record_registration(other.describe())
            self.brokers.expect(other.name, self.clock)
        self.balanced_at = self.world.now
        self.copying: set[str] = set()
        self.pending_writes = self.writing_control = 0
        self.last_write_at = 0.0
        self.ticked_at = self.clock
        self.logs = {name: kept_log(name, self) for name in self.known_logs()}
        for kept in list(self.logs.values()):  # they can take off logs of deleted topics
            kept.restore(self.control)
        self._tick(self.generation)

    def crash(self) -> None:
        self.is_up = False
        self.generation += 1

    def _tick(self, generation: int) -> None:
        if generation != self.generation:
            return
        world = self.world
        if not self.is_running:
            world.call_at(self.stopped_until, lambda: self._tick(generation))
            return
        self.check_leases()
        others = [each for each in world.brokers.values() if each is not self]
        self._show_life(others)
        self.brokers.record_storage(self.name, can_write=not self.is_full)
        has_changed = self.brokers.check_alive(self.clock)
        for kept in list(self.logs.values()):
            kept.let_time_pass(has_changed=has_changed)
            kept.repeat_acknowledgement()
            if kept.led is not None:
                for other in others:
                    heard = partial(other.acknowledged, kept.name, self.name, *kept.replica.acknowledged_log_end)
                    world.send(self, other, heard)
            kept.merge_divergent()
            kept.check_sometimes()
            if world.drops and world.draw.random() < 0.2:
                kept.drop()
        for other in others:
            world.send(other, self, partial(self.copy_from, other))
        if world.now - self.balanced_at >= BALANCE_S:
            self.balanced_at = world.now
            self.change_replicas()
        self.ticked_at = self.clock
        world.later(HEARTBEAT_S * world.draw.uniform(0.8, 1.2), lambda: self._tick(generation))

    def _show_life(self, others: list[Broker]) -> None:
        own = self.brokers.own = self.describe()
        can_write = not self.is_full
        number = self.rounds.begin(self.world.now, can_write=can_write)
        for other in others:
            self.world.send(self, other, partial(other.hear, self, own, number, can_write=can_write))

    def change_replicas(self) -> None:
        """Learn what replicas were ordered, sometimes late, and make the changes."""
        self.ordered.update(self.world.ordered if self.world.draw.random() < 0.8 else {})
        for kept in self.logs.values():
            kept.continue_change()

    def find_ordered(self, log: str) -> LogReplicas | None:
        return self.ordered.get(log)

    def report_change(self, log: str, generation: int, epoch: int) -> None:
        self.world.report_change(log, generation, epoch)

    def ineligible(self) -> frozenset[str]:
        found = (each.address for each in self.brokers.all() if each.is_draining or each.free_bytes < FULL_BYTES)
        return self.brokers.unwritable.union(found)

    def hear(self, other: Broker, description: BrokerRegistration, number: int, *, can_write: bool) -> None:
        """Take in a sign of life, which is a round: answer it, unless promises are being written."""
        self.brokers.record_registration(description)
        self.brokers.record_heartbeat(other.name, self.clock)
        if number < self.heard_rounds.get(other.name, 0):
            return  # a connection keeps the order of rounds
        self.heard_rounds[other.name] = number
        self.brokers.record_storage(other.name, can_write=can_write)
        may_answer = self.brokers.may_answer(other.name, self.clock, can_write=can_write)
        if self.world.has_leases and may_answer and not self.writing_control:
            answer = RoundAnswer(number, len(self.control.get(self.name, ())))
            self.world.send(self, other, partial(other.take_answer, self.name, answer))

    def acknowledged(self, log: str, broker: str, branch: LeaderAndEpoch, end_offset: int) -> None:
        kept = self.logs.get(log)
        if kept is not None:
            kept.act(kept.wake_up().acknowledged(broker, branch, Offset(end_offset)))

    def take_leadership(self, log: str, leader: str) -> None:
        kept = self.logs.get(log)
        if kept is not None:
            kept.act(kept.wake_up().elections.transfer_leadership(leader))

    # Leases

    def take_answer(self, broker: str, answer: RoundAnswer) -> None:
        self.rounds.answered(broker, answer, len(self.control.get(broker, ())))
        self.check_leases()

    def check_leases(self) -> None:
        """Check that no other broker has records acknowledged of a log of which this one tells clients the end."""
        for kept in self.logs.values() if self.world.has_leases else ():
            if kept.led is not None and self.world.now < kept.replica.heard_since(self.rounds.heard_since) + LEASE_S:
                kept.history.check_lease(kept.led, self.name)

    # Control records

    def write_control(self, record: ControlRecord) -> None:
        self.writing_control += 1

        def stored() -> None:
            self.writing_control -= 1
            self.control.setdefault(self.name, []).append(record)
            if isinstance(record, EpochStart):
                self.world.histories[record.log].check_row(record, self.world.now)
            if self.world.draw.random() < self.world.crash_after_write:
                self.crash()
                self.world.later(self.world.draw.expovariate(5), self.start)
                return
            kept = self.logs.get(record.log)
            if kept is not None:
                kept.act(kept.wake_up().elections.written(record))
            for other in self.world.brokers.values():
                if other is not self:
                    self.world.send(self, other, partial(other.copy_control, self, self.name))

        self.world.write(self, stored)

    def copy_from(self, other: Broker) -> None:
        for name in other.control:
            self.copy_control(other, name)
        for name, kept in self.logs.items():
            if name in other.logs:
                kept.copy_branches(other.logs[name])

    def copy_branch(self, other: Broker, log: str, branch: LeaderAndEpoch) -> None:
        if log in self.logs and log in other.logs:
            self.logs[log].copy_branch(other.logs[log], branch)

    def copy_control(self, other: Broker, maker: str) -> None:
        theirs, first = other.control.get(maker, ()), len(self.control.get(maker, ()))
        if len(theirs) <= first or maker in {self.name, *self.copying} or (self.name, maker) in self.world.deaf:
            return
        if self.is_full or self.world.is_skipped():
            return
        fresh = theirs[first:]
        if self.world.draw.random() < 0.3:
            fresh = fresh[: self.world.draw.randint(1, len(fresh))]
        self.copying.add(maker)

        def stored() -> None:
            self.copying.discard(maker)
            held = self.control.setdefault(maker, [])
            assert len(held) == first
            held.extend(fresh)
            for each in fresh:
                kept = self.logs.get(each.log)
                if kept is not None:
                    kept.act(kept.wake_up().receive(maker, each))
            self.rounds.learned(maker, len(held))

        self.world.write(self, stored)
