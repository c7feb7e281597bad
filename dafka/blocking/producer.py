"""Producers for plain threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dafka import roles
from dafka.blocking.node import Node
from dafka.config import Config
from dafka.records import Header, Partition, ProducerRecord, Record
from dafka.roles import ProducerStatistics


class Producer(Node[roles.Producer]):
    """A producer of one topic, opened by `open_producer`. Several threads may use it at the same time."""

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
        """Publish records in order, and return their sequences; see `dafka.Producer.send_many`."""
        batch = self._role._make_batch(records)
        send, attempt = partial(self._role._send_batch, batch), partial(self._role._send_nowait, batch)
        return self._wait(timeout_s, send, attempt)

    def wait_stored(self, *, timeout_s: float | None = None) -> None:
        """Wait until `[producer] min_stores` stores have acknowledged every record sent so far."""
        self._wait(timeout_s, self._role.wait_stored)

    def wait_acknowledged(self) -> None:
        """Wait for outstanding ACKs, as leaving the block does; see `dafka.Producer.wait_acknowledged`."""
        self._wait(None, self._role.wait_acknowledged)

    def statistics(self) -> ProducerStatistics:
        """Return the counters so far."""
        return self._ask(self._role.statistics)


def open_producer(
    topic: str, config: Config | None = None, *, address: str | None = None, next_sequence: int = 0
) -> Producer:
    """Open a producer; see `dafka.open_producer`, whose arguments and exceptions it has.

    Args:
        topic: The topic.
        config: The configuration; the defaults if None.
        address: The address of the partition to continue, 32 upper-case hexadecimal digits; random if None.
        next_sequence: The sequence of the next record.

    Returns:
        The producer. Leaving its `with` block, or `close`, waits for outstanding ACKs.
    """
    return Producer(partial(roles.open_producer, topic, config, address=address, next_sequence=next_sequence))
