"""What brokers store of logs: checkpoints, control records, and records that retention has dropped."""

from __future__ import annotations

from itertools import product

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.log.entries import encode_entries
from dafka.broker.core.log.log import LEADER
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.checkpoints import CHECKPOINTS_TOPIC, decode_checkpoint
from dafka.broker.core.replication.effects import AdvanceHighWatermark, WriteControl
from dafka.broker.core.replication.records import (
    BRANCHES_TOPIC,
    NO_EPOCH_END,
    ControlRecord,
    EpochEnd,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
    decode_control,
    encode_control,
    key_of,
)
from dafka.broker.core.replication.replicated_logs import LogAction
from dafka.broker.replication.checkpoints import WRITE_S
from dafka.broker.replication.stored_logs import read_stored_logs
from dafka.records import Partition, RecordBatch
from dafka.storage.memory import MemoryStorage
from tests.broker.core.entries import run_entry
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for


def checkpoints(cluster: VirtualCluster, name: str) -> dict[str, int]:
    """Return the ends of a broker's checkpoints by the addresses of indexes."""
    found = cluster.brokers[name].storage.state(CHECKPOINTS_TOPIC)
    ends = {key.decode(): decode_checkpoint(value).index_end for key, value in found.items()}
    return {address: end for address, end in ends.items() if not cluster.is_metadata(address)}


