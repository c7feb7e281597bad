"""Measures the disk that a storage is on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple


class DiskSpace(NamedTuple):
    """The size of a disk and its free space, in bytes."""

    total: int
    free: int


def measure_disk(url: str) -> DiskSpace | None:
    """Return the size of the disk of a storage with this URL.

    Return None if the storage is not on a disk, or the disk cannot be measured.
    """
    kind, _, rest = url.partition(":")
    if kind == "tiered":
        return measure_disk(rest)
    if kind not in {"sqlite", "filelog"}:
        return None
    folder = Path(rest.partition("?")[0]).absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return None
    return DiskSpace(found.total, found.free)
