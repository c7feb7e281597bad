"""Waits for the target's messages and deliveries with a time limit, and records missing and wrong ones."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import trio

from dafka_conformance.grammar import Message
from dafka_conformance.model import DELIVERY, Check
from dafka_conformance.targets.base import Delivery
from dafka_conformance.testbed.trace import ReceivedMessage, Trace

DEFAULT_TIMEOUT_S = 8.0
"""The default time limit for anything that the target must do at once: far more than it needs on a busy machine."""


TICK_S = 0.25
"""The longest wait that counts in full. A longer one shows that the machine is too busy to run the suite in time."""

FINDINGS_MAX = 10
"""The maximum number of recorded faults for one clause in one scenario. More would add nothing."""


class UnmetError(Exception):
    """A required condition of the scenario was not met, so the scenario ends. The failed check is already recorded."""


class LacksError(Exception):
    """The target does not have an optional ability, named in the text. The scenario is skipped."""


class CheckLog:
    """The recorded checks of one scenario.

    Attributes:
        trace: The events of the scenario.
        checks: The checks so far, in order.

    Args:
        trace: The events of the scenario.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.checks: list[Check] = []

    def check_clause(
        self,
        clause: str,
        holds: bool,
        message: str = "",
        event: int | None = None,
        reading: str = "",
        missing: str = "",
    ) -> bool:
        """Record whether the target follows a clause.

        Args:
            clause: The clause's id.
            holds: Whether the target follows it.
            message: A description of the fault if it does not.
            event: The index in the trace of the faulty event. None if something is missing.
            reading: The reading that the target follows, for a clause with several.
            missing: The name of the message that did not arrive.

        Returns:
            `holds`.
        """
        self.checks.append(
            Check(clause, holds, "" if holds else message, event, reading, missing="" if holds else missing)
        )
        if not holds and event is not None:
            self.trace.mark_fault(event, message)
        return holds

    def require_clause(
        self, clause: str, holds: bool, message: str, event: int | None = None, missing: str = ""
    ) -> None:
        """Record a check as `check_clause` does. Raise `UnmetError` if the clause does not hold."""
        if not self.check_clause(clause, holds, message, event, missing=missing):
            raise UnmetError(message)

    def report_fault(self, clause: str, message: str, event: int, field: str = "", reading: str = "") -> None:
        """Record a fault of an event, unless the same fault is already recorded."""
        alike = [check for check in self.checks if check.clause == clause and not check.holds]
        if len(alike) < FINDINGS_MAX and all(check.message != message for check in alike):
            self.checks.append(Check(clause, False, message, event, reading))
        self.trace.mark_fault(event, message, field)


class Expectations(CheckLog, abc.ABC):
    """The target's messages and deliveries so far, and functions that wait for more.

    Attributes:
        received: The target's messages, in order.
        delivered: The records that the target delivered, in order.
        patience: The factor for every time limit.

    Args:
        trace: The events of the scenario.
        patience: The factor for every time limit.
    """

    def __init__(self, trace: Trace, patience: float) -> None:
        super().__init__(trace)
        self.received: list[ReceivedMessage] = []
        self.delivered: list[Delivery] = []
        self.patience = patience
        self._changed = trio.Event()

    @abc.abstractmethod
    def exit_message(self, after: str = "") -> str:
        """Return how the target ended by itself, and after what; an empty string while it runs."""

    def notify(self) -> None:
        """Wake up the tasks in `wait`, because there is a new message, event or delivery."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until a condition holds, the time limit passes, or the target ends.

        Time during which the machine was too busy to run the suite does not count: the target could not run either.

        Args:
            condition: Evaluated after each message, event and delivery.
            seconds: The time limit, before the factor `patience`. The default is `DEFAULT_TIMEOUT_S`.

        Returns:
            Whether the condition holds.
        """
        remaining_s = self.seconds(seconds)
        while remaining_s > 0 and not condition():
            if self.exit_message() and not condition():
                await trio.lowlevel.checkpoint()
                break
            begin = trio.current_time()
            with trio.move_on_after(min(remaining_s, TICK_S)):
                await self._changed.wait()
            remaining_s -= min(trio.current_time() - begin, TICK_S)
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
        """Wait for a message of the target and return it. If it does not arrive, the target violates the clause.

        Args:
            name: The message's name in the grammar.
            clause: The clause that demands the message.
            matches: Accepts the message.
            since: The index in `received` of the first message to look at.
            seconds: The time limit, before the factor `patience`.
            what: A description of the message for the finding; the name by default.

        Returns:
            The first message that matches.

        Raises:
            UnmetError: No such message arrived in time.
        """
        found = await self.receive(name, matches, since=since, seconds=seconds)
        if found is None:
            others = [received for received in self.received[since:] if received.message.name == name]
            if ended := self.exit_message():
                self.require_clause(clause, False, ended)
            text = f"no {what or name} arrived within {self.seconds(seconds):g} s"
            if others:
                text += f"; the last {name} was {self.describe(others[-1].message)}"
            self.require_clause(clause, False, text, others[-1].event if others else None, name)
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
        """Wait for a message as `expect` does, without a check. Return None if it does not arrive in time."""
        found: list[ReceivedMessage] = []
        index = since

        def check_received() -> bool:
            nonlocal index
            while not found and index < len(self.received):
                received = self.received[index]
                index += 1
                if received.message.name == name and matches(received.message):
                    found.append(received)
            return bool(found)

        await self.wait(check_received, seconds)
        return found[0] if found else None

    async def expect_delivered(self, contents: Sequence[bytes], *, seconds: float | None = None) -> None:
        """Check that the target delivers these records in this order, once each. Others may come between them."""
        wanted = set(contents)
        remaining = set(contents)
        found: list[bytes] = []
        index = 0

        def check_delivered() -> bool:
            nonlocal index
            found.extend(each.content for each in self.delivered[index:] if each.content in wanted)
            remaining.difference_update(each.content for each in self.delivered[index:])
            index = len(self.delivered)
            return not remaining

        await self.wait(check_delivered, seconds)
        missing = wanted - set(found)
        first = next((content for content in contents if content in missing), b"")
        text = (
            f"{len(missing):,} of {len(contents):,} records were not delivered, the first is {self.trace.show(first)}"
        )
        has_ended = bool(self.exit_message())
        self.require_clause(
            "delivery.complete", not missing, self.exit_message() or text, missing="" if has_ended else DELIVERY
        )
        text = f"{len(found) - len(wanted):,} records were delivered more than once"
        self.require_clause("delivery.once", len(found) <= len(wanted), text)
        wrong = next((pair for pair in zip(found, contents, strict=False) if pair[0] != pair[1]), (b"", b""))
        text = f"{self.trace.show(wrong[0])} was delivered, expected {self.trace.show(wrong[1])}"
        self.require_clause("delivery.in-order", wrong == (b"", b""), text)

    def messages(self, name: str, since: int = 0) -> list[Message]:
        """Return the target's messages with this name so far."""
        return [received.message for received in self.received[since:] if received.message.name == name]

    def describe(self, message: Message) -> str:
        """Return a message's fields as text, for a finding."""
        parts = [f"topic={self.trace.show(message.topic)}"]
        for field, value in message.values.items():
            parts.append(f"{field}={self.trace.show(value) if isinstance(value, bytes) else value}")
        return " ".join(parts)

    def seconds(self, seconds: float | None = None) -> float:
        """Return a time limit in seconds, multiplied by the run's patience."""
        return (DEFAULT_TIMEOUT_S if seconds is None else seconds) * self.patience
