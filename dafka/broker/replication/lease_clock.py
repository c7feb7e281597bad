"""The clock for leader leases, which count also while the machine sleeps."""

from __future__ import annotations

import sys
import time

import trio


def lease_time() -> float:
    """Return the time in seconds.

    Like trio's clock, it advances while the process is stopped. On Linux, it also advances while the machine sleeps.
    """
    return trio.current_time() + _slept_s()


def _slept_s() -> float:
    """Return how many seconds the machine has slept since it was started."""
    if sys.platform != "linux":
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
