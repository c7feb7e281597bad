"""The indexes of a log's leader epochs: a log is restored from them, and divergent records are found in them.

They are rewritten when most of them is of no use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial
from itertools import combinations
from typing import Any

import pytest
from trio.testing import MockClock

from dafka.broker.core.log.entries import (
    BatchEntry,
    Entry,
    EpochStartEntry,
    IndexRewriteEntry,
    RunEntry,
    encode_entries,
)
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.positions import Offset, ProducerSequence, RecordSequence
from dafka.broker.core.replication.local_log import LocalLog
from dafka.broker.core.replication.records import EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.broker.core.replication.settings import ReplicaSettings
from dafka.broker.log.index_reader import read_index, read_tail, restore_log
from dafka.records import Partition, RecordBatch
from dafka.storage import Storage
from dafka.storage.memory import MemoryStorage
from tests.broker.core.entries import batch_entry, epoch_end, run_entry
from tests.broker.replication.virtual_cluster import batch as make_batch
from tests.broker.replication.virtual_cluster import open_virtual_cluster, wait_for

FIRST, SECOND = LeaderAndEpoch(0, "a"), LeaderAndEpoch(1024, "b")
BATCHES = 12


@pytest.fixture
def records_read(monkeypatch: pytest.MonkeyPatch) -> list[Partition]:
    """The partition of each index record that was read to restore logs."""
    found: list[Partition] = []

    async def read_and_note(storage: Storage, partition: Partition, *sequences: int) -> AsyncIterator[RecordBatch]:
        async for batch in read_index(storage, partition, *sequences):
            found.extend([partition] * len(batch))
            yield batch

    monkeypatch.setattr("dafka.broker.log.index_reader.read_index", read_and_note)
    return found


def batch(number: int) -> BatchEntry:
    return batch_entry(number, 1, 7, 0, number, 0, 0)


class Indexes:
    """The indexes of a log of two branches: the second one continues the first one from some offset on."""

    def __init__(self, forked_at: int) -> None:
        self.forked_at = forked_at
        self.storage = MemoryStorage()
        settings = ReplicaSettings()
        replica = Replica("log", "b", 1, ("a", "b"), settings)
        replica.epoch_tree.add(EpochStart("log", SECOND, epoch_end(FIRST, self.forked_at), ("a", "b")))
        ends: defaultdict[Partition, int] = defaultdict(lambda: 100)
        held = LocalLog("orders", "id", 0, ends.__getitem__)
        self.log = ReplicatedLog("orders", "id", 0, "log", replica, held)
        self.written: defaultdict[LeaderAndEpoch, int] = defaultdict(int)

    async def write(self, branch: LeaderAndEpoch, *entries: Entry) -> None:
        sequence, value = self.written[branch], encode_entries(entries)
        await self.storage.append([RecordBatch(self.log.index_partition(branch), sequence, [value])])
        self.log.local_log.add_index(branch, RecordSequence(sequence), [value])
        for _ in self.log.local_log.advance():
            pass
        self.written[branch] += 1

    async def restore(self) -> tuple[list[Entry], list[ProducerSequence]]:
        """Return the entries of the restored index, and the numbers of the last batches of a producer."""
        log = self.log
        state = Log("orders", 0, log.leader_partition(SECOND), log.index_partition(SECOND))
        await restore_log(self.storage, log, state, SECOND, is_whole=True)
        assert state.index_end == self.written[SECOND]
        assert state.epochs == [(0, 0), (1024, self.forked_at)]
        numbers = [each.base_sequence for one in state.producers.producers.values() for each in one.batches]
        return state.index.entries(), numbers


async def write_again(forked_at: int) -> Indexes:
    """Return indexes of which the first one was written again after its eighth batch, and has four more."""
    indexes = Indexes(forked_at)
    for number in range(8):
        await indexes.write(FIRST, run_entry(number, LEADER, number, 1), batch(number))
    await indexes.write(FIRST, IndexRewriteEntry(), run_entry(0, LEADER, 0, 9), *map(batch, range(4, 9)))
    for number in range(9, BATCHES):
        await indexes.write(FIRST, run_entry(number, LEADER, number, 1), batch(number))
    await indexes.write(SECOND, EpochStartEntry(Offset(forked_at), 1024))
    await indexes.write(SECOND, run_entry(forked_at, LEADER, 0, 1))
    return indexes


@pytest.mark.parametrize("forked_at", range(1, BATCHES + 1))
async def test_a_log_is_read_from_where_its_index_was_last_written_again_before_it_forks(
    forked_at: int, records_read: list[Partition]
) -> None:
    indexes = await write_again(forked_at)
    entries, numbers = await indexes.restore()
    address = indexes.log.leader_partition(FIRST).address
    runs = [each for each in entries if isinstance(each, RunEntry)]
    assert runs == [run_entry(0, address, 0, forked_at), run_entry(forked_at, LEADER, 0, 1)]
    assert numbers == list(range(forked_at))[-5:]  # what a client may send again
    assert records_read.count(indexes.log.index_partition(FIRST)) == (4 if forked_at > 8 else BATCHES)


async def test_an_index_that_its_leader_has_written_again_is_all_that_is_read(records_read: list[Partition]) -> None:
    indexes = await write_again(BATCHES)
    address = indexes.log.leader_partition(FIRST).address
    written = (run_entry(0, address, 0, BATCHES), run_entry(BATCHES, LEADER, 0, 2))
    await indexes.write(SECOND, IndexRewriteEntry(), *written, batch(BATCHES))
    entries, numbers = await indexes.restore()
    assert [each for each in entries if isinstance(each, RunEntry)] == list(written)
    assert numbers == [BATCHES]
    assert len(records_read) == 1


class Followed:
    """A log of another leader, as far as reading its index needs it."""

    def leader_partition(self, epoch: LeaderAndEpoch) -> Partition:
        return Partition("orders", f"leader-{epoch.leader}")

    def index_partition(self, epoch: LeaderAndEpoch) -> Partition:
        return Partition("$logs", f"index-{epoch.leader}")


RUNS = [(0, LEADER, 0, 4), (4, "P", 0, 3), (7, LEADER, 4, 3)]
TAIL_BATCHES = [(0, 4), (4, 1), (5, 2)]
"""First sequences and counts."""


@pytest.mark.parametrize("is_rewritten", [False, True])
async def test_the_tail_of_a_divergent_epoch_has_exactly_the_leaders_records_in_the_range(is_rewritten: bool) -> None:
    """An epoch ends where a batch does."""
    epoch = LeaderAndEpoch(1024, "b")
    log: Any = Followed()
    entries: list[RunEntry | BatchEntry] = [run_entry(*run) for run in RUNS]
    entries += [batch_entry(first, count, 7, 0, first, 0, 0) for first, count in TAIL_BATCHES]
    values = [encode_entries([each]) for each in entries]
    if is_rewritten:  # what an index has before it is rewritten does not count
        values = [encode_entries([run_entry(0, LEADER, 0, 99)]), encode_entries([IndexRewriteEntry()]), *values]
    storage, own = MemoryStorage(), [(offset, first, offset + count) for offset, to, first, count in RUNS if not to]
    await storage.append([RecordBatch(log.index_partition(epoch), 0, values)])
    for first, end in combinations(range(len(values) + 1), 2):
        read = [each async for each in read_index(storage, log.index_partition(epoch), first, end)]
        assert [value for each in read for value in each.values] == values[first:end]
    for begin, end in combinations((0, 4, 5, 7, 8, 10), 2):
        found = await read_tail(storage, log, epoch, Offset(begin), Offset(end))
        cut = [(max(at, begin), first + max(begin - at, 0), min(stop, end)) for at, first, stop in own]
        wanted = [(at, "leader-b", first, stop - at) for at, first, stop in cut if stop > at]
        assert [tuple(each) for each in found if isinstance(each, RunEntry)] == wanted
        places = {sequence + number for _, _, sequence, count in wanted for number in range(count)}
        known = [(each.position, each.record_count) for each in found if isinstance(each, BatchEntry)]
        assert known == [(first, count) for first, count in TAIL_BATCHES if first in places]


async def test_new_leaders_read_few_indexes_of_a_log_that_has_had_many_leaders(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, records_read: list[Partition]
) -> None:
    monkeypatch.setattr("dafka.broker.core.log.offset_assigner.REWRITE_EPOCHS", 2)
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        for number in range(5):
            leader = cluster.leader()
            sent = make_batch(b"%d" % number, producer=(7, 0, number))
            await cluster.brokers[leader].writer.append(cluster.log(leader), sent).wait_offset()
            records_read.clear()
            await cluster.stop(leader)
            await cluster.wait_leader("ABC".replace(leader, ""))
            assert sum(not cluster.is_metadata(each.address) for each in set(records_read)) <= 3
            assert await cluster.read(cluster.leader()) == [b"%d" % each for each in range(number + 1)]
            await cluster.start(leader)
            await wait_for(lambda: cluster.in_sync() == "ABC")


async def test_rewritten_index_is_trimmed_and_read_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.broker.log.stages.OffsetAssigner", partial(OffsetAssigner, rewrite_entries=20))
    async with open_virtual_cluster("A", "A", store_retention_interval_ms=50) as cluster:
        for number in range(60):
            sent = make_batch(b"%d" % number, producer=(7, 0, number))
            await cluster.brokers["A"].writer.append(cluster.log("A"), sent).wait_offset()
        before = cluster.log("A")
        await wait_for(lambda: before.index_trimmed == before.index_first > 0)
        info = await cluster.disks["A"].find_partition(before.index_partition)
        assert info is not None
        assert (info.earliest_sequence, info.count < 60) == (before.index_first, True)
        await cluster.stop("A")
        await cluster.start("A")
        log = cluster.log("A")
        (state,) = log.producers.producers.values()
        assert [each.base_sequence for each in state.batches] == list(range(55, 60))
        assert (log.high_watermark, log.index_first, log.index_trimmed) == (
            60,
            info.earliest_sequence,
            info.earliest_sequence,
        )
        assert await cluster.read("A") == [b"%d" % number for number in range(60)]
