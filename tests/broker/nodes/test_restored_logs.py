"""A log that is restored from the indexes of its branches."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import trio

from dafka.broker.core.log.entries import (
    BatchEntry,
    Entry,
    EpochStartEntry,
    IndexRewriteEntry,
    RunEntry,
    encode_entries,
)
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.positions import Offset, ProducerSequence, RecordSequence
from dafka.broker.core.replication.local_log import LocalLog
from dafka.broker.core.replication.records import EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.broker.core.replication.settings import ReplicaSettings
from dafka.broker.log.index_reader import restore_log
from dafka.records import Partition, RecordBatch
from dafka.storage.memory import MemoryStorage
from tests.broker.core.entries import batch_entry, epoch_end, run_entry
from tests.broker.nodes.broker_cluster import (
    PATIENCE_S,
    distinct,
    make_batch,
    open_broker_cluster,
    read,
    record_read_indexes,
)

pytestmark = pytest.mark.trio

FIRST, SECOND = LeaderAndEpoch(0, "a"), LeaderAndEpoch(1024, "b")
BATCHES = 12


@pytest.fixture
def records_read(monkeypatch: pytest.MonkeyPatch) -> list[Partition]:
    """The partition of each index record that was read to restore logs."""
    return record_read_indexes(monkeypatch, "log.index_reader")


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
        await restore_log(self.storage, log, state, SECOND, is_led=True)
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


async def test_new_leaders_read_few_indexes_of_a_log_that_has_had_many_leaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records_read: list[Partition]
) -> None:
    monkeypatch.setattr("dafka.broker.core.log.offset_assigner.REWRITE_EPOCHS", 2)
    names = ("a", "b", "c")
    async with open_broker_cluster(tmp_path) as cluster:
        first, *_ = await cluster.start_all(*names)
        await first.create_topic("orders").wait()
        for number in range(4):
            ((leader, log),) = await cluster.wait_led("orders")
            with trio.fail_after(PATIENCE_S):
                await leader.writer.append(log, make_batch(f"{number}".encode(), producer=(7, 0, number))).wait_offset()
            name = cluster.name_of(leader)
            records_read.clear()
            await cluster.stop(name)
            ((leader, log),) = await cluster.wait_led("orders")
            topic_id = leader.log_table.topics["orders"].topic_id
            assert len({each for each in records_read if each.address.split("/")[1] == topic_id}) <= 3
            assert distinct(await read(leader, log)) == [f"{each}".encode() for each in range(number + 1)]
            await cluster.start(name)
