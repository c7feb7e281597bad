"""Returns large freed buffers to the system, where the process uses glibc."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

LARGE_BYTES = 2**22
"""Buffers from this size on are returned to the system when they are freed."""

KEPT_BYTES = 2**25
"""How much of what smaller ones leave is kept for the next ones, which makes these faster."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def return_freed_memory() -> None:
    """Fix the thresholds of glibc's allocator.

    Otherwise it raises them up to 32 MiB with each larger buffer that is freed, and later ones then leave holes that
    the process keeps: a process that has once unpacked large records would keep the memory of many of them.
    """
    if sys.platform != "linux":
        return
    with suppress(AttributeError, OSError):  # another C library
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        allocator.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
