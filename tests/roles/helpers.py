"""Records that name their sequence, ways to wait for a cluster, and nodes in their own processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from dafka import Config, Consumer, EventFeed, Partition, RecordBatch, Store, serve_store
from dafka.discovery import Advertisement, open_discovery
from dafka.protocol import Event
from dafka.records import new_address
from dafka.transport import PublisherSocket, Socket, open_mesh

DEADLINE_S = 60
AN_HOUR_MS = 3_600_000

_E = TypeVar("_E", bound=Event)


def contents(first: int, end: int) -> list[bytes]:
    return [b"%d" % sequence for sequence in range(first, end)]


async def receive(consumer: Consumer, count: int) -> dict[Partition, list[RecordBatch]]:
    """Take the next `count` records, and return the runs that arrive, by partition."""
    received: dict[Partition, list[RecordBatch]] = {}
    with trio.fail_after(DEADLINE_S):
        while count > 0:
            batch = await consumer.next_batch()
            received.setdefault(batch.partition, []).append(batch)
            count -= len(batch)
    assert count == 0, f"{-count} records too many"
    return received


async def receive_partition(consumer: Consumer, first: int, end: int) -> None:
    """Take the records from `first` up to, not including, `end`, of the only partition; see `assert_run`."""
    (batches,) = (await receive(consumer, end - first)).values()
    assert_run(batches, first, end)


def assert_run(batches: Iterable[RecordBatch], first: int, end: int) -> None:
    """Check that these are all records from `first` up to, not including, `end`, in order, with their own contents."""
    joined: list[bytes | None] = []
    for batch in batches:
        assert batch.first_sequence == first + len(joined)
        joined += batch.values
    assert joined == contents(first, end)


def assert_nothing_more(consumer: Consumer) -> None:
    """Check that the consumer has returned all records that it received or knows of."""
    statistics = consumer.statistics()
    assert statistics.buffered_bytes == 0
    assert statistics.lag == {}


async def wait_event(events: EventFeed, kind: type[_E]) -> _E:
    """Wait for the first event of this kind since the node's start."""
    with trio.fail_after(DEADLINE_S):
        async for event in events:
            if isinstance(event, kind):
                return event
    raise AssertionError("the feed ended")


@asynccontextmanager
async def open_store(config: Config, storage: str = "memory:") -> AsyncIterator[Store]:
    """Run one more store."""
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_store, config.with_store(storage=storage))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_unverified_peer(config: Config) -> AsyncIterator[PublisherSocket]:
    """Open a publisher that the cluster's nodes connect to, for arbitrary messages. It knows no record batches."""
    async with open_mesh(config.with_node(record_batches="off").node, 0) as mesh, trio.open_nursery() as nursery:
        advertisement = Advertisement(new_address(), "127.0.0.1", mesh.port)
        await nursery.start(open_discovery(config).run, advertisement, lambda _: None)
        yield mesh.publisher
        nursery.cancel_scope.cancel()


async def receive_messages(socket: Socket, count: int) -> list[list[bytes]]:
    """Return the next messages, which may arrive one by one."""
    received: list[list[bytes]] = []
    with trio.fail_after(DEADLINE_S):
        while len(received) < count:
            received += await socket.receive_many()
    return received


async def wait_subscribed(publisher: Socket | PublisherSocket, prefix: bytes, *, active: bool = True) -> None:
    """Wait until a peer has subscribed to this prefix, or unsubscribed."""
    with trio.fail_after(DEADLINE_S):
        while [bytes((active,)) + prefix] not in await publisher.receive_many():
            pass
