"""How long records waited to be acknowledged, and during which faults."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.broker.cluster.faults import Applied
from tests.broker.cluster.histories import Log

LONG_S = 0.5
"""Records that waited for less are not looked at."""

AFTER_S = 10.0
"""For so long after a fault was healed, pauses are counted to it."""


class Pause(NamedTuple):
    """A time during which a record of a log waited to be acknowledged."""

    begin: float
    end: float
    log: int

    @property
    def length(self) -> float:
        """The length in seconds."""
        return self.end - self.begin


def find_pauses(number: int, log: Log) -> Iterator[Pause]:
    """Return when records of a log waited long."""
    sends: dict[int, list[tuple[int, float]]] = {}
    for sent in log.sends:
        sends.setdefault(sent.producer, []).append((sent.first, sent.time))
    for each in sends.values():
        each.sort()
    for run in log.acknowledged:
        bursts = sends[run.producer]
        begin = bursts[bisect_right(bursts, (run.first, float("inf"))) - 1][1]
        if run.time - begin >= LONG_S:
            yield Pause(begin, run.time, number)


def by_fault(pauses: Iterable[Pause], applied: Sequence[Applied]) -> list[tuple[Applied | None, Pause]]:
    """Return the longest pause of each fault, and the longest one outside of all faults, if there are any."""
    longest: dict[int, Pause] = {}
    for pause in pauses:
        concerned = [
            number
            for number, fault in enumerate(applied)
            if fault.begun <= pause.end and pause.begin <= fault.healed + AFTER_S
        ]
        number = concerned[-1] if concerned else -1
        if number not in longest or pause.length > longest[number].length:
            longest[number] = pause
    return [(applied[number] if number >= 0 else None, pause) for number, pause in sorted(longest.items())]
