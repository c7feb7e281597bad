"""One replica in any history: it never breaks what others rely on, and decides the same if it rests meanwhile."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

from dafka.broker.core.log.entries import encode_entries
from dafka.broker.core.log.log import LEADER
from dafka.broker.core.metadata.leader_and_isr import next_epoch
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import RecordSequence
from dafka.broker.core.replication.effects import Acknowledge, AdvanceHighWatermark, Lead, StepDown, WriteControl
from dafka.broker.core.replication.records import (
    NO_EPOCH,
    ControlRecord,
    EpochEnd,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
)
from dafka.broker.core.replication.replicated_logs import LogAction, ReplicatedLog, ReplicatedLogs
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.broker.core.replication.states import Follower
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import run_entry

REPLICAS = ("a", "b", "c")
EFFECTS = (Vote, VoteRequest, EpochStart, Lead, StepDown, Acknowledge, AdvanceHighWatermark)
SETTINGS = ReplicaSettings(election_timeout_s=0.5, preferred_leader_after_s=3.0)


class Twins:
    """The log of one broker, twice: one rests if it can, and the other one is advanced at every tick."""

    def __init__(self, seed: int) -> None:
        self.draw, self.now = Random(seed), 0.0
        self.own = self.draw.choice("ac")
        self.ends: defaultdict[Partition, int] = defaultdict(lambda: 1000)
        availability = self.draw.choice([Availability.MAJORITY, Availability.MAJORITY, Availability.BRANCH])
        topic = Topic("orders", "f" * 32, 1, {"availability": availability.value})
        self.both = [
            ReplicatedLogs(self.own, lambda: REPLICAS.index(self.own), self.ends.__getitem__, SETTINGS)
            for _ in range(2)
        ]
        self.logs = [each.add(topic, 0, REPLICAS, []) for each in self.both]
        self.log = self.logs[0]
        self.stored: dict[LeaderAndEpoch, int] = {}
        self.writing: list[ControlRecord] = []
        self.rests = 0
        self.voted = -1
        self.requests: dict[int, VoteRequest] = {}
        self.durable: set[ControlRecord] = set()
        self.votes: defaultdict[int, set[str]] = defaultdict(set)
        self.acknowledged: defaultdict[LeaderAndEpoch, dict[str, int]] = defaultdict(dict)
        self.heard: defaultdict[str, int] = defaultdict(lambda: -1)
        self.counts: Counter[str] = Counter()
        self.is_majority = availability is Availability.MAJORITY
        self.do(lambda logs, log: logs.resume(log, self.now))

    def do(self, call: Callable[[ReplicatedLogs, ReplicatedLog], Any]) -> None:
        """Do something to both, and compare what they ask for."""
        found: list[list[LogAction]] = [call(*each) or [] for each in zip(self.both, self.logs, strict=True)]
        one, other = ([each.action for each in actions] for actions in found)
        assert one == other
        if self.log in self.both[0].active:
            assert len({each.replica.elections.now for each in self.logs}) == 1, "one measures from when it rested"
        for each in one:
            self.check(each)
            if isinstance(each, WriteControl):
                self.writing.append(each.record)

    def check(self, effect: object) -> None:
        """Check that the replica keeps what it has voted for, and that enough others have voted or acknowledged."""
        record = effect.record if isinstance(effect, WriteControl) else None
        replica = self.log.replica
        self.counts[type(record or effect).__name__] += 1
        if isinstance(record, VoteRequest):
            self.requests[record.leader_epoch.epoch] = record
        elif isinstance(record, Vote):
            assert record.leader_epoch.epoch > self.voted
            self.voted = record.leader_epoch.epoch
        elif isinstance(record, EpochStart):
            request = self.requests[record.leader_epoch.epoch]
            assert (record.leader_epoch, record.replicas) == (request.leader_epoch, request.replicas)
            assert record.leader_epoch.epoch == self.voted
            assert self.voted in {each.leader_epoch.epoch for each in self.durable if isinstance(each, Vote)}
            voted = self.votes[self.voted] | {self.own}
            assert not self.is_majority or 2 * len(voted.intersection(request.voters)) > len(request.voters)
        elif isinstance(effect, Lead):
            assert effect.start.leader_epoch.epoch >= self.voted
            assert effect.start in self.durable or effect.start.leader_epoch.epoch == 0
        elif isinstance(effect, Acknowledge):
            assert effect.leader_epoch.epoch >= self.voted
        elif isinstance(effect, AdvanceHighWatermark):
            end = replica.local_epochs.log_end()
            voters = replica.epoch_tree.starts[end.leader_epoch].voters
            ends = {**self.acknowledged[end.leader_epoch], self.own: end.end_offset}
            having = [each for each in voters if ends.get(each, -1) >= effect.offset]
            assert effect.offset <= end.end_offset
            assert not self.is_majority or 2 * len(having) > len(voters)

    def tick(self) -> None:
        self.now += self.draw.choice([0.1, 0.1, 0.1, 0.5, 2.0])
        self.rests += self.log not in self.both[0].active
        self.both[1]._active[self.logs[1]] = None
        self.do(lambda logs, _: logs.advance(self.now))

    def change_alive(self) -> None:
        alive = {self.own, *self.draw.sample(REPLICAS, self.draw.choice([1, 2, 3, 3, 3]))}
        unwritable = frozenset(self.draw.sample(sorted(alive), self.draw.choice([0, 0, 0, 0, 1])))
        self.do(lambda logs, _: logs.set_alive(alive, self.now, unwritable))

    def prefer(self) -> None:
        preferred = tuple(self.draw.sample(REPLICAS, 3))
        ineligible = frozenset(self.draw.sample(REPLICAS, self.draw.choice([0, 0, 1])))
        self.do(lambda logs, log: logs.set_preferences(log, preferred, ineligible))

    def set_unreadable(self) -> None:
        brokers = frozenset(self.draw.sample(REPLICAS, self.draw.choice([0, 0, 1])))
        self.do(lambda logs, log: logs.set_unreadable({log.name: brokers} if brokers else {}, self.now))

    def store(self) -> None:
        epoch = self.log.replica.latest.leader_epoch
        count = self.draw.randint(1, 3)
        first = self.stored.get(epoch, 0)
        parent = self.log.replica.latest.parent
        begin = max(parent.end_offset, 0) if epoch.epoch else 0
        if parent.leader_epoch != NO_EPOCH and not self.log.replica.local_epochs.reaches(parent):
            return
        values = [
            encode_entries([run_entry(begin + first + number, LEADER, first + number, 1)]) for number in range(count)
        ]
        self.stored[epoch] = first + count
        self.do(lambda logs, log: logs.stored([RecordBatch(log.index_partition(epoch), first, values)])[1])

    def acknowledge(self) -> None:
        """Hear from another replica what it stores, or from both that they store everything."""
        epoch, others = self.log.replica.latest.leader_epoch, "abc".replace(self.own, "")
        end = self.stored.get(epoch, 0)
        is_whole = self.draw.random() < 0.5
        for broker in others if is_whole else self.draw.choice(others):
            index_end = RecordSequence(end if is_whole else self.draw.randint(0, end))
            known, begin = self.acknowledged[epoch], self.log.replica.latest.parent.end_offset
            known[broker] = max(begin + index_end, known.get(broker, 0))
            self.do(lambda logs, log: logs.acknowledged(broker, log.index_partition(epoch), index_end))  # noqa: B023

    def write(self) -> None:
        """Have a control record of this broker become durable."""
        if self.writing:
            record = self.writing.pop(0)
            self.durable.add(record)
            self.do(lambda logs, _: logs.record_control(self.own, record))

    def hear(self) -> None:
        """Hear a control record of another broker."""
        broker = self.draw.choice("abc".replace(self.own, ""))
        latest = self.log.replica.latest
        before = max(latest.leader_epoch.epoch, self.draw.choice([0, self.voted]))
        epoch = LeaderAndEpoch(next_epoch(before, REPLICAS.index(broker)), broker)
        end = EpochEnd(latest.leader_epoch, self.log.replica.local_epochs.end_of(latest.leader_epoch))
        own = self.log.replica.elections.state.election
        asked = epoch if own is None else own.leader_epoch
        records: list[ControlRecord] = [
            VoteRequest(self.log.name, epoch, REPLICAS, is_transfer=self.draw.random() < 0.5),
            Vote(self.log.name, asked, end, (REPLICAS,), latest.leader_epoch),
            Vote(self.log.name, asked, end, (REPLICAS,), latest.leader_epoch),
            EpochStart(self.log.name, epoch, end, REPLICAS, self.draw.choice([(), (), (self.own,), ("b",)])),
        ]
        record = self.draw.choice([*records, records[0]])
        if isinstance(record, Vote):
            self.votes[asked.epoch].add(broker)
        voted, should_vote = self.voted, isinstance(record, VoteRequest) and self.should_vote(record)
        if isinstance(record, Vote):
            self.heard[broker] = max(self.heard[broker], asked.epoch)
        self.do(lambda logs, _: logs.record_control(broker, record))
        if isinstance(record, VoteRequest):
            assert self.voted == (epoch.epoch if should_vote else voted)

    def should_vote(self, request: VoteRequest) -> bool:
        """Return whether this replica must vote for a request: it is for a later epoch, and nobody leads the log.

        It follows a living leader, or goes on leading, if only who asks does not hear the leader. For a transfer, a
        leader votes for a replica that it hears.
        """
        replica, peers, candidate = self.log.replica, self.log.replica.elections.peers, request.leader_epoch.leader
        latest, led, stored = replica.latest, replica.led_epoch, replica.local_epochs.log_end().leader_epoch
        if request.leader_epoch.epoch <= max(self.voted, stored.epoch) or candidate not in peers.newest.voters:
            return False
        if not self.is_majority or replica.leader not in peers.writable - {candidate}:
            return True
        if replica.leader != self.own:
            return self.own in latest.voters and stored != latest.leader_epoch
        own = replica.elections.state.election
        own_epochs = {each.leader_epoch.epoch for each in (own,) if each is not None}
        others = peers.alive.intersection(latest.voters) - {candidate}
        epoch = latest.leader_epoch.epoch
        following = [each for each in others if self.heard[each] <= epoch or self.heard[each] in own_epochs]
        goes_on = led is not None and replica.may_append and 2 * len(following) > len(latest.voters)
        return not goes_on or (request.is_transfer and candidate in peers.alive)

    def elect(self) -> None:
        """Have the others vote for this replica, if it has asked them."""
        election, replica = self.log.replica.elections.state.election, self.log.replica
        if election is None:
            return
        end = EpochEnd(replica.latest.leader_epoch, replica.local_epochs.end_of(replica.latest.leader_epoch))
        asked = election.leader_epoch
        vote = Vote(self.log.name, asked, end, (REPLICAS,), replica.latest.leader_epoch)
        for broker in "abc".replace(self.own, ""):
            self.votes[asked.epoch].add(broker)
            self.heard[broker] = max(self.heard[broker], asked.epoch)
            self.do(lambda logs, _: logs.record_control(broker, vote))  # noqa: B023
        self.write()

    def transfer(self) -> None:
        replica, leader = self.log.replica, self.log.replica.leader
        requester = self.draw.choice(["", *REPLICAS])
        order = self.log.replica.elections.peers.rank_writable()
        should_lead = order[:1] == [self.own] or (self.own in order and requester == leader)
        state, is_whole = replica.elections.state, replica.local_epochs.is_complete(replica.latest.leader_epoch)
        may_ask = isinstance(state, Follower) and is_whole and leader not in {"", self.own}
        self.do(lambda logs, log: logs.transfer_leadership(log, requester))
        assert (replica.elections.state is not state) == (should_lead and may_ask), "preferred, or asked to lead"

    def change_replicas(self) -> None:
        replicas = self.draw.sample(REPLICAS, self.draw.choice([2, 3, 3]))
        replica = self.log.replica
        state, may_change = replica.elections.state, replica.may_append and self.own in replicas
        self.do(lambda logs, log: logs.change_replicas(log, replicas, 0))
        assert (replica.elections.state is not state) == may_change

    def describe(self, log: ReplicatedLog) -> object:
        replica = log.replica
        starts = replica.epoch_tree.starts.keys()
        lease = replica.heard_since({"a": 1.0, "b": 2.0, "c": 3.0}.__getitem__)
        return replica.led_epoch, replica.leader, replica.high_watermark, replica.in_sync(), lease, starts


def test_a_replica_keeps_its_promises_and_decides_the_same_if_it_rests_while_nothing_can_change() -> None:
    rests, counts = 0, Counter[str]()
    for seed in range(200):
        twins = Twins(seed)
        steps = [twins.store, twins.acknowledge, twins.acknowledge, twins.write, twins.write, twins.write]
        steps += [
            twins.hear,
            twins.hear,
            twins.elect,
            twins.elect,
            twins.change_alive,
            twins.prefer,
            twins.set_unreadable,
            twins.transfer,
        ]
        for _ in range(60):
            twins.draw.choice([*steps, twins.set_unreadable, twins.transfer, twins.change_replicas])()
            for _ in range(twins.draw.randrange(4)):
                twins.tick()
                assert twins.describe(twins.logs[0]) == twins.describe(twins.logs[1]), f"seed {seed}"
        rests += twins.rests
        counts += twins.counts
    assert rests > 1200
    assert counts.keys() == {each.__name__ for each in EFFECTS}
    assert min(counts.values()) > 40
