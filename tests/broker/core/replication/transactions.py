"""Transactions of simulated producers in one log, and the coordinator that decides them and never forgets."""

from __future__ import annotations

import random
from itertools import count

import attrs

from dafka.broker.core.replication.records import LeaderAndEpoch
from tests.broker.core.replication.read_log import Indexed

PRODUCERS = 3


@attrs.define
class Transaction:
    """A transaction that has not ended yet.

    Its markers are by the epoch of their leader, and since when it had led it: a leader that crashes may lead the same
    epoch again, without the marker.
    """

    number: int
    producer_id: int
    records: list[Indexed] = attrs.field(factory=list)
    markers: dict[tuple[LeaderAndEpoch, float], Indexed] = attrs.field(factory=dict)


class Transactions:
    """The transactions in one log."""

    def __init__(self, draw: random.Random) -> None:
        self.decisions: dict[int, bool] = {}  # by the number of a transaction, whether it is committed
        self._draw = draw
        self._numbers = count()
        self._running: dict[int, Transaction] = {}

    @property
    def is_quiet(self) -> bool:
        return not self._running

    def produce(self) -> list[Indexed]:
        found: list[Indexed] = []
        for producer_id in range(PRODUCERS):
            running = self._running.get(producer_id)
            if running is None and self._draw.random() < 0.1:
                running = self._running[producer_id] = Transaction(next(self._numbers), producer_id)
            if running is not None and running.number not in self.decisions and self._draw.random() < 0.4:
                name = f"t{running.number}:{len(running.records)}"
                running.records.append(Indexed.make(name, producer_id, running.number))
                found.append(running.records[-1])
        return found

    def decide(self, acknowledged: set[str], *, all_of_them: bool = False) -> None:
        """Commit or abort transactions. Only those are committed of which all records are acknowledged."""
        for each in self._running.values():
            if each.number not in self.decisions and (all_of_them or self._draw.random() < 0.1):
                self.decisions[each.number] = acknowledged.issuperset(each.records) and self._draw.random() < 0.5

    def end(self, led: tuple[LeaderAndEpoch, float], acknowledged: set[str]) -> list[Indexed]:
        """Return the markers of decided transactions for a leader: its epoch, and the time since when it leads it."""
        found: list[Indexed] = []
        for producer_id, each in list(self._running.items()):
            decision = self.decisions.get(each.number)
            if decision is None:
                continue
            if not acknowledged.isdisjoint(each.markers.values()):
                del self._running[producer_id]
            elif led not in each.markers:
                name = f"m{each.number}.{len(each.markers)}:0"
                each.markers[led] = Indexed.make(name, producer_id, each.number, decision)
                found.append(each.markers[led])
        return found
