from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from dafka import Config, Producer, open_producer, wire
from dafka.errors import (
    AddressInUseError,
    ConfigError,
    StorageBusyError,
    StorageError,
    StorageSequenceError,
    UnacknowledgedError,
)
from dafka.protocol import StorageFailed
from dafka.records import Partition
from dafka.roles.producer import RUN_BYTES_MAX, RUN_RECORDS_MAX
from dafka.storage import open_storage
from dafka.storage.sqlite import SqliteStorage
from dafka.testing import Cluster, open_cluster
from tests.roles.helpers import DEADLINE_S, contents, open_store, receive_partition, wait_event
from tests.waiting import wait_until


def hasty(config: Config) -> Config:
    """Open a producer that hardly waits for ACKs when its block is left."""
    return config.with_producer(close_timeout_ms=100)


async def test_leaving_the_block_without_a_store_counts_from_the_first_unacknowledged() -> None:
    async with open_cluster(storage=None) as cluster:

        async def produce() -> None:
            async with cluster.producer("hello", hasty(cluster.config)) as producer:
                await producer.send_many(contents(0, 5))
                async with open_store(cluster.config):
                    await producer.wait_stored()
                await producer.send_many(contents(5, 8))

        with pytest.raises(UnacknowledgedError) as caught:
            await produce()
    assert (caught.value.count, caught.value.first_sequence) == (3, 5)


async def test_an_exception_leaves_the_block_unwrapped_without_waiting_for_acks() -> None:
    async with open_cluster(storage=None) as cluster:

        async def produce() -> None:
            async with cluster.producer("hello") as producer:
                await producer.send(b"0")
                raise ZeroDivisionError("the program's own")

        with trio.fail_after(DEADLINE_S), pytest.raises(ZeroDivisionError, match="the program's own"):
            await produce()


async def test_waiting_send_ends_with_the_block() -> None:
    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        config = hasty(cluster.config).with_producer(unacknowledged_records_max=1)
        ended = trio.Event()

        async def send_one_too_many(producer: Producer) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await producer.send(b"1")
            ended.set()

        async def produce() -> None:
            async with cluster.producer("hello", config) as producer:
                await producer.send(b"0")
                nursery.start_soon(send_one_too_many, producer)

        with pytest.raises(UnacknowledgedError):
            await produce()
        with trio.fail_after(DEADLINE_S):
            await ended.wait()


@pytest.mark.parametrize("topic", ["", "x" * 256, "é" * 128, "\ud800", b"bytes", None, "a\0b"])
async def test_an_invalid_topic_is_refused(topic: object) -> None:
    """A NUL ends a topic in the dialect of libdafka."""
    with pytest.raises(ConfigError, match="topic"):
        async with open_producer(topic, Config().with_node(wire="libdafka")):  # type: ignore[arg-type]
            pass


async def test_taken_endpoint_is_an_address_in_use_error(dafka_cluster: Cluster) -> None:
    async with dafka_cluster.producer("hello") as producer:
        with pytest.raises(AddressInUseError):
            async with dafka_cluster.producer("hello", dafka_cluster.config.with_node(bind=producer.endpoint)):
                pass


async def test_a_producer_that_ends_at_once_is_continued_from_its_spool(tmp_path: Path) -> None:
    async with open_cluster(storage=None) as cluster:
        config = cluster.config.with_producer(spool=f"sqlite:{tmp_path / 'spool.db'}")
        addresses = set()
        for first in (0, 100):
            with trio.CancelScope() as scope:
                async with cluster.producer("hello", config) as producer:
                    addresses.add(producer.partition.address)
                    assert await producer.send_many(contents(first, first + 100)) == range(first, first + 100)
                    scope.cancel()
                    await trio.sleep_forever()
        async with cluster.producer("hello", config) as producer:
            assert {producer.partition.address} == addresses
            assert producer.statistics().unacknowledged == 200
            assert await producer.send(b"200") == 200
            async with open_store(cluster.config) as store:
                with trio.fail_after(DEADLINE_S):
                    await producer.wait_stored()
                assert store.statistics().records_stored == 201
                async with cluster.consumer(["hello"]) as consumer:
                    await receive_partition(consumer, 0, 201)


