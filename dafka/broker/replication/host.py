"""The interface of the broker that the replication code needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import trio

from dafka import wire
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.metadata.topics import Deletion, Topic
from dafka.broker.log.waiters import LogWaiters
from dafka.records import Partition, RecordBatch
from dafka.storage import Storage


class Host(Protocol):
    """The broker that a `Replicator` belongs to.

    Attributes:
        address: Its address.
        order: Its topics and their logs.
        storage: Its storage.
        watchers: Notifies waiters when a log advances.
        on_removed: Called with a topic that is deleted, or hidden by another one of its name, and with its logs.
    """

    address: str
    order: OffsetAssigner
    storage: Storage
    watchers: LogWaiters
    on_removed: Callable[[Topic, Sequence[Log]], None]

    @property
    def can_write(self) -> bool:
        """Whether its storage accepts records."""

    async def wait_settled(self) -> None:
        """Wait until the node has found the nodes of a running cluster and is connected to them."""

    def unheard_towers(self) -> Sequence[str]:
        """Return the towers from which no message has arrived yet."""

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        """Publish messages to other nodes."""

    def acknowledge(self, ends: Mapping[Partition, int]) -> None:
        """Acknowledge index records that are stored here together with the records they refer to."""

    def expect_records(self, ends: Mapping[Partition, int]) -> None:
        """Fetch records of partitions up to these end sequences; 0 fetches at least one more record than is stored."""

    def ask_heads(self, topics: Iterable[str]) -> None:
        """Ask other stores for the ends of the partitions of topics."""

    def hear_acknowledgements(self, address: str) -> None:
        """Subscribe to the acknowledgements of other replicas for the logs that a broker leads."""

    def forget_partitions(self, partitions: Collection[Partition]) -> trio.Event:
        """Delete partitions that brokers have written. The returned event is set when they are deleted."""

    def write_state(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> trio.Event:
        """Write state. The returned event is set when it is durable."""

    def is_own(self, partition: Partition) -> bool:
        """Return whether only this broker writes a partition."""

    def wake(self) -> None:
        """Start to write what is pending."""

    async def wait_durable(self) -> None:
        """Wait until everything that is pending now is durable."""

    async def place(self, log: Log, batch: RecordBatch) -> None:
        """Assign offsets in a log to stored records, and wait until these are durable."""

    async def drop_topic(self, deletion: Deletion, logs: Iterable[Log]) -> None:
        """Drop the partitions of a topic after its deletion is durable."""

    def lead(self, log: Log) -> None:
        """Record that this broker leads a log, whose index others read."""

    def announce(self, partition: Partition) -> None:
        """Announce one of this broker's partitions that other nodes could not see before."""

    def announce_until(self, partition: Partition, end: int, *, is_announced: bool = True) -> None:
        """Serve one of this broker's partitions to other nodes up to a sequence, and announce it."""

    def announce_control(self) -> None:
        """Announce this broker's control records to other nodes."""

    def may_create(self, topic: str) -> bool:
        """Return whether a topic is created when a producer writes to it."""

    def durable_end_of(self, partition: Partition) -> int:
        """Return the sequence after the last stored record of a partition."""

    def ends(self, topic: str) -> dict[Partition, int]:
        """Return the sequence after the last stored record of each partition of a topic."""

    def earliest(self, topic: str) -> dict[Partition, int]:
        """Return the first stored sequence of each partition of a topic, where it is not 0."""
