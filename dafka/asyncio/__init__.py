"""Dafka for asyncio: FastAPI and everything else that does not run on Trio.

    async with dafka.asyncio.open_producer("orders") as producer:
        await producer.send(b"...")

    async with dafka.asyncio.open_consumer(["orders"]) as consumer:
        async for record in consumer: ...

The names are those of `dafka`, whose documentation holds here too. Every method is awaited, except for those that
return an iterator; attributes are not. Instead of `async with`, `await open_producer("orders")` returns an open
producer, which the program closes with `aclose`. Time limits are those of asyncio (`asyncio.timeout`): a cancelled call
loses no record. Exceptions have the types that `dafka` gives them.

The nodes run on Trio in a thread of their own. It ends when the last node of the process is closed. A node may be used
from any event loop of asyncio, but not in a process that was forked after it was opened; open another one there. At the
end of the process, a producer that is still open waits for its records for at most `[producer] close_timeout_ms`, and
reports on stderr how many were not stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

from dafka import roles
from dafka.asyncio.node import EventFeed, Hosted, Node, Opening, asks, opens, waits
from dafka.clients import hosted_role
from dafka.clients.hosted_node import HostedNode
from dafka.clients.hosted_role import HostedConsumer, HostedProducer, HostedTower
from dafka.records import Header, Partition, ProducerRecord, Record, RecordBatch
from dafka.roles.trio_context import Iteration

__all__ = [
    "Consumer",
    "EventFeed",
    "Observer",
    "Opening",
    "Producer",
    "Range",
    "Reader",
    "Store",
    "Tower",
    "open_consumer",
    "open_observer",
    "open_producer",
    "open_reader",
    "serve_store",
    "serve_tower",
]


class Producer(HostedProducer, Node[roles.Producer]):
    """A producer of one topic, opened by `open_producer`. Several tasks may use it at the same time."""

    def __init__(self, hosted: HostedNode[roles.Producer]) -> None:
        """Show an open producer. Programs call `open_producer` instead."""
        super().__init__(hosted)
        self._sending = asyncio.Lock()

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> int:
        """Publish one record, and return its sequence; see `dafka.Producer.send`. `send_many` is faster for many."""
        record = ProducerRecord(value, key, headers, timestamp)
        return (await self.send_many([record])).start

    async def send_many(self, records: Sequence[bytes | None] | Sequence[ProducerRecord | Record]) -> range:
        """Publish records in order, and return their sequences; see `dafka.Producer.send_many`.

        Where publishing cannot fail and need not wait for ACKs, the Trio thread may publish them just after this has
        returned, while the program makes the next ones.
        """
        batch = self._role._make_batch(records)
        self._hosted.thread.check_here()
        async with self._sending:
            await self._wait_published()
            if (sequences := self._hand_over(batch)) is not None:
                return sequences
            return await self._wait(partial(self._role._send_batch, batch), partial(self._role._send_nowait, batch))

    async def wait_stored(self) -> None:
        """Wait until `[producer] min_stores` stores have acknowledged every record sent so far."""
        await self._wait_published()
        await self._wait(self._role.wait_stored)

    async def wait_acknowledged(self) -> None:
        """Wait for outstanding ACKs, as leaving the block does; see `dafka.Producer.wait_acknowledged`."""
        await self._wait_published()
        await self._wait(self._role.wait_acknowledged)

    statistics = asks(roles.Producer.statistics)

    async def _wait_published(self) -> None:
        """Wait until the last batch that was handed over is published."""
        if self._handed_over is not None and not self._hosted.thread.is_foreign():
            await self._wait_call(self._handed_over, lambda: None)


class Consumer(HostedConsumer, Node[roles.Consumer]):
    """A consumer of topics, opened by `open_consumer`.

    Iterate over it for records, or over `batches()` for batches of them, which is faster. They may be mixed: each
    record is returned once. A consumer is used by one task at a time; `statistics` may be called by any.
    """

    subscribe = asks(roles.Consumer.subscribe)
    unsubscribe = asks(roles.Consumer.unsubscribe)

    def batches(self, *, until: Mapping[Partition, int] | None = None) -> AsyncIterator[RecordBatch]:
        """Return an iterator over batches of records, which ends at `until`; see `dafka.Consumer.batches`."""
        ends = None if until is None else self._role._check_until(until)
        return Iteration(partial(self._next_batch_before, ends))

    def __aiter__(self) -> AsyncIterator[Record]:
        return Iteration(self.next_record)

    positions = asks(roles.Consumer.positions)
    lag = asks(roles.Consumer.lag)
    ends = waits(roles.Consumer.ends)
    seek = asks(roles.Consumer.seek)
    seek_tail = waits(roles.Consumer.seek_tail)
    positions_at = waits(roles.Consumer.positions_at)
    seek_time = waits(roles.Consumer.seek_time)
    pause = asks(roles.Consumer.pause)
    resume = asks(roles.Consumer.resume)

    save_positions = waits(roles.Consumer.save_positions)
    statistics = asks(roles.Consumer.statistics)

    async def next_batch(self, records_max: int | None = None) -> RecordBatch:
        """Wait for the next batch of records; see `dafka.Consumer.next_batch`."""
        while (batch := self._role._delivery.next_batch(records_max)) is None:
            await self._wait(self._role._open_run, self._role._open_run_nowait)
        return batch

    async def next_record(self) -> Record:
        """Wait for the next record, as iterating over the consumer does."""
        while (record := self._role._delivery.next_record()) is None:
            await self._wait(self._role._open_run, self._role._open_run_nowait)
        return record

    async def _next_batch_before(self, ends: dict[Partition, int] | None) -> RecordBatch:
        if ends is None:
            return await self.next_batch()
        wait, attempt = partial(self._role._open_run, ends), partial(self._role._open_run_nowait, ends)
        while await self._wait(wait, attempt):
            if (batch := self._role._delivery.next_batch()) is not None:
                return batch
        raise StopAsyncIteration


class Reader(Node[roles.Reader]):
    """Reads what the stores of a running cluster hold, without following it. `open_reader` creates one."""

    wait_ready = waits(roles.Reader.wait_ready)
    check_settled = asks(roles.Reader.check_settled)
    ends = asks(roles.Reader.ends)
    held_end = waits(roles.Reader.held_end)
    positions_at = waits(roles.Reader.positions_at)
    earliest = waits(roles.Reader.earliest)

    def read(self, partition: Partition, first_sequence: int, end_sequence: int) -> Range:
        """Return a range of records, which must exist; see `dafka.Reader.read`. Its first use begins to fetch them."""
        return Range(self, partition, first_sequence, end_sequence)


class Range:
    """The records of a range of one partition, as they arrive. Iterate over it for batches, in order.

    Attributes:
        partition: The partition of the records.
    """

    def __init__(self, reader: Reader, partition: Partition, first_sequence: int, end_sequence: int) -> None:
        """Show a range. Programs call `Reader.read` instead."""
        self.partition = partition
        self._reader = reader
        self._limits = first_sequence, end_sequence
        self._range: roles.Range | None = None

    def __aiter__(self) -> Range:
        return self

    async def __anext__(self) -> RecordBatch:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next_batch(self) -> RecordBatch | None:
        """Wait for the next batch. None after the last one."""
        return await self._reader._wait((await self._begin()).next_batch)

    async def first_sequence(self) -> int:
        """Wait for the first batch, and return where it begins; see `dafka.Range.first_sequence`."""
        return await self._reader._wait((await self._begin()).first_sequence)

    async def close(self) -> None:
        """Stop fetching, and drop the records that have arrived. May be called again."""
        if self._range is not None:
            with suppress(trio.ClosedResourceError):
                await self._reader._ask(self._range.close)

    async def _begin(self) -> roles.Range:
        """Begin to fetch, once. A task that is cancelled meanwhile has begun, too."""
        if self._range is None:
            await self._reader._ask(self._begin_in_trio)
            assert self._range is not None
        return self._range

    def _begin_in_trio(self) -> None:
        if self._range is None:
            self._range = self._reader._role.read(self.partition, *self._limits)


class Observer(Node[roles.Observer]):
    """Looks at a cluster without taking part in it. `open_observer` creates one."""

    survey = waits(roles.Observer.survey)
    list_topics = waits(roles.Observer.list_topics)


class Store(Node[roles.Store]):
    """A running store, started by `serve_store`."""

    statistics = asks(roles.Store.statistics)


class Tower(HostedTower, Hosted[roles.Tower]):
    """A running tower, started by `serve_tower`."""

    statistics = asks(roles.Tower.statistics)
    health = asks(roles.Tower.health)
    discarded = asks(roles.Tower.discarded)


open_producer = opens(Producer, roles.open_producer)
open_consumer = opens(Consumer, roles.open_consumer)
open_reader = opens(Reader, roles.open_reader)
open_observer = opens(Observer, roles.open_observer)
serve_store = opens(Store, hosted_role.serve_store)
serve_tower = opens(Tower, hosted_role.serve_tower)
