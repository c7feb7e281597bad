"""Stalls: moments at which the machine was too busy to run the suite, which say nothing about the target.

The suite's nodes send no beacons during a stall, so that the target may rightly take them for gone.
"""

from __future__ import annotations

import trio

TICK_S = 0.25
STALL_S = 1.0
"""A timer of the suite that is later than this shows a stall. Nodes take a silent peer for gone after 4 s or more."""


class StallMonitor:
    """Notices stalls of the suite's event loop."""

    def __init__(self) -> None:
        self._last_end = float("-inf")

    def has_stalled_since(self, begin: float) -> bool:
        """Return whether a stall ended after this time of trio's clock, or is going on."""
        return self._last_end >= begin

    async def run(self) -> None:
        """Watch the event loop until cancelled."""
        while True:
            begin = trio.current_time()
            await trio.sleep(TICK_S)
            end = trio.current_time()
            if end - begin > TICK_S + STALL_S:
                self._last_end = end