async def test_acknowledged_records_leave_the_spool_all_but_the_last(tmp_path: Path) -> None:
    spool = f"sqlite:{tmp_path / 'spool.db'}"
    async with open_cluster() as cluster:
        config = cluster.config.with_producer(spool=spool)
        for first in range(0, 300, 100):
            async with cluster.producer("hello", config) as producer:
                assert await producer.send_many(contents(first, first + 50)) == range(first, first + 50)
                await producer.wait_stored()
                assert await producer.send_many(contents(first + 50, first + 100)) == range(first + 50, first + 100)
            async with open_storage(spool) as opened:
                found = await opened.partitions()
            (info,) = found.values()
            assert (list(found), info.earliest_sequence, info.end_sequence) == (
                [producer.partition],
                first + 99,
                first + 100,
            )
        async with cluster.consumer(["hello"]) as consumer:
            await receive_partition(consumer, 0, 300)


async def test_spool_in_use_is_refused(tmp_path: Path, dafka_cluster: Cluster) -> None:
    config = dafka_cluster.config.with_producer(spool=f"sqlite:{tmp_path / 'spool.db'}")
    async with dafka_cluster.producer("hello", config):
        with pytest.raises(StorageBusyError):
            async with dafka_cluster.producer("hello", config):
                pass


async def test_older_copy_of_a_spool_is_noticed(tmp_path: Path, dafka_cluster: Cluster) -> None:
    """A store would take the new records for those that it has."""
    spool, copy = tmp_path / "spool.db", tmp_path / "copy.db"
    config = dafka_cluster.config.with_producer(spool=f"sqlite:{spool}")
    async with dafka_cluster.producer("hello", config) as producer:
        await producer.send_many(contents(0, 10))
    shutil.copy(spool, copy)
    async with dafka_cluster.producer("hello", config) as producer:
        await producer.send_many(contents(10, 20))
    config = dafka_cluster.config.with_producer(spool=f"sqlite:{copy}")
    async with dafka_cluster.producer("hello", config) as producer:
        assert producer.statistics().next_sequence == 10
        await wait_until(lambda: bool(producer.statistics().discarded))
        with pytest.raises(StorageSequenceError, match="up to sequence 19"):
            await producer.send(b"another 10")


async def test_a_spool_without_the_acknowledged_records_is_refused(tmp_path: Path, dafka_cluster: Cluster) -> None:
    """Its records were lost, or it is an older copy. Their sequences must not be used again."""
    spool = f"sqlite:{tmp_path / 'spool.db'}"
    async with open_storage(spool) as storage:
        await storage.save_positions("acknowledged", {Partition("hello", storage.identity): 5})
    with pytest.raises(StorageSequenceError, match=r"the spool ends at 0, before acknowledged records \(up to 5\)"):
        async with dafka_cluster.producer("hello", dafka_cluster.config.with_producer(spool=spool)):
            pass


