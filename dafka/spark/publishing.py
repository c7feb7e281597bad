"""What a Spark task does: publishes its rows, each topic's as a partition of its own, and waits until they are stored.

A partition's address is made from what does not change when a task is tried again, so that another attempt finds what
an earlier one has published, and goes on after it.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import pyarrow as pa
import trio

from dafka.config import Config
from dafka.errors import UnacknowledgedError
from dafka.groups import single_exception
from dafka.records import Partition
from dafka.roles import Producer, Reader, open_producer, open_reader
from dafka.roles.arguments import check_topic
from dafka.spark.deduplication import Deduplicator, held_end, read_held, unacknowledged
from dafka.spark.options import mention_towers_option
from dafka.spark.schema import RecordColumns

PRODUCERS_MAX = 32
"""Producers open at once in a task. Of further topics, the one not written to for longest is closed, and opened again
where it stood when rows of it come."""

FURTHER_BYTES_MAX = 4 * 2**20
"""What may be unacknowledged of each topic but a task's first: many topics must not take much memory."""

_NAMESPACE = uuid.UUID("5d3c4bd8-2e0e-4a0c-9d0b-52f2c0f4b6a1")


@attrs.frozen
class PublishResult:
    """What a task has done: `records` of its rows are stored, in so many `partitions`; `found` were there before."""

    records: int = 0
    partitions: int = 0
    found: int = 0


def derive_address(*identity: str | int) -> str:
    """The address of a partition that is known by these values: the same for the same values."""
    return uuid.uuid5(_NAMESPACE, json.dumps(identity)).hex.upper()


async def publish(
    batches: Iterator[pa.RecordBatch], rows: RecordColumns, config: Config, identity: Sequence[str | int]
) -> PublishResult:
    """Publishes these rows; returns when `min_stores` stores have each of them.

    The values of `identity` tell this task from any other, and are the same for each attempt of it.

    Raises `RowError` for a row that is no record, `InputChangedError` where an earlier attempt had others,
    `PublishingError` where stores do not answer in time, `DiscoveryError` where no tower does,
    `StorageError` where another attempt publishes at the same time.
    """
    with mention_towers_option(), single_exception():
        async with trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[pa.RecordBatch](1)
            nursery.start_soon(_read_batches, batches, send)
            async with receive:
                first = await anext(receive, None)
                if first is None:
                    return PublishResult()
                async with open_reader(config=config) as reader, _open_task(reader, config, identity) as task:
                    await task.publish(rows.split_by_topic(first))
                    async for batch in receive:
                        await task.publish(rows.split_by_topic(batch))
    return task.published()


async def _read_batches(batches: Iterator[pa.RecordBatch], send: trio.MemorySendChannel[pa.RecordBatch]) -> None:
    """In a thread: what Spark is still computing must not hold up the node's other tasks."""
    async with send:
        with suppress(trio.BrokenResourceError):
            while (batch := await trio.to_thread.run_sync(next, batches, None, abandon_on_cancel=True)) is not None:
                await send.send(batch)


class _TopicPublisher:
    """One topic of a task: its partition, where it stands, and its producer while that is open."""

    def __init__(self, partition: Partition, config: Config) -> None:
        self.partition = partition
        self.config = config
        self.next_sequence = 0
        self.deduplicator: Deduplicator | None = None
        self.producer: Producer | None = None
        self.closing = trio.Event()
        self.closed = trio.Event()


