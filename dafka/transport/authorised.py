"""Whom a closed cluster's node lets in: public keys from a file or folder, read again when it changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from dafka.errors import ConfigError
from dafka.transport.keys import read_public_keys

_State: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""By which a change is noticed: the files, and of each its number, its size and when it was written."""


class AuthorisedKeys:
    """The public keys that are let in.

    What cannot be read when it changes leaves the former keys in force: a slip in an editor locks nobody out.

    Attributes:
        path: the file or folder.
        own: the node's own public key, which need not be listed.
    """

    def __init__(self, path: Path, own: str) -> None:
        """Reads the keys. Raises `ConfigError` where they cannot be read."""
        self.path = path
        self.own = own
        self._state = _look(path)
        self._keys = _read(path)

    def __contains__(self, key: str) -> bool:
        return key == self.own or key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def names(self) -> dict[str, str]:
        """By public key, what the list says whose it is."""
        return dict(self._keys)

    def refresh(self) -> set[str] | None:
        """Reads the keys again where they have changed since; gives those that are authorised no longer.

        None where the keys are the same. Raises `ConfigError`, once a change, where they cannot be read; then the
        former ones stay.
        """
        try:
            state = _look(self.path)
        except ConfigError:
            if not self._state:
                return None
            self._state = ()
            raise
        if state == self._state:
            return None
        self._state = state
        former, self._keys = self._keys, _read(self.path)
        if former.keys() == self._keys.keys():
            return None
        return {key for key in former if key not in self}


def key_files(path: Path) -> Iterator[Path]:
    """The files that `path` stands for: itself, or those in the folder that are not hidden."""
    if path.is_dir():
        yield from sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    else:
        yield path


def _read(path: Path) -> dict[str, str]:
    keys: dict[str, str] = {}
    try:
        files = list(key_files(path))
    except OSError as error:
        raise _unreadable(path, error) from None
    for file in files:
        for key, name in read_public_keys(file).items():
            keys[key] = name or (file.stem if file != path else "")
    return keys


def _look(path: Path) -> _State:
    try:
        found = [(file, file.stat()) for file in key_files(path)]
    except OSError as error:
        raise _unreadable(path, error) from None
    return tuple((str(file), status.st_ino, status.st_size, status.st_mtime_ns) for file, status in found)


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read the authorised keys {path}: {os.strerror(error.errno or 0)}")
