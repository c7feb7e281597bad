"""The transactions in one log, against a model that looks at every record."""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple

import pytest

from dafka.broker.core.log.open_transactions import AbortedTransaction, OpenTransactions
from dafka.broker.core.positions import Offset


class Entry(NamedTuple):
    """A record of a transaction, or its end.

    Attributes:
        producer_id: The producer.
        is_commit: None for a record.
    """

    producer_id: int
    is_commit: bool | None


class Model:
    """A log of records of transactions, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.entries: list[Entry] = []
        self.transactions = OpenTransactions()
        self.ends: list[tuple[int, int, int, bool]] = []
        self.start = 0
        running: dict[int, int] = {}
        for offset in range(self.draw.randint(1, 60)):
            producer_id = self.draw.randrange(4)
            if producer_id in running and self.draw.random() < 0.3:
                is_commit = self.draw.random() < 0.4
                first = running.pop(producer_id)
                self.entries.append(Entry(producer_id, is_commit))
                self.ends.append((offset, producer_id, first, is_commit))
                # What is known of the first record: from the marker, from the record, or from both.
                named = self.draw.choice([Offset(first), None])
                self.transactions.end(producer_id, Offset(offset), named, is_commit=is_commit)
            else:
                running.setdefault(producer_id, offset)
                self.entries.append(Entry(producer_id, None))
                self.transactions.begin(producer_id, Offset(offset))
        self.running = running

    def restart(self) -> None:
        """Restore the transactions from an index that was rewritten: from the markers and from open transactions."""
        self.transactions = OpenTransactions()
        for offset, producer_id, first, is_commit in self.ends:
            if offset >= self.start:
                self.transactions.end(producer_id, Offset(offset), Offset(first), is_commit=is_commit)
        for producer_id, first in sorted(self.running.items(), key=lambda each: each[1]):
            self.transactions.begin(producer_id, Offset(first))

    def drop(self) -> None:
        self.start = self.draw.randint(self.start, len(self.entries))
        self.transactions.drop_before(Offset(self.start))

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        found = [
            AbortedTransaction(producer_id, Offset(begun), Offset(offset))
            for offset, producer_id, begun, is_commit in self.ends
            if not is_commit and begun < end and offset >= first
        ]
        return sorted(found, key=lambda each: each.first_offset)

    def is_visible(self, offset: int) -> bool:
        producer_id = self.entries[offset].producer_id
        ends = (each for each in self.entries[offset:] if each.producer_id == producer_id)
        end = next(each for each in ends if each.is_commit is not None)
        return bool(end.is_commit)


def read(model: Model, first: int, end: int, aborted: list[AbortedTransaction]) -> list[int]:
    """Return what a client delivers that takes the list from its front and trusts its order, as kafkajs does."""
    waiting, skipped, found = deque(aborted), set[int](), list[int]()
    for offset in range(first, end):
        entry = model.entries[offset]
        while waiting and waiting[0].first_offset <= offset:
            skipped.add(waiting.popleft().producer_id)
        if entry.is_commit is None:
            if entry.producer_id not in skipped:
                found.append(offset)
        elif not entry.is_commit:
            skipped.discard(entry.producer_id)
    return found


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_the_aborted_transactions_of_a_range_are_those_that_have_records_in_it(first: int) -> None:
    for seed in range(first, first + 25):
        model = Model(seed)
        for _ in range(6):
            kind = model.draw.random()
            if kind < 0.4:
                model.restart()
            elif kind < 0.7:
                model.drop()
            check_range(model)


def check_range(model: Model) -> None:
    stable = model.transactions.last_stable_offset(Offset(len(model.entries)))
    assert stable == min([len(model.entries), *model.running.values()])
    first = model.draw.randint(model.start, len(model.entries))
    end = model.draw.randint(first, len(model.entries))
    assert model.transactions.aborted_between(Offset(first), Offset(end)) == model.aborted(first, end)
    end = min(end, stable)
    visible = [each for each in range(first, end) if model.entries[each].is_commit is None and model.is_visible(each)]
    assert read(model, first, end, model.transactions.aborted_between(Offset(first), Offset(end))) == visible


def test_a_transaction_is_decided_when_its_marker_is_below_the_high_watermark() -> None:
    for seed in range(50):
        model = Model(seed)
        for high_watermark in range(len(model.entries) + 1):
            undecided = [first for offset, _, first, _ in model.ends if offset >= high_watermark]
            expected = min([high_watermark, *undecided, *model.running.values()])
            assert model.transactions.last_stable_offset(Offset(high_watermark)) == expected


def test_a_marker_without_records_ends_nothing() -> None:
    transactions = OpenTransactions()
    transactions.end(1, Offset(5), None, is_commit=False)
    assert transactions.aborted_between(Offset(0), Offset(10)) == []
    assert transactions.last_stable_offset(Offset(3)) == 3
