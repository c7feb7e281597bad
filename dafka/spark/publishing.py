"""Publishes the rows of one Spark task, each topic to a separate partition, until all are stored.

A partition's address is derived from values that do not change when a task is retried. A later attempt therefore finds
the published records of an earlier one, and continues after them. Each row is stored exactly once if all records of
earlier attempts are among the rows of the same task. A task checks that for its own partitions. The driver, which knows
the number of tasks, checks all others (`check_division`).
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
from dafka.exceptions import unwrap_group
from dafka.records import Partition
from dafka.roles import Producer, Reader, open_producer, open_reader
from dafka.roles.arguments import check_topic
from dafka.spark.deduplication import Deduplicator, find_stored_end, unacknowledged_error
from dafka.spark.errors import InputChangedError
from dafka.spark.options import mention_towers_option
from dafka.spark.rows import RowColumns, Rows

PRODUCERS_MAX = 32
"""The maximum number of open producers of a task.

If a task has more topics, the least recently used producer is closed. It is opened again, at the same position, when
rows of its topic follow.
"""

FURTHER_BYTES_MAX = 4 * 2**20
"""The limit of unacknowledged records of each topic except a task's first, in bytes, to limit a task's memory."""

TASKS_AHEAD = 32
"""The number of task numbers after the last task for which no earlier attempt may have published records."""

QUESTIONS_MAX = 256
"""The maximum number of partitions that the driver asks stores about at once."""

_NAMESPACE = uuid.UUID("5d3c4bd8-2e0e-4a0c-9d0b-52f2c0f4b6a1")


@attrs.frozen
class PublishResult:
    """The result of publishing the rows of one task.

    All rows are stored, those of each topic in a separate partition, and some of them by an earlier attempt.
    """

    records: int = 0
    topics: frozenset[str] = frozenset()
    already_stored: int = 0


def derive_address(*identity: str | int) -> str:
    """Return the address of a partition, which depends only on these values."""
    return uuid.uuid5(_NAMESPACE, json.dumps(identity)).hex.upper()


async def publish(
    batches: Iterator[pa.RecordBatch], columns: RowColumns, config: Config, identity: Sequence[str | int]
) -> PublishResult:
    """Publish a task's rows, and return when `min_stores` stores have each of them.

    The values of `identity` are the same in each attempt of a task, and differ between tasks.

    Raise `RowError` if a row has no topic or no timestamp, or a header is null; `InputChangedError` if an earlier
    attempt had other rows; `PublishingError` if the stores do not answer in time; `DiscoveryError` if no tower answers;
    and `StorageError` if another attempt publishes at the same time.
    """
    with mention_towers_option(), unwrap_group():
        async with trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[pa.RecordBatch](1)
            nursery.start_soon(_read_batches, batches, send)
            async with receive:
                first = await anext(receive, None)
                if first is None:
                    return PublishResult()
                async with open_reader(config=config) as reader, _open_task(reader, config, identity) as task:
                    await task.publish(columns.split_by_topic(first))
                    async for batch in receive:
                        await task.publish(columns.split_by_topic(batch))
    return task.result()


async def check_division(
    config: Config, identity: Sequence[str | int], topics_by_task: Sequence[frozenset[str]]
) -> None:
    """Raise `InputChangedError` if an earlier attempt has published records in a task that now has no such rows.

    `identity` has the values of `publish` without the task. The topics to which each task has published are in the
    order of the tasks. Raise `PublishingError` if the stores do not answer in time, and `DiscoveryError` if no tower
    answers.
    """
    topics = sorted(frozenset().union(*topics_by_task))
    known = [*topics_by_task, *[frozenset[str]()] * TASKS_AHEAD]
    limiter = trio.CapacityLimiter(QUESTIONS_MAX)

    async def check(reader: Reader, task: int, topic: str) -> None:
        partition = Partition(topic, derive_address(*identity, task, topic))
        async with limiter:
            stored = await find_stored_end(reader, partition, config)
        if stored:
            raise InputChangedError(
                f"topic {topic}: in an earlier attempt, task {task} has published {stored} records ({partition}), and "
                f"now there are {len(topics_by_task)} tasks, of which that one has no rows of the topic. The rows are "
                "divided into other tasks than before, so some of them may be published twice: write again with a "
                "new writeId or a new checkpoint, and keep the number of tasks the same while a write is repeated"
            )

    with mention_towers_option(), unwrap_group():
        async with open_reader(config=config) as reader, trio.open_nursery() as nursery:
            for task, published in enumerate(known):
                for topic in topics:
                    if topic not in published:
                        nursery.start_soon(check, reader, task, topic)


async def _read_batches(batches: Iterator[pa.RecordBatch], send: trio.MemorySendChannel[pa.RecordBatch]) -> None:
    """Pass on Spark's batches. A thread waits for them, because the node must run while Spark computes the next one."""
    async with send:
        with suppress(trio.BrokenResourceError):
            while (batch := await trio.to_thread.run_sync(next, batches, None, abandon_on_cancel=True)) is not None:
                await send.send(batch)


