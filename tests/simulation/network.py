"""A network of PUB and SUB sockets that behave as those of ZeroMQ, and worse: slow, lossy, repeating or split.

A link leads from the publisher of one node to the subscriber of another. Messages on one link stay in order; links are
independent of each other. A link that breaks loses the messages in flight, and is connected again when possible. As
XPUB does, a publisher drops messages that do not fit into the queue of a slow subscriber.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from dafka import wire
from dafka.records import RecordBatch
from dafka.wire import Command
from tests.simulation.clock import Clock

if TYPE_CHECKING:
    from tests.simulation.nodes import SimulatedNode

REDIAL_S = 0.1
"""Seconds until a connection is tried again, about as in ZeroMQ."""


@attrs.define(eq=False)
class Split:
    """A split: nodes on different sides cannot reach each other. Their connections break (`is_cut`) or stall."""

    left: frozenset[str]
    right: frozenset[str]
    is_cut: bool

    def separates(self, one: str, other: str) -> bool:
        return (one in self.left and other in self.right) or (one in self.right and other in self.left)


class Link:
    """A connection from one subscriber to one publisher. It is up only while both run and can reach each other."""

    __slots__ = (
        "arrives_at",
        "endpoint",
        "epoch",
        "held",
        "is_up",
        "is_wanted",
        "network",
        "number",
        "prefixes",
        "publisher",
        "queued",
        "returns_at",
        "slowness",
        "subscriber",
    )

    def __init__(self, network: Network, subscriber: SimulatedNode, endpoint: str, slowness: float) -> None:
        self.network = network
        self.subscriber = subscriber
        self.endpoint = endpoint
        self.slowness = slowness
        self.publisher: SimulatedNode | None = None
        self.prefixes: tuple[bytes, ...] = ()
        self.held: deque[list[wire.BatchedMessage]] = deque()
        self.is_up = False
        self.is_wanted = True
        self.number = 0
        self.epoch = 0
        self.queued = 0
        self.arrives_at = 0.0
        self.returns_at = 0.0

    def taken(self, messages: Sequence[wire.BatchedMessage]) -> None:
        self.queued -= count_messages(messages)

    def push(self, messages: list[wire.BatchedMessage]) -> None:
        network = self.network
        if network.loss or network.repeat:
            messages = network.spoil(messages)
        assert self.publisher is not None
        room = self.publisher.queue_max - self.queued
        if count_messages(messages) > room:
            messages = first_messages(messages, room)
            network.dropped += 1
        if not messages:
            return
        self.queued += count_messages(messages)
        if network.is_stalled(self):
            self.held.append(messages)
        else:
            self._send(messages)

    def release(self) -> None:
        while self.held and self.is_up:
            self._send(self.held.popleft())

    def _send(self, messages: list[wire.BatchedMessage]) -> None:
        self.arrives_at = max(self.arrives_at, self.network.clock.now + self.network.delay(self.slowness))
        self.network.clock.at(self.arrives_at, self._arrive, self.epoch, messages)

    def _arrive(self, epoch: int, messages: list[wire.BatchedMessage]) -> None:
        if epoch != self.epoch:
            return
        if self.held or self.network.is_stalled(self):
            self.held.append(messages)
        else:
            self.subscriber.arrive(self, messages)

    def establish(self, publisher: SimulatedNode, number: int) -> None:
        """Be up, without subscriptions: the subscriber sends them. Later links have higher numbers."""
        self.is_up, self.publisher, self.number = True, publisher, number
        self.queued, self.arrives_at, self.returns_at = 0, 0.0, 0.0
        publisher.outgoing.append(self)

    def end(self) -> tuple[bytes, ...]:
        """Be down, and return the subscriptions that nobody else has at the publisher."""
        assert self.publisher is not None
        publisher, prefixes = self.publisher, self.prefixes
        self._set_prefixes(())
        self.is_up, self.publisher = False, None
        self.held.clear()
        publisher.outgoing.remove(self)
        return tuple(prefix for prefix in prefixes if prefix not in publisher.subscribers)

    def _set_prefixes(self, prefixes: tuple[bytes, ...]) -> None:
        assert self.publisher is not None
        subscribers = self.publisher.subscribers
        for prefix in set(self.prefixes).difference(prefixes):
            del subscribers[prefix][self]
            if not subscribers[prefix]:
                del subscribers[prefix]
        for prefix in prefixes:
            subscribers.setdefault(prefix, {})[self] = None
        self.prefixes = prefixes

    def send_subscriptions(self, frames: list[bytes]) -> None:
        self.returns_at = max(self.returns_at, self.network.clock.now + self.network.delay(self.slowness))
        self.network.clock.at(self.returns_at, self._hear_subscriptions, self.epoch, frames)

    def _hear_subscriptions(self, epoch: int, frames: list[bytes]) -> None:
        if epoch != self.epoch or self.publisher is None:
            return
        if self.network.is_stalled(self):
            self.network.clock.after(REDIAL_S, self._hear_subscriptions, epoch, frames)
            return
        own = dict.fromkeys(self.prefixes)
        heard = []
        for frame in frames:
            if frame[0]:
                own[frame[1:]] = None
                heard.append(frame)
            elif frame[1:] in own:
                del own[frame[1:]]
                heard += unsubscriptions(self, [frame[1:]])
        self._set_prefixes(tuple(own))
        if heard:
            self.publisher.arrive_subscriptions(heard)


class Network:
    """The network between all nodes. `loss` and `repeat` are shares of messages, and `slowness` is a factor."""

    def __init__(self, clock: Clock, draw: random.Random) -> None:
        self.clock = clock
        self.draw = draw
        self.loss = 0.0
        self.repeat = 0.0
        self.slowness = 1.0
        self.dropped = 0
        self.splits: list[Split] = []
        self._listeners: dict[str, SimulatedNode] = {}
        self._links: list[Link] = []
        self._established = 0

    def delay(self, slowness: float = 1.0) -> float:
        return (0.0003 + 0.002 * self.draw.random()) * slowness * self.slowness

    def listen(self, endpoints: Sequence[str], publisher: SimulatedNode) -> None:
        for endpoint in endpoints:
            self._listeners[endpoint] = publisher
        self.redial()

    def vanish(self, node: SimulatedNode) -> None:
        """Remove a node: its connections break, and its own links end."""
        self._listeners = {endpoint: peer for endpoint, peer in self._listeners.items() if peer is not node}
        for link in self._links:
            if link.subscriber is node or link.publisher is node:
                self._break(link, redial=link.subscriber is not node)
        for link in self._links:
            if link.subscriber is node:
                link.is_wanted = False
        self._links = [link for link in self._links if link.is_wanted]

    def connect(self, subscriber: SimulatedNode, endpoint: str) -> Link:
        link = Link(self, subscriber, endpoint, 30.0 if self.draw.random() < 0.1 else 1.0)
        self._links.append(link)
        self._dial(link)
        return link

    def disconnect(self, link: Link) -> None:
        link.is_wanted = False
        self._break(link, redial=False)
        self._links.remove(link)

    def split(self, split: Split) -> None:
        self.splits.append(split)
        if split.is_cut:
            for link in list(self._links):
                if link.is_up and link.publisher and split.separates(link.subscriber.name, link.publisher.name):
                    self._break(link, redial=True)

    def heal(self, split: Split) -> None:
        self.splits.remove(split)
        for link in self._links:
            if link.held and not self.is_stalled(link):
                link.release()
        self.redial()

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two nodes. They are made again."""
        for link in list(self._links):
            if (
                link.is_up
                and link.publisher is not None
                and {link.subscriber.name, link.publisher.name} == {one, other}
            ):
                self._break(link, redial=True)

    def reaches(self, one: str, other: str) -> bool:
        return not any(split.separates(one, other) for split in self.splits)

    def is_stalled(self, link: Link) -> bool:
        publisher = link.publisher
        return bool(self.splits) and publisher is not None and not self.reaches(link.subscriber.name, publisher.name)

    def redial(self) -> None:
        for link in self._links:
            if not link.is_up:
                self.clock.after(REDIAL_S * (0.5 + self.draw.random()), self._dial, link)

    def spoil(self, messages: Sequence[wire.BatchedMessage]) -> list[wire.BatchedMessage]:
        """Lose some of these messages, cut parts of runs, and repeat others."""
        spoilt: list[wire.BatchedMessage] = []
        for message in messages:
            chance = self.draw.random()
            if chance >= self.loss:
                spoilt.append(message)
                if chance > 1 - self.repeat:
                    spoilt.append(message)
            elif isinstance(message, wire.RecordRun) and len(message.batch) > 1:
                batch = message.batch
                first = self.draw.randint(batch.first_sequence, batch.end_sequence - 1)
                end = self.draw.randint(first + 1, batch.end_sequence)
                parts = (batch.between(0, first), batch.between(end, batch.end_sequence))
                spoilt += [wire.RecordRun(part, message.requestor) for part in parts if len(part)]
        return spoilt

    def _dial(self, link: Link) -> None:
        publisher = self._listeners.get(link.endpoint)
        if link.is_up or not link.is_wanted or publisher is None:
            return
        if self.reaches(link.subscriber.name, publisher.name):
            link.epoch += 1
            self.clock.after(2 * self.delay(link.slowness), self._establish, link, link.epoch, publisher)

    def _establish(self, link: Link, epoch: int, publisher: SimulatedNode) -> None:
        if epoch != link.epoch or link.is_up or not link.is_wanted:
            return
        if self._listeners.get(link.endpoint) is not publisher or not self.reaches(
            link.subscriber.name, publisher.name
        ):
            self.clock.after(REDIAL_S, self._dial, link)
            return
        self._established += 1
        link.establish(publisher, self._established)
        link.subscriber.arrive_connection(link.endpoint)
        link.send_subscriptions([b"\1" + prefix for prefix in link.subscriber.prefixes])

    def _break(self, link: Link, *, redial: bool) -> None:
        link.epoch += 1
        if link.is_up and link.publisher is not None:
            publisher = link.publisher
            gone = [b"\0" + prefix for prefix in link.end()]
            if link.is_wanted:
                link.subscriber.arrive_loss(link.endpoint)
            if gone:
                publisher.arrive_subscriptions(gone)
        if redial:
            self.clock.after(REDIAL_S * (0.5 + self.draw.random()), self._dial, link)


