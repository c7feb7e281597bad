"""The replicated logs of one broker: their state machines, and what the broker stores of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import starmap
from math import inf
from typing import NamedTuple

import attrs

from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, EpochAddress, name_log, parse_address
from dafka.broker.core.positions import FIRST_SEQUENCE, Offset, RecordSequence
from dafka.broker.core.replication.checkpoints import Checkpoint
from dafka.broker.core.replication.effects import ReplicaAction
from dafka.broker.core.replication.local_log import LocalLog
from dafka.broker.core.replication.records import ControlRecord, EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.records import Partition, RecordBatch

OBSERVED_IN_SYNC_S = 0.2
"""For how many seconds learners of an observed log must be in sync before they become voters: it is short."""


def is_obsolete(record: ControlRecord, epoch: int) -> bool:
    """Return whether a control record is obsolete, now that a leader epoch has begun."""
    return not isinstance(record, EpochStart) and record.leader_epoch.epoch < epoch


@attrs.frozen
class FetchRecords:
    """Fetch records of a partition that are not stored here."""

    partition: Partition
    end_sequence: RecordSequence = FIRST_SEQUENCE  # 0 if this broker only knows that records are missing


class LogAction(NamedTuple):
    """An action that the state machine of a log asks for."""

    log: ReplicatedLog
    action: ReplicaAction | FetchRecords


@attrs.define(eq=False)
class ReplicatedLog:
    """A log that is or was replicated by several brokers: its state machine, and what this broker stores of it."""

    topic: str
    topic_id: str
    number: int
    name: str  # unique among all logs
    replica: Replica
    local_log: LocalLog

    def index_partition(self, leader_epoch: LeaderAndEpoch) -> Partition:
        """Return the partition of the index of an epoch."""
        return Partition(
            INDEX_TOPIC, str(EpochAddress(leader_epoch.leader, self.topic_id, self.number, leader_epoch.epoch))
        )

    def leader_partition(self, leader_epoch: LeaderAndEpoch) -> Partition:
        """Return the partition of the records that clients appended through the leader of an epoch."""
        return Partition(
            self.topic, str(EpochAddress(leader_epoch.leader, self.topic_id, self.number, leader_epoch.epoch))
        )

    def find_missing_indexes(self) -> list[Partition] | None:
        """Return the indexes of the epochs before the latest one that are not stored up to their ends.

        Return None if the start of an epoch is not known yet.
        """
        chain = self.replica.epoch_tree.chain(self.replica.latest.parent)
        if chain is None:
            return None
        known = self.local_log.known_ends()
        return [self.index_partition(epoch) for epoch, end in chain if known.get(epoch, 0) < end]


class ReplicatedLogs:
    """The replicated logs of one broker.

    `number` returns the number of the broker, and `durable_end` the sequence after the last stored record of a
    partition. Each topic's `availability` replaces the one in the settings. This broker also stores the logs of
    `observed_topics` that it is no replica of. The votes and the acknowledgements of `forgotten` brokers do not count.
    """

    def __init__(
        self,
        address: str,
        number: Callable[[], int],
        durable_end: Callable[[Partition], int],
        settings: ReplicaSettings,
        *,
        observed_topics: frozenset[str] = frozenset(),
        forgotten: Collection[str] = frozenset(),
    ) -> None:
        self.observed_topics = observed_topics
        self._forgotten = forgotten
        self._address = address
        self._number = number
        self._durable_end = durable_end
        self._settings = settings
        self._shared: dict[tuple[Availability, bool], ReplicaSettings] = {}
        self._logs: dict[str, ReplicatedLog] = {}
        self._control: dict[str, list[tuple[str, ControlRecord]]] = {}
        self._alive: frozenset[str] = frozenset((address,))
        self._unwritable: frozenset[str] = frozenset()
        self._unreadable: Mapping[str, frozenset[str]] = {}
        self._waiting: dict[Partition, set[ReplicatedLog]] = {}
        self._incomplete: dict[ReplicatedLog, None] = {}
        self._active: dict[ReplicatedLog, None] = {}
        self._settled_until: dict[ReplicatedLog, float] = {}
        self._changed: dict[ReplicatedLog, None] = {}
        self._advanced_at = -inf

    def __iter__(self) -> Iterator[ReplicatedLog]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    def find(self, name: str) -> ReplicatedLog | None:
        """Return the log with a name; None if it is not replicated."""
        return self._logs.get(name)

    def find_partition(self, partition: Partition) -> tuple[ReplicatedLog, LeaderAndEpoch] | None:
        """Return the log and the leader epoch of a partition of records or of an index; None if it has none."""
        address = parse_address(partition.address)
        log = None if address is None else self._logs.get(address.log_name)
        if address is None or log is None or partition.topic not in {INDEX_TOPIC, log.topic}:
            return None
        return log, LeaderAndEpoch(address.epoch, address.leader)

    def record_control(self, broker: str, record: ControlRecord) -> list[LogAction]:
        """Process a control record of this broker or of another one.

        An epoch that a forgotten broker has begun counts: others have elected it, and logs can continue the epoch.
        """
        if broker in self._forgotten and not isinstance(record, EpochStart):
            return []
        recorded = self._control.setdefault(record.log, [])
        if isinstance(record, EpochStart):
            recorded[:] = [each for each in recorded if not is_obsolete(each[1], record.leader_epoch.epoch)]
        recorded.append((broker, record))
        log = self._logs.get(record.log)
        if log is None:
            return []
        is_own = broker == self._address
        replica = self._wake_up(log)
        found = replica.elections.written(record) if is_own else replica.receive(broker, record)
        actions = self._actions(log, found)
        return [*actions, *self.fetch_missing([log])] if isinstance(record, EpochStart) else actions

    def known_start(self, name: str) -> EpochStart | None:
        """Return the start of the latest leader epoch of a log that a control record starts; None if there is none."""
        starts = (each for _, each in self._control.get(name, ()) if isinstance(each, EpochStart))
        return max(starts, key=lambda each: each.leader_epoch, default=None)

    def known_epoch(self, name: str) -> int:
        """Return the latest leader epoch of a log that a control record starts; -1 if there is none."""
        start = self.known_start(name)
        return -1 if start is None else start.leader_epoch.epoch

    def has_control(self, name: str) -> bool:
        """Return whether there are control records of a log."""
        return name in self._control

    def add(
        self,
        topic: Topic,
        number: int,
        replicas: Iterable[str],
        index: Iterable[RecordBatch],
        checkpoints: Mapping[Partition, Checkpoint] | None = None,
    ) -> ReplicatedLog:
        """Add a log, with the replicas of its first leader epoch. The caller must call `resume` next.

        It begins with the checkpoints whose records the storage has, by partition of an index, and with the stored
        index records that no checkpoint covers.
        """
        availability = Availability(topic.settings.get("availability", Availability.MAJORITY.value))
        settings = self._settings_of(availability, is_observed=topic.name in self.observed_topics)
        name = name_log(topic.topic_id, number)
        replica = Replica(name, self._address, self._number(), replicas, settings, topic.first_epoch)
        local_log = LocalLog(topic.name, topic.topic_id, number, self._durable_end, availability is Availability.BRANCH)
        log = self._logs[name] = ReplicatedLog(topic.name, topic.topic_id, number, name, replica, local_log)
        control = self._control.get(name, ())
        own = [record for broker, record in control if broker == self._address]
        replica.elections.restore(own, [(broker, record) for broker, record in control if broker != self._address])
        for partition, checkpoint in (checkpoints or {}).items():
            if found := self.find_partition(partition):
                local_log.restore(found[1], checkpoint)
        for batch in index:
            self._add_index(log, batch)
        for _ in local_log.advance():
            pass
        replica.restore_local(local_log.ends())
        replica.local_epochs.log_start = local_log.next_start
        self._wait(log)
        return log

    def _settings_of(self, availability: Availability, *, is_observed: bool) -> ReplicaSettings:
        """Return the settings of some logs, which share them, to save memory."""
        if (found := self._shared.get((availability, is_observed))) is None:
            found = attrs.evolve(self._settings, availability=availability)
            if is_observed:
                found = attrs.evolve(found, learners_in_sync_s=OBSERVED_IN_SYNC_S)
            self._shared[availability, is_observed] = found
        return found

    def resume(self, log: ReplicatedLog, now: float) -> list[LogAction]:
        """Begin to take part: lead the log if this broker is its leader, or request votes if it has none."""
        found = [*log.replica.resume(), *log.replica.set_alive(self._alive, now, self._unusable(log))]
        return [*self._actions(log, found), *self.fetch_missing([log])]

    def remove(self, name: str) -> None:
        """Remove a log whose topic is deleted or hidden. Its control records stay; see `forget_control`."""
        log = self._logs.pop(name, None)
        if log is not None:
            self._active.pop(log, None)
            self._changed.pop(log, None)
            self._settled_until.pop(log, None)
            self._incomplete.pop(log, None)
            self._forget_waiting(log)

    def forget_control(self, name: str) -> None:
        """Forget the control records of a log whose topic is deleted."""
        self._control.pop(name, None)

    def drop(self, log: ReplicatedLog) -> None:
        """Forget what this broker stored of a log, because it is deleted; see `Replica.may_drop`."""
        log.local_log.clear()
        self._wake_up(log).restore_local({})
        log.replica.local_epochs.log_start = log.local_log.next_start
        self._forget_waiting(log)
        self._touch(log)

    def stored(self, batches: Iterable[RecordBatch]) -> tuple[Collection[ReplicatedLog], list[LogAction]]:
        """Record that records are durable here: of indexes, or records that indexes name.

        Return the logs that can have advanced, and the actions.
        """
        changed: dict[ReplicatedLog, None] = {}
        indexed: dict[ReplicatedLog, None] = {}
        for batch in batches:
            partition = batch.partition
            if partition.topic == INDEX_TOPIC:
                found = self.find_partition(partition)
                if found is not None:
                    self._add_index(found[0], batch)
                    changed[found[0]] = indexed[found[0]] = None
            elif partition in self._waiting:
                changed.update(dict.fromkeys(self._waiting.pop(partition)))
        actions: list[LogAction] = []
        for log in changed:
            log.replica.local_epochs.log_start = log.local_log.next_start
            for leader_epoch, end_offset in log.local_log.advance():
                effects = self._wake_up(log).stored(leader_epoch, end_offset)
                if not effects and leader_epoch == log.replica.acknowledged_log_end.leader_epoch:
                    effects = log.replica.repeat_acknowledgement()  # the leader waits for index records without records
                actions += self._actions(log, effects)
            self._wait(log)
        return changed, actions + self.fetch_missing([log for log in indexed if log in self._incomplete])

    def acknowledged(self, broker: str, partition: Partition, index_end: RecordSequence) -> list[LogAction]:
        """Process the acknowledgement of index records before `index_end` by another replica."""
        found = self.find_partition(partition)
        if found is None or broker in self._forgotten:
            return []
        log, leader_epoch = found
        end_offset = log.local_log.offset_at(leader_epoch, index_end)
        if end_offset is None:  # it acknowledges something of this epoch, so it stores everything before
            start = log.replica.epoch_tree.starts.get(leader_epoch)
            if start is None:
                return []
            end_offset = start.parent.end_offset
        return self._actions(log, self._wake_up(log).acknowledged(broker, leader_epoch, end_offset, index_end))

    def has_committed_index(self, log: ReplicatedLog, index_end: RecordSequence) -> bool:
        """Return whether this broker leads a log, and enough replicas store the index of its epoch up to a sequence."""
        led_epoch = log.replica.led_epoch
        if led_epoch is None:
            return False
        return log.replica.has_committed_index(log.local_log.acknowledged_end(led_epoch), index_end)

    def announced(self, partition: Partition, offset: Offset) -> list[LogAction]:
        """Process the high watermark of a log that the leader with this index partition has announced."""
        found = self.find_partition(partition)
        if found is None:
            return []
        log, leader_epoch = found
        return self._actions(log, self._wake_up(log).announced(leader_epoch, offset))

    def repeat_acknowledgement(self, partition: Partition) -> list[LogAction]:
        """Acknowledge the index records of a partition again: their leader can have missed it."""
        found = self.find_partition(partition)
        if found is None or found[1] != found[0].replica.acknowledged_log_end.leader_epoch:
            return []
        return self._actions(found[0], found[0].replica.repeat_acknowledgement())

    def set_alive(
        self, brokers: Collection[str], now: float, unwritable: frozenset[str] = frozenset()
    ) -> list[LogAction]:
        """Set the brokers that are alive, and those of them that cannot write; see `Replica.set_alive`."""
        returned = set(brokers) - self._alive
        self._alive, self._unwritable = frozenset(brokers), unwritable
        actions: list[LogAction] = []
        for log in list(self._logs.values()):
            found = self._wake_up(log).set_alive(self._alive, now, self._unusable(log))
            if log.replica.leader in returned:
                found += log.replica.repeat_acknowledgement()
            actions += self._actions(log, found)
        self._advanced_at = now
        return actions

    def advance(self, now: float) -> list[LogAction]:
        """Advance the time of the logs that wait for something."""
        for log in [log for log, until in self._settled_until.items() if until <= now]:
            self._wake_up(log)
            self._active[log] = None
        active, self._active = self._active, {}
        self._advanced_at = now
        actions: list[LogAction] = []
        for log in active:
            found = log.replica.elections.advance(now)
            until = log.replica.settled_until
            if found or until <= now:
                actions += self._actions(log, found)
            if now < until < inf:
                self._settled_until[log] = until
            else:
                self._settled_until.pop(log, None)
        return actions

    def _wake_up(self, log: ReplicatedLog) -> Replica:
        """Return the replica of a log, and wake it up if it was settled."""
        if log not in self._active:
            log.replica.elections.idle(self._advanced_at)
        return log.replica

    @property
    def active(self) -> list[ReplicatedLog]:
        """The logs with events since the last `advance`, and the logs that wait for something."""
        return list(self._active)

    def take_changed(self) -> list[ReplicatedLog]:
        """Return the logs that can have changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def set_unreadable(self, brokers: Mapping[str, frozenset[str]], now: float) -> list[LogAction]:
        """Set the brokers that cannot read a log in their storage, by the name of the log. They do not vote there."""
        before, self._unreadable = self._unreadable, brokers
        changed = {name for name in {*before, *brokers} if before.get(name) != brokers.get(name)}
        logs = [self._logs[each] for each in sorted(changed) if each in self._logs]
        return [
            action
            for log in logs
            for action in self._actions(log, self._wake_up(log).set_alive(self._alive, now, self._unusable(log)))
        ]

    def _unusable(self, log: ReplicatedLog) -> frozenset[str]:
        return self._unwritable | self._unreadable.get(log.name, frozenset())

    def set_preferences(
        self, log: ReplicatedLog, preferred: tuple[str, ...], ineligible_leaders: frozenset[str]
    ) -> None:
        """Set the brokers that are preferred as leaders of a log; see `LeaderPreference`."""
        if log.replica.preference.set(preferred, ineligible_leaders):
            self._wake_up(log)
            self._touch(log)

    def transfer_leadership(self, log: ReplicatedLog, requester: str = "") -> list[LogAction]:
        """Request the leadership of a log, if this broker should have it; see `Elections.transfer_leadership`."""
        return self._actions(log, self._wake_up(log).elections.transfer_leadership(requester))

    def change_replicas(self, log: ReplicatedLog, replicas: Iterable[str], generation: int) -> list[LogAction]:
        """Change the replicas of a log that this broker leads; see `Elections.change_replicas`."""
        return self._actions(log, self._wake_up(log).elections.change_replicas(replicas, generation))

    def recover(self, log: ReplicatedLog, generation: int) -> list[LogAction]:
        """Continue a log with this replica alone; see `Elections.recover`."""
        return self._actions(log, self._wake_up(log).elections.recover(generation))

    def renumber(self, number: int) -> None:
        """Set the number of this broker, which has changed."""
        for log in self._logs.values():
            log.replica.elections.renumber(number)

    def keeps(self, partition: Partition) -> bool | None:
        """Return whether this broker stores a partition; None if the partition is not of a replicated log."""
        found = self.find_partition(partition)
        return None if found is None else self.keeps_log(found[0])

    def keeps_log(self, log: ReplicatedLog) -> bool:
        """Return whether this broker stores a log: as a replica, or because all brokers observe it."""
        return log.replica.is_needed or log.topic in self.observed_topics

    def is_joining(self, partition: Partition) -> bool:
        """Return whether a partition is fetched only so that this broker becomes an additional replica of a log."""
        found = self.find_partition(partition)
        return found is not None and found[0].replica.is_joining

    def epoch_starts(self, name: str) -> list[EpochStart]:
        """Return the epoch starts of a log, by epoch."""
        log = self._logs.get(name)
        starts = {} if log is None else log.replica.epoch_tree.starts
        return [starts[leader_epoch] for leader_epoch in sorted(starts)]

    def _add_index(self, log: ReplicatedLog, batch: RecordBatch) -> None:
        address = parse_address(batch.partition.address)
        assert address is not None
        values = [value or b"" for value in batch.values]
        leader_epoch = LeaderAndEpoch(address.epoch, address.leader)
        log.local_log.add_index(leader_epoch, RecordSequence(batch.first_sequence), values)

    def _wait(self, log: ReplicatedLog) -> None:
        for partition in log.local_log.missing():
            self._waiting.setdefault(partition, set()).add(log)

    def repeat_fetches(self) -> list[LogAction]:
        """Fetch again the missing records of all logs. Call it from time to time."""
        return self.fetch_missing({*self._incomplete, *(log for logs in self._waiting.values() for log in logs)})

    def fetch_missing(self, logs: Iterable[ReplicatedLog]) -> list[LogAction]:
        """Fetch the records that this replica misses before the starts of the latest epochs of some logs.

        Other brokers do not know that they are missing, and the brokers that wrote them can be dead.
        """
        actions: list[LogAction] = []
        for log in logs:
            found = [LogAction(log, each) for each in self._find_missing(log)]
            actions += found
            if found:
                self._incomplete[log] = None
            else:
                self._incomplete.pop(log, None)
        return actions

    def _find_missing(self, log: ReplicatedLog) -> Iterator[FetchRecords]:
        replica = log.replica
        if not self.keeps_log(log):
            return
        yield from starmap(FetchRecords, log.local_log.missing().items())
        if not replica.local_epochs.is_complete(replica.latest.leader_epoch):
            yield from map(FetchRecords, log.find_missing_indexes() or ())

    def _forget_waiting(self, log: ReplicatedLog) -> None:
        for waiting in self._waiting.values():
            waiting.discard(log)

    def _touch(self, log: ReplicatedLog) -> None:
        if self._logs.get(log.name) is log:
            self._active[log] = self._changed[log] = None

    def _actions(self, log: ReplicatedLog, actions: Iterable[ReplicaAction]) -> list[LogAction]:
        self._touch(log)
        return [LogAction(log, action) for action in actions]
