"""Reads the indexes of a replicated log from the storage: of the branches that it consists of, and of all others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeGuard

from dafka.broker.core.log.entries import (
    BatchEntry,
    Entry,
    IndexRewriteEntry,
    ProducerEntry,
    RunEntry,
    decode_entries,
    is_rewrite,
    names_offset,
)
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.replication.records import EpochEnd, LeaderAndEpoch
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch
from dafka.storage import KeepsRecordBatches, Storage
from dafka.storage.base import read_range


async def read_index(
    storage: Storage, partition: Partition, first_sequence: int = 0, end_sequence: int = SEQUENCE_MAX
) -> AsyncIterator[RecordBatch]:
    """Yield the index records of a partition in a range of sequences. Raises `StorageError`."""
    info = await storage.find_partition(partition)
    if info is not None:
        first, end = max(first_sequence, info.earliest_sequence), min(end_sequence, info.end_sequence)
        async for batch in read_range(storage, partition, first, end):
            yield batch


async def restore_log(
    storage: Storage,
    log: ReplicatedLog,
    state: Log,
    branch: LeaderAndEpoch,
    restore_producer: Callable[[Log, ProducerEntry], None],
    *,
    is_led: bool,
) -> None:
    """Restore the index of a log from those of its branches.

    Args:
        storage: The storage.
        log: The log.
        state: Its state, for which `begin_branch` was called.
        branch: The last branch.
        restore_producer: Takes what producers with an id have done.
        is_led: Whether this broker leads the branch. Otherwise only what it holds with all records is restored.

    Raises:
        StorageError: The storage fails, or a newer version of dafka has written an index.
    """
    rows = log.replica.epoch_tree.starts
    chain = (log.replica.epoch_tree.chain(rows[branch].parent) or [])[::-1]
    restore_producer(state, IndexRewriteEntry())
    state.epochs = [
        (each.leader_epoch.epoch, rows[each.leader_epoch].parent.end_offset) for each in (*chain, EpochEnd(branch, 0))
    ]
    begun_in, sequence = _find_begin(log, [*chain, EpochEnd(branch, SEQUENCE_MAX)])
    state.epoch_count = len(chain) + 1 - begun_in
    for each in chain[begun_in:]:
        sequences = (sequence, SEQUENCE_MAX)
        await _restore_branch(
            storage, log, state, each.leader_epoch, restore_producer, each.end_offset, sequences=sequences
        )
        state.index.end_at(each.end_offset)
        sequence = 0  # the branches behind it are read from their beginnings on
    partition = log.index_partition(branch)
    info = await storage.find_partition(partition)
    state.index_first = state.index_trimmed = 0 if info is None else info.earliest_sequence
    state.index_end = sequence
    if is_led:
        sequences = (sequence, SEQUENCE_MAX)
        await _restore_branch(storage, log, state, branch, restore_producer, own=LEADER, sequences=sequences)
        state.index_end = 0 if info is None else info.end_sequence
    else:
        await continue_log(storage, log, state, branch, restore_producer)


def _find_begin(log: ReplicatedLog, chain: list[EpochEnd]) -> tuple[int, int]:
    """Return where the last index record that replaces all before is: which branch of a log, and its sequence there."""
    for number, each in reversed(list(enumerate(chain))):
        restart = log.local_log.restart(each.leader_epoch)
        if restart is not None and restart.offset < each.end_offset:
            return number, restart.sequence
    return 0, 0


async def continue_log(
    storage: Storage,
    log: ReplicatedLog,
    state: Log,
    branch: LeaderAndEpoch,
    restore_producer: Callable[[Log, ProducerEntry], None],
) -> None:
    """Add to an index what this broker holds of a branch since it was restored; see `restore_log`."""
    first, end = state.index_end, log.local_log.acknowledged_end(branch)
    await _restore_branch(storage, log, state, branch, restore_producer, sequences=(first, end))


async def _restore_branch(
    storage: Storage,
    log: ReplicatedLog,
    state: Log,
    branch: LeaderAndEpoch,
    restore_producer: Callable[[Log, ProducerEntry], None],
    end_offset: int | None = None,
    *,
    own: str | None = None,
    sequences: tuple[int, int] = (0, SEQUENCE_MAX),
) -> None:
    keeps_record_batches = isinstance(storage, KeepsRecordBatches)
    address = log.leader_partition(branch).address if own is None else own
    is_read = False
    async for batch in read_index(storage, log.index_partition(branch), *sequences):
        for sequence, value in enumerate(batch.values, batch.first_sequence):
            is_whole = end_offset is not None and state.index.end_offset >= end_offset
            is_read = is_read or (is_whole and is_rewrite(value or b""))
            if is_read:  # the log diverges before the index was written again
                break
            for entry in state.restore(
                sequence,
                value or b"",
                keeps_record_batches=keeps_record_batches,
                leader_address=address,
                end_offset=end_offset,
            ):
                restore_producer(state, entry)


async def read_tail(
    storage: Storage, log: ReplicatedLog, branch: LeaderAndEpoch, from_offset: int, end_offset: int
) -> list[RunEntry | BatchEntry]:
    """Return what the clients of a branch's leader have appended to it in a range of offsets.

    Args:
        storage: The storage.
        log: The log.
        branch: The branch.
        from_offset: The first offset.
        end_offset: The offset after the last one.

    Returns:
        Runs of the leader's own partition, with its address, each followed by its batches.

    Raises:
        StorageError: The storage fails, or a newer version of dafka has written an index.
    """
    address = log.leader_partition(branch).address
    runs: dict[int, RunEntry] = {}
    batches: dict[int, BatchEntry] = {}
    async for batch in read_index(storage, log.index_partition(branch)):
        for value in batch.values:
            for entry in decode_entries(value or b""):
                if isinstance(entry, RunEntry) and entry.address == LEADER:
                    run = _cut(entry, from_offset, end_offset)
                    if run.record_count > 0:
                        runs[run.first_sequence] = run._replace(address=address)
                elif isinstance(entry, IndexRewriteEntry):
                    runs, batches = {}, {}
                elif _is_own_batch(entry):
                    batches[entry.sequence] = entry
    found: list[RunEntry | BatchEntry] = []
    for first in sorted(runs):
        run = runs[first]
        end = run.first_sequence + run.record_count
        found.append(run)
        found += [batches[each] for each in sorted(batches) if first <= each < end]
    return found


def _is_own_batch(entry: Entry) -> TypeGuard[BatchEntry]:
    """Return whether an entry is a batch that the leader itself has appended in its branch."""
    return isinstance(entry, BatchEntry) and entry.base_sequence is not None and not names_offset(entry.sequence)


def _cut(run: RunEntry, from_offset: int, end_offset: int) -> RunEntry:
    """Return the part of a run that is in a range of offsets."""
    skipped = max(from_offset - run.offset, 0)
    count = min(run.offset + run.record_count, end_offset) - run.offset - skipped
    return RunEntry(run.offset + skipped, run.address, run.first_sequence + skipped, count)
