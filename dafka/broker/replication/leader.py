"""Runs the leadership of logs: begins epochs, and follows logs for local readers."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr, share_replicas
from dafka.broker.core.positions import OFFSET_MAX, Offset, RecordSequence
from dafka.broker.core.replication.records import EpochEnd, EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.replicated_logs import LogAction, ReplicatedLog
from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.tables import BrokerTables
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.index_reader import continue_log, restore_log
from dafka.broker.log.own_partitions import OwnPartitions
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.replication.divergent_records import DivergentRecords
from dafka.broker.replication.membership import Membership
from dafka.broker.replication.pending_logs import READ_AGAIN_S, PendingLogs
from dafka.errors import StorageError
from dafka.records import Partition

_LOGGER = logging.getLogger("dafka.broker")

IN_SYNC_S = 5.0
"""How long a replica that misses records still counts as in sync, in seconds."""

PLACED_RECORDS = 100_000
"""How many records of a producer partition get offsets in one batch when a broker begins to lead a log."""

HELD_S = 0.2
"""Seconds between two checks whether a new leader still leads, while it waits for records before its epoch."""


class LedLogs:
    """Leads logs, and follows other logs for readers. `divergent` merges the records of other epochs into led logs.

    `membership` sends heartbeats between the steps of long work. `act` executes the effects of replicas.
    """

    def __init__(
        self,
        tables: BrokerTables,
        storage: BrokerStorage,
        own: OwnPartitions,
        watchers: LogWaiters,
        membership: Membership,
        act: Callable[[Iterable[LogAction]], None],
    ) -> None:
        self._log_table = tables.log_table
        self._brokers = tables.brokers
        self._logs = tables.logs
        self._storage = storage
        self._own = own
        self._watchers = watchers
        self._act = act
        self._membership = membership
        self._has_racks = bool(tables.brokers.own.rack)
        self._epoch_counts: dict[str, int] = {}
        self.changes = 0
        """How often the leadership of any log has changed, as clients see it."""
        self._leader_changes: dict[Log, trio.Event] = {}
        self._ready_from: dict[str, int] = {}
        self._locks: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._missing: dict[str, trio.Event] = {}
        self.divergent = DivergentRecords(tables, storage)
        self._followed: dict[str, LeaderAndEpoch] = {}
        self._to_follow = PendingLogs[str]()

    async def run(self) -> None:
        """Merge and follow logs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.divergent.run)
            nursery.start_soon(self._follow)

    def is_ready(self, log: ReplicatedLog) -> bool:
        """Return whether everything before the start of this leadership is committed."""
        return log.name in self._ready_from and log.replica.high_watermark >= self._ready_from[log.name]

    def is_followed(self, log: ReplicatedLog, epoch: LeaderAndEpoch) -> bool:
        """Return whether clients can read a log here that another broker leads."""
        return self._followed.get(log.name) == epoch

    def forget(self, name: str) -> None:
        """Forget a log whose records are deleted here. Clients cannot read it any more."""
        self._followed.pop(name, None)
        self._ready_from.pop(name, None)
        self.divergent.forget(name)
        self._to_follow.discard(name)
        self._epoch_counts.pop(name, None)
        if name in self._locks and not self._locks[name].locked():
            del self._locks[name]
        if name in self._missing:
            self._missing.pop(name).set()

    def keep_leading(self, log: ReplicatedLog, state: Log) -> None:
        """Continue to lead a log that other brokers replicate from now on."""
        self._ready_from[log.name] = 0
        self._own.lead(state)

    def record_stored(self, logs: Iterable[ReplicatedLog]) -> None:
        """Wake up tasks that wait for more records of these logs."""
        for log in logs:
            if log.name in self._missing:
                self._missing.pop(log.name).set()
            self.record_index_stored(log)

    def record_index_stored(self, log: ReplicatedLog) -> None:
        """Wake up the task that moves the start of a log: more replicas can store the decision."""
        state = self._log_table.find_log(log.topic, log.number, log.topic_id)
        if state is not None and state.next_start and state.next_start > state.index.start_offset:
            self._watchers.notify(state)

    def move_high_watermark(self, log: ReplicatedLog, offset: Offset) -> None:
        """Apply a new high watermark to a log."""
        state = self._log_table.find_log(log.topic, log.number, log.topic_id)
        if state is None:
            return
        if log.replica.led_epoch is None:  # for readers it moves after the index was followed
            self._follow_later(log)
        else:
            self._show_acknowledged(state, log)

    def _show_acknowledged(self, state: Log, log: ReplicatedLog) -> None:
        """Show readers and the index of a log that this broker leads how far the other replicas have it."""
        if state.can_diverge:
            state.shared_offset = log.replica.shared_end
        self._show_high_watermark(state, log.replica.high_watermark)
        if state.high_watermark:
            state.drop_shared_batches()

    def _show_high_watermark(self, state: Log, offset: Offset) -> None:
        if offset != state.high_watermark:
            state.high_watermark = offset
            self._watchers.notify(state)

    # Leadership as clients see it

    def refresh_all(self, logs: Iterable[ReplicatedLog]) -> None:
        """Update the leadership that clients see of logs."""
        for log in logs:
            self.refresh(log)
            self._membership.send_heartbeat_if_due()

    def refresh(self, log: ReplicatedLog) -> None:
        """Update the leadership that clients see of a log."""
        state = self._log_table.find_log(log.topic, log.number, log.topic_id)
        if state is None:
            return
        replica = log.replica
        epoch = replica.latest.leader_epoch
        has_begun = replica.led_epoch == epoch and self._log_table.leads(state)
        may_serve = replica.may_serve(self._brokers.unwritable) and self._hears_quorum(log)
        is_led = has_begun and self.is_ready(log) and may_serve
        leader = replica.leader if self._brokers.is_alive(replica.leader) else ""
        if leader == self._brokers.own.address and not is_led:
            leader = ""
        presumed_leader = "" if leader or replica.is_quorum_active else epoch.leader
        learners = replica.latest.learners
        in_sync = tuple(each for each in replica.in_sync(within_s=IN_SYNC_S) if each not in learners)
        replicas = share_replicas(replica.preference.rank(replica.replicas))  # Kafka's tools prefer the first one
        is_readable = self._has_racks if is_led else self.is_followed(log, epoch)
        found = LeaderAndIsr(leader, epoch.epoch, is_led, replicas, in_sync, is_readable, presumed_leader, learners)
        if is_led:  # a follower does not notify readers
            self._show_acknowledged(state, log)
        if replica.availability is Availability.BRANCH and (is_led or is_readable):
            epoch_count = len(replica.epoch_tree.starts)
            if epoch_count != self._epoch_counts.get(log.name):
                self._epoch_counts[log.name] = epoch_count
                state.divergences = replica.epoch_tree.divergences(EpochEnd(epoch, OFFSET_MAX))
        if not is_led and not is_readable:
            self._follow_later(log)  # the high watermark does not move if nothing is appended
        if found != state.leadership:
            if is_led and not state.leadership.is_led:
                self.divergent.merge_later([log])
            if is_led != state.leadership.is_led:
                change = "leads" if is_led else "no longer leads"
                _LOGGER.info("%s log %d of %s, leader epoch %d", change, log.number, log.topic, epoch.epoch)
            self.set_leadership(state, found)

    def _hears_quorum(self, log: ReplicatedLog) -> bool:
        """Return whether this broker has just heard most voters of a log, also after it has stalled."""
        voters = log.replica.latest.voters
        is_heard = 2 * len(self._brokers.heard.intersection(voters)) > len(voters)
        return is_heard or log.replica.availability is Availability.BRANCH

    def set_leadership(self, log: Log, leadership: LeaderAndIsr) -> None:
        """Set the leadership that clients see of a log, and notify its waiters."""
        log.leadership = leadership
        self.changes += 1
        self._watchers.notify(log)
        self._leader_changes.pop(log, trio.Event()).set()

    def update_racks(self) -> None:
        """Update who can read logs here after a broker has registered: clients read from their own rack."""
        has_racks = any(each.rack for each in self._brokers.all())
        if has_racks != self._has_racks:
            self._has_racks = has_racks
            self.refresh_all(self._logs)

    async def wait_leadership(self, log: Log) -> None:
        """Wait until the leadership of a log changes or the log is gone."""
        if log.is_gone:
            await trio.lowlevel.checkpoint()
            return
        await self._leader_changes.setdefault(log, trio.Event()).wait()

    # Leading

    async def lead(self, log: ReplicatedLog, start: EpochStart) -> None:
        """Begin to lead a log, after all records before the epoch are stored here."""
        async with self._locks[log.name]:
            while not self._has_all_before(log, start):
                if log.replica.led_epoch != start.leader_epoch or self._logs.find(log.name) is not log:
                    return
                self._act(self._logs.fetch_missing([log]))
                with trio.move_on_after(HELD_S):
                    await self._missing.setdefault(log.name, trio.Event()).wait()
            state = self._log_table.find_log(log.topic, log.number, log.topic_id)
            if state is None or log.replica.led_epoch != start.leader_epoch or self._log_table.leads(state):
                return
            try:
                self._followed.pop(log.name, None)
                self._log_table.begin_epoch(state, start.leader_epoch.epoch)
                await restore_log(self._storage.storage, log, state, start.leader_epoch, is_whole=True)
                state.next_start = max(state.next_start, start.log_start)
            except StorageError as error:
                _LOGGER.warning("cannot lead the log %s of %s: %s", log.number, log.topic, error)
                return
            if log.replica.led_epoch != start.leader_epoch or state.is_gone:
                return
            self._log_table.finish_epoch(state, self._storage.ends(state.topic), self._storage.earliest(state.topic))
            self._ready_from[log.name] = state.index.end_offset
            self._own.lead(state)
            self._storage.write()
            self._act(LogAction(log, each) for each in log.replica.repeat_acknowledgement())
            self.refresh(log)
            self.divergent.merge_later([log])
        await self.catch_up(state)

    def _has_all_before(self, log: ReplicatedLog, start: EpochStart) -> bool:
        chain = log.replica.epoch_tree.chain(start.parent)
        if chain is None:
            return False
        ends = log.local_log.ends()
        return all(ends.get(each.leader_epoch, 0) >= each.end_offset for each in chain)

    async def catch_up(self, state: Log) -> None:
        """Assign offsets to records of producer partitions that arrived before this broker led the log."""
        await self._storage.wait_durable()  # some records can be on their way to the storage
        while state.backfill and self._log_table.leads(state):
            for address in list(state.backfill):
                partition, scanned_until = Partition(state.topic, address), state.backfill.get(address)
                end = self._storage.durable_end(partition)
                if scanned_until is None or scanned_until >= end:
                    state.backfill.pop(address, None)
                    continue
                try:
                    batch = await self._storage.storage.read(partition, scanned_until, PLACED_RECORDS)
                except StorageError as error:
                    _LOGGER.warning("cannot give the records of %s their offsets yet: %s", partition, error)
                    await trio.sleep(READ_AGAIN_S)
                    continue
                if batch is None:
                    state.backfill[address] = RecordSequence(end)
                elif self._log_table.leads(state):
                    await self._storage.assign_offsets(state, batch)

    async def catch_up_oldest_first(self, state: Log) -> None:
        """Catch up with a new topic, beginning with the producer partitions that have been stored for longest."""
        if len(state.backfill) > 1:
            with suppress(StorageError):  # any order is right
                infos = await self._storage.storage.partitions(state.topic)
                stored_at = {each.address: info.earliest_stored_at or 0 for each, info in infos.items()}
                ordered = sorted(state.backfill, key=lambda address: stored_at.get(address, 0))
                state.backfill = {each: state.backfill[each] for each in ordered}
        await self.catch_up(state)

    # Following

    def _follow_later(self, log: ReplicatedLog) -> None:
        """Follow a log that another broker leads, if it is read here: by clients of this rack, or by this broker."""
        is_read = bool(self._brokers.own.rack) or log.topic in self._logs.observed_topics
        if is_read and log.replica.led_epoch is None:
            self._to_follow.put(log.name)

    async def _follow(self) -> None:
        while True:
            for name in await self._to_follow.take():
                log = self._logs.find(name)
                state = None if log is None else self._log_table.find_log(log.topic, log.number, log.topic_id)
                if log is not None and state is not None:
                    async with self._locks[name]:
                        if not state.is_gone:
                            await self._follow_log(log, state)
            await trio.lowlevel.checkpoint()

    async def _follow_log(self, log: ReplicatedLog, state: Log) -> None:
        epoch = log.replica.latest.leader_epoch
        if log.replica.led_epoch is not None or not log.replica.local_epochs.is_complete(epoch):
            return
        arguments = (self._storage.storage, log, state, epoch)
        try:
            if self._followed.get(log.name) == epoch:
                await continue_log(*arguments)
            else:
                self._followed.pop(log.name, None)
                self._log_table.begin_epoch(state, epoch.epoch)
                await restore_log(*arguments, is_whole=False)
                self._followed[log.name] = epoch
        except StorageError as error:
            _LOGGER.warning("cannot follow the log %s of %s yet: %s", log.number, log.topic, error)
            self._to_follow.put_failed(log.name)
            return
        if not state.is_gone and log.replica.led_epoch is None:
            self._show_high_watermark(state, min(log.replica.high_watermark, state.index.end_offset))
            self.refresh(log)