class _TaskPublisher:
    def __init__(self, reader: Reader, config: Config, identity: Sequence[str | int], nursery: trio.Nursery) -> None:
        self._reader = reader
        self._config = config
        self._identity = identity
        self._nursery = nursery
        self._lanes: dict[str, _TopicPublisher] = {}
        self._open: dict[str, None] = {}
        self._records = 0

    async def publish(self, contents_by_topic: Iterator[tuple[str, Sequence[bytes]]]) -> None:
        while group := list(itertools.islice(contents_by_topic, PRODUCERS_MAX)):
            await self._open_lanes([topic for topic, _ in group])
            for topic, contents in group:
                await self._send(self._lanes[topic], contents)
                self._records += len(contents)

    async def finish(self) -> None:
        for lane in self._lanes.values():
            if lane.deduplicator is not None:
                lane.deduplicator.finish()
        await self._close_lanes(list(self._open))

    def published(self) -> PublishResult:
        found = sum(lane.deduplicator.held_end for lane in self._lanes.values() if lane.deduplicator is not None)
        return PublishResult(self._records, len(self._lanes), found)

    async def _open_lanes(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if topic not in self._lanes:
                self._lanes[topic] = self._make_lane(topic)
        others = [topic for topic in self._open if topic not in topics]
        excess = len(others) + len(topics) - PRODUCERS_MAX
        await self._close_lanes(others[: max(excess, 0)])
        async with trio.open_nursery() as nursery:
            for topic in topics:
                if self._open.pop(topic, topic) is not None:
                    nursery.start_soon(self._open_lane, self._lanes[topic])
        self._open.update(dict.fromkeys(topics))

    def _make_lane(self, topic: str) -> _TopicPublisher:
        config = self._config
        check_topic(topic, config)
        if self._lanes:
            bytes_max = min(config.producer.unacknowledged_bytes_max, FURTHER_BYTES_MAX)
            config = config.with_producer(unacknowledged_bytes_max=bytes_max)
        return _TopicPublisher(Partition(topic, derive_address(*self._identity, topic)), config)

    async def _open_lane(self, lane: _TopicPublisher) -> None:
        lane.closing, lane.closed = trio.Event(), trio.Event()
        lane.producer = await self._nursery.start(self._run_lane, lane)

    async def _run_lane(self, lane: _TopicPublisher, task_status: trio.TaskStatus[Producer]) -> None:
        """Opens the producer while stores are being asked; they seldom have anything, and then no time is lost."""
        while True:
            async with self._open_producer(lane) as producer:
                if lane.deduplicator is None:
                    lane.deduplicator = await self._ask(lane.partition)
                start = max(lane.next_sequence, lane.deduplicator.held_end)
                if start == lane.next_sequence:
                    task_status.started(producer)
                    await lane.closing.wait()
                    lane.next_sequence = producer.statistics().next_sequence
                    break
            lane.next_sequence = start
        lane.closed.set()

    @asynccontextmanager
    async def _open_producer(self, lane: _TopicPublisher) -> AsyncIterator[Producer]:
        partition = lane.partition
        try:
            async with open_producer(
                partition.topic, lane.config, address=partition.address, next_sequence=lane.next_sequence
            ) as producer:
                yield producer
        except UnacknowledgedError as error:
            raise unacknowledged(partition, error) from None

    async def _ask(self, partition: Partition) -> Deduplicator:
        async def read(first_sequence: int, end_sequence: int) -> Sequence[bytes | None]:
            return await read_held(self._reader, partition, first_sequence, end_sequence, self._config)

        return Deduplicator(partition, await held_end(self._reader, partition, self._config), read)

    async def _send(self, lane: _TopicPublisher, contents: Sequence[bytes]) -> None:
        """Raises `PublishingError` where no ACK makes room for any more, for as long as ACKs are waited for."""
        assert lane.deduplicator is not None
        assert lane.producer is not None
        producer = lane.producer
        contents = await lane.deduplicator.unpublished(contents)
        while contents:
            published = producer.statistics().next_sequence
            with trio.move_on_after(self._config.producer.close_timeout_ms / 1000) as scope:
                await producer.send_many(contents)
            if not scope.cancelled_caught:
                return
            counts = producer.statistics()
            if counts.next_sequence == published:
                first_sequence = counts.next_sequence - counts.unacknowledged
                stores = self._config.producer.min_stores
                raise unacknowledged(lane.partition, UnacknowledgedError(counts.unacknowledged, first_sequence, stores))
            contents = contents[counts.next_sequence - published :]

    async def _close_lanes(self, topics: Sequence[str]) -> None:
        """Lets go of these producers, once what they have published is acknowledged."""
        lanes = [self._lanes[topic] for topic in topics]
        for topic in topics:
            del self._open[topic]
        for lane in lanes:
            lane.closing.set()
        for lane in lanes:
            await lane.closed.wait()


@asynccontextmanager
async def _open_task(reader: Reader, config: Config, identity: Sequence[str | int]) -> AsyncIterator[_TaskPublisher]:
    async with trio.open_nursery() as nursery:
        task = _TaskPublisher(reader, config, identity, nursery)
        yield task
        await task.finish()
