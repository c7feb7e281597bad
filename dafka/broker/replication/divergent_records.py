"""Merges divergent records into the logs that a broker leads: what other leaders have appended on their own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import trio

from dafka.broker.core.log.entries import BatchEntry, DivergentEntry, MergedEntry, RunEntry
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.features import MERGED_ENDS
from dafka.broker.core.positions import FIRST_OFFSET, Offset, RecordSequence, sequence_of
from dafka.broker.core.replication.records import LeaderAndEpoch
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.broker.core.tables import BrokerTables
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.index_reader import read_tail
from dafka.broker.replication.pending_logs import PendingLogs
from dafka.errors import StorageError

_LOGGER = logging.getLogger("dafka.broker")


class DivergentRecords:
    """Appends the divergent records of other epochs to the logs that this broker leads, each once."""

    def __init__(self, tables: BrokerTables, storage: BrokerStorage) -> None:
        self._tables = tables
        self._log_table = tables.log_table
        self._brokers = tables.brokers
        self._logs = tables.logs
        self._storage = storage
        self._merged: dict[str, tuple[LeaderAndEpoch, dict[LeaderAndEpoch, Offset]]] = {}
        self._to_merge = PendingLogs[ReplicatedLog]()

    def merge_later(self, logs: Iterable[ReplicatedLog]) -> None:
        """Check later whether these logs, if this broker leads them, have divergent records to merge.

        The log of metadata never gets any.
        """
        for log in logs:
            # The client of such a command has got an error: it must not take effect later.
            if log.replica.led_epoch is not None and log.topic not in self._logs.observed_topics:
                self._to_merge.put(log)

    def forget(self, name: str) -> None:
        """Forget a log whose records are deleted here."""
        self._merged.pop(name, None)

    async def run(self) -> None:
        """Merge until cancelled."""
        while True:
            for log in await self._to_merge.take():
                state = self._log_table.find_log(log.topic, log.number, log.topic_id)
                if state is not None and state.leadership.is_led:
                    await self._merge_log(log, state)
            await trio.lowlevel.checkpoint()

    async def _merge_log(self, log: ReplicatedLog, state: Log) -> None:
        replica = log.replica
        led_epoch = replica.led_epoch
        if led_epoch is None:
            return
        merged_into, merged = self._merged.get(log.name, (led_epoch, {}))
        if merged_into != led_epoch:  # records merged into another epoch can be missing in this one
            merged = {}
        self._merged[log.name] = led_epoch, merged
        ends = log.local_log.ends()
        chain = {
            each.leader_epoch: each.end_offset
            for each in replica.epoch_tree.chain(replica.epoch_tree.starts[led_epoch].parent) or ()
        }
        for epoch in sorted(ends):
            if (
                epoch == led_epoch
                or epoch not in replica.epoch_tree.starts
                or not self._has_ended(log, epoch, led_epoch)
            ):
                continue
            from_offset = chain.get(epoch, replica.epoch_tree.starts[epoch].parent.end_offset)
            from_offset = max(from_offset, merged.get(epoch, FIRST_OFFSET))
            if ends[epoch] <= from_offset:
                continue
            try:
                entries = await read_tail(self._storage.storage, log, epoch, from_offset, ends[epoch])
            except StorageError as error:
                _LOGGER.warning(
                    "cannot merge divergent records into the log %s of %s yet: %s", log.number, log.topic, error
                )
                self._to_merge.put_failed(log)
                return
            if replica.led_epoch != led_epoch or state.is_gone:
                return
            merged[epoch] = ends[epoch]
            found: list[DivergentEntry] = [*admitted(state, entries)]
            if entries and state.can_diverge and self._tables.state.members.feature_level >= MERGED_ENDS:
                found.append(MergedEntry(FIRST_OFFSET, log.leader_partition(epoch).address, _end_of(entries)))
            self._log_table.merge_divergent(state, found)
            self._storage.write()

    def _has_ended(self, log: ReplicatedLog, epoch: LeaderAndEpoch, led_epoch: LeaderAndEpoch) -> bool:
        """Return whether the leader of an epoch no longer appends to it, as far as this broker knows."""
        return log.replica.has_voted(epoch.leader, led_epoch.epoch) or not self._brokers.is_alive(epoch.leader)


def admitted(state: Log, entries: Sequence[RunEntry | BatchEntry]) -> list[RunEntry | BatchEntry]:
    """Return the entries without the batches that their producers have appended again.

    With the availability "branch", those are the ones that the log has. With "majority", those are all batches of a
    producer with an id: none was ever acknowledged. Its producer sends it again, possibly under another producer epoch,
    so that duplicates could not be recognized.
    """
    admit = state.producers.admit_divergent
    found: list[RunEntry | BatchEntry] = []
    for entry in entries:
        if isinstance(entry, RunEntry) or (state.can_diverge and admit(entry)):
            found.append(entry)
        else:
            _cut_out(found, entry)
    return found


def _end_of(entries: Iterable[RunEntry | BatchEntry]) -> RecordSequence:
    """Return the sequence after the last run."""
    return RecordSequence(
        max(each.first_sequence + each.record_count for each in entries if isinstance(each, RunEntry))
    )


def _cut_out(found: list[RunEntry | BatchEntry], batch: BatchEntry) -> None:
    """Cut a batch out of the last run."""
    position = max(number for number, each in enumerate(found) if isinstance(each, RunEntry))
    run = found[position]
    assert isinstance(run, RunEntry)
    sequence = sequence_of(batch.position)
    before = sequence - run.first_sequence
    rest = run.record_count - before - batch.record_count
    if before > 0:
        found[position] = run._replace(record_count=before)
    else:
        del found[position]
    end_sequence = RecordSequence(sequence + batch.record_count)
    found.append(run._replace(first_sequence=end_sequence, record_count=max(rest, 0)))