async def test_spool_that_cannot_be_trimmed_is_an_event(
    tmp_path: Path, dafka_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(SqliteStorage, "trim", fail)
    config = dafka_cluster.config.with_producer(spool=f"sqlite:{tmp_path / 'spool.db'}")
    async with dafka_cluster.producer("hello", config) as producer:
        await producer.send(b"0")
        assert await wait_event(producer.events, StorageFailed) == StorageFailed("disk full")
        await producer.send(b"1")
    async with dafka_cluster.consumer(["hello"]) as consumer:
        await receive_partition(consumer, 0, 2)


def test_without_a_tower_leaving_the_block_takes_one_timeout_and_names_the_tower() -> None:
    """Nothing answers, so the time is virtual: the clock jumps to the next deadline."""
    tower = "tcp://127.0.0.1:9"
    config = Config().with_beacon(tower_sub=(tower,), tower_pub=(tower,)).with_producer(close_timeout_ms=30_000)
    times: list[float] = []

    async def leave() -> None:
        async with open_producer("hello", config) as producer:
            await producer.send(b"0")
            times.append(trio.current_time())

    async def run() -> None:
        try:
            await leave()
        finally:
            times.append(trio.current_time())

    with pytest.raises(UnacknowledgedError, match=rf"1 record was not acknowledged .*: no tower is heard at {tower}$"):
        trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.01))
    # The clock also jumps while sockets close. Twice the timeout would be 60 s.
    assert 30 <= times[1] - times[0] < 45


def test_each_ack_restarts_the_wait_for_the_others_when_the_block_is_left() -> None:
    """No node answers, so the time is virtual, and the test receives the ACKs for the producer."""
    tower = "tcp://127.0.0.1:9"
    config = Config().with_beacon(tower_sub=(tower,), tower_pub=(tower,)).with_producer(close_timeout_ms=30_000)

    async def acknowledge(producer: Producer) -> None:
        for sequence in range(3):
            await trio.sleep(20)
            ack = wire.Ack(producer.address, "hello", sequence, "STORE")
            producer._node.receive([ack], trio.current_time())

    async def run() -> None:
        async with trio.open_nursery() as nursery, open_producer("hello", config) as producer:
            await producer.send_many(contents(0, 3))
            producer._on_settled()
            producer._node.act(producer._machine.node_settled(trio.current_time()))
            nursery.start_soon(acknowledge, producer)
        assert producer.statistics().unacknowledged == 0

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.01))


