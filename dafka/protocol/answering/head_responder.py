"""The answers to questions for heads, a few at a time.

One question may be for the heads of all partitions that a store has, a hundred thousand, and many may ask at once: an
answer is never built, it is a place in what is durable that moves on as its sender finds time. Who asks again while it
is being answered, is answered once more from the beginning, and no oftener. Those who listen come first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

import attrs

from dafka import wire
from dafka.protocol.actions import Action, Publish

SLICE = 100
"""Heads told at a time to those who listen: a few milliseconds' work."""

UNVERIFIED_SLICE = 20
"""Heads told at a time to all others."""

PAUSE_S = 0.001
"""After which the next ones are told."""

UNVERIFIED_PAUSE_S = 0.01
"""After which they are where nobody is known to listen."""

QUESTIONS_MAX = 50_000
"""Topics that were asked for and are not answered yet, all who ask together."""

FOLLOWING_MAX = 16
"""Messages to one node that are held back until its heads have been told."""


@attrs.define
class _Asker:
    """What one node has asked for: by topic, how many of its partitions have been told."""

    topics: OrderedDict[str, int] = attrs.field(factory=OrderedDict)
    again: set[str] = attrs.field(factory=set)
    following: list[wire.DirectEarliest] = attrs.field(factory=list)


class HeadResponder:
    """Of one store; `durable` is, by topic, the end of each partition by address, and nothing ever leaves it.

    `tell` gives, of a topic and for a requestor, so many heads from a place on.
    """

    def __init__(
        self, durable: Mapping[str, Mapping[str, int]], tell: Callable[[str, str, int, int], list[Action]]
    ) -> None:
        self._durable = durable
        self._tell_some = tell
        self._listeners: OrderedDict[str, _Asker] = OrderedDict()
        self._strangers: OrderedDict[str, _Asker] = OrderedDict()
        self._count = 0

    def __bool__(self) -> bool:
        """Is there anything to answer?"""
        return bool(self._listeners or self._strangers)

    @property
    def pause(self) -> float:
        """After how many seconds to `take` again; infinity where there is nothing to tell."""
        if self._listeners:
            return PAUSE_S
        return UNVERIFIED_PAUSE_S if self._strangers else float("inf")

    def ask(self, requestor: str, topics: Iterable[str], *, is_listening: bool) -> bool:
        """A node wants the heads of these topics. False where too much is asked for already."""
        line = self._listeners if is_listening or requestor in self._listeners else self._strangers
        for topic in topics:
            if topic not in self._durable:
                continue
            asker = line.get(requestor)
            if asker is not None and topic in asker.topics:
                if asker.topics[topic]:
                    asker.again.add(topic)
                continue
            if self._count >= QUESTIONS_MAX and not (is_listening and self._let_go()):
                return False
            line.setdefault(requestor, _Asker()).topics[topic] = 0
            self._count += 1
        return True

    def follow(self, message: wire.DirectEarliest) -> bool:
        """Sends this when the heads that its requestor asked for have been told; False where none are to be told."""
        asker = self._listeners.get(message.requestor) or self._strangers.get(message.requestor)
        if asker is None:
            return False
        if len(asker.following) < FOLLOWING_MAX:
            asker.following.append(message)
        return True

    def take(self) -> list[Action]:
        """What is to be said now."""
        said: list[Action] = []
        self._tell(self._listeners, SLICE, said)
        self._tell(self._strangers, UNVERIFIED_SLICE, said)
        return said

    def _tell(self, line: OrderedDict[str, _Asker], count_max: int, said: list[Action]) -> None:
        left = count_max
        while line and left > 0:
            requestor, asker = line.popitem(last=False)
            topic, told = asker.topics.popitem(last=False)
            self._count -= 1
            said += self._tell_some(topic, requestor, told, left)
            told += left
            end = len(self._durable[topic])
            left -= max(min(end + left - told, left), 1)
            if told < end:
                asker.topics[topic] = told
                asker.topics.move_to_end(topic, last=False)
                self._count += 1
            elif topic in asker.again:
                asker.again.discard(topic)
                asker.topics[topic] = 0
                self._count += 1
            if asker.topics:
                line[requestor] = asker
            else:
                said += [Publish(message) for message in asker.following]
                left -= len(asker.following)

    def _let_go(self) -> bool:
        """Makes room, at the cost of a stranger. False where there is none."""
        if not self._strangers:
            return False
        _, asker = self._strangers.popitem(last=False)
        self._count -= len(asker.topics)
        return True
