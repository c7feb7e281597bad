"""Several brokers with the same logs: elections, what remains when a broker dies, and how divergent logs are merged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.positions import Offset
from dafka.broker.node import BrokerNode
from dafka.broker.startup import serve_broker
from dafka.cli.status import read_brokers
from dafka.errors import ConfigError, NotLeaderError, StorageError
from dafka.roles import open_producer, open_reader
from tests.broker.nodes.broker_cluster import (
    PATIENCE_S,
    append,
    distinct,
    make_batch,
    open_broker_cluster,
    read,
    read_from,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.trio

NAMES = ("a", "b", "c")


def values(count: int, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


async def wait_for_high_watermark(log: Log, offset: int) -> None:
    await wait_until(lambda: log.high_watermark == offset)


@pytest.mark.parametrize("scheme", ["filelog", "sqlite"])
async def test_a_log_goes_on_when_its_leader_stops(tmp_path: Path, scheme: str) -> None:
    async with open_broker_cluster(tmp_path, scheme) as cluster:
        first, *_ = await cluster.start_all(*NAMES)
        await first.create_topic("orders", 3).wait()
        for number in range(3):
            await cluster.append("orders", number, *values(10))
        (leader, _), *_ = await cluster.wait_led("orders", 3)
        (stopped,) = [name for name, each in cluster.brokers.items() if each is leader]
        await cluster.stop(stopped)
        for number in range(3):
            await cluster.append("orders", number, b"later")
        for broker, log in await cluster.wait_led("orders", 3):
            assert distinct(await read(broker, log)) == [*values(10), b"later"]
        again = await cluster.start(stopped)
        (partition,) = {log.index_partition for _, log in cluster.logs("orders") if log.number == 0}
        await wait_until(lambda: again.storage.durable_end(partition) > 0)
        assert len(cluster.brokers) == 3


@contextmanager
def full_disk(*brokers: BrokerNode) -> Iterator[None]:
    """Let all writes of some brokers fail during a block."""

    async def fail(_batches: object) -> None:
        raise StorageError("no space left on the disk")

    with pytest.MonkeyPatch.context() as patch:
        for each in brokers:
            patch.setattr(each.storage.storage, "append", fail)
        yield


async def test_others_lead_while_a_leader_cannot_write(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first, *_ = await cluster.start_all(*NAMES)
        await first.create_topic("orders").wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, b"before")
        with full_disk(leader):
            waiting = leader.writer.append(log, make_batch(b"waits"))
            with trio.fail_after(PATIENCE_S), pytest.raises(NotLeaderError):
                await waiting.wait_offset()
            await wait_until(waiting.withdraw)  # what the client was refused never turns up
            await wait_until(lambda: any(broker is not leader for broker, _ in cluster.logs("orders")))
            await cluster.append("orders", 0, b"meanwhile")
            assert not log.leadership.is_led
        ((_, led),) = await cluster.wait_led("orders")
        await append(*cluster.logs("orders")[0], b"after")
        await wait_for_high_watermark(led, 3)
        for broker, each in await cluster.wait_led("orders"):
            assert await read(broker, each) == [b"before", b"meanwhile", b"after"]


async def test_a_log_can_be_read_while_no_replica_can_write(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        brokers = await cluster.start_all(*NAMES)
        await brokers[0].create_topic("orders").wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, b"before")
        with full_disk(*brokers):
            leader.writer.append(log, make_batch(b"waits"))
            await wait_until(lambda: len(leader.brokers.unwritable) >= 2 and log.leadership.is_led)
            assert await read(leader, log) == [b"before"]
        await cluster.append("orders", 0, b"after")
        ((broker, each),) = await cluster.wait_led("orders")
        assert distinct(await read(broker, each))[:2] == [b"before", b"waits"]


async def test_a_broker_that_comes_back_leads_the_logs_again_that_it_is_preferred_for(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first, *_ = await cluster.start_all(*NAMES, preferred_leader_after_ms=500)
        await first.create_topic("orders").wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, *values(5))
        (name,) = [each for each, broker in cluster.brokers.items() if broker is leader]
        await cluster.stop(name)
        await cluster.append("orders", 0, b"x")
        again = await cluster.start(name, preferred_leader_after_ms=500)
        await wait_until(lambda: [broker for broker, _ in cluster.logs("orders")] == [again])
        ((leader, log),) = await cluster.wait_led("orders")
        assert await read(leader, log) == [*values(5), b"x"]
        assert log.leadership.epoch > 0
        assert log.epoch_at(Offset(0)) == 0 < log.epoch_at(Offset(5)) < log.leadership.epoch


async def test_all_brokers_stop_and_start_again(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first, *_ = await cluster.start_all(*NAMES)
        await first.create_topic("orders", 4).wait()
        for number in range(4):
            await cluster.append("orders", number, *values(number + 1))
        for name in NAMES:
            await cluster.stop(name)
        await cluster.start_all(*NAMES)
        for broker, log in await cluster.wait_led("orders", 4):
            assert distinct(await read(broker, log)) == values(log.number + 1)
        for number in range(4):
            await cluster.append("orders", number, b"z")


async def test_a_leader_that_starts_again_gives_others_what_they_lack_of_its_branch(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first, *_ = await cluster.start_all(*NAMES, leader_timeout_ms=10_000)
        await first.create_topic("orders", 1, replica_count=3).wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, b"x")
        name = cluster.name_of(leader)
        others = [each for each in NAMES if each != name]
        for other in others:
            await cluster.stop(other)
        await leader.writer.append(log, make_batch(b"y")).durable.wait()
        await cluster.stop(name)
        alone = await cluster.start(name)
        await wait_until(
            lambda: [each.replica.leader for each in alone.replicator.logs if each.topic == "orders"] == [""]
        )
        await cluster.stop(name)
        await cluster.start_all(name, others[0])
        ((leader, log),) = await cluster.wait_led("orders")
        assert await read(leader, log) == [b"x", b"y"]


async def test_only_the_leader_takes_records(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        brokers = await cluster.start_all(*NAMES)
        await brokers[0].create_topic("orders").wait()
        ((leader, _),) = await cluster.wait_led("orders")
        for broker in brokers:
            (log,) = broker.log_table.logs("orders")
            if broker is not leader:
                with pytest.raises(NotLeaderError) as caught:
                    broker.writer.append(log, make_batch(b"x"))
                assert caught.value.leader == leader.address


async def test_records_of_producers_are_in_the_same_order_whoever_leads(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        await cluster.start_all(*NAMES)
        async with open_producer("orders", cluster.config) as producer:
            for value in values(50):
                await producer.send(value)
            # Brokers that do not know of each other yet may both create the topic; one of the two remains.
            await wait_until(lambda: [log.high_watermark for _, log in cluster.logs("orders")] == [50])
            ((leader, log),) = await cluster.wait_led("orders")
            await append(leader, log, b"own")
            before = await read(leader, log)
            (name,) = [each for each, broker in cluster.brokers.items() if broker is leader]
            await cluster.stop(name)
            for value in values(50, "later "):
                await producer.send(value)
            await wait_until(lambda: [log.high_watermark for _, log in cluster.logs("orders")] == [101])
            ((leader, log),) = await cluster.wait_led("orders")
        assert (await read(leader, log)) == [*before, *values(50, "later ")]


async def test_a_broker_alone_shares_its_logs_with_those_that_come(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first = await cluster.start("a")
        await first.create_topic("orders", 2).wait()
        for number in range(2):
            await cluster.append("orders", number, *values(20))
        await cluster.start_all("b", "c")
        await wait_until(lambda: [len(log.leadership.in_sync) for _, log in cluster.logs("orders")] == [3, 3])
        await cluster.stop("a")
        for broker, log in await cluster.wait_led("orders", 2):
            assert distinct(await read(broker, log)) == values(20)


async def test_a_drained_broker_keeps_nothing(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first, *_ = await cluster.start_all(*NAMES, "d", preferred_leader_after_ms=500)
        await first.create_topic("orders", 8).wait()
        for number in range(8):
            await cluster.append("orders", number, *values(10))
        drained = cluster.brokers["a"]
        drained.set_draining(is_draining=True)

        def is_empty() -> bool:
            logs = drained.log_table.logs("orders")
            return all(drained.address not in log.leadership.replicas for log in logs)

        await wait_until(is_empty)
        for broker, log in await cluster.wait_led("orders", 8):
            assert len(log.leadership.replicas) == 3
            assert distinct(await read(broker, log)) == values(10)
        await wait_until(lambda: not drained.storage.ends(INDEX_TOPIC) and not drained.storage.ends("orders"))


async def test_a_log_moves_to_the_brokers_that_an_operator_names(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first, *_ = await cluster.start_all(*NAMES, "d", preferred_leader_after_ms=500)
        await first.create_topic("orders", replica_count=2).wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, *values(10))
        others = [each for each in cluster.brokers.values() if each.address not in log.leadership.replicas]
        first.change_replicas(log, [each.address for each in others])
        await wait_until(
            lambda: any(
                set(log.leadership.replicas) == {each.address for each in others} for _, log in cluster.logs("orders")
            )
        )
        ((leader, log),) = await cluster.wait_led("orders")
        assert leader in others
        assert await read(leader, log) == values(10)


async def test_a_broker_that_has_deleted_what_it_has_written_gets_it_from_others(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        brokers = await cluster.start_all(*NAMES, "d", preferred_leader_after_ms=300)
        first, *_, last = (each.address for each in brokers)
        middle = [each.address for each in brokers[1:3]]
        await brokers[0].create_topic("orders", placement=[[first, *middle]]).wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, *values(10))
        partition = log.leader_partition
        brokers[1].change_replicas(brokers[1].logs("orders")[0], [*middle, last])
        await wait_until(lambda: not brokers[0].storage.durable_end(partition))
        await append(*(await cluster.wait_led("orders"))[0], *values(10, "later-"))
        brokers[1].change_replicas(brokers[1].logs("orders")[0], [first, *middle])
        await wait_until(lambda: any(broker is brokers[0] for broker, _ in cluster.logs("orders")))
        ((leader, log),) = await cluster.wait_led("orders")
        assert leader is brokers[0]
        assert await read(leader, log) == [*values(10), *values(10, "later-")]


async def test_dead_brokers_are_replaced(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first, *_ = await cluster.start_all(*NAMES, "d", preferred_leader_after_ms=500)
        await first.create_topic("orders", 4).wait()
        for number in range(4):
            await cluster.append("orders", number, *values(10))
        gone = cluster.brokers["b"].address
        await cluster.stop("b")
        await wait_until(
            lambda: (
                len(cluster.logs("orders")) == 4
                and all(
                    gone not in log.leadership.replicas and len(log.leadership.in_sync) == 3
                    for _, log in cluster.logs("orders")
                )
            )
        )
        assert not any(each.replicator.reassigner.under_replicated() for each in cluster.brokers.values())


async def test_deleted_records_take_no_space_at_followers(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        cluster.config = cluster.config.with_store(retention_interval_ms=100)
        brokers = await cluster.start_all(*NAMES)
        await brokers[0].create_topic("orders").wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, *values(10))
        former = log.leader_partition
        name = cluster.name_of(leader)
        await cluster.stop(name)
        ((leader, log),) = await cluster.wait_led("orders")
        for value in values(10, "later-"):
            await append(leader, log, value)
        await leader.deletion.delete_before(log, Offset(13))

        async def find_firsts(broker: BrokerNode) -> list[int]:
            found = await broker.storage.storage.partitions("orders")
            return [found[each].earliest_sequence for each in (former, log.leader_partition)]

        for each in cluster.brokers.values():
            with trio.fail_after(PATIENCE_S):
                while await find_firsts(each) != [10, 3]:  # noqa: ASYNC110 (storages tell of nothing)
                    await trio.sleep(0.01)
        await cluster.stop(next(name for name, each in cluster.brokers.items() if each is not leader))
        await cluster.start(name)
        ((leader, log),) = await cluster.wait_led("orders")
        assert log.index.start_offset == 13
        assert await read_from(leader, log, 13) == values(10, "later-")[3:]


async def test_other_nodes_learn_that_logs_are_under_replicated(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        brokers = await cluster.start_all(*NAMES, replace_replicas_after_ms=60_000)
        await brokers[0].create_topic("orders", 4).wait()
        await cluster.wait_led("orders", 4)
        await cluster.stop("b")
        await wait_until(lambda: sum(each.brokers.own.under_replicated_logs for each in cluster.brokers.values()) == 4)
        async with open_reader([BROKERS_TOPIC], cluster.config) as reader:
            with trio.fail_after(PATIENCE_S):
                counts: dict[str, int] = {}
                while sum(counts.get(each.address, 0) for each in cluster.brokers.values()) != 4:
                    await reader.wait_ready()
                    counts = {each.address: each.under_replicated_logs for each in await read_brokers(reader)}
        assert counts.keys() == {each.address for each in brokers}


async def test_a_deleted_topic_is_gone_everywhere_and_may_come_again(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        brokers = await cluster.start_all(*NAMES)
        await brokers[0].create_topic("orders", 2).wait()
        for number in range(2):
            await cluster.append("orders", number, *values(10))
        await brokers[1].delete_topic("orders")
        await wait_until(
            lambda: not any(each.storage.ends("orders") or "orders" in each.log_table.topics for each in brokers)
        )
        await brokers[2].create_topic("orders").wait()
        await cluster.append("orders", 0, b"x")
        ((leader, log),) = await cluster.wait_led("orders")
        assert distinct(await read(leader, log)) == [b"x"]


async def test_followers_in_a_rack_let_clients_read(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        brokers = await cluster.start_all(*NAMES, rack="r")
        await brokers[0].create_topic("orders").wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, *values(10))
        assert log.leadership.is_follower_readable
        for broker in brokers:
            (log,) = broker.log_table.logs("orders")
            await wait_for_high_watermark(log, 10)
            assert log.leadership.is_follower_readable
            assert await read(broker, log) == values(10)
        await append(leader, leader.log_table.logs("orders")[0], b"more")
        for broker in brokers:
            (log,) = broker.log_table.logs("orders")
            await wait_for_high_watermark(log, 11)
            assert (await read(broker, log))[-1] == b"more"


async def test_brokers_have_different_numbers_that_stay(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        brokers = await cluster.start_all(*NAMES)
        await wait_until(lambda: {each.brokers.own.number for each in brokers} == {0, 1, 2})
        before = cluster.brokers["a"].brokers.own.number
        await cluster.stop("a")
        again = await cluster.start("a")
        await wait_until(lambda: len(again.brokers.living()) == 3)
        assert again.brokers.own.number == before


async def test_a_broker_catches_up_with_an_index_that_was_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dafka.broker.log.stages.OffsetAssigner", partial(OffsetAssigner, rewrite_entries=5))
    monkeypatch.setattr("dafka.broker.core.replication.local_log.REWRITE_RECORDS", 2)
    async with open_broker_cluster(tmp_path) as cluster:
        cluster.config = cluster.config.with_store(retention_interval_ms=100)
        first, *_ = await cluster.start_all(*NAMES)
        await first.create_topic("orders").wait()
        ((leader, log),) = await cluster.wait_led("orders")
        await append(leader, log, *values(10))
        away = next(name for name in NAMES if cluster.brokers[name] is not leader)
        await cluster.stop(away)
        for value in values(200):
            await append(leader, log, value)
        there = [each for each in cluster.brokers.values() if each is not leader]
        await wait_until(
            lambda: all(max(each.storage.earliest(INDEX_TOPIC).values(), default=0) > 50 for each in there)
        )
        again = await cluster.start(away)  # which may be preferred, and lead the log at once
        await wait_until(
            lambda: any(
                again.address in log.leadership.in_sync and log.high_watermark == 210
                for _, log in cluster.logs("orders")
            )
        )
        ((leader, log),) = await cluster.wait_led("orders")
        if leader is not again:
            await cluster.stop(cluster.name_of(leader))
            ((leader, log),) = await cluster.wait_led("orders")
        assert await read(leader, log) == [*values(10), *values(200)]
    assert "unrecoverable" not in caplog.text, "nobody misses what was before"


async def test_brokers_that_an_operator_has_named_keep_a_log_until_one_of_them_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.broker.replication.reassignment.BALANCING_S", 0.05)
    monkeypatch.setattr("dafka.broker.core.metadata.balancer.PLANNING_S", 0.1)
    async with open_broker_cluster(tmp_path) as cluster:
        brokers = await cluster.start_all(*NAMES, "d", preferred_leader_after_ms=100)
        named = tuple(brokers[number].address for number in (2, 1, 0))
        await brokers[0].create_topic("orders", 8, placement=[named] * 8).wait()
        await cluster.wait_led("orders", 8)
        await wait_until(lambda: {broker.address for broker, _ in cluster.logs("orders")} == {named[0]})
        before = list(map(len, brokers[0].epoch_starts("orders")))
        await trio.sleep(1.0)  # some plans are made meanwhile, which leave these logs alone
        assert list(map(len, brokers[0].epoch_starts("orders"))) == before
        assert {log.leadership.replicas for _, log in cluster.logs("orders")} == {named}
        await cluster.stop("b")

        def is_mended() -> bool:
            logs = [log.leadership for _, log in cluster.logs("orders")]
            is_released = not any(each.log_table.topics["orders"].assignments for each in cluster.brokers.values())
            return is_released and all(named[1] not in each.replicas and len(each.in_sync) == 3 for each in logs)

        await wait_until(is_mended)


async def test_a_broker_with_the_number_of_a_running_one_is_refused(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first, second = [await cluster.start(name, number=number) for number, name in enumerate(NAMES[:2], 1)]
        first.membership.update_registration(kafka_listener="first.example:9092")
        await wait_until(lambda: not any(each.brokers.own.is_starting for each in (first, second)))
        config = cluster.config.with_store(storage=f"filelog:{tmp_path / 'other'}").with_broker(number=1)
        found = f"the broker {first.address} at first.example:9092 has the number 1, too; start this broker with"
        with trio.fail_after(PATIENCE_S), pytest.raises(ConfigError, match=found):
            await serve_broker(config)
        await wait_until(
            lambda: all([each.number for each in broker.brokers.all()] == [1, 2] for broker in (first, second))
        )
        third = await cluster.start("other", number=3)
        await wait_until(lambda: [each.address for each in first.brokers.all()][2:] == [third.address])


async def test_a_broker_that_chose_its_number_gives_it_up_for_one_that_was_there(tmp_path: Path) -> None:
    async with open_broker_cluster(tmp_path) as cluster:
        first = await cluster.start("a", number=0)
        await wait_until(lambda: not first.brokers.own.is_starting)
        second = await cluster.start("b")
        await wait_until(lambda: [each.number for each in first.brokers.all()] == [0, 1])
        assert second.brokers.own.number == 1