@pytest.mark.parametrize(
    ("settings", "address", "values", "is_sent", "is_certain"),
    [
        ({}, None, [b"x"] * RUN_RECORDS_MAX, True, True),
        ({}, None, [b"x"] * (RUN_RECORDS_MAX + 1), False, False),
        ({}, None, [bytes(RUN_BYTES_MAX)], True, True),
        ({}, None, [bytes(RUN_BYTES_MAX), b"x"], False, False),
        ({"compression": "gzip"}, None, [bytes(2**15 - 1)], True, True),
        ({"compression": "gzip"}, None, [bytes(2**15)], False, False),
        ({"spool": "memory:"}, None, [b"x"], False, False),
        ({}, "A" * 32, [b"x"], True, False),
    ],
)
async def test_what_can_be_sent_without_waiting_is_sent_at_once_and_nothing_else(
    settings: dict[str, Any],
    address: str | None,
    values: list[bytes],
    is_sent: bool,
    is_certain: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Producers for threads use this."""
    monkeypatch.setattr(wire.BatchEncoder, "compresses", lambda *_: "compression" in settings)
    size = sum(map(len, values))
    config = Config().with_node(bind="tcp://127.0.0.1:*").with_producer(min_stores=0, close_timeout_ms=0, **settings)
    async with open_producer("t", config, address=address) as producer:
        batch = producer._make_batch(values)
        for lock in (producer._sending, producer._publishing):
            async with lock:
                assert producer._send_nowait(batch) is None
        assert producer._cannot_refuse(batch) == is_certain
        assert producer._send_nowait(batch) == (range(len(values)) if is_sent else None)
        found = producer.statistics()
        assert (found.records, found.bytes, found.next_sequence) == (
            (len(values), size, len(values)) if is_sent else (0, 0, 0)
        )
        if is_sent:
            assert producer._send_nowait(batch) == range(len(values), 2 * len(values))
    if is_sent:
        with pytest.raises(trio.ClosedResourceError):
            producer._send_nowait(batch)


@pytest.mark.parametrize(
    ("settings", "count", "described"),
    [
        ({}, 1, "1 record of topic t is not stored: no store has acknowledged them"),
        ({"min_stores": 2}, 2, "2 records of topic t are not stored: fewer than 2 stores have acknowledged them"),
        ({"spool": "memory:"}, 1, "1 record of topic t is only in the spool memory:; open it again to store them"),
    ],
)
async def test_a_program_learns_at_its_end_where_its_records_are(
    settings: dict[str, Any], count: int, described: str
) -> None:
    """No tower runs, so no store is found. A producer takes as many unacknowledged records as is set."""
    tower = "tcp://127.0.0.1:9"
    config = Config().with_beacon(tower_sub=(tower,), tower_pub=(tower,))
    config = config.with_producer(unacknowledged_records_max=count, **settings)
    with trio.CancelScope() as leaving:
        async with open_producer("t", config) as producer:
            await producer.send_many(contents(0, count))
            assert producer._send_nowait(producer._make_batch([b"more"])) is None
            tail = "" if "spool" in settings else f", and no tower is heard at {tower}"
            assert producer._describe_unstored() == described + tail
            leaving.cancel()
            await trio.sleep_forever()


# Producers that continue a partition whose address and next sequence the program knows

ADDRESS = "0123456789ABCDEF" * 2


async def test_a_next_sequence_that_is_too_low_is_noticed(dafka_cluster: Cluster) -> None:
    async with open_producer("t", dafka_cluster.config, address=ADDRESS) as producer:
        await producer.send_many(contents(0, 300))

    async def publish() -> None:
        async with open_producer("t", dafka_cluster.config, address=ADDRESS, next_sequence=100) as producer:
            await producer.wait_stored()

    with pytest.raises(StorageSequenceError, match="up to sequence 299, but this producer continues at 100: another"):
        await publish()
    assert dafka_cluster.store is not None
    assert dafka_cluster.store.statistics().records_stored == 300


async def test_a_rival_that_is_noticed_after_the_last_ack_is_an_error() -> None:
    """The ACK may be for the rival's record, and not for this producer's."""
    async with open_cluster(storage=None) as cluster:

        async def publish() -> None:
            async with open_producer("t", cluster.config, address=ADDRESS) as producer:
                await producer.wait_settled()
                await producer.send(b"0")
                acks = [wire.Ack(ADDRESS, "t", sequence, "STORE") for sequence in (0, 5)]
                producer._node.receive(acks, trio.current_time())
                assert producer.statistics().unacknowledged == 0
                with pytest.raises(StorageSequenceError, match="up to sequence 5, but this producer continues at 1"):
                    producer._send_nowait(producer._make_batch([b"1"]))

        with pytest.raises(StorageSequenceError, match="another producer publishes the same partition"):
            await publish()


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"address": ADDRESS.lower()}, "address: expected 32 upper-case hexadecimal digits, not '0123456789abcdef"),
    ({}, {"address": ""}, "address: expected 32 upper-case hexadecimal digits, not ''"),
    (
        {},
        {"address": ADDRESS, "next_sequence": -1},
        "next_sequence: expected a whole number from 0 to 2\\^62 - 1, not -1",
    ),
    ({}, {"address": ADDRESS, "next_sequence": 2**62}, "next_sequence: expected a whole number"),
    ({}, {"address": ADDRESS, "next_sequence": True}, "next_sequence: expected a whole number"),
    ({}, {"next_sequence": 1}, "next_sequence: expected an address with it, that of the partition to continue"),
    ({"spool": "memory:"}, {"address": ADDRESS}, "address: expected none with a spool, which has its own"),
    ({"min_stores": 2}, {}, ".*min_stores"),
]
"""Settings and arguments of producers in the dialect of libdafka."""


async def test_invalid_identities_and_two_stores_in_libdafka_are_refused() -> None:
    for settings, arguments, message in REFUSED:
        config = Config().with_node(wire="libdafka").with_producer(**settings)
        with pytest.raises(ConfigError, match=f"^{message}"):
            async with open_producer("t", config, **arguments):
                pass
