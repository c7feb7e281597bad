"""Brokers that lead logs and follow them, on a clock that jumps."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.log.entries import BatchEntry, RunEntry
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.positions import RecordSequence
from dafka.broker.replication.divergent_records import admitted
from dafka.errors import NotLeaderError
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import batch_entry, run_entry
from tests.broker.replication.virtual_cluster import batch, open_virtual_cluster, wait_for


async def test_a_log_goes_on_when_its_leader_stops_and_all_keep_it_when_it_is_back(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        assert cluster.leader() == "A"
        assert await cluster.append("A", b"a", b"b") == 0
        assert cluster.log("A").leadership.epoch == 0
        await cluster.stop("A")
        leader = await cluster.wait_leader("BC")
        epoch = cluster.log(leader).leadership.epoch
        assert epoch > 0
        assert await cluster.append(leader, b"c") == 2
        await cluster.start("A")
        await wait_for(lambda: cluster.in_sync() == "ABC")
        assert await cluster.read(leader) == [b"a", b"b", b"c"]
        await wait_for(lambda: {node.tables.find_known_end("orders", 0) for node in cluster.brokers.values()} == {3})
        assert [cluster.log(each).leadership.leader for each in "ABC"] == [leader * 32] * 3
        assert [cluster.log(each).leadership.epoch for each in "ABC"] == [epoch] * 3
        with pytest.raises(NotLeaderError) as caught:
            cluster.brokers["A"].writer.append(cluster.log("A"), batch(b"x"))
        assert caught.value.leader == leader * 32
        assert cluster.log(leader).epochs == [(0, 0), (epoch, 2)]
        for each in "ABC":
            log = cluster.log(each)
            assert cluster.brokers[each].storage.durable_end(log.leader_partition) <= 3
        await cluster.stop(leader)
        await cluster.wait_leader({"B": "AC", "C": "AB"}[leader])
        assert await cluster.read(cluster.leader()) == [b"a", b"b", b"c"], "whoever leads next has all"


async def test_what_a_former_leader_has_appended_counts_for_its_log(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", "ABC") as cluster:
        await cluster.append("A", b"x" * 100)
        await cluster.stop("A")
        leader = await cluster.wait_leader("BC")
        assert await cluster.brokers[leader].inventory.log_bytes("orders") == [100, 0]


async def test_without_racks_clients_read_from_leaders_only(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append("A", b"a")
        await trio.sleep(1)
        assert [cluster.log(each).leadership.is_follower_readable for each in "ABC"] == [False] * 3
        await cluster.start("D", rack="r")
        await wait_for(lambda: cluster.log("A").leadership.is_follower_readable)
        await cluster.append("A", b"b")
        await trio.sleep(1)
        assert [cluster.log(each).high_watermark for each in "ABC"] == [2, 0, 0], "brokers without a rack follow no log"


async def test_both_sides_of_a_split_go_on_if_the_topic_says_so(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("AB", "AB", topic={"availability": "branch"}) as cluster:
        await cluster.append(cluster.leader(), b"both")
        await wait_for(lambda: cluster.in_sync() == "AB")
        cluster.cut("A", "B")
        await wait_for(lambda: all(cluster.log(each).leadership.is_led for each in "AB"))
        for each in "AB":
            for number in range(2):
                value = f"{each}{number}".encode()
                assert await cluster.append(each, value) == 1 + number
        for each in "AB":  # a client has sent it again to the other side
            log, data = cluster.log(each), batch(b"once", producer=(7, 0, 0))
            log.producers.add_batch(data[0][0], RecordSequence(3 if each == "A" else 2), 0)
            assert await cluster.brokers[each].writer.append(log, data).wait_offset() == 3
        cluster.heal()
        await wait_for(lambda: cluster.in_sync() == "AB" and cluster.log(cluster.leader()).high_watermark >= 6)
        await cluster.start("C")
        await trio.sleep(1)
        values = await cluster.read(cluster.leader())
        assert values[0] == b"both"
        assert sorted(values[1:]) == [b"A0", b"A1", b"B0", b"B1", b"once"]
        assert [each for each in values if each.startswith(b"A")] == [b"A0", b"A1"]


@pytest.mark.parametrize("sent", [{"A": (0, 50), "B": (20, 80)}, {"A": (0, 80), "B": (20, 60)}])
async def test_what_a_producer_has_sent_to_both_sides_is_there_once_also_if_indexes_are_rewritten_often(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, sent: dict[str, tuple[int, int]]
) -> None:
    """A rewritten index has only the last of the batches that all replicas have."""
    monkeypatch.setattr("dafka.broker.log.stages.OffsetAssigner", partial(OffsetAssigner, rewrite_entries=4))
    monkeypatch.setattr("dafka.broker.core.log.offset_assigner.REWRITE_EPOCHS", 0)
    async with open_virtual_cluster("AB", "AB", topic={"availability": "branch"}) as cluster:
        await cluster.append(cluster.leader(), b"both")
        await wait_for(lambda: cluster.in_sync() == "AB")
        cluster.cut("A", "B")
        await wait_for(lambda: all(cluster.log(each).leadership.is_led for each in "AB"))
        for part in range(2):
            for side, (first, end) in sent.items():
                log, middle = cluster.log(side), (first + end) // 2
                for number in range(first, middle) if part == 0 else range(middle, end):
                    data = batch(b"%d" % number, producer=(7, 0, number))
                    log.producers.add_batch(data[0][0], RecordSequence(number), 0)
                    await cluster.brokers[side].writer.append(log, data).wait_offset()
                await cluster.stop(side)  # a leader that starts again begins an epoch, and knows what its index says
                await cluster.start(side, are_cut=True)
            await wait_for(lambda: all(cluster.log(each).leadership.is_led for each in "AB"))
        cluster.heal()
        await wait_for(lambda: cluster.in_sync() == "AB" and cluster.log(cluster.leader()).high_watermark > 80)
        for starting in "CD":  # the leader tries again what it has merged
            await cluster.start(starting)
            await trio.sleep(1)
        values = await cluster.read(cluster.leader())
        assert sorted(values) == sorted([b"both", *(b"%d" % number for number in range(80))])


@pytest.mark.parametrize("availability", ["majority", "branch"])
async def test_batches_of_idempotent_producers_are_merged_once_or_only_where_nobody_acknowledged_them(
    autojump_clock: MockClock, availability: str
) -> None:
    """Plain records around them are merged in any case."""
    async with open_virtual_cluster("A", "A", topic={"availability": availability}) as cluster:
        log = cluster.log("A")
        for producer, (first, second) in enumerate(((2, 8), (0, 5), (0, 10), (3, 12))):
            batches = [batch_entry(each, 3, producer, 0, each, 0, 0) for each in (first, second)]
            entries: list[RunEntry | BatchEntry] = [run_entry(100, "another", 0, 15), *batches]
            plain = [each for each in range(15) if each not in {*range(first, first + 3), *range(second, second + 3)}]
            for wanted in (list(range(15)) if availability == "branch" else plain, plain):
                kept = admitted(log, entries)
                runs = [each for each in kept if isinstance(each, RunEntry)]
                assert [each.first_sequence + n for each in runs for n in range(each.record_count)] == wanted


async def test_records_of_producers_get_their_offsets_while_another_log_is_still_loaded(
    autojump_clock: MockClock,
) -> None:
    native = Partition("orders", "D" * 32)
    async with open_virtual_cluster("AB", "A", "A") as cluster, trio.open_nursery() as nursery:
        disk, slow = cluster.disks["A"], cluster.log("A", number=1).index_partition
        for number in range(2):
            await cluster.append("A", b"a", number=number)
        await cluster.stop("A")
        await disk.append([RecordBatch(native, 0, [b"n"] * 10, timestamps=[1] * 10)])
        disk.held.add(slow)

        async def release() -> None:
            await trio.sleep(1)
            disk.held.clear()

        nursery.start_soon(release)
        await cluster.start("A")
        await wait_for(lambda: sum(cluster.log("A", number=number).high_watermark for number in range(2)) == 12)


async def test_records_of_a_producer_that_goes_on_while_the_leader_changes_get_their_offsets_in_order(
    autojump_clock: MockClock,
) -> None:
    values = [b"%d" % number for number in range(80)]
    async with open_virtual_cluster("ABC", "ABC") as cluster, trio.open_nursery() as nursery:
        for disk in cluster.disks.values():
            disk.append_s = 0.2

        async def produce() -> None:
            for sequence, value in enumerate(values):
                cluster.produce(sequence, value)
                await trio.sleep(0.05)

        nursery.start_soon(produce)
        for stopped in "AB":
            await trio.sleep(1)
            if cluster.leader() == stopped:
                await cluster.stop(stopped)
                await cluster.wait_leader("ABC".replace(stopped, ""))
                await cluster.start(stopped)
        await wait_for(lambda: cluster.leader() != "" and cluster.log(cluster.leader()).high_watermark == len(values))
        assert await cluster.read(cluster.leader()) == values
