"""Files that a running node reads again when they change: users, authorized keys, certificates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from dafka.errors import ConfigError

SETTLED_S = 3.0
"""How many seconds after it was first seen a state proves that a file is unchanged.

Modification times have a resolution: milliseconds on most file systems, two seconds on some. A file that is edited
twice within that time, without a change of its size, looks unchanged.
"""

_State: TypeAlias = tuple[tuple[str, int, int, int] | tuple[str, None], ...]
"""The path, inode, size and modification time of each file; the path and None of a file that is not there."""

Value = TypeVar("Value")


class WatchedFiles(Generic[Value]):
    """What some files say, which are read again when they may have changed.

    If changed files cannot be read, the former value stays, so that a mistake locks nobody out. Files count as changed
    until they were read `SETTLED_S` after they were first seen in their present state. The wall clock, which may be
    set, is not used.

    Args:
        list_files: Returns the paths of the files; raises `OSError` if their folder cannot be read.
        read: Returns what the files say, to be compared; raises `ConfigError` if they cannot be read or are damaged.
        clock: Returns the time in seconds, from any begin; it never goes back.

    Attributes:
        value: What the files said when they could last be read.

    Raises:
        ConfigError: The files cannot be read at first.
    """

    def __init__(
        self,
        list_files: Callable[[], Iterable[Path]],
        read: Callable[[], Value],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._list_files = list_files
        self._read = read
        self._clock = clock
        self._state = self._look()
        self._seen_at_s = clock()
        self._is_settled = False
        self._reported: _State | None = None
        self.value = read()

    def refresh(self) -> bool:
        """Read the files again if they may have changed.

        Returns:
            Whether the value is another one.

        Raises:
            ConfigError: The files have changed and cannot be read; once for each change.
        """
        if not self._may_have_changed():
            return False
        try:
            value = self._read()
        except ConfigError:
            if self._reported == self._state:
                return False
            self._reported = self._state
            raise
        self._reported = None
        is_changed = value != self.value
        self.value = value
        return is_changed

    def _may_have_changed(self) -> bool:
        """Return whether the files must be read, which happens next."""
        state, now_s = self._look(), self._clock()
        if state != self._state:
            self._state, self._seen_at_s, self._is_settled = state, now_s, False
            return True
        if self._is_settled:
            return False
        self._is_settled = now_s - self._seen_at_s >= SETTLED_S
        return True

    def _look(self) -> _State:
        try:
            return tuple(_state_of(path) for path in self._list_files())
        except OSError:
            return ()


def _state_of(path: Path) -> tuple[str, int, int, int] | tuple[str, None]:
    try:
        found = path.stat()
    except OSError:
        return str(path), None
    return str(path), found.st_ino, found.st_size, found.st_mtime_ns
