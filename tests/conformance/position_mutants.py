"""Broken stores that find records by time."""

from __future__ import annotations

from collections.abc import Callable

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
from tests.conformance.mutants import change_start, mutants_of

Patch = pytest.MonkeyPatch


def answer_with(**changes: object) -> Callable[[Patch], None]:
    """Change every answer of the store."""
    complete = PositionResponder.complete

    def complete_changed(self: PositionResponder, search: PositionSearch, found: int | None) -> wire.DirectPosition:
        return attrs.evolve(complete(self, search, found), **changes)  # type: ignore[arg-type]

    return lambda patch: patch.setattr(PositionResponder, "complete", complete_changed)


def answer_by_time_of_storing(patch: Patch) -> None:
    patch.setattr(made_at, "_find_made_at", lambda batch, _: batch.first_sequence)


def skip_untimed_records(patch: Patch) -> None:
    find = made_at._find_made_at

    def find_timestamped(batch: RecordBatch, time_ms: int) -> int | None:
        timestamps = [] if batch.timestamps is None else batch.timestamps
        return find(batch, time_ms) if any(each != NO_TIMESTAMP for each in timestamps) else None

    patch.setattr(made_at, "_find_made_at", find_timestamped)


def hear_others(actions: list[Action]) -> list[Action]:
    """Subscribe to the questions to another store."""
    own = Command.GET_POSITION.value
    return [
        Subscribe(own + b"STORE") if isinstance(each, Subscribe) and each.prefix.startswith(own) else each
        for each in actions
    ]


def answer_everybody(patch: Patch) -> None:
    contains = SubscriberSet.__contains__

    def takes(self: SubscriberSet, address: str) -> bool:
        return self._command is Command.DIRECT_POSITION or contains(self, address)

    patch.setattr(SubscriberSet, "__contains__", takes)


HEAR_OTHERS = change_start(StoreMachine, hear_others)
mutant = mutants_of("store")

MUTANTS = [
    mutant("finds-by-time-of-storing", "positions", "position.first", "the sequence", answer_by_time_of_storing),
    mutant("answers-about-another-time", "positions", "position.answered", "no DIRECT-POSITION", answer_with(time=1)),
    mutant("hears-others", "positions", "subscription.store.get-position", "but not with", HEAR_OTHERS),
    mutant("skips-untimed-records", "positions-stored", "position.stored", "expected 0 and 10", skip_untimed_records),
    mutant("forgets-its-end", "positions-stored", "position.none", "and the end 0 for", answer_with(end=0)),
    mutant("holds-the-unknown", "positions-unknown", "position.unknown", "the sequence 0", answer_with(sequence=0)),
    mutant("answers-everybody", "positions-subscribers", "position.subscribers-only", "sent to C2", answer_everybody),
]
