"""The time since 1970 without the jumps of the wall clock: for timeouts of what is counted in such times."""

from __future__ import annotations

import time

_BEGUN_NS = time.time_ns() - time.monotonic_ns()


def steady_now_ms() -> int:
    """Return the milliseconds since 1970 when this process began, by the wall clock, and what has passed since."""
    return (_BEGUN_NS + time.monotonic_ns()) // 1_000_000
