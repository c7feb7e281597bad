"""Small files, such as users and keys, that survive a power failure and are never seen half written."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def replace_text(path: Path, text: str, mode: int, *, keeps_mode: bool = True) -> None:
    """Replace the text of a file atomically and durably. Raises `OSError`.

    The file gets the mode. If it exists and `keeps_mode`, it keeps its own.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode) if keeps_mode and path.exists() else mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(path: str | Path) -> None:
    """Make the creation, renaming and removal of files in a folder durable. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