async def test_a_broker_that_starts_reads_no_index_that_a_checkpoint_covers(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append("A", b"1")
        await cluster.append("A", b"2")
        ended = cluster.log("A").index_partition
        await cluster.stop("A")
        leader = await cluster.wait_leader("BC")
        await cluster.append(leader, b"3")
        await cluster.start("A")
        await wait_for(lambda: cluster.in_sync() == "ABC")
        assert not any(checkpoints(cluster, each) for each in "ABC")
        await trio.sleep(WRITE_S)
        assert all(checkpoints(cluster, each) == {ended.address: 2} for each in "ABC")
        name = {"B": "C", "C": "B"}[leader]
        before = cluster.replicated(name).local_log.ends()
        await cluster.stop(name)
        cluster.disks[name].were_read.clear()
        await cluster.start(name)
        assert ended not in cluster.disks[name].were_read
        await wait_for(lambda: cluster.in_sync() == "ABC")
        held = cluster.replicated(name).local_log.ends()
        assert {epoch: held[epoch] for epoch in before} == before
        assert await cluster.read(cluster.leader()) == [b"1", b"2", b"3"]


async def test_a_log_whose_index_cannot_be_read_or_grows_meanwhile_is_loaded_later(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append("A", b"1")
        await cluster.stop("C")
        await cluster.append("A", b"2")
        index, disk = cluster.log("A").index_partition, cluster.disks["C"]
        disk.unreadable.add(index)
        (again,) = await cluster.start("C")
        await trio.sleep(3)
        assert [log.topic for log in again.replicator.logs] == ["$metadata"]
        disk.held.add(index)
        disk.unreadable.clear()
        await trio.sleep(1)
        before = again.storage.durable_end(index)
        await cluster.append("A", b"3")
        await wait_for(lambda: again.storage.durable_end(index) > before)
        disk.held.clear()
        await wait_for(lambda: len(again.replicator.logs) == 2 and cluster.in_sync() == "ABC")
        end = again.storage.durable_end(index)
        assert cluster.replicated("C").local_log.acknowledged_end(LeaderAndEpoch(0, "A" * 32)) == end


async def test_nothing_of_a_deleted_topic_is_remembered_or_comes_back_late(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("AB", "AB", rack="r", topic={"availability": "branch"}) as cluster:
        first = cluster.brokers["A"]
        replicated = cluster.replicated("A")
        await cluster.append("A", b"a")
        led_logs = [each.replicator.led_logs for each in cluster.brokers.values()]
        waiting = [each._missing.setdefault(replicated.name, trio.Event()) for each in led_logs]
        late = attrs.evolve(replicated.replica.latest, leader_epoch=LeaderAndEpoch(9, "B" * 32))
        await first.admin.delete_topic("orders")
        await wait_for(lambda: not any(cluster.brokers[each].storage.state(BRANCHES_TOPIC) for each in "AB"))
        assert not first.replicator.logs.has_control(replicated.name)
        for writer in "AB":
            row = (key_of(late).encode(), encode_control(late))
            first.replicator.learn(Partition(BRANCHES_TOPIC, writer * 32), [row])
        assert not first.replicator.logs.has_control(replicated.name)
        await cluster.create("orders", "AB")
        effects = (WriteControl(late), AdvanceHighWatermark(Offset(9)))
        first.replicator.act([LogAction(replicated, each) for each in effects])
        await first.storage.wait_durable()
        assert not any(replicated.name in each.decode() for each in first.storage.state(BRANCHES_TOPIC))
        assert cluster.log("A").high_watermark == 0
        assert all(each.is_set() for each in waiting)
        for each in led_logs:
            assert not any(replicated.name in known for known in vars(each).values() if isinstance(known, dict))


async def test_a_control_record_that_was_removed_is_not_removed_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Other brokers have records with the same keys, and their removal changes nothing here."""
    async with open_virtual_cluster("AB", "AB") as cluster:
        replicator, log = cluster.brokers["A"].replicator, cluster.replicated("A")
        stale = VoteRequest(log.name, LeaderAndEpoch(-1, "A" * 32), ("A" * 32,))
        key = key_of(stale).encode()
        rows = [(b"\xff", b"{}"), (key, b"spoiled"), (key, encode_control(stale))]
        replicator.learn(Partition(BRANCHES_TOPIC, "A" * 32), rows)
        assert caplog.text.count("is ignored") == 2
        for writer, is_left in (("B", True), ("A", False)):
            replicator.learn(Partition(BRANCHES_TOPIC, writer * 32), [(key, None)])
            assert (key_of(stale) in replicator._control._records[log.name]) == is_left


async def test_a_broker_leads_when_the_start_of_its_epoch_is_durable(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        for each in "BC":
            cluster.disks[each].append_s = 1
        await cluster.stop("A")
        leader = await cluster.wait_leader("BC")
        found = await cluster.stored(leader, Partition(BRANCHES_TOPIC, leader * 32))
        records = [decode_control(each) for each in found if each]
        started = [each.leader_epoch.epoch for each in records if isinstance(each, EpochStart)]
        assert cluster.log(leader).leadership.epoch in started


async def test_a_vote_outlives_its_broker(autojump_clock: MockClock) -> None:
    """A leader that has voted for another one, and restarts, does not lead its former epoch."""
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append("A", b"a")
        cluster.cut("A", "BC", is_one_way=True)
        cluster.transfer_leadership("B")
        await wait_for(lambda: cluster.replicated("A").replica.led_epoch is None)
        await cluster.stop("B", "A")
        (again,) = await cluster.start("A", are_cut=True)
        assert again.epoch_starts("orders")[0][-1].leader_epoch.epoch == 0
        assert cluster.replicated("A").replica.led_epoch is None
        cluster.heal()
        await cluster.start("B")
        leader = await cluster.wait_leader("ABC")
        assert cluster.log(leader).leadership.epoch > 0
        assert await cluster.append(leader, b"b") == 1


async def test_logs_are_read_from_the_storage_of_a_stopped_broker_with_their_first_epoch() -> None:
    topic, first, later = Topic("orders", "1D", 2), LeaderAndEpoch(3, "b"), LeaderAndEpoch(1024, "c")
    name = "1D/0"
    index = Partition(INDEX_TOPIC, "b/1D/0/3")
    start = EpochStart(name, later, EpochEnd(first, Offset(2)), ("b", "c"))
    empty = EpochStart(name, LeaderAndEpoch(4, "b"), NO_EPOCH_END, ("b", "c"))  # it continues nothing
    request = VoteRequest(name, LeaderAndEpoch(2048, "b"), ("b", "c"))
    vote = Vote(name, request.leader_epoch, NO_EPOCH_END, (("b", "c"),))
    for has_index, has_start in product((True, False), repeat=2):
        storage = MemoryStorage()
        stored = [
            RecordBatch(Partition("orders", "b/1D/0/3"), 0, [b"x"] * 2, timestamps=[1, 1]),
            RecordBatch(Partition(INDEX_TOPIC, "b/1D/1/7"), 0, [b""], timestamps=[1]),
        ]
        if has_index:
            entries = encode_entries([run_entry(0, LEADER, 0, 2)])
            stored.append(RecordBatch(index, 0, [entries], timestamps=[1]))
        if has_start:
            records: list[ControlRecord] = [empty, start, request, vote]
            keys, values = [key_of(each).encode() for each in records], [encode_control(each) for each in records]
            stored.append(RecordBatch(Partition(BRANCHES_TOPIC, "c"), 0, values, keys=keys, timestamps=[1] * 4))
        await storage.append(stored)
        logs = await read_stored_logs(storage)
        assert logs.durable_end(Partition("orders", "b/1D/0/3")) == 2
        assert logs.durable_end(Partition("orders", "none")) == 0
        assert logs.first_epoch("1D", 0) == (first if has_index or has_start else None)
        assert logs.first_epoch("1D", 1) == LeaderAndEpoch(7, "b")
        assert logs.first_epoch("2D", 0) is None
        log = await logs.load(attrs.evolve(topic, first_epoch=3), 0, ("b",))
        assert log.local_log.ends().get(first, 0) == (2 if has_index else 0)
        assert log.replica.latest.leader_epoch == (later if has_start else first)
        assert (log.replica.has_voted("c", 2048), log.replica.elections.votes.own_epoch) == (has_start, -1)
