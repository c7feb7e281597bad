"""One replica of one log: who leads it, up to where it is stored here, and what is committed.

`Elections` decides who leads. `Replica` acknowledges what is stored here, and commits what enough replicas have
acknowledged.

Why no record that more than half of the replicas have acknowledged is lost (`Availability.MAJORITY`): an epoch begins
with the votes of more than half of the replicas. A replica acknowledges a record only while it has voted for no later
epoch. So each set of votes includes one whose log has the record, and the new epoch continues the longest log of the
latest epoch among the votes. After a change of replicas, an election needs a quorum of each voter set that can have
committed records which no vote includes. `docs/explanation/replication-safety.md` has the whole argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from dafka.broker.core.metadata.log_replicas import recovery_of
from dafka.broker.core.positions import FIRST_OFFSET, FIRST_SEQUENCE, UNKNOWN_OFFSET, Offset, RecordSequence
from dafka.broker.core.replication.effects import Acknowledge, AdvanceHighWatermark, ReplicaAction
from dafka.broker.core.replication.elections import Elections
from dafka.broker.core.replication.epoch_tree import EpochTree, LocalEpochs
from dafka.broker.core.replication.high_watermark import HighWatermark
from dafka.broker.core.replication.records import (
    NO_EPOCH,
    NO_EPOCH_END,
    ControlRecord,
    EpochEnd,
    EpochStart,
    LeaderAndEpoch,
)
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.broker.core.replication.states import Leader
from dafka.broker.core.replication.transitions import Transition


class Replica:
    """One replica of one log.

    To start, also for the first time, call `elections.restore` with all control records that this broker stores,
    `restore_local` with the stored end of each epoch, then `resume`.

    `number` is that of this broker, and unique. The first epoch needs no control record; the first of the given
    replicas leads it.
    """

    def __init__(
        self,
        log: str,
        broker: str,
        number: int,
        replicas: Iterable[str],
        settings: ReplicaSettings,
        first_epoch: int = 0,
    ) -> None:
        found = tuple(replicas)
        first = LeaderAndEpoch(first_epoch, found[0])
        self.epoch_tree = EpochTree([EpochStart(log, first, NO_EPOCH_END, found)])
        self.local_epochs = LocalEpochs(self.epoch_tree, first)
        self.elections = Elections(log, broker, number, settings, self.epoch_tree, self.local_epochs)
        self.availability = settings.availability
        self.preference = self.elections.peers.preference
        self._broker = broker
        self._peers = self.elections.peers
        self._mark = HighWatermark(broker, self.epoch_tree, self._peers.progress, self.elections.rule)
        self._acknowledged = NO_EPOCH_END

    # State

    @property
    def led_epoch(self) -> LeaderAndEpoch | None:
        """The leader epoch that this replica leads; None if it leads none."""
        return self.elections.state.led_epoch

    @property
    def latest(self) -> EpochStart:
        """The start of the latest leader epoch."""
        return self._peers.latest

    @property
    def newest(self) -> EpochStart:
        """The epoch start with the newest replicas; see `Peers.newest`."""
        return self._peers.newest

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas, as far as this replica knows."""
        return self._peers.latest.replicas

    @property
    def is_needed(self) -> bool:
        """Whether this broker is a replica: of the latest epoch, or of the next one."""
        return self._broker in self._peers.latest.replicas or self._broker in self._peers.newest.replicas

    @property
    def leader(self) -> str:
        """The leader, as far as this replica knows; empty if there is none."""
        return self._peers.leader

    def has_voted(self, broker: str, epoch: int) -> bool:
        """Return whether a broker has voted for this epoch or a later one."""
        return self.elections.votes.epoch_of(broker) >= epoch

    @property
    def may_append(self) -> bool:
        """Whether this replica leads and stores all records before its epoch."""
        return self.elections.is_complete

    @property
    def high_watermark(self) -> Offset:
        """The offset up to which readers can read from this replica, leader or follower."""
        return self._mark.offset

    @property
    def acknowledged_log_end(self) -> EpochEnd:
        """The last acknowledgement of this replica. A leader can pass it on to its followers: see `acknowledged`."""
        return self._acknowledged

    @property
    def is_joining(self) -> bool:
        """Whether this broker still copies the log to become a replica, and the others have a quorum without it."""
        return self._peers.is_joining

    def has_committed_index(self, own_end: RecordSequence, index_end: RecordSequence) -> bool:
        """Return whether this leader and enough replicas store the index of its epoch up to a sequence.

        This one stores it up to `own_end`.
        """
        led_epoch = self.led_epoch
        if led_epoch is None:
            return False
        ends = {**self._peers.progress.index_ends, self._broker: own_end}
        voters = self.epoch_tree.starts[led_epoch].voters
        return self.elections.rule.committed_end(ends, self._broker, voters, self._peers.writable) >= index_end

    def acknowledged_end(self, broker: str) -> Offset:
        """Return the offset up to which a replica is known to store the latest epoch; -1 if that is unknown."""
        if broker == self._broker:
            return self._acknowledged.end_offset
        return self._peers.progress.ends.get(broker, UNKNOWN_OFFSET)

    @property
    def shared_end(self) -> Offset:
        """The offset up to which all replicas are known to store the latest epoch; 0 if that is unknown."""
        return max(min(map(self.acknowledged_end, self.replicas), default=FIRST_OFFSET), FIRST_OFFSET)

    def behind_s(self, broker: str) -> float:
        """Return for how long a replica has not had all of the log, in seconds; infinity if this one does not know."""
        return self.elections.now - self._peers.progress.caught_up_at(broker)

    def in_sync(self, max_lag: int = 0, within_s: float = 0.0) -> tuple[str, ...]:
        """Return the living replicas that are in sync, as far as the leader knows; none if this one does not lead.

        They lag at most `max_lag` offsets, or were caught up within `within_s` seconds. This one is one of them.
        """
        state = self.elections.state
        if not isinstance(state, Leader):
            return ()
        end_offset = Offset(self.local_epochs.end_of(state.led_epoch) - max_lag)
        return self._peers.in_sync(state, end_offset, self.elections.now, within_s)

    def heard_since(self, heard_since: Callable[[str], float]) -> float:
        """Return since when more than half of the replicas are known to hear this leader and to follow no other one.

        They follow no other leader until they have not heard this one for the time after which a broker counts as dead.
        See `Peers.followed_since`.
        """
        state = self.elections.state
        if not isinstance(state, Leader):
            return float("-inf")
        if self.availability is Availability.BRANCH:
            return float("inf")
        return self._peers.followed_since(state, heard_since)

    @property
    def may_drop(self) -> bool:
        """Whether this broker is no replica, and more than half of the replicas store everything that it could provide.

        To drop the local log, delete it and call `restore_local` without it. Logs with the availability "branch" are
        never dropped: no replica knows whether another one stores every epoch. A replica without which the log was
        recovered is not dropped either: it can have records that no other one has.
        """
        return (
            self.availability is Availability.MAJORITY
            and not self.is_needed
            and self.epoch_tree.has_replica(self._broker, recovery_of(self.newest.generation))
            and self._broker not in self.elections.votes.pending_replicas()
            and self.has_established_replicas
        )

    @property
    def has_established_replicas(self) -> bool:
        """Whether the replicas of the latest epoch can go on without the former ones: more than half have begun it."""
        return self._peers.have_acknowledged_latest()

    def may_serve(self, unwritable: Collection[str]) -> bool:
        """Return whether no other replica can have begun to lead, as far as the heartbeats show.

        `unwritable` are the living brokers that cannot write.
        """
        is_active = self._peers.is_quorum_active or self.availability is Availability.BRANCH
        return is_active and not (self._broker in unwritable and self._peers.can_elect_without(unwritable))

    @property
    def is_quorum_active(self) -> bool:
        """Whether more than half of the replicas are alive, as far as this broker knows."""
        return self._peers.is_quorum_active

    @property
    def settled_until(self) -> float:
        """Until when time alone changes nothing: `elections.advance` need not be called before the next event.

        It is infinity if nothing will change, and minus infinity if `advance` must be called at each tick.
        """
        state, latest = self.elections.state, self.latest
        if not isinstance(state, Leader):
            return self.elections.settled_until
        end = self.local_epochs.end_of(state.led_epoch)
        is_replicated = not latest.learners and all(
            self._peers.acknowledged_end(each, state) >= end for each in latest.replicas if each != self._broker
        )
        return self.elections.settled_until if is_replicated else float("-inf")

    def may_lead(self, broker: str) -> bool:
        """Return whether a replica is alive, can write, and is neither drained, full nor stopping."""
        return broker in self._peers.writable and broker not in self.preference.ineligible_leaders

    def choose_successor(self, candidates: frozenset[str], max_lag_s: float) -> str:
        """Return the replica among some brokers that should lead in place of this leader; empty if there is none.

        It is in sync, or was caught up within a number of seconds, and enough voters are alive to elect it.
        """
        in_sync = self.in_sync(within_s=max_lag_s) if self._peers.can_elect else ()
        suitable = candidates.intersection(in_sync)
        return next((each for each in self._peers.rank_writable() if each in suitable), "")

    @property
    def has_successor(self) -> bool:
        """Whether another replica leads, has everything before its epoch, and this replica has acknowledged it."""
        leader_epoch = self.latest.leader_epoch
        is_acknowledged = self._acknowledged.leader_epoch == leader_epoch
        return self.leader not in {"", self._broker} and is_acknowledged

    def rank_replicas(self) -> list[str]:
        """Return the replicas, the most preferred one first."""
        return self.preference.rank(self.latest.voters)

    # Events

    def restore_local(self, ends: dict[LeaderAndEpoch, Offset]) -> None:
        """Restore what this broker stores of each epoch: the offset after its last index record."""
        self.local_epochs.restore(ends)
        self._mark.reset()

    def resume(self) -> list[ReplicaAction]:
        """Lead again after a restart, if this replica stores the latest epoch and has voted for no later one."""
        actions = self.elections.resume()
        return actions if self.led_epoch is None else [*actions, *self._acknowledge()]

    def receive(self, broker: str, record: ControlRecord) -> list[ReplicaAction]:
        """Process a control record of another broker."""
        actions = self.elections.receive(broker, record)
        return [*actions, *self._acknowledge()] if isinstance(record, EpochStart) else actions

    def stored(self, leader_epoch: LeaderAndEpoch, end_offset: Offset) -> list[ReplicaAction]:
        """Record that index records of an epoch, and the records that they name, are durable here up to an offset."""
        self.local_epochs.add(leader_epoch, end_offset)
        return [*self._acknowledge(), *self._move_high_watermark()]

    def acknowledged(
        self,
        broker: str,
        leader_epoch: LeaderAndEpoch,
        end_offset: Offset,
        index_end: RecordSequence = FIRST_SEQUENCE,
    ) -> list[ReplicaAction]:
        """Process an acknowledgement of another replica, or of this one: up to an offset, and a sequence of the index.

        Every replica can hear the acknowledgements of all: followers use them to advance their high watermark.
        """
        progress, led_epoch = self._peers.progress, self.elections.state.led_epoch
        if leader_epoch.epoch < progress.leader_epoch.epoch or (led_epoch is not None and leader_epoch != led_epoch):
            return []
        progress.add(broker, leader_epoch, end_offset, index_end)
        return self._move_high_watermark()

    def announced(self, leader_epoch: LeaderAndEpoch, offset: Offset) -> list[ReplicaAction]:
        """Process the high watermark that the leader of an epoch has announced."""
        if self.led_epoch is not None:
            return []
        self._mark.announced(leader_epoch, offset)
        return self._move_high_watermark()

    def repeat_acknowledgement(self) -> list[ReplicaAction]:
        """Acknowledge again, because an acknowledgement can be lost."""
        log_end = self._acknowledged
        self._acknowledged = EpochEnd(log_end.leader_epoch, UNKNOWN_OFFSET)
        actions = self._acknowledge()
        self._acknowledged = max(log_end, self._acknowledged)
        return actions

    def set_alive(
        self, brokers: Collection[str], now: float, unwritable: frozenset[str] = frozenset()
    ) -> list[ReplicaAction]:
        """Set the brokers that are alive, as far as this one knows. It is one of them.

        Unwritable ones can neither vote nor acknowledge.
        """
        return [*self.elections.set_alive(frozenset(brokers), now, unwritable), *self._move_high_watermark()]

    # Acknowledgements

    def _acknowledge(self) -> list[ReplicaAction]:
        """Acknowledge the log if it has grown, unless this replica has voted for a later epoch than its last one."""
        log_end = self.local_epochs.log_end()
        if (
            log_end.leader_epoch == NO_EPOCH
            or log_end.leader_epoch.epoch < self.elections.votes.own_epoch
            or log_end == self._acknowledged
        ):
            return []
        if log_end.leader_epoch != self._acknowledged.leader_epoch:
            self.elections.record_new_epoch(log_end.leader_epoch)
        self._acknowledged = log_end
        if log_end.leader_epoch.leader == self._broker:
            return self.acknowledged(self._broker, log_end.leader_epoch, log_end.end_offset)
        acknowledge = Acknowledge(log_end.leader_epoch, log_end.end_offset)
        return self.elections.take(Transition.ACKNOWLEDGE, self.elections.state, acknowledge)

    def _move_high_watermark(self) -> list[ReplicaAction]:
        if not self._mark.move(self.local_epochs.log_end(), self._acknowledged, self._peers.writable):
            return []
        return self.elections.take(Transition.COMMIT, self.elections.state, AdvanceHighWatermark(self._mark.offset))
