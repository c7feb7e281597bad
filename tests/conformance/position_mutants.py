"""Broken stores that find records by time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import pytest

from dafka import wire
from dafka.protocol import StoreMachine
from dafka.protocol.actions import Action, Subscribe
from dafka.protocol.answering.position_responder import PositionResponder, PositionSearch
from dafka.protocol.presence.subscribers import SubscriberSet
from dafka.records import NO_TIMESTAMP, RecordBatch
from dafka.storage import made_at
from dafka.wire import Command
from tests.conformance.mutants import Mutant

Patch = pytest.MonkeyPatch


def change_answers(change: Callable[[wire.DirectPosition], wire.DirectPosition], patch: Patch) -> None:
    """Change every answer of the store."""
    complete = PositionResponder.complete

    def complete_changed(self: PositionResponder, search: PositionSearch, found: int | None) -> wire.DirectPosition:
        return change(complete(self, search, found))

    patch.setattr(PositionResponder, "complete", complete_changed)


def answer_by_time_of_storing(patch: Patch) -> None:
    patch.setattr(made_at, "_find_made_at", lambda batch, _: batch.first_sequence)


def skip_records_without_timestamp(patch: Patch) -> None:
    find = made_at._find_made_at

    def find_timestamped(batch: RecordBatch, time_ms: int) -> int | None:
        timestamps = [] if batch.timestamps is None else batch.timestamps
        return find(batch, time_ms) if any(each != NO_TIMESTAMP for each in timestamps) else None

    patch.setattr(made_at, "_find_made_at", find_timestamped)


def subscribe_with_another_address(patch: Patch) -> None:
    start = StoreMachine.start
    own = Command.GET_POSITION.value

    def start_wrong(self: StoreMachine, now: float) -> list[Action]:
        return [
            Subscribe(own + b"STORE") if isinstance(each, Subscribe) and each.prefix.startswith(own) else each
            for each in start(self, now)
        ]

    patch.setattr(StoreMachine, "start", start_wrong)


def answer_everybody(patch: Patch) -> None:
    contains = SubscriberSet.__contains__

    def takes(self: SubscriberSet, address: str) -> bool:
        return self._command is Command.DIRECT_POSITION or contains(self, address)

    patch.setattr(SubscriberSet, "__contains__", takes)


def answer(**changes: object) -> Callable[[wire.DirectPosition], wire.DirectPosition]:
    return lambda message: attrs.evolve(message, **changes)  # type: ignore[arg-type]


MUTANTS = [
    Mutant(
        "store-finds-by-time-of-storing", "store.positions", "position.first", "the sequence", answer_by_time_of_storing
    ),
    Mutant(
        "store-answers-about-another-time",
        "store.positions",
        "position.answered",
        "no DIRECT-POSITION of the partition and the time",
        partial(change_answers, answer(time=1)),
    ),
    Mutant(
        "store-subscribes-to-questions-of-others",
        "store.positions",
        "subscription.store.get-position",
        "but not with its own address",
        subscribe_with_another_address,
    ),
    Mutant(
        "store-skips-records-without-timestamp",
        "store.positions-stored",
        "position.stored",
        "expected 0 and 10",
        skip_records_without_timestamp,
    ),
    Mutant(
        "store-forgets-its-end",
        "store.positions-stored",
        "position.none",
        "and the end 0 for records that were just stored",
        partial(change_answers, answer(end=0)),
    ),
    Mutant(
        "store-holds-the-unknown",
        "store.positions-unknown",
        "position.unknown",
        "the answer is the sequence 0",
        partial(change_answers, answer(sequence=0)),
    ),
    Mutant(
        "store-answers-everybody",
        "store.positions-subscribers",
        "position.subscribers-only",
        "was sent to C2",
        answer_everybody,
    ),
]
