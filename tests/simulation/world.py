"""What a simulated node knows of the cluster that it is in."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dafka import wire
from dafka.protocol import Event
from dafka.protocol.machines.commits import StorageWork
from dafka.records import Partition, RecordBatch
from tests.simulation.clock import Clock
from tests.simulation.network import Network
from tests.simulation.plan import Plan


class Watcher(Protocol):
    """Is told what nodes do, and raises `Violation` where they may not; see `Checks`."""

    def sent(self, node: Any, messages: Sequence[wire.BatchedMessage]) -> None:
        """A node publishes messages."""

    def settled(self, node: Any) -> None:
        """A node has settled."""

    def notified(self, node: Any, event: Event) -> None:
        """A node tells its program something."""

    def bounded(self, node: Any) -> None:
        """A node has taken in messages."""

    def published(self, producer: Any, batch: RecordBatch) -> None:
        """A producer's program made records."""

    def stored(self, store: Any, work: StorageWork) -> None:
        """A store's disk has made this durable."""

    def delivered(self, consumer: Any, batch: RecordBatch) -> None:
        """A consumer's machine delivers."""

    def given(self, consumer: Any, batch: RecordBatch) -> None:
        """A consumer's program is given a run."""

    def saved(self, consumer: Any, positions: Mapping[Partition, int]) -> None:
        """A consumer's program makes durable how far it is."""

    def unsubscribed(self, consumer: Any, topic: str) -> None:
        """A consumer gives up a topic."""


class World(Protocol):
    """The cluster, as its nodes see it.

    Attributes:
        clock: the time.
        draw: what decides everything that the plan leaves open.
        network: how nodes reach each other.
        plan: what happens.
    """

    clock: Clock
    draw: random.Random
    network: Network
    plan: Plan

    @property
    def checks(self) -> Watcher:
        """Who watches."""

    def disk_delay(self) -> float:
        """How long a disk takes to make something durable."""

    def send_beacon(self, node: Any, frames: list[bytes]) -> None:
        """A node sends its beacon to every tower that it is connected to."""
