"""Answering requests for heads, a few at a time (RFC 46, "The GET-HEADS Command" and "The CONSUMER-HELLO Command").

One request may ask for the heads of all partitions of a store, such as a hundred thousand, and many nodes may ask at
once. An answer is therefore never built as a whole: it is a position in the store's heads that advances. A node
that repeats a request while it is being answered is answered once more from the beginning. Nodes that subscribe to
their DIRECT-HEADs are answered before unverified ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

import attrs

from dafka import wire
from dafka.protocol.actions import Action, Publish

SLICE = 100
"""Heads sent at a time to verified requestors: a few milliseconds of work."""

UNVERIFIED_SLICE = 20
"""Heads sent at a time to all unverified requestors."""

PAUSE_S = 0.001
"""Seconds until the next heads are sent."""

UNVERIFIED_PAUSE_S = 0.01
"""Seconds until the next heads are sent if all requestors are unverified."""

QUESTIONS_MAX = 50_000
"""Topics whose heads are still to be sent, of all requestors together."""

FOLLOWING_MAX = 16
"""Messages to one node that wait until its heads have been sent."""


@attrs.define
class _Requestor:
    """The requests of one node: the topics, and how many heads of each have been sent."""

    topics: OrderedDict[str, int] = attrs.field(factory=OrderedDict)
    repeated: set[str] = attrs.field(factory=set)
    following: list[wire.DirectEarliest] = attrs.field(factory=list)


_Queue = OrderedDict[str, _Requestor]


class HeadResponder:
    """The requests for heads that one store is answering, in fair turns.

    `durable` has the end of each partition by topic and address; call `partition_removed` after removing one. The
    arguments of `send_heads` are a topic, a requestor, the position of the first head, and how many to send.
    """

    def __init__(
        self, durable: Mapping[str, Mapping[str, int]], send_heads: Callable[[str, str, int, int], list[Action]]
    ) -> None:
        self._durable = durable
        self._send_heads = send_heads
        self._verified: _Queue = OrderedDict()
        self._unverified: _Queue = OrderedDict()
        self._count = 0

    def __bool__(self) -> bool:
        """Return whether there is anything to answer."""
        return bool(self._verified or self._unverified)

    @property
    def pause_s(self) -> float:
        """The seconds after which to call `next_heads` again; infinity if there is nothing to send."""
        if self._verified:
            return PAUSE_S
        return UNVERIFIED_PAUSE_S if self._unverified else float("inf")

    def add_request(self, requestor: str, topics: Iterable[str], *, is_verified: bool) -> bool:
        """Queue the heads of topics for a node. Return False if the queue is full, so that some topics were dropped.

        Unknown topics are ignored. A verified node is known to subscribe to its DIRECT-HEADs.
        """
        queue = self._verified if is_verified or requestor in self._verified else self._unverified
        for topic in topics:
            if topic not in self._durable:
                continue
            request = queue.get(requestor)
            if request is not None and topic in request.topics:
                if request.topics[topic]:
                    request.repeated.add(topic)
                continue
            if self._count >= QUESTIONS_MAX and not (is_verified and self._drop_unverified()):
                return False
            queue.setdefault(requestor, _Requestor()).topics[topic] = 0
            self._count += 1
        return True

    def send_after_heads(self, message: wire.DirectEarliest) -> bool:
        """Send a message after its requestor's heads; return False if no heads are queued for it."""
        request = self._verified.get(message.requestor) or self._unverified.get(message.requestor)
        if request is None:
            return False
        if len(request.following) < FOLLOWING_MAX:
            request.following.append(message)
        return True

    def partition_removed(self, topic: str) -> None:
        """Restart the answers for a topic from which a partition was removed, since positions have changed."""
        for request in (*self._verified.values(), *self._unverified.values()):
            if request.topics.get(topic):
                request.repeated.add(topic)

    def next_heads(self) -> list[Action]:
        """Return the actions that send the next heads."""
        actions: list[Action] = []
        self._send_some(self._verified, SLICE, actions)
        self._send_some(self._unverified, UNVERIFIED_SLICE, actions)
        return actions

    def _send_some(self, queue: _Queue, count_max: int, actions: list[Action]) -> None:
        left = count_max
        while queue and left > 0:
            requestor, request = queue.popitem(last=False)
            topic, sent = request.topics.popitem(last=False)
            self._count -= 1
            actions += self._send_heads(topic, requestor, sent, left)
            sent += left
            end = len(self._durable.get(topic, ()))
            left -= max(min(end + left - sent, left), 1)
            if sent < end:
                request.topics[topic] = sent
                request.topics.move_to_end(topic, last=False)
                self._count += 1
            elif topic in request.repeated:
                request.repeated.discard(topic)
                request.topics[topic] = 0
                self._count += 1
            if request.topics:
                queue[requestor] = request
            else:
                actions += [Publish(message) for message in request.following]
                left -= len(request.following)

    def _drop_unverified(self) -> bool:
        """Drop the requests of an unverified node to make room; return False if there is none."""
        if not self._unverified:
            return False
        _, request = self._unverified.popitem(last=False)
        self._count -= len(request.topics)
        return True
