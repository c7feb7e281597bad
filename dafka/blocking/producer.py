"""Producers for plain threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from dafka import roles
from dafka.blocking.node import Deadline, Node
from dafka.clients.hosted_node import Call
from dafka.config import Config
from dafka.records import Header, Partition, ProducerRecord, Record
from dafka.roles import ProducerStatistics


class Producer(Node[roles.Producer]):
    """A producer of one topic, opened by `open_producer`. Several threads may use it at the same time."""

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[roles.Producer]]) -> None:
        """Open the producer. Programs call `open_producer` instead."""
        self._sending = threading.Lock()
        self._handed_over: Call[range] | None = None
        super().__init__(block)

    @property
    def partition(self) -> Partition:
        """The topic and the producer's address: the name of its partition."""
        return self._role.partition

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
        return (self.send_many([record], timeout_s=timeout_s)).start

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
            send, attempt = partial(self._role._send_batch, batch), partial(self._role._send_nowait, batch)
            if not self._role._cannot_refuse(batch):
                return self._wait(deadline, send, attempt)
            first = self._role._machine.next_sequence
            self._handed_over = self._hosted.accept(send, attempt)
            return range(first, first + len(batch))
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

    def statistics(self) -> ProducerStatistics:
        """Return the counters so far."""
        return self._ask(self._role.statistics)

    def _wait_published(self, deadline: Deadline) -> None:
        """Wait until the last batch that was handed over is published."""
        if self._handed_over is None or self._hosted.thread.is_foreign():
            return
        try:
            self._handed_over.future.exception(deadline.left_s())
        except TimeoutError:
            raise deadline.error() from None
        self._result(self._handed_over)


def open_producer(
    topic: str, config: Config | None = None, *, address: str | None = None, next_sequence: int = 0
) -> Producer:
    """Open a producer; see `dafka.open_producer`, whose arguments and exceptions it has.

    The producer is open. Leaving its `with` block, or `close`, waits for outstanding ACKs.
    """
    return Producer(partial(roles.open_producer, topic, config, address=address, next_sequence=next_sequence))
