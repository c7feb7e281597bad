"""Brokers that lead logs and follow them, on a clock that jumps."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from dafka.broker.core.log.entries import BatchEntry, RunEntry
from dafka.broker.core.positions import RecordSequence
from dafka.errors import NotLeaderError
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import batch_entry, run_entry
from tests.broker.replication.virtual_cluster import PATIENCE_S, batch, open_virtual_cluster, wait_for


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


@pytest.mark.parametrize(("sender", "receiver"), ["AB", "BA"])
async def test_a_follower_gets_and_acknowledges_what_was_lost_on_the_way(
    autojump_clock: MockClock, sender: str, receiver: str
) -> None:
    async with open_virtual_cluster("AB", "AB", leader_timeout_ms=10_000) as cluster:
        cluster.cut(sender, receiver, is_one_way=True)
        appended = cluster.brokers["A"].writer.append(cluster.log("A"), batch(b"a"))
        await appended.durable.wait()
        await trio.sleep(1)
        cluster.down.clear()  # the connection was not lost
        with trio.fail_after(5):
            assert await appended.wait_offset() == 0


async def test_nothing_is_committed_or_led_without_a_majority(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append("A", b"a")
        cluster.cut("A", "BC")
        appended = cluster.brokers["A"].writer.append(cluster.log("A"), batch(b"lost"))
        await appended.durable.wait()
        await wait_for(lambda: cluster.brokers["A"].brokers.alive == {"A" * 32})
        assert not cluster.log("A").leadership.is_led
        assert cluster.replicated("A").replica.led_epoch is not None, "it resigns later"
        leadership = cluster.log("A").leadership
        assert (leadership.leader, leadership.presumed_leader) == ("", "A" * 32), "it cannot know who leads"
        with trio.fail_after(PATIENCE_S), pytest.raises(NotLeaderError):
            await appended.wait_offset()
        leader = await cluster.wait_leader("BC")
        assert await cluster.append(leader, b"b") == 1
        cluster.heal()
        await wait_for(lambda: cluster.in_sync() == "ABC" and cluster.log(leader).high_watermark == 3)
        assert await cluster.read(leader) == [b"a", b"b", b"lost"], "what was not committed is appended again"
        assert cluster.log("A").leadership.presumed_leader == ""


async def test_records_that_become_durable_when_another_broker_leads_are_appended_again(
    autojump_clock: MockClock,
) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append("A", b"a")
        cluster.cut("A", "BC")
        cluster.disks["A"].append_s = 60
        cluster.brokers["A"].writer.append(cluster.log("A"), batch(b"late"))
        leader = await cluster.wait_leader("BC")
        await wait_for(lambda: cluster.replicated("A").replica.led_epoch is None)
        cluster.disks["A"].append_s = 0
        cluster.heal()
        await wait_for(lambda: cluster.in_sync() == "ABC" and cluster.log(leader).high_watermark == 2)
        assert await cluster.read(leader) == [b"a", b"late"]


async def test_a_batch_of_an_idempotent_producer_is_not_appended_again_from_another_epoch(
    autojump_clock: MockClock,
) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        writer, log = cluster.brokers["A"].writer, cluster.log("A")
        await writer.append(log, batch(b"a0", b"a1", producer=(7, 0, 0))).wait_offset()
        cluster.cut("A", "BC")
        for data in (batch(b"x"), batch(b"a2", b"a3", producer=(7, 0, 2)), batch(b"y", b"z")):
            await writer.append(log, data).durable.wait()
        leader = await cluster.wait_leader("BC")
        again = cluster.brokers[leader].writer.append(cluster.log(leader), batch(b"a2", b"a3", producer=(7, 0, 2)))
        assert await again.wait_offset() == 2
        cluster.heal()
        await wait_for(lambda: cluster.in_sync() == "ABC" and cluster.log(leader).high_watermark == 7)
        assert await cluster.read(leader) == [b"a0", b"a1", b"a2", b"a3", b"x", b"y", b"z"]


async def test_a_log_can_be_read_while_no_replica_can_write(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append("A", b"before")
        for each in "ABC":
            cluster.disks[each].is_full = True
            cluster.brokers[each].storage.write_state("$checkpoints", [(b"k", b"v")])
        await wait_for(lambda: len(cluster.brokers["A"].brokers.unwritable) == 3)
        await trio.sleep(3)
        assert cluster.leader() == "A"
        assert await cluster.read("A") == [b"before"]
        for each in "ABC":
            cluster.disks[each].is_full = False
        assert await cluster.append(await cluster.wait_leader("ABC"), b"after") == 1


async def test_a_preferred_leader_that_is_back_leads_again(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "BCA", preferred_leader_after_ms=2000) as cluster:
        await cluster.append("B", b"a")
        await cluster.stop("B")
        assert await cluster.wait_leader("AC") == "C", "the next one in the order that was named"
        await cluster.append("C", b"b")
        await cluster.start("B", preferred_leader_after_ms=2000)
        assert await cluster.wait_leader("B") == "B"
        assert await cluster.read("B") == [b"a", b"b"]
        assert len(cluster.brokers["B"].epoch_starts("orders")[0]) == 3


async def test_followers_in_a_rack_let_clients_read_what_is_committed_also_while_nothing_is_appended(
    autojump_clock: MockClock,
) -> None:
    """Otherwise a leader would go on sending clients to followers that refuse them."""
    async with open_virtual_cluster("ABC", "ABC", rack="r") as cluster:

        async def check(*values: bytes) -> None:
            logs = [cluster.log(each) for each in "ABC"]
            await wait_for(lambda: all(each.leadership.is_follower_readable for each in logs))
            await wait_for(lambda: all(each.high_watermark == len(values) for each in logs))
            assert [await cluster.read(each) for each in "ABC"] == [list(values)] * 3

        await check()
        await cluster.append("A", b"a", b"b")
        await check(b"a", b"b")
        cluster.cut("A", "BC")
        await cluster.brokers["A"].writer.append(cluster.log("A"), batch(b"lost")).durable.wait()
        await trio.sleep(0.3)
        assert [cluster.log(each).high_watermark for each in "ABC"] == [2, 2, 2]
        leader = await cluster.wait_leader("BC")
        await cluster.append(leader, b"c")
        cluster.heal()
        await check(b"a", b"b", b"c", b"lost")
        cluster.cut(leader, "ABC".replace(leader, ""))
        await cluster.wait_leader("ABC".replace(leader, ""))
        cluster.heal()
        await wait_for(lambda: cluster.in_sync() == "ABC")
        await check(b"a", b"b", b"c", b"lost")


async def test_a_follower_that_misses_a_former_index_lets_nobody_read(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC", rack="r") as cluster:
        await cluster.append("A", b"a")
        index = cluster.log("A").index_partition
        await cluster.stop("A")
        leader = await cluster.wait_leader("BC")
        await cluster.append(leader, b"b")
        await cluster.start("A", rack="r")
        await wait_for(lambda: cluster.in_sync() == "ABC")
        name = "BC".replace(leader, "")
        await cluster.stop(name)
        await cluster.disks[name].delete_partitions([index])
        cluster.lost.add(index)
        await cluster.start(name, rack="r")
        await trio.sleep(5)
        assert not cluster.log(name).leadership.is_follower_readable
        cluster.lost.clear()
        await wait_for(lambda: cluster.log(name).leadership.is_follower_readable)
        await wait_for(lambda: cluster.log(name).high_watermark == 2)
        assert await cluster.read(name) == [b"a", b"b"]


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


@pytest.mark.parametrize("topic", ["branch", "majority"])
async def test_both_sides_of_a_split_go_on_only_if_the_topic_says_so(autojump_clock: MockClock, topic: str) -> None:
    async with open_virtual_cluster("AB", "AB", topic={"availability": topic}) as cluster:
        await cluster.append(cluster.leader(), b"both")
        await wait_for(lambda: cluster.in_sync() == "AB")
        cluster.cut("A", "B")
        if topic == "majority":
            await wait_for(lambda: not any(cluster.log(each).leadership.is_led for each in "AB"))
            await trio.sleep(5)
            assert not any(cluster.log(each).leadership.is_led for each in "AB")
            return
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


async def test_a_replica_that_joins_is_not_in_sync_for_clients_until_it_counts(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "AB") as cluster:
        first = cluster.brokers["A"]
        await cluster.append("A", b"a")
        await first.admin.change_replicas(cluster.log("A"), ["A" * 32, "B" * 32, "C" * 32])
        await wait_for(lambda: cluster.log("A").leadership.learners == ("C" * 32,) and cluster.in_sync() == "AB")
        await wait_for(lambda: "C" * 32 in cluster.replicated("A").replica.in_sync())
        assert cluster.in_sync() == "AB"
        assert cluster.replicas() == "ABC"
        await wait_for(lambda: cluster.in_sync() == "ABC")
        assert cluster.log("A").leadership.learners == ()


@pytest.mark.parametrize("availability", ["majority", "branch"])
async def test_batches_of_idempotent_producers_are_merged_once_or_only_where_nobody_acknowledged_them(
    autojump_clock: MockClock, availability: str
) -> None:
    """Plain records around them are merged in any case."""
    async with open_virtual_cluster("A", "A", topic={"availability": availability}) as cluster:
        admitted, log = cluster.brokers["A"].replicator.led_logs.admitted, cluster.log("A")
        first, second = (batch_entry(each, 5, 7, 0, each, 0, 0) for each in (2, 8))
        entries: list[RunEntry | BatchEntry] = [run_entry(100, "another", 0, 15), first, second]
        whole, plain = list(range(15)), [0, 1, 7, 13, 14]
        for wanted in (whole if availability == "branch" else plain, plain):
            runs = [each for each in admitted(log, entries) if isinstance(each, RunEntry)]
            assert [each.first_sequence + n for each in runs for n in range(each.record_count)] == wanted


async def test_a_new_leader_serves_nobody_before_all_records_before_its_epoch_are_committed(
    autojump_clock: MockClock,
) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append("A", b"a")
        cluster.cut("A", "C", is_one_way=True)
        await cluster.append("A", b"b")
        cluster.lost.add(cluster.log("A").leader_partition)
        await cluster.stop("A")
        cluster.heal()
        await wait_for(lambda: cluster.brokers["B"].log_table.leads(cluster.log("B")))
        await trio.sleep(3)
        assert cluster.leader() == ""
        cluster.lost.clear()
        await cluster.wait_leader("B")
        assert await cluster.read("B") == [b"a", b"b"]


async def test_a_leader_that_cannot_read_the_log_yet_leads_later(autojump_clock: MockClock) -> None:
    async with open_virtual_cluster("ABC", "ABC") as cluster:
        await cluster.append("A", b"a")
        for each in "BC":
            cluster.disks[each].unreadable.add(cluster.log("A").index_partition)
        await cluster.stop("A")
        await wait_for(lambda: any(cluster.replicated(each).replica.led_epoch is not None for each in "BC"))
        await trio.sleep(0.1)
        assert cluster.leader() == ""
        for each in "BC":
            cluster.disks[each].unreadable.clear()
        leader = await cluster.wait_leader("BC")
        assert await cluster.append(leader, b"b") == 1


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