def unsubscriptions(link: Link, prefixes: Sequence[bytes]) -> list[bytes]:
    """Return what an XPUB reports when prefixes are unsubscribed: those that no other subscriber wants."""
    assert link.publisher is not None
    subscribers = link.publisher.subscribers
    return [b"\0" + prefix for prefix in prefixes if not subscribers.get(prefix, {}).keys() - {link}]


def topic_frame(message: wire.BatchedMessage) -> bytes:
    if not isinstance(message, wire.RecordRun):
        topic: str = getattr(message, message.TOPIC)
        return message.COMMAND.value + topic.encode()
    if message.requestor is None:
        return Command.RECORD.value + message.batch.partition.topic.encode()
    return Command.DIRECT_RECORD.value + message.requestor.encode()


def find_receivers(subscribers: dict[bytes, dict[Link, None]], topic: bytes) -> dict[Link, None]:
    receivers: dict[Link, None] = {}
    for length in range(len(topic) + 1):
        receivers |= subscribers.get(topic[:length], {})
    return receivers


def count_messages(messages: Sequence[wire.BatchedMessage]) -> int:
    """Return the number of messages on the wire, where each record is one."""
    count = len(messages)
    for message in messages:
        if isinstance(message, wire.RecordRun):
            count += len(message.batch) - 1
    return count


def first_messages(messages: Sequence[wire.BatchedMessage], count: int) -> list[wire.BatchedMessage]:
    """Return the first `count` messages; a run is cut if necessary."""
    taken: list[wire.BatchedMessage] = []
    for message in messages:
        if count <= 0:
            break
        if isinstance(message, wire.RecordRun):
            batch: RecordBatch = message.batch.between(0, message.batch.first_sequence + count)
            taken.append(wire.RecordRun(batch, message.requestor))
            count -= len(batch)
        else:
            taken.append(message)
            count -= 1
    return taken
