"""Waiting for what the target says and hands on, with a deadline, and saying what did not come."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import trio

from dafka_conformance.grammar import Message
from dafka_conformance.stage.findings import Findings
from dafka_conformance.stage.trace import Heard, Trace
from dafka_conformance.targets.base import Delivery

PATIENCE_S = 8.0
"""How long the target may take for what it must do at once: far longer than it needs on a busy machine."""


class Hearing(Findings, abc.ABC):
    """Attributes:
    heard: the target's messages, in order.
    delivered: the records that the target handed on, in order.
    patience: a factor for every time that the target is given.
    """

    def __init__(self, trace: Trace, patience: float) -> None:
        super().__init__(trace)
        self.heard: list[Heard] = []
        self.delivered: list[Delivery] = []
        self.patience = patience
        self._changed = trio.Event()

    @abc.abstractmethod
    def died(self) -> str:
        """Why nothing more will come of the target; empty while it runs."""

    def tell(self) -> None:
        """Something was heard, seen or delivered: whoever waits looks again."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until a condition holds of what was heard, seen or delivered; tells whether it does."""
        with trio.move_on_after(self.seconds(seconds)):
            while not condition():
                if self.died() and not condition():
                    await trio.lowlevel.checkpoint()
                    break
                await self._changed.wait()
        return condition()

    async def expect(
        self,
        name: str,
        clause: str,
        matches: Callable[[Message], bool] = lambda _: True,
        *,
        since: int = 0,
        seconds: float | None = None,
        what: str = "",
    ) -> Heard:
        """The first message `name` of the target that matches, among those heard from place `since` on.

        Raises `UnmetError`, the clause being violated, where none comes in time.
        """
        found = await self.hear(name, matches, since=since, seconds=seconds)
        if found is None:
            others = [heard for heard in self.heard[since:] if heard.message.name == name]
            text = self.died() or f"no {what or name} came within {self.seconds(seconds):g} s"
            if others and not self.died():
                text += f"; the {name} that did come says {self.describe(others[-1].message)}"
            self.require(clause, False, text, others[-1].event if others else None)
        assert found is not None
        self.check(clause, True)
        return found

    async def hear(
        self,
        name: str,
        matches: Callable[[Message], bool] = lambda _: True,
        *,
        since: int = 0,
        seconds: float | None = None,
    ) -> Heard | None:
        """As `expect`, without a check: None where it does not come in time."""
        found: list[Heard] = []
        place = since

        def look() -> bool:
            nonlocal place
            while not found and place < len(self.heard):
                heard = self.heard[place]
                place += 1
                if heard.message.name == name and matches(heard.message):
                    found.append(heard)
            return bool(found)

        await self.wait(look, seconds)
        return found[0] if found else None

    async def expect_delivered(self, contents: Sequence[bytes], *, seconds: float | None = None) -> None:
        """The target hands on exactly these records, in this order; others may come between. Raises `UnmetError`."""
        wanted = set(contents)
        remaining = set(contents)
        found: list[bytes] = []
        place = 0

        def look() -> bool:
            nonlocal place
            found.extend(each.content for each in self.delivered[place:] if each.content in wanted)
            remaining.difference_update(each.content for each in self.delivered[place:])
            place = len(self.delivered)
            return not remaining

        await self.wait(look, seconds)
        missing = wanted - set(found)
        first = next((content for content in contents if content in missing), b"")
        text = (
            f"{len(missing):,} of {len(contents):,} records were not handed on, the first is {self.trace.show(first)}"
        )
        self.require("delivery.complete", not missing, self.died() or text)
        text = f"{len(found) - len(wanted):,} records were handed on more than once"
        self.require("delivery.once", len(found) <= len(wanted), text)
        wrong = next((pair for pair in zip(found, contents, strict=False) if pair[0] != pair[1]), (b"", b""))
        text = f"{self.trace.show(wrong[0])} was handed on where {self.trace.show(wrong[1])} was due"
        self.require("delivery.in-order", wrong == (b"", b""), text)

    def all_heard(self, name: str, since: int = 0) -> list[Message]:
        """The target's messages of one name so far."""
        return [heard.message for heard in self.heard[since:] if heard.message.name == name]

    def describe(self, message: Message) -> str:
        """A message's fields, for a finding."""
        parts = [f"topic={self.trace.show(message.topic)}"]
        for field, value in message.values.items():
            parts.append(f"{field}={self.trace.show(value) if isinstance(value, bytes) else value}")
        return " ".join(parts)

    def seconds(self, seconds: float | None = None) -> float:
        """A time that the target is given, by the run's patience."""
        return (PATIENCE_S if seconds is None else seconds) * self.patience
