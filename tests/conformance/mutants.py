"""Mutants: variants of this project's roles with one fault, and the scenario that must detect each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import attrs
import pytest

from dafka.protocol.actions import Action, Subscribe
from dafka.protocol.presence.connections import ConnectionManager
from dafka.wire import Command, subscription_prefix
from dafka.wire.primitives import FrameReader
from dafka_conformance.model import Dialect
from dafka_conformance.targets.base import Target

Finding: TypeAlias = tuple[str, str]
"""The clause and the message of a finding."""

Apply: TypeAlias = Callable[[pytest.MonkeyPatch], None]
"""Applies a mutation."""


@attrs.frozen
class Mutant:
    """A mutant.

    Attributes:
        name: Role and fault, such as `store-acks-unstored`.
        scenario: The scenario that must detect it.
        clause: The clause that it must be reported to violate.
        message: A part of the finding's text.
        apply: Applies the mutation with a monkeypatch.
        dialect: The dialect.
        target: Makes a broken target, for faults of whole processes; by default, `embedded` with `apply`.
    """

    name: str
    scenario: str
    clause: str
    message: str
    apply: Apply
    dialect: Dialect = Dialect.RFC46
    target: Callable[[], Target] | None = None

    def is_found(self, findings: Iterable[Finding]) -> bool:
        """Return whether the mutant is detected by these findings."""
        return any(clause == self.clause and self.message in message for clause, message in findings)


def mutants_of(role: str) -> Callable[..., Mutant]:
    """Return a function that makes a mutant of a role. Its name and its scenario do not name the role."""

    def make(name: str, scenario: str, *more: Any, **options: Any) -> Mutant:
        return Mutant(f"{role}-{name}", f"{role}.{scenario}", *more, **options)

    return make


def change_start(machine: type[Any], change: Callable[[list[Action]], list[Action]]) -> Apply:
    """Change the actions with which a machine starts."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        start = machine.start
        patch.setattr(machine, "start", lambda self, now: change(start(self, now)))

    return apply


def forget_subscription(machine: type[Any], command: Command) -> Apply:
    """Start without the subscription to a command."""
    prefix = subscription_prefix(command)

    def without(actions: list[Action]) -> list[Action]:
        return [each for each in actions if not (isinstance(each, Subscribe) and each.prefix.startswith(prefix))]

    return change_start(machine, without)


def lacking_subscriptions(role: str, forget: Callable[[Command], Apply], *commands: Command) -> list[Mutant]:
    """Return a mutant for each of these commands. It does not subscribe to that command; `forget` removes it."""
    names = {command: command.name.replace("_", "-") for command in commands}
    return [
        Mutant(
            f"{role}-lacks-subscription-{name.lower()}",
            f"{role}.subscriptions",
            f"subscription.{role}.{name.lower()}",
            f"no subscription for {name}",
            forget(command),
        )
        for command, name in names.items()
    ]


def accept_any(field: str, patch: pytest.MonkeyPatch) -> None:
    """Read a literal field without checking its value."""
    literal = FrameReader.expect_bytes

    def read(self: FrameReader, expected: bytes, name: str) -> None:
        if name == field:
            self.read_bytes(len(expected), name)
        else:
            literal(self, expected, name)

    patch.setattr(FrameReader, "expect_bytes", read)


def accept_trailing(patch: pytest.MonkeyPatch) -> None:
    """Ignore bytes after a message's last field."""
    patch.setattr(FrameReader, "expect_end", lambda _self: None)


def drop_silent_peers(patch: pytest.MonkeyPatch) -> None:
    """Drop a peer as soon as its beacons are silent, although its connection lives."""
    patch.setattr(ConnectionManager, "shows_life", lambda *_args, **_options: False)
