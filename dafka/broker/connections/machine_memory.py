"""Finds how much memory the process can use: that of the machine, or of its container."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")

UNKNOWN_BYTES = 2**31
"""The assumed memory of a machine that does not report it."""


def find_memory_bytes() -> int:
    """Return the memory of the machine in bytes, or the limit of the process's control groups if that is less."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        machine = UNKNOWN_BYTES
    return min([machine if machine > 0 else UNKNOWN_BYTES, *cgroup_limits(_CGROUPS, _OWN_CGROUPS)])


def cgroup_limits(mounted: Path, own: Path) -> list[int]:
    """Return the memory limits in bytes of the control groups that a file names, and of their parents.

    They are mounted in a folder: of version 2, or of version 1 with a folder for each controller.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found: list[int] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found += _limits(mounted, path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _limits(mounted / "memory", path, "memory.limit_in_bytes")
    return found


def _limits(mounted: Path, path: str, name: str) -> list[int]:
    found = []
    inner = PurePosixPath(path.lstrip("/"))
    # In a container, the group of the process is often mounted as the root, under another name than outside.
    for group in (inner, *inner.parents):
        if ".." in group.parts:
            continue
        try:
            text = (mounted / group / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) > 0:
            found.append(int(text))
    return found
