"""The clock of leases: a leader serves readers only until a time on it."""

from __future__ import annotations

import sys
import time

import trio


def lease_time() -> float:
    """Return the time, in seconds.

    It runs on while the process is stopped, as trio's clock does, and also while the machine sleeps, if the system can
    tell: Linux can.
    """
    return trio.current_time() + _slept_s()


def _slept_s() -> float:
    """Return for how many seconds the machine has slept since it was started."""
    if sys.platform != "linux":
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
