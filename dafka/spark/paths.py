"""Finds the stores that the options `path` and `paths` name.

A path is a store (an SQLite file or a file log's folder), a folder of stores, a pattern such as `/data/*.db`, or the
URL of a storage (`sqlite:orders.db`, or one of a plugin). `paths` has a JSON list of them.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sqlite3
import stat
from collections.abc import Iterable
from contextlib import closing
from importlib.metadata import entry_points
from urllib.parse import unquote

from dafka.errors import ConfigError, StorageError
from dafka.spark.options import Options
from dafka.storage.filelog.layout import MARKER_FILE
from dafka.storage.sqlite.connection import connect
from dafka.storage.sqlite.schema import APPLICATION_ID

PATH_OPTIONS = ("path", "paths")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SIDE_FILES = ("-wal", "-shm", "-journal")
"""Suffixes of SQLite's additional files of a database. Opening and closing one would release SQLite's locks on it."""


class StoreFinder:
    """Finds the stores at the paths of a query, again for each micro-batch.

    Files are inspected again only after they have changed. Raise `ConfigError` if no path is given, or `paths` is not a
    JSON list of paths.
    """

    def __init__(self, options: Options) -> None:
        paths = [options.get_text("path")] if "path" in options else []
        if "paths" in options:
            paths += options.get_parsed("paths", _parse_list, "a JSON list of paths", [])
        if not paths or not all(paths):
            raise ConfigError('option path: expected a store, a folder or pattern of stores, as in .load("orders.db")')
        self._paths = tuple(paths)
        self._schemes: frozenset[str] | None = None
        self._known: dict[str, tuple[object, bool]] = {}

    def find_stores(self) -> list[str]:
        """Return the URLs of the stores that exist now, each once.

        Raise `ConfigError` if a path is not valid, and `StorageError` if there is no store at a path.
        """
        return list(dict.fromkeys(url for path in self._paths for url in self._find_at(path)))

    def _find_at(self, given: str) -> Iterable[str]:
        path = self._to_local_path(given)
        if path is None:
            return [given]
        scheme = self._detect_scheme(path)
        if scheme is not None:
            return [_to_url(scheme, path)]
        if os.path.isdir(path):
            children = [f"{path.rstrip('/')}/{name}" for name in sorted(os.listdir(path))]
        elif os.path.lexists(path):
            raise StorageError(f"path {given}: expected a dafka store, an SQLite file or a file log's folder")
        elif glob.has_magic(path):
            children = sorted(glob.glob(path, recursive=True))
        else:
            hint = "; name several paths in a list, as in .load([...])" if "," in given else ""
            where = "here" if given == path else f"at {path}"
            raise StorageError(f"path {given}: there is nothing {where}{hint}")
        found = [_to_url(scheme, child) for child in children if (scheme := self._detect_scheme(child)) is not None]
        if not found:
            raise StorageError(
                f"path {given}: there is no dafka store among the {len(children)} files and folders here"
            )
        return found

    def _to_local_path(self, path: str) -> str | None:
        """Return the absolute path, or None for the URL of a plugin's storage."""
        if "\0" in path:
            raise ConfigError(f"option path: expected a path without zero bytes, not {path!r}")
        if re.match(r"file:", path, re.IGNORECASE):
            path = unquote(re.sub(r"^file:(//(localhost)?(?=/))?", "", path, flags=re.IGNORECASE))
        elif match := _SCHEME.match(path):
            scheme = match[0][:-1]
            if self._schemes is None:
                self._schemes = frozenset(entry_points(group="dafka.storage").names)
            if scheme == "memory":
                raise StorageError(f"path {path}: a storage in another process's memory cannot be read")
            if scheme in {"sqlite", "filelog"}:
                path, query, options = path.removeprefix(match[0]).partition("?")
                if query:
                    raise ConfigError(f"option path: expected {scheme}:{path} without ?{options}; it is only read")
            elif scheme in self._schemes:
                return None
            elif path.startswith(f"{scheme}://"):
                installed = ", ".join(sorted(self._schemes - {"memory"}))
                raise StorageError(f"path {path}: there is no storage {scheme!r}; installed are {installed}")
        return os.path.abspath(os.path.expanduser(path))

    def _detect_scheme(self, path: str) -> str | None:
        """Return the scheme of the storage at a path, by its header; None if it is not a built-in storage."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        if stat.S_ISDIR(status.st_mode):
            return "filelog" if os.path.isfile(f"{path}/{MARKER_FILE}") else None
        if not stat.S_ISREG(status.st_mode) or path.endswith(_SIDE_FILES):
            return None
        file = status.st_dev, status.st_ino
        state = *file, status.st_mtime_ns, status.st_size
        known, is_store = self._known.get(path, (None, False))
        if known != (file if is_store else state):
            is_store = _is_sqlite_store(path)
            self._known[path] = (file if is_store else state), is_store
        return "sqlite" if is_store else None


def _is_sqlite_store(path: str) -> bool:
    try:
        # SQLite must read the header: opening and closing the file here would release this process's locks on it.
        with closing(connect(path, read_only=True)) as connection:
            return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)
    except sqlite3.Error as error:
        return error.sqlite_errorcode != sqlite3.SQLITE_NOTADB  # opening the store will report other errors


def _to_url(scheme: str, path: str) -> str:
    if "?" in path:
        raise StorageError(f"path {path}: a store with a question mark in its path has no URL; rename it")
    return f"{scheme}:{path}"


def _parse_list(text: str) -> list[str]:
    paths = json.loads(text)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError
    return paths
