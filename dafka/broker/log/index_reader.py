"""Reads what a replicated log has from the storage: the indexes of its own and of divergent leader epochs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from dafka.broker.core.log.entries import (
    BatchEntry,
    IndexRewriteEntry,
    RunEntry,
    decode_entries,
    is_rewrite,
)
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.positions import FIRST_SEQUENCE, OFFSET_MAX, AtOffset, Offset, RecordSequence
from dafka.broker.core.replication.records import EpochEnd, LeaderAndEpoch
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch
from dafka.storage import Storage
from dafka.storage.opening import read_range


async def read_index(
    storage: Storage, partition: Partition, first_sequence: int = 0, end_sequence: int = SEQUENCE_MAX
) -> AsyncGenerator[RecordBatch]:
    """Yield the index records of a partition in a range of sequences. Raises `StorageError`."""
    info = await storage.find_partition(partition)
    if info is not None:
        first, end = max(first_sequence, info.earliest_sequence), min(end_sequence, info.end_sequence)
        async with aclosing(read_range(storage, partition, first, end)) as batches:
            async for batch in batches:
                yield batch


async def restore_log(
    storage: Storage,
    log: ReplicatedLog,
    state: Log,
    epoch: LeaderAndEpoch,
    *,
    is_whole: bool,
) -> None:
    """Restore the index of a log, for which `begin_epoch` was called, from the indexes of its leader epochs.

    Index records of the latest epoch are restored up to the first one whose records are not all stored; all of them if
    `is_whole`, as a leader must. Raise `StorageError` if the storage fails, or if a newer version of dafka wrote an
    index.
    """
    starts = log.replica.epoch_tree.starts
    chain = (log.replica.epoch_tree.chain(starts[epoch].parent) or [])[::-1]
    epochs = [*(each.leader_epoch for each in chain), epoch]
    state.epochs = [(each.epoch, starts[each].parent.end_offset) for each in epochs]
    first_number, sequence = _find_restart(log, [*chain, EpochEnd(epoch, OFFSET_MAX)])
    state.epoch_count = len(chain) + 1 - first_number
    for each in chain[first_number:]:
        sequences = (sequence, SEQUENCE_MAX)
        await _restore_epoch(storage, log, state, each.leader_epoch, each.end_offset, sequences=sequences)
        sequence = FIRST_SEQUENCE  # later epochs are read from their first index record
    partition = log.index_partition(epoch)
    info = await storage.find_partition(partition)
    state.index_first = state.index_trimmed = RecordSequence(0 if info is None else info.earliest_sequence)
    state.index_end = sequence
    if is_whole:
        sequences = (sequence, SEQUENCE_MAX)
        await _restore_epoch(storage, log, state, epoch, leader_address=LEADER, sequences=sequences)
        state.index_end = RecordSequence(0 if info is None else info.end_sequence)
    else:
        await continue_log(storage, log, state, epoch)


def _find_restart(log: ReplicatedLog, chain: list[EpochEnd]) -> tuple[int, RecordSequence]:
    """Return the position of the last index rewrite: the number of its epoch in the chain, and its sequence there."""
    for number, each in reversed(list(enumerate(chain))):
        restart = log.local_log.restart(each.leader_epoch)
        if restart is not None and restart.offset < each.end_offset:
            return number, restart.sequence
    return 0, FIRST_SEQUENCE


async def continue_log(
    storage: Storage,
    log: ReplicatedLog,
    state: Log,
    epoch: LeaderAndEpoch,
) -> None:
    """Add the index records that were stored since `restore_log` or the last call."""
    first, end = state.index_end, log.local_log.acknowledged_end(epoch)
    await _restore_epoch(storage, log, state, epoch, sequences=(first, end))


async def _restore_epoch(
    storage: Storage,
    log: ReplicatedLog,
    state: Log,
    epoch: LeaderAndEpoch,
    end_offset: Offset | None = None,
    *,
    leader_address: str | None = None,
    sequences: tuple[int, int] = (0, SEQUENCE_MAX),
) -> None:
    address = log.leader_partition(epoch).address if leader_address is None else leader_address
    is_done = False
    async with aclosing(read_index(storage, log.index_partition(epoch), *sequences)) as index:
        async for batch in index:
            for sequence, value in enumerate(batch.values, batch.first_sequence):
                is_at_end = end_offset is not None and state.index.end_offset >= end_offset
                is_done = is_done or (is_at_end and is_rewrite(value or b""))
                if is_done:  # the log diverges before this rewrite of the index
                    break
                state.restore(
                    RecordSequence(sequence),
                    value or b"",
                    leader_address=address,
                    end_offset=end_offset,
                )


async def read_tail(
    storage: Storage, log: ReplicatedLog, epoch: LeaderAndEpoch, from_offset: Offset, end_offset: Offset
) -> list[RunEntry | BatchEntry]:
    """Return the records in a range of offsets that clients appended through the leader of an epoch.

    They are runs of the leader partition, with its address, each followed by its batches. Raise `StorageError` if the
    storage fails, or if a newer version of dafka wrote an index.
    """
    address = log.leader_partition(epoch).address
    runs: dict[RecordSequence, RunEntry] = {}
    batches: dict[RecordSequence, BatchEntry] = {}
    async with aclosing(read_index(storage, log.index_partition(epoch))) as index:
        async for batch in index:
            for value in batch.values:
                for entry in decode_entries(value or b""):
                    if isinstance(entry, RunEntry) and entry.address == LEADER:
                        run = _cut(entry, from_offset, end_offset)
                        if run.record_count > 0:
                            runs[run.first_sequence] = run._replace(address=address)
                    elif isinstance(entry, IndexRewriteEntry):
                        runs, batches = {}, {}
                    elif isinstance(entry, BatchEntry) and not isinstance(entry.position, AtOffset):
                        batches[entry.position] = entry
    found: list[RunEntry | BatchEntry] = []
    for first in sorted(runs):
        run = runs[first]
        end = RecordSequence(run.first_sequence + run.record_count)
        found += [run, *(batches[each] for each in sorted(batches) if first <= each < end)]
    return found


def _cut(run: RunEntry, from_offset: Offset, end_offset: Offset) -> RunEntry:
    """Return the part of a run that is in a range of offsets."""
    skipped = max(from_offset - run.offset, 0)
    count = min(run.offset + run.record_count, end_offset) - run.offset - skipped
    offset, first_sequence = Offset(run.offset + skipped), RecordSequence(run.first_sequence + skipped)
    return RunEntry(offset, run.address, first_sequence, count)
