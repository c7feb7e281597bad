"""What the suite needs of whatever it tests: to be started in one role, fed with records, and read from.

A `Target` is an implementation of Dafka; a `Node` is one of its nodes, running. Nothing here knows ZeroMQ: what a
node says on the wire, the suite hears for itself.
"""

from __future__ import annotations

import abc
import enum
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType

import attrs
import trio

from dafka_conformance.model import Dialect, Role


class Ability(enum.Enum):
    """What can be done with a target's node of some role; a scenario that needs one that is missing is skipped."""

    START = "start it anew"
    FEED = "give it records to publish"
    COLLECT = "read the records that it received"
    CHOOSE_TOPIC = "choose its topic"
    LATEST = "start it at the latest record"
    KILL = "kill it and start it again with the same storage"


class Reset(enum.Enum):
    """Where a consumer begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


@attrs.frozen
class Request:
    """What a node is to be started as.

    Attributes:
        role: the role.
        dialect: the dialect that it is to send.
        sub_endpoint: where the tower takes beacons (for a tower: where it is to listen for them).
        pub_endpoint: where the tower publishes them.
        topic: the topic of a producer or a consumer.
        folder: an existing folder for what it stores, the same one when it is started again.
        reset: where a consumer begins.
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
    """A record as a consumer handed it on. What its output does not tell is None."""

    content: bytes
    topic: bytes | None = None
    address: bytes | None = None
    sequence: int | None = None


@attrs.frozen
class Attachment:
    """Where a node is found that is running already, and that the suite can only join.

    Attributes:
        sub_endpoint: where its tower takes beacons.
        pub_endpoint: where its tower publishes them.
        topic: a producer's or a consumer's topic; None for the other roles.
        address: which node it is, as its beacons say; None where no other node beacons there.
    """

    sub_endpoint: str
    pub_endpoint: str
    topic: bytes | None = None
    address: bytes | None = None


class Node(abc.ABC):
    """A running node of the target.

    Attributes:
        deliveries: what a consumer received, in its order; unbounded, since the suite is never slower on purpose.
        ended: set when the node ended by itself.
        last_words: why it ended, for the report: its exit status and the end of what it wrote to standard error. Empty
            for a producer whose input was ended, and which ended well.
    """

    def __init__(self) -> None:
        self._deliver, self.deliveries = trio.open_memory_channel[Sequence[Delivery]](math.inf)
        self.ended = trio.Event()
        self.exit_reason = ""

    @abc.abstractmethod
    async def feed(self, contents: Sequence[bytes]) -> None:
        """Gives a producer these records to publish. Contents hold no newline.

        Raises `TargetError` where the producer ended by itself, and takes no more.
        """

    @abc.abstractmethod
    async def end_input(self) -> None:
        """Tells a producer that no more records will come."""

    @abc.abstractmethod
    async def kill(self) -> None:
        """Ends it at once, as `kill -9` does: it gets no chance to flush or say anything."""


class Target(abc.ABC):
    """An implementation of Dafka.

    Attributes:
        name: what the report calls it.
        abilities: for each role that it has, what can be done with it.
        dialects: those that it can be told to send.
        node_counts: for a role that takes several nodes with an address each, how many; 1 for the others.
    """

    name: str
    abilities: Mapping[Role, frozenset[Ability]]
    dialects: tuple[Dialect, ...]
    node_counts: Mapping[Role, int] = MappingProxyType({})

    @abc.abstractmethod
    def start(self, request: Request) -> AbstractAsyncContextManager[Node]:
        """A block in which a node runs. At its end the node is stopped, whatever it is doing.

        Raises `TargetError` where it cannot be started.
        """

    def attachment(self, role: Role) -> Attachment | None:
        """Where to find the node of this role that is running already; None where the suite starts it."""
        return None


class TargetError(Exception):
    """The target cannot be started, or is described wrongly; the text says what is wrong and what would be right."""
