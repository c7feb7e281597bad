"""Dafka for programs without an event loop: scripts, notebooks, Django, Flask.

    with dafka.blocking.open_producer("orders") as producer:
        producer.send(b"...")

    with dafka.blocking.open_consumer(["orders"]) as consumer:
        for record in consumer: ...

The names are those of `dafka`, whose documentation holds here too. What is awaited there blocks the calling thread.
What opens a node returns it open: use it in a `with` block, or call its `close`. Methods that wait take `timeout_s`,
and raise `TimeoutError` when it is over; a call that ends so loses no record. Exceptions have the types that `dafka`
gives them. A producer may be used by several threads at the same time, a consumer by one.

The nodes run on Trio in a thread of their own. It ends when the last node of the process is closed. At the end of the
process, a producer that is still open waits for its records for at most `[producer] close_timeout_ms`, and reports on
stderr how many were not stored. A node cannot be used in a process that was forked after it was opened; open another
one there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

from dafka import roles
from dafka.blocking.node import Deadline, EventFeed, Hosted, Node, asks, opens, waits
from dafka.clients import hosted_role
from dafka.clients.hosted_node import HostedNode
from dafka.clients.hosted_role import HostedConsumer, HostedProducer, HostedTower
from dafka.records import Header, Partition, ProducerRecord, Record, RecordBatch
from dafka.roles import Time

__all__ = [
    "Consumer",
    "EventFeed",
    "Observer",
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
    """A producer of one topic, opened by `open_producer`. Several threads may use it at the same time."""

    def __init__(self, hosted: HostedNode[roles.Producer]) -> None:
        """Show an open producer. Programs call `open_producer` instead."""
        super().__init__(hosted)
        self._sending = threading.Lock()

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Publish one record, and return its sequence; see `dafka.Producer.send`. `send_many` is faster for many."""
        record = ProducerRecord(value, key, headers, timestamp)
        return self.send_many([record], timeout_s=timeout_s).start

    def send_many(
        self, records: Sequence[bytes | None] | Sequence[ProducerRecord | Record], *, timeout_s: float | None = None
    ) -> range:
        """Publish records in order, and return their sequences; see `dafka.Producer.send_many`.

        Where publishing cannot fail and need not wait for ACKs, the Trio thread may publish them just after this has
        returned, while the program makes the next ones.
        """
        batch = self._role._make_batch(records)
        self._hosted.thread.check_here()
        deadline = Deadline.after(timeout_s)
        if not self._sending.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise deadline.error()
        try:
            self._wait_published(deadline)
            if (sequences := self._hand_over(batch)) is not None:
                return sequences
            role = self._role
            return self._wait(deadline, partial(role._send_batch, batch), partial(role._send_nowait, batch))
        finally:
            self._sending.release()

    def wait_stored(self, *, timeout_s: float | None = None) -> None:
        """Wait until `[producer] min_stores` stores have acknowledged every record sent so far."""
        deadline = Deadline.after(timeout_s)
        self._wait_published(deadline)
        self._wait(deadline, self._role.wait_stored)

    def wait_acknowledged(self) -> None:
        """Wait for outstanding ACKs, as leaving the block does; see `dafka.Producer.wait_acknowledged`."""
        self._wait_published(Deadline.after(None))
        self._wait(None, self._role.wait_acknowledged)

    statistics = asks(roles.Producer.statistics)

    def _wait_published(self, deadline: Deadline) -> None:
        """Wait until the last batch that was handed over is published."""
        if self._handed_over is None or self._hosted.thread.is_foreign():
            return
        try:
            self._handed_over.future.exception(deadline.left_s())
        except TimeoutError:
            raise deadline.error() from None
        self._result(self._handed_over)


