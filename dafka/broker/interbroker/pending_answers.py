"""Waits for the answers of other brokers to numbered requests."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable
from typing import Generic, TypeVar

import attrs
import trio

from dafka.broker.interbroker.messenger import BrokerMessenger, Message


@attrs.frozen
class Answer(Message):
    """A message that answers the request with a number."""

    request: int


AnyAnswer = TypeVar("AnyAnswer", bound=Answer)


@attrs.define(eq=False)
class _Request(Generic[AnyAnswer]):
    answered: trio.Event = attrs.field(factory=trio.Event)
    answer: AnyAnswer | None = None


class PendingAnswers(Generic[AnyAnswer]):
    """The requests of this broker that wait for an answer of one type, each for at most `wait_s` seconds."""

    def __init__(self, messenger: BrokerMessenger, answer: type[AnyAnswer], wait_s: float) -> None:
        self._messenger = messenger
        self._wait_s = wait_s
        self._requests: dict[int, _Request[AnyAnswer]] = {}
        # A broker that answers late must not answer another request, after this broker has started again.
        self._numbers = itertools.count(secrets.randbits(52))
        messenger.on(answer, self._on_answer)

    def next_number(self) -> int:
        """Return a number for a request that no other one has."""
        return next(self._numbers)

    async def ask(self, address: str, number: int, messages: Iterable[Message]) -> AnyAnswer | None:
        """Send the messages of a request to another broker. Return its answer; None if there is none in time."""
        request = self._requests[number] = _Request[AnyAnswer]()
        try:
            for message in messages:
                self._messenger.send(address, message)
            with trio.move_on_after(self._wait_s):
                await request.answered.wait()
        finally:
            del self._requests[number]
        return request.answer

    def _on_answer(self, _sender: str, answer: AnyAnswer) -> None:
        request = self._requests.get(answer.request)
        if request is not None:
            request.answer = answer
            request.answered.set()
