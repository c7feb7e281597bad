"""Waiting for what the target says and hands on, with a deadline, and saying what did not come."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import trio

from dafka_conformance.grammar import Message
from dafka_conformance.model import Check
from dafka_conformance.targets.base import Delivery
from dafka_conformance.testbed.trace import ReceivedMessage, Trace

DEFAULT_TIMEOUT_S = 8.0
"""How long the target may take for what it must do at once: far longer than it needs on a busy machine."""


FINDINGS_MAX = 10
"""Findings of one scenario about one clause: further ones would tell nothing new."""


class UnmetError(Exception):
    """Something that the scenario cannot go on without did not happen; its check has been recorded."""


class CheckLog:
    """Attributes:
    trace: everything that was said.
    checks: what was checked so far.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.checks: list[Check] = []

    def check_clause(
        self, clause: str, holds: bool, message: str = "", event: int | None = None, reading: str = ""
    ) -> bool:
        """Records whether a clause holds; where not, `message` says what is wrong. Gives `holds`."""
        self.checks.append(Check(clause, holds, "" if holds else message, event, reading))
        if not holds and event is not None:
            self.trace.mark_fault(event, message)
        return holds

    def require_clause(self, clause: str, holds: bool, message: str, event: int | None = None) -> None:
        """As `check`; raises `UnmetError` where it does not hold."""
        if not self.check_clause(clause, holds, message, event):
            raise UnmetError(message)

    def report_fault(self, clause: str, message: str, event: int, field: str = "", reading: str = "") -> None:
        """Records what is wrong with an event, unless the same has been found before."""
        alike = [check for check in self.checks if check.clause == clause and not check.holds]
        if len(alike) < FINDINGS_MAX and all(check.message != message for check in alike):
            self.checks.append(Check(clause, False, message, event, reading))
        self.trace.mark_fault(event, message, field)


class Expectations(CheckLog, abc.ABC):
    """Attributes:
    heard: the target's messages, in order.
    delivered: the records that the target handed on, in order.
    patience: a factor for every time that the target is given.
    """

    def __init__(self, trace: Trace, patience: float) -> None:
        super().__init__(trace)
        self.received: list[ReceivedMessage] = []
        self.delivered: list[Delivery] = []
        self.patience = patience
        self._changed = trio.Event()

    @abc.abstractmethod
    def exit_message(self) -> str:
        """Why nothing more will come of the target; empty while it runs."""

    def notify(self) -> None:
        """Something was heard, seen or delivered: whoever waits looks again."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until a condition holds of what was heard, seen or delivered; tells whether it does."""
        with trio.move_on_after(self.seconds(seconds)):
            while not condition():
                if self.exit_message() and not condition():
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
    ) -> ReceivedMessage:
        """The first message `name` of the target that matches, among those heard from place `since` on.

        Raises `UnmetError`, the clause being violated, where none comes in time.
        """
        found = await self.receive(name, matches, since=since, seconds=seconds)
        if found is None:
            others = [received for received in self.received[since:] if received.message.name == name]
            text = self.exit_message() or f"no {what or name} came within {self.seconds(seconds):g} s"
            if others and not self.exit_message():
                text += f"; the {name} that did come says {self.describe(others[-1].message)}"
            self.require_clause(clause, False, text, others[-1].event if others else None)
        assert found is not None
        self.check_clause(clause, True)
        return found

    async def receive(
        self,
        name: str,
        matches: Callable[[Message], bool] = lambda _: True,
        *,
        since: int = 0,
        seconds: float | None = None,
    ) -> ReceivedMessage | None:
        """As `expect`, without a check: None where it does not come in time."""
        found: list[ReceivedMessage] = []
        place = since

        def look() -> bool:
            nonlocal place
            while not found and place < len(self.received):
                received = self.received[place]
                place += 1
                if received.message.name == name and matches(received.message):
                    found.append(received)
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
        self.require_clause("delivery.complete", not missing, self.exit_message() or text)
        text = f"{len(found) - len(wanted):,} records were handed on more than once"
        self.require_clause("delivery.once", len(found) <= len(wanted), text)
        wrong = next((pair for pair in zip(found, contents, strict=False) if pair[0] != pair[1]), (b"", b""))
        text = f"{self.trace.show(wrong[0])} was handed on where {self.trace.show(wrong[1])} was due"
        self.require_clause("delivery.in-order", wrong == (b"", b""), text)

    def messages(self, name: str, since: int = 0) -> list[Message]:
        """The target's messages of one name so far."""
        return [received.message for received in self.received[since:] if received.message.name == name]

    def describe(self, message: Message) -> str:
        """A message's fields, for a finding."""
        parts = [f"topic={self.trace.show(message.topic)}"]
        for field, value in message.values.items():
            parts.append(f"{field}={self.trace.show(value) if isinstance(value, bytes) else value}")
        return " ".join(parts)

    def seconds(self, seconds: float | None = None) -> float:
        """A time that the target is given, by the run's patience."""
        return (DEFAULT_TIMEOUT_S if seconds is None else seconds) * self.patience