class Consumer(HostedConsumer, Node[roles.Consumer]):
    """A consumer of topics, opened by `open_consumer`.

    Iterate over it for records, or over `batches()` for batches of them, which is faster. They may be mixed: each
    record is returned once. A consumer is used by one thread at a time; `statistics` may be called by any.
    """

    subscribe = asks(roles.Consumer.subscribe)
    unsubscribe = asks(roles.Consumer.unsubscribe)

    def batches(self, *, until: Mapping[Partition, int] | None = None) -> Iterator[RecordBatch]:
        """Return an iterator over batches of records, which ends at `until`; see `dafka.Consumer.batches`."""
        ends = None if until is None else self._role._check_until(until)
        return iter(partial(self._next_batch_before, ends), None)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.next_record, None)

    positions = asks(roles.Consumer.positions)
    lag = asks(roles.Consumer.lag)

    def ends(self, *, timeout_s: float | None = None) -> dict[Partition, int]:
        """Ask the stores how much they hold of the consumer's topics; see `dafka.Consumer.ends`."""
        return self._wait(timeout_s, self._role.ends)

    seek = asks(roles.Consumer.seek)

    def seek_tail(self, count: int, *, timeout_s: float | None = None) -> None:
        """Continue each partition so that its last records come next; see `dafka.Consumer.seek_tail`."""
        self._wait(timeout_s, partial(self._role.seek_tail, count))

    def positions_at(self, time: Time, *, timeout_s: float | None = None) -> dict[Partition, int]:
        """Ask the stores where their partitions continue from a time on; see `dafka.Consumer.positions_at`."""
        return self._wait(timeout_s, partial(self._role.positions_at, time))

    def seek_time(self, time: Time, *, timeout_s: float | None = None) -> None:
        """Continue each partition with its first record made at a time or later; see `dafka.Consumer.seek_time`."""
        self._wait(timeout_s, partial(self._role.seek_time, time))

    pause = asks(roles.Consumer.pause)
    resume = asks(roles.Consumer.resume)

    def save_positions(self, *, timeout_s: float | None = None) -> None:
        """Make `positions()` durable for the group, or under the name; see `dafka.Consumer.save_positions`."""
        self._wait(timeout_s, self._role.save_positions)

    statistics = asks(roles.Consumer.statistics)

    def next_batch(self, records_max: int | None = None, *, timeout_s: float | None = None) -> RecordBatch:
        """Wait for the next batch of records; see `dafka.Consumer.next_batch`."""
        while (batch := self._role._delivery.next_batch(records_max)) is None:
            self._wait(timeout_s, self._role._open_run, self._role._open_run_nowait)
        return batch

    def next_record(self, *, timeout_s: float | None = None) -> Record:
        """Wait for the next record, as iterating over the consumer does."""
        while (record := self._role._delivery.next_record()) is None:
            self._wait(timeout_s, self._role._open_run, self._role._open_run_nowait)
        return record

    def _next_batch_before(self, ends: dict[Partition, int] | None) -> RecordBatch | None:
        if ends is None:
            return self.next_batch()
        wait, attempt = partial(self._role._open_run, ends), partial(self._role._open_run_nowait, ends)
        while self._wait(None, wait, attempt):
            if (batch := self._role._delivery.next_batch()) is not None:
                return batch
        return None


class Reader(Node[roles.Reader]):
    """Reads what the stores of a running cluster hold, without following it. `open_reader` creates one."""

    wait_ready = waits(roles.Reader.wait_ready)
    check_settled = asks(roles.Reader.check_settled)
    ends = asks(roles.Reader.ends)
    held_end = waits(roles.Reader.held_end)
    positions_at = waits(roles.Reader.positions_at)
    earliest = waits(roles.Reader.earliest)

    def read(self, partition: Partition, first_sequence: int, end_sequence: int) -> Range:
        """Begin to fetch a range of records, which must exist; see `dafka.Reader.read`."""
        return Range(self, self._ask(self._role.read, partition, first_sequence, end_sequence))


class Range:
    """The records of a range of one partition, as they arrive. Iterate over it for batches, in order.

    Attributes:
        partition: The partition of the records.
    """

    def __init__(self, reader: Reader, found: roles.Range) -> None:
        """Show a range. Programs call `Reader.read` instead."""
        self.partition = found.partition
        self._reader = reader
        self._range = found

    def __iter__(self) -> Iterator[RecordBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, *, timeout_s: float | None = None) -> RecordBatch | None:
        """Wait for the next batch. None after the last one."""
        return self._reader._wait(timeout_s, self._range.next_batch)

    def first_sequence(self, *, timeout_s: float | None = None) -> int:
        """Wait for the first batch, and return where it begins; see `dafka.Range.first_sequence`."""
        return self._reader._wait(timeout_s, self._range.first_sequence)

    def close(self) -> None:
        """Stop fetching, and drop the records that have arrived. May be called again."""
        with suppress(trio.ClosedResourceError):
            self._reader._ask(self._range.close)


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
