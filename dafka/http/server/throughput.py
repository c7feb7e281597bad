"""Measures a broker's throughput: records and bytes per second, from sampled counters."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated, NamedTuple

from dafka.http.server.documents import Count, Document, doc

INTERVAL_S = 0.9
"""The minimum interval of samples, in seconds. Clients that ask more often share one."""

GAP_S = 15.0
"""A larger interval between samples gives no rate: no client asked in between."""

SAMPLES_MAX = 300


class Totals(NamedTuple):
    """Counters that only grow."""

    records_in: int
    bytes_in: int
    records_out: int
    bytes_out: int


class Rates(Document):
    """The throughput of the broker."""

    time: Annotated[Count, doc("When this was measured, in milliseconds since 1970.")]
    records_in_per_s: Annotated[float, doc("Records that were made durable.")]
    bytes_in_per_s: Annotated[float, doc("The bytes of their contents.")]
    records_out_per_s: Annotated[float, doc("Records that were sent to clients.")]
    bytes_out_per_s: Annotated[float, doc("Bytes that were sent to clients.")]


class Throughput:
    """The rates of the last minutes, measured while clients ask for them. Intervals are of a clock that never jumps."""

    def __init__(self) -> None:
        self._samples: deque[Rates] = deque(maxlen=SAMPLES_MAX)
        self._sampled_at_s = -math.inf
        self._totals = Totals(0, 0, 0, 0)

    def is_due(self, now_s: float) -> bool:
        """Return whether the counters must be sampled again."""
        return now_s - self._sampled_at_s >= INTERVAL_S

    def add(self, totals: Totals, now_s: float, time_ms: int) -> None:
        """Add a sample of the counters, with the time of the wall clock that is shown."""
        elapsed_s = now_s - self._sampled_at_s
        if elapsed_s > GAP_S:
            self._samples.clear()
        else:
            rates = [(new - old) / elapsed_s for new, old in zip(totals, self._totals, strict=True)]
            self._samples.append(Rates(time_ms, *(round(each, 1) for each in rates)))
        self._sampled_at_s, self._totals = now_s, totals

    @property
    def newest(self) -> Rates | None:
        """The newest rates; None if there is only one sample."""
        return self._samples[-1] if self._samples else None

    def history(self) -> list[Rates]:
        """Return the rates of the last minutes, oldest first."""
        return list(self._samples)