@attrs.define(eq=False)
class _TopicPublisher:
    """One topic of a task: its partition, its position, and its producer while that is open."""

    partition: Partition
    config: Config
    next_sequence: int = 0
    deduplicator: Deduplicator | None = None
    producer: Producer | None = None
    closing: trio.Event = attrs.field(factory=trio.Event)
    closed: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class _TaskPublisher:
    _reader: Reader
    _config: Config
    _identity: Sequence[str | int]
    _nursery: trio.Nursery
    _topics: dict[str, _TopicPublisher] = attrs.field(init=False, factory=dict)
    _open: dict[str, None] = attrs.field(init=False, factory=dict)
    _records: int = attrs.field(init=False, default=0)

    async def publish(self, rows_by_topic: Iterator[tuple[str, Rows]]) -> None:
        while group := list(itertools.islice(rows_by_topic, PRODUCERS_MAX)):
            await self._open_topics([topic for topic, _ in group])
            for topic, rows in group:
                await self._send(self._topics[topic], rows)
                self._records += len(rows)

    async def finish(self) -> None:
        for each in self._topics.values():
            if each.deduplicator is not None:
                each.deduplicator.check_complete()
        await self._close_topics(list(self._open))

    def result(self) -> PublishResult:
        stored = sum(each.deduplicator.stored_end for each in self._topics.values() if each.deduplicator is not None)
        return PublishResult(self._records, frozenset(self._topics), stored)

    async def _open_topics(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if topic not in self._topics:
                self._topics[topic] = self._make_publisher(topic)
        others = [topic for topic in self._open if topic not in topics]
        excess = len(others) + len(topics) - PRODUCERS_MAX
        await self._close_topics(others[: max(excess, 0)])
        async with trio.open_nursery() as nursery:
            for topic in topics:
                if self._open.pop(topic, topic) is not None:
                    nursery.start_soon(self._open_topic, self._topics[topic])
        self._open.update(dict.fromkeys(topics))

    def _make_publisher(self, topic: str) -> _TopicPublisher:
        config = self._config
        check_topic(topic, config)
        if self._topics:
            bytes_max = min(config.producer.unacknowledged_bytes_max, FURTHER_BYTES_MAX)
            config = config.with_producer(unacknowledged_bytes_max=bytes_max)
        return _TopicPublisher(Partition(topic, derive_address(*self._identity, topic)), config)

    async def _open_topic(self, each: _TopicPublisher) -> None:
        each.closing, each.closed = trio.Event(), trio.Event()
        each.producer = await self._nursery.start(self._run_producer, each)

    async def _run_producer(self, each: _TopicPublisher, task_status: trio.TaskStatus[Producer]) -> None:
        """Run a topic's producer until it must close.

        It is opened while the stores are asked for the end of the partition. Usually the stores have no records, so
        this saves time. If they have some, the producer is opened again at their end.
        """
        while True:
            async with self._open_producer(each) as producer:
                if each.deduplicator is None:
                    stored_end = await find_stored_end(self._reader, each.partition, self._config)
                    each.deduplicator = Deduplicator(self._reader, each.partition, stored_end, self._config)
                start = max(each.next_sequence, each.deduplicator.stored_end)
                if start == each.next_sequence:
                    task_status.started(producer)
                    await each.closing.wait()
                    each.next_sequence = producer.statistics().next_sequence
                    break
            each.next_sequence = start
        each.closed.set()

    @asynccontextmanager
    async def _open_producer(self, each: _TopicPublisher) -> AsyncIterator[Producer]:
        partition = each.partition
        try:
            async with open_producer(
                partition.topic, each.config, address=partition.address, next_sequence=each.next_sequence
            ) as producer:
                yield producer
        except UnacknowledgedError as error:
            raise unacknowledged_error(partition, error) from None

    async def _send(self, each: _TopicPublisher, rows: Rows) -> None:
        """Publish rows of a topic; raise `PublishingError` if no ACK frees memory for them within the ACK timeout."""
        assert each.deduplicator is not None
        assert each.producer is not None
        producer = each.producer
        rows = await each.deduplicator.drop_published(rows)
        while rows:
            next_sequence = producer.statistics().next_sequence
            with trio.move_on_after(self._config.producer.close_timeout_ms / 1000) as scope:
                await producer.send_many(rows)
            if not scope.cancelled_caught:
                return
            counts = producer.statistics()
            if counts.next_sequence == next_sequence:
                first_sequence = counts.next_sequence - counts.unacknowledged
                stores = self._config.producer.min_stores
                error = UnacknowledgedError(counts.unacknowledged, first_sequence, stores)
                raise unacknowledged_error(each.partition, error)
            rows = rows[counts.next_sequence - next_sequence :]

    async def _close_topics(self, topics: Sequence[str]) -> None:
        """Close the producers of these topics after their records are acknowledged."""
        closing = [self._topics[topic] for topic in topics]
        for topic in topics:
            del self._open[topic]
        for each in closing:
            each.closing.set()
        for each in closing:
            await each.closed.wait()


@asynccontextmanager
async def _open_task(reader: Reader, config: Config, identity: Sequence[str | int]) -> AsyncIterator[_TaskPublisher]:
    async with trio.open_nursery() as nursery:
        task = _TaskPublisher(reader, config, identity, nursery)
        yield task
        await task.finish()
