"""The interface of targets: how the suite starts, feeds, reads and stops a node of an implementation.

A `Target` is an implementation of Dafka; a `Node` is one of its running nodes. The interface does not cover ZeroMQ: the
suite receives what a node sends on the wire by itself.
"""

from __future__ import annotations

import abc
import enum
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType

import attrs
import trio

from dafka_conformance.model import Dialect, Role


class Ability(enum.Enum):
    """A way for the suite to control or observe a target's node. A scenario that needs a missing ability is skipped."""

    START = "start it"
    FEED = "give it records to publish"
    COLLECT = "read the records that it received"
    CHOOSE_TOPIC = "choose its topic"
    LATEST = "start it at the latest record"
    KILL = "kill it and start it again with the same storage"


class Reset(enum.Enum):
    """The position at which a consumer starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


@attrs.frozen
class Request:
    """The parameters for starting a node.

    Attributes:
        role: The role.
        dialect: The dialect that it must send.
        sub_endpoint: The tower's endpoint for node beacons. A tower must bind to it.
        pub_endpoint: The tower's endpoint that publishes tower beacons. A tower must bind to it.
        topic: The topic of a producer or a consumer.
        folder: An existing folder for its files; the same one when it is restarted.
        reset: The position at which a consumer starts.
    """

    role: Role
    dialect: Dialect
    sub_endpoint: str
    pub_endpoint: str
    topic: bytes
    folder: Path
    reset: Reset = Reset.EARLIEST


@attrs.frozen
class Delivery:
    """A record that a consumer delivered.

    Attributes:
        content: The content; of a record with a key or headers, its value; empty for a tombstone.
        topic: The topic; None if the consumer's output does not have it.
        address: The producer's address; None if the output does not have it.
        sequence: The sequence; None if the output does not have it.
    """

    content: bytes
    topic: bytes | None = None
    address: bytes | None = None
    sequence: int | None = None


@attrs.frozen
class Attachment:
    """A node that is already running, and the tower of its cluster.

    Attributes:
        sub_endpoint: The tower's endpoint for node beacons.
        pub_endpoint: The tower's endpoint that publishes tower beacons.
        topic: The topic of a producer or a consumer; None for other roles.
        address: The node's address; None if the cluster has no other node.
    """

    sub_endpoint: str
    pub_endpoint: str
    topic: bytes | None = None
    address: bytes | None = None


class Node(abc.ABC):
    """A running node of the target.

    A subclass for a consumer puts the delivered records into `self._deliver`.

    Attributes:
        deliveries: The records that a consumer delivered, in its order. The channel is unbounded.
        ended: Set when the node ends by itself.
        exit_reason: How it ended, for the report: its exit status and the end of its standard error. Empty for a
            producer that ended without an error after the end of its input.
    """

    def __init__(self) -> None:
        self._deliver, self.deliveries = trio.open_memory_channel[Sequence[Delivery]](math.inf)
        self.ended = trio.Event()
        self.exit_reason = ""

    @abc.abstractmethod
    async def feed(self, contents: Sequence[bytes]) -> None:
        """Give a producer records to publish.

        Args:
            contents: The contents, without newlines.

        Raises:
            TargetError: The producer has ended by itself.
        """

    @abc.abstractmethod
    async def end_input(self) -> None:
        """Signal to a producer that it has got all records."""

    @abc.abstractmethod
    async def kill(self) -> None:
        """End the node at once, as `kill -9` does, without a chance to flush or to send anything."""


class Target(abc.ABC):
    """An implementation of Dafka.

    Attributes:
        name: The name in reports.
        abilities: The abilities of the nodes of each role that the implementation has.
        dialects: The dialects that it can send.
        node_counts: The number of addresses of a role that consists of several nodes; 1 for other roles.
    """

    name: str
    abilities: Mapping[Role, frozenset[Ability]]
    dialects: tuple[Dialect, ...]
    node_counts: Mapping[Role, int] = MappingProxyType({})

    @abc.abstractmethod
    def start(self, request: Request) -> AbstractAsyncContextManager[Node]:
        """Return a context manager that runs a node and stops it at the end of the block.

        Args:
            request: The parameters of the node.

        Returns:
            The context manager, which yields the running node.

        Raises:
            TargetError: The node cannot be started.
        """

    def prepared(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager around a run, for what serves all its nodes. By default there is nothing."""
        return nullcontext()

    def carries(self, role: Role, content: bytes) -> bool:
        """Return whether a record reaches the suite, or a producer, as it is.

        Args:
            role: The role whose output or input carries it: a consumer or a producer.
            content: The content.

        Returns:
            False if, for example, the record has a line break, and lines divide the records.
        """
        return True

    def attachment(self, role: Role) -> Attachment | None:
        """Return where the running node of this role is; None if the suite starts it."""
        return None


class TargetError(Exception):
    """The target cannot be started, or its description is wrong. The text says what is wrong and what is expected."""
