"""Measures a broker's throughput: records and bytes per second, from sampled counters."""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs

INTERVAL_MS = 900
"""The minimum interval of samples. Clients that ask more often share one."""

GAP_MS = 15_000
"""Samples that are further apart give no rate: no client asked in between."""

SAMPLES_MAX = 300


@attrs.frozen
class Totals:
    """Counters that only grow.

    Attributes:
        records_in: Records that were made durable.
        bytes_in: The size of their contents, in bytes.
        records_out: Records that were sent to clients.
        bytes_out: Bytes that were sent to clients.
    """

    records_in: int
    bytes_in: int
    records_out: int
    bytes_out: int


@attrs.frozen
class Rates:
    """Rates per second.

    Attributes:
        time: When this was measured, in milliseconds since 1970.
        records_in_per_s: Records that were made durable.
        bytes_in_per_s: The size of their contents, in bytes.
        records_out_per_s: Records that were sent to clients.
        bytes_out_per_s: Bytes that were sent to clients.
    """

    time: int
    records_in_per_s: float
    bytes_in_per_s: float
    records_out_per_s: float
    bytes_out_per_s: float


class Measurement:
    """A cached measurement, because measuring is slow."""

    def __init__(self) -> None:
        self._value: dict[str, Any] | None = None
        self._measured_at = 0.0

    def find(self, now: float, age_max_s: float) -> dict[str, Any] | None:
        """Return the value if it is recent enough."""
        return self._value if self._value is not None and now - self._measured_at < age_max_s else None

    def put(self, value: dict[str, Any], now: float) -> None:
        """Store a new value."""
        self._value, self._measured_at = value, now


class Throughput:
    """The rates of the last minutes, measured while clients ask for them."""

    def __init__(self) -> None:
        self._samples: deque[Rates] = deque(maxlen=SAMPLES_MAX)
        self._time: int | None = None
        self._totals = Totals(0, 0, 0, 0)

    def is_due(self, time_ms: int) -> bool:
        """Return whether the counters must be sampled again."""
        return self._time is None or not 0 <= time_ms - self._time < INTERVAL_MS

    def add(self, totals: Totals, time_ms: int) -> None:
        """Add a sample of the counters."""
        elapsed_ms = 0 if self._time is None else time_ms - self._time
        if not 0 < elapsed_ms <= GAP_MS:
            self._samples.clear()
        else:
            before = attrs.astuple(self._totals)
            rates = [(new - old) * 1000 / elapsed_ms for new, old in zip(attrs.astuple(totals), before, strict=True)]
            self._samples.append(Rates(time_ms, *(round(each, 1) for each in rates)))
        self._time, self._totals = time_ms, totals

    @property
    def newest(self) -> Rates | None:
        """The newest rates; None if there is only one sample."""
        return self._samples[-1] if self._samples else None

    def history(self) -> list[Rates]:
        """Return the rates of the last minutes, oldest first."""
        return list(self._samples)
