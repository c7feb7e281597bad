"""Broken consumers. Each has one small, realistic fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import attrs
import pytest

from dafka import wire
from dafka.protocol.actions import Action, Deliver, Publish
from dafka.protocol.machines import consumer
from dafka.protocol.machines.consumer import ConsumerMachine
from dafka.protocol.machines.node import Node
from dafka.protocol.ordering.cursor import Cursor
from dafka.records import RecordBatch
from dafka.wire import Command
from tests.conformance.mutants import Mutant, accept_any, lacking_subscriptions, mutants_of

Apply = Callable[[pytest.MonkeyPatch], None]
Actions = list[Action]


def _without_subscription(command: Command) -> Apply:
    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OWN_COMMANDS", "_TOPIC_COMMANDS"):
            others = tuple(each for each in getattr(consumer, name) if each is not command)
            monkeypatch.setattr(consumer, name, others)

    return apply


def _acting(change: Callable[[ConsumerMachine, Action], Iterable[Action]]) -> Apply:
    """Change all actions of the machine."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        act = Node.act

        def changed(self: Node, actions: Iterable[Action]) -> None:
            machine = self._machine
            if isinstance(machine, ConsumerMachine):
                actions = [each for action in actions for each in change(machine, action)]
            act(self, actions)

        monkeypatch.setattr(Node, "act", changed)

    return apply


def _publishing(kind: type[Any], **changes: Callable[[ConsumerMachine, Any], Any]) -> Apply:
    """Send every message of one kind with other fields."""

    def change(machine: ConsumerMachine, action: Action) -> Iterable[Action]:
        if isinstance(action, Publish) and isinstance(action.message, kind):
            message: Any = action.message
            fields = {name: value(machine, message) for name, value in changes.items()}
            return [Publish(attrs.evolve(message, **fields))]
        return [action]

    return _acting(change)


def _silent_about(kind: type[Any]) -> Apply:
    """Never send a kind of message."""
    return _acting(
        lambda _, action: () if isinstance(action, Publish) and isinstance(action.message, kind) else (action,)
    )


def _deliver_twice(_: ConsumerMachine, action: Action) -> Iterable[Action]:
    if not isinstance(action, Deliver):
        return [action]
    batch = action.batch
    return [Deliver(attrs.evolve(batch, values=[*batch.values, *batch.values], encoded=()))]


def _deliver_backwards(_: ConsumerMachine, action: Action) -> Iterable[Action]:
    """Deliver a run of records in reverse order."""
    if not isinstance(action, Deliver):
        return [action]
    run = action.batch
    return [Deliver(run.between(at, at + 1)) for at in reversed(range(run.first_sequence, run.end_sequence))]


def _skip_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver every newer record, without filling gaps."""

    def take(self: Cursor, run: RecordBatch, _: int) -> list[RecordBatch]:
        ready = [run.between(max(self.next_sequence, run.first_sequence), run.end_sequence)]
        is_new = run.end_sequence > self.next_sequence
        self.next_sequence = self.known_end = max(self.next_sequence, run.end_sequence)
        return ready if is_new else []

    monkeypatch.setattr(Cursor, "add_batch", take)


def _begin_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start at the earliest record despite `latest`."""

    def joined(self: ConsumerMachine, address: str, _: float) -> Actions:
        self._newer_peers[address] = None
        return []

    monkeypatch.setattr(ConsumerMachine, "peer_joined", joined)


mutant = mutants_of("consumer")

MUTANTS: list[Mutant] = [
    *lacking_subscriptions(
        "consumer",
        _without_subscription,
        *(Command.RECORD, Command.HEAD, Command.DIRECT_RECORD, Command.DIRECT_HEAD, Command.STORE_HELLO),
    ),
    mutant(
        "asks-for-heads-of-itself",
        "get-heads",
        "topic.GET-HEADS",
        "the topic frame of GET-HEADS is C, not the topic",
        _publishing(wire.GetHeads, subject=lambda machine, _message: machine.address),
    ),
    mutant("asks-for-no-heads", "get-heads", "get-heads.sent", "no GET-HEADS arrived", _silent_about(wire.GetHeads)),
    mutant(
        "sends-no-hello",
        "grammar.join-consumer.39",
        "consumer-hello.sent",
        "no CONSUMER-HELLO arrived",
        _silent_about(wire.ConsumerHello),
    ),
    mutant(
        "hello-with-another-topic",
        "hello",
        "consumer-hello.subjects",
        "CONSUMER-HELLO has elsewhere, but",
        _publishing(wire.ConsumerHello, subjects=lambda _machine, _message: ("elsewhere",)),
    ),
    mutant("delivers-twice", "live", "delivery.once", "were delivered more", _acting(_deliver_twice)),
    mutant("delivers-backwards", "live", "delivery.in-order", "delivered,", _acting(_deliver_backwards)),
    mutant("drops-out-of-order-records", "out-of-order", "delivery.complete", "not delivered", _skip_gaps),
    mutant(
        "accepts-unknown-commands",
        "unknown-command",
        "robust.unknown-command",
        "a STORE-HELLO with the id b'Z' was not discarded: it caused a CONSUMER-HELLO",
        partial(accept_any, "command"),
    ),
    mutant("begins-at-zero-at-latest", "latest", "latest.new-only", "were published", _begin_at_zero),
]
