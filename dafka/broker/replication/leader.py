"""The logs that a broker leads, and those of which it lets clients read what it holds."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import trio

from dafka.broker.core.log.entries import BatchEntry, ProducerEntry, RunEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import Brokers
from dafka.broker.core.replication.records import EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.replicated_logs import LogAction, ReplicatedLog, ReplicatedLogs
from dafka.broker.replication.host import Host
from dafka.broker.replication.index_reader import continue_log, read_tail, restore_log
from dafka.errors import StorageError
from dafka.records import Partition

_LOGGER = logging.getLogger("dafka.broker")

IN_SYNC_S = 5.0
"""How long a replica that is behind counts as in sync, in seconds."""

PLACED_RECORDS = 100_000
"""How many records of a producer get their offsets together when a broker begins to lead a log."""

HELD_S = 0.2
"""Seconds until a new leader looks again whether it leads still, while it waits for what is before its branch."""


class LedLogs:
    """Leads logs, heals them, and follows others for readers.

    Args:
        host: The broker.
        brokers: The brokers of the cluster.
        logs: The replicated logs.
        restore_producer: Takes what producers with an id have done in a log that this broker begins to lead.
        act: Carries out what the machines of logs ask for.
        refresh: Tells clients who leads a log.

    Attributes:
        admit_batch: Returns whether to append a divergent batch: its producer has not appended it to this epoch
            already.
    """

    def __init__(
        self,
        host: Host,
        brokers: Brokers,
        logs: ReplicatedLogs,
        restore_producer: Callable[[Log, ProducerEntry], None],
        act: Callable[[Iterable[LogAction]], None],
        refresh: Callable[[ReplicatedLog], None],
    ) -> None:
        self.admit_batch: Callable[[Log, BatchEntry], bool] = lambda _log, _entry: True
        self._host = host
        self._order = host.order
        self._brokers = brokers
        self._logs = logs
        self._restore_producer = restore_producer
        self._act = act
        self._refresh = refresh
        self._ready_from: dict[str, int] = {}
        self._healed: dict[str, tuple[LeaderAndEpoch, dict[LeaderAndEpoch, int]]] = {}
        self._locks: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._lacking: dict[str, trio.Event] = {}
        self._to_heal: dict[ReplicatedLog, None] = {}
        self._healable = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._followed: dict[str, LeaderAndEpoch] = {}
        self._to_follow: dict[str, None] = {}
        self._followable = trio.Event()

    async def run(self) -> None:
        """Heal and follow logs until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._heal)
            nursery.start_soon(self._follow)

    def is_ready(self, log: ReplicatedLog) -> bool:
        """Return whether enough replicas hold all that was there when this broker began to lead a log."""
        return log.name in self._ready_from and log.replica.high_watermark >= self._ready_from[log.name]

    def is_followed(self, log: ReplicatedLog, branch: LeaderAndEpoch) -> bool:
        """Return whether clients may read what this broker holds of a log that another one leads."""
        return self._followed.get(log.name) == branch

    def forget(self, name: str) -> None:
        """Forget a log whose records are deleted here. Clients read it no longer."""
        self._followed.pop(name, None)
        self._ready_from.pop(name, None)
        self._healed.pop(name, None)
        self._to_follow.pop(name, None)
        if name in self._lacking:
            self._lacking.pop(name).set()

    def keep_leading(self, log: ReplicatedLog, state: Log) -> None:
        """Go on leading a log that other brokers keep from now on."""
        self._ready_from[log.name] = 0
        self._host.lead(state)
        self._host.announce(state.index_partition)

    def note_held(self, logs: Iterable[ReplicatedLog]) -> None:
        """Note that more of logs is held than before."""
        for log in logs:
            if log.name in self._lacking:
                self._lacking.pop(log.name).set()

    def merge_later(self, logs: Iterable[ReplicatedLog]) -> None:
        """Look for divergent records of the logs that this broker leads."""
        for log in logs:
            if log.replica.led_epoch is not None:
                self._to_heal[log] = None
                self._healable.set()

    def move_high_watermark(self, log: ReplicatedLog, offset: int) -> None:
        """Note how far readers may read a log."""
        state = self._order.find_log(log.topic, log.number, log.topic_id)
        if state is None:
            return
        if log.replica.led_epoch is None:  # readers get further when the index has been followed
            self._follow_later(log)
        else:
            self._show_high_watermark(state, offset)

    def _show_high_watermark(self, state: Log, offset: int) -> None:
        if offset != state.high_watermark:
            state.high_watermark = offset
            self._host.watchers.notify(state)

    # LedLogs

    async def lead(self, log: ReplicatedLog, row: EpochStart) -> None:
        """Begin to lead a log, when all is here that is before the branch.

        Args:
            log: The log.
            row: The row of the branch.
        """
        async with self._locks[log.name]:
            while not self._holds(log, row):
                if log.replica.led_epoch != row.leader_epoch or self._logs.find(log.name) is not log:
                    return
                self._act(self._logs.fetch_missing([log]))
                with trio.move_on_after(HELD_S):
                    await self._lacking.setdefault(log.name, trio.Event()).wait()
            state = self._order.find_log(log.topic, log.number, log.topic_id)
            if state is None or log.replica.led_epoch != row.leader_epoch or self._order.leads(state):
                return
            try:
                self._followed.pop(log.name, None)
                self._order.begin_epoch(state, row.leader_epoch.epoch)
                await restore_log(self._host.storage, log, state, row.leader_epoch, self._restore_producer, is_led=True)
            except StorageError as error:
                _LOGGER.warning("cannot lead the log %s of %s: %s", log.number, log.topic, error)
                return
            if log.replica.led_epoch != row.leader_epoch or state.is_gone:
                return
            self._order.finish_epoch(state, self._host.ends(state.topic), self._host.earliest(state.topic))
            self._ready_from[log.name] = state.index.end_offset
            self._host.lead(state)
            self._host.wake()
            if state.backfill and self._nursery is not None:
                self._nursery.start_soon(self.catch_up, state)
            self._host.announce(state.index_partition)
            self._act(LogAction(log, each) for each in log.replica.repeat_acknowledgement())
            self._refresh(log)
            self.merge_later([log])

    def _holds(self, log: ReplicatedLog, row: EpochStart) -> bool:
        chain = log.replica.epoch_tree.chain(row.parent)
        if chain is None:
            return False
        ends = log.local_log.ends()
        return all(ends.get(each.leader_epoch, 0) >= each.end_offset for each in chain)

    async def catch_up(self, state: Log) -> None:
        """Give offsets to records of producers that came before this broker led the log."""
        await self._host.wait_durable()  # some may be on their way to the storage
        while state.backfill and self._order.leads(state):
            for address, scanned_until in list(state.backfill.items()):
                partition = Partition(state.topic, address)
                end = self._host.durable_end_of(partition)
                if scanned_until >= end:
                    state.backfill.pop(address, None)
                    continue
                batch = await self._host.storage.read(partition, scanned_until, PLACED_RECORDS)
                if batch is None:
                    state.backfill[address] = end
                elif self._order.leads(state):
                    await self._host.place(state, batch)

    # Following

    def _follow_later(self, log: ReplicatedLog) -> None:
        """Have clients read from this broker what it has of a log that another one leads, if it is in a rack."""
        if self._brokers.own.rack and log.replica.led_epoch is None:
            self._to_follow[log.name] = None
            self._followable.set()

    async def _follow(self) -> None:
        while True:
            await self._followable.wait()
            self._followable = trio.Event()
            following, self._to_follow = self._to_follow, {}
            for name in following:
                log = self._logs.find(name)
                state = None if log is None else self._order.find_log(log.topic, log.number, log.topic_id)
                if log is not None and state is not None:
                    async with self._locks[name]:
                        if not state.is_gone:
                            await self._follow_log(log, state)
            await trio.lowlevel.checkpoint()

    async def _follow_log(self, log: ReplicatedLog, state: Log) -> None:
        branch = log.replica.latest.leader_epoch
        if log.replica.led_epoch is not None or not log.replica.local_epochs.is_complete(branch):
            return
        arguments = (self._host.storage, log, state, branch, self._restore_producer)
        try:
            if self._followed.get(log.name) == branch:
                await continue_log(*arguments)
            else:
                self._followed.pop(log.name, None)
                self._order.begin_epoch(state, branch.epoch)
                await restore_log(*arguments, is_led=False)
                self._followed[log.name] = branch
        except StorageError as error:
            _LOGGER.warning("cannot follow the log %s of %s: %s", log.number, log.topic, error)
            return
        if not state.is_gone and log.replica.led_epoch is None:
            self._show_high_watermark(state, min(log.replica.high_watermark, state.index.end_offset))
            self._refresh(log)

    # Healing

    async def _heal(self) -> None:
        """Append what other branches have to the logs that this broker leads."""
        while True:
            await self._healable.wait()
            healing, self._to_heal, self._healable = self._to_heal, {}, trio.Event()
            for log in healing:
                state = self._order.find_log(log.topic, log.number, log.topic_id)
                if state is not None and state.leadership.is_led:
                    await self._heal_log(log, state)
            await trio.lowlevel.checkpoint()

    async def _heal_log(self, log: ReplicatedLog, state: Log) -> None:
        replica = log.replica
        leading = replica.led_epoch
        if leading is None:
            return
        led, healed = self._healed.get(log.name, (leading, {}))
        if led != leading:  # what was appended to another branch may not be in this one
            healed = {}
        self._healed[log.name] = leading, healed
        ends = log.local_log.ends()
        chain = {
            each.leader_epoch: each.end_offset
            for each in replica.epoch_tree.chain(replica.epoch_tree.starts[leading].parent) or ()
        }
        for branch in sorted(ends):
            if (
                branch == leading
                or branch not in replica.epoch_tree.starts
                or not self._has_ended(log, branch, leading)
            ):
                continue
            begin = chain.get(branch, replica.epoch_tree.starts[branch].parent.end_offset)
            begin = max(begin, healed.get(branch, 0))
            if ends[branch] <= begin:
                continue
            try:
                entries = await read_tail(self._host.storage, log, branch, begin, ends[branch])
            except StorageError as error:
                _LOGGER.warning("cannot heal the log %s of %s yet: %s", log.number, log.topic, error)
                return
            if replica.led_epoch != leading or state.is_gone:
                return
            healed[branch] = ends[branch]
            self._order.merge_divergent(state, self._admit(state, entries))
            self._host.wake()

    def _has_ended(self, log: ReplicatedLog, branch: LeaderAndEpoch, leading: LeaderAndEpoch) -> bool:
        """Return whether the leader of an epoch has stopped appending to it, as far as this broker knows."""
        return log.replica.has_voted(branch.leader, leading.epoch) or not self._brokers.is_alive(branch.leader)

    def _admit(self, state: Log, entries: Sequence[RunEntry | BatchEntry]) -> list[RunEntry | BatchEntry]:
        """Leave out batches that their producers have appended again."""
        found: list[RunEntry | BatchEntry] = []
        for entry in entries:
            if isinstance(entry, RunEntry) or self.admit_batch(state, entry):
                found.append(entry)
            else:
                _cut_out(found, entry)
        return found


def _cut_out(found: list[RunEntry | BatchEntry], batch: BatchEntry) -> None:
    """Cut a batch out of the last run."""
    position = max(number for number, each in enumerate(found) if isinstance(each, RunEntry))
    run = found[position]
    assert isinstance(run, RunEntry)
    before = batch.sequence - run.first_sequence
    rest = run.record_count - before - batch.record_count
    if before > 0:
        found[position] = run._replace(record_count=before)
    else:
        del found[position]
    found.append(run._replace(first_sequence=batch.sequence + batch.record_count, record_count=max(rest, 0)))
