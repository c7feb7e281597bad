"""The interfaces between a simulated node and its cluster."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dafka import wire
from dafka.protocol import Event
from dafka.protocol.machines.commit_queue import StorageWork
from dafka.records import Partition, RecordBatch
from tests.simulation.clock import Clock
from tests.simulation.network import Network
from tests.simulation.plan import Plan


class Watcher(Protocol):
    """Watches what nodes do, and raises `Violation` if a promise is broken. See `Checks`."""

    def on_sent(self, node: Any, messages: Sequence[wire.BatchedMessage]) -> None:
        """A node publishes messages."""

    def on_settled(self, node: Any) -> None:
        """A node has settled."""

    def on_notified(self, node: Any, event: Event) -> None:
        """A node reports an event to its program."""

    def on_bounded(self, node: Any) -> None:
        """A node has taken in messages."""

    def on_published(self, producer: Any, batch: RecordBatch) -> None:
        """A producer's program has made records."""

    def on_stored(self, store: Any, work: StorageWork) -> None:
        """A store's disk has made something durable."""

    def on_delivered(self, consumer: Any, batch: RecordBatch) -> None:
        """A consumer's machine delivers a batch."""

    def on_given(self, consumer: Any, batch: RecordBatch) -> None:
        """A consumer's program gets a batch."""

    def on_saved(self, consumer: Any, positions: Mapping[Partition, int]) -> None:
        """A consumer's program saves its positions."""

    def on_unsubscribed(self, consumer: Any, topic: str) -> None:
        """A consumer unsubscribes from a topic."""


class World(Protocol):
    """The cluster, as its nodes see it.

    Attributes:
        clock: The time.
        draw: The random numbers for everything that the plan leaves open.
        network: The network between the nodes.
        plan: The plan.
        tower_names: The names of the towers.
    """

    clock: Clock
    draw: random.Random
    network: Network
    plan: Plan
    tower_names: list[str]

    @property
    def checks(self) -> Watcher:
        """The promises."""

    def disk_delay(self) -> float:
        """Return how long a disk takes to make something durable, in seconds."""

    def send_to_tower(self, node: Any, tower: int, frames: list[bytes]) -> None:
        """Send a node's message to a tower, if it is connected to it."""

    def subscribe_at_tower(self, node: Any, tower: int, frame: bytes) -> None:
        """Send a node's subscription to a tower, if it is connected to it."""

    def wake(self, node: Any, delay: float) -> None:
        """Let a node look at what has arrived, after a delay in seconds."""
