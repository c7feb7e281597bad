"""What the parts of a broker that take part in a cluster need of the broker."""

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
    """The broker that a `Cluster` belongs to.

    Attributes:
        address: Its address.
        order: Its topics and their logs.
        storage: Its storage.
        watchers: Those who wait for its logs to get further.
        on_removed: Is called with a topic that is deleted, or hidden by another one of its name, and with its logs.
    """

    address: str
    order: OffsetAssigner
    storage: Storage
    watchers: LogWaiters
    on_removed: Callable[[Topic, Sequence[Log]], None]

    @property
    def can_write(self) -> bool:
        """Whether its storage takes records."""

    async def wait_settled(self) -> None:
        """Wait until the node has found the nodes of a running cluster, and is connected to them."""

    def unheard_towers(self) -> Sequence[str]:
        """Return the towers that have not been heard yet."""

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        """Send messages."""

    def acknowledge(self, ends: Mapping[Partition, int]) -> None:
        """Acknowledge index records that are stored here together with the records that they refer to."""

    def expect_records(self, ends: Mapping[Partition, int]) -> None:
        """Fetch records of partitions up to sequences that other brokers have; 0: at least one more than is here."""

    def ask_heads(self, topics: Iterable[str]) -> None:
        """Ask other stores what they have of topics."""

    def hear_acknowledgements(self, address: str) -> None:
        """Hear what other replicas acknowledge of the logs that a broker leads."""

    def forget_partitions(self, partitions: Collection[Partition]) -> trio.Event:
        """Delete partitions that brokers have written. The event returned says that they are deleted."""

    def write_state(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> trio.Event:
        """Keep state; the event returned says that it is durable."""

    def is_own(self, partition: Partition) -> bool:
        """Return whether only this broker writes a partition."""

    def wake(self) -> None:
        """Write what waits."""

    async def wait_durable(self) -> None:
        """Wait until all that waits now is durable."""

    async def place(self, log: Log, batch: RecordBatch) -> None:
        """Give stored records their offsets in a log, and wait until these are durable."""

    async def drop_topic(self, deletion: Deletion, logs: Iterable[Log]) -> None:
        """Drop the partitions of a topic, once its deletion is durable."""

    def lead(self, log: Log) -> None:
        """Note that this broker leads a log, whose index others read."""

    def announce(self, partition: Partition) -> None:
        """Announce a partition of this broker that was not visible to other nodes."""

    def announce_until(self, partition: Partition, end: int, *, is_announced: bool = True) -> None:
        """Announce a partition of this broker up to a sequence, so that other nodes can fetch it."""

    def announce_control(self) -> None:
        """Announce this broker's control records."""

    def may_create(self, topic: str) -> bool:
        """Return whether a topic that a producer has begun gets logs."""

    def durable_end_of(self, partition: Partition) -> int:
        """Return the sequence after the last stored record of a partition."""

    def ends(self, topic: str) -> dict[Partition, int]:
        """Return the sequence after the last stored record of each partition of a topic."""

    def earliest(self, topic: str) -> dict[Partition, int]:
        """Return the sequence of the first stored record of each partition of a topic, if it is not 0."""
