"""From paths to stores: a store (an SQLite file or a file log's folder), a folder of stores, a pattern such as
`/data/*.db`, or a storage's URL (`sqlite:orders.db`, or a plugin's). Several stand in a list.
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
"""SQLite's own files beside a database: opening them would take back the locks that SQLite has on them."""


class StoreFinder:
    """Finds the stores that the options `path` and `paths` name, as often as it is asked.

    What was looked into is not looked into again for as long as it has not changed. Raises `ConfigError` where no path
    is named.
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

    def find(self) -> list[str]:
        """The stores' URLs at this moment, without repetition. Raises `StorageError` where there is none."""
        return list(dict.fromkeys(url for path in self._paths for url in self._find(path)))

    def _find(self, given: str) -> Iterable[str]:
        path = self._local(given)
        if path is None:
            return [given]
        kind = self._kind(path)
        if kind is not None:
            return [_url(kind, path)]
        if os.path.isdir(path):
            children = [f"{path.rstrip('/')}/{name}" for name in sorted(os.listdir(path))]
        elif os.path.lexists(path):
            raise StorageError(f"path {given}: this is no dafka store (neither an SQLite file nor a file log's folder)")
        elif glob.has_magic(path):
            children = sorted(glob.glob(path, recursive=True))
        else:
            hint = "; several paths stand in a list, as in .load([...])" if "," in given else ""
            place = "here" if given == path else f"at {path}"
            raise StorageError(f"path {given}: there is nothing {place}{hint}")
        found = [_url(kind, child) for child in children if (kind := self._kind(child)) is not None]
        if not found:
            raise StorageError(
                f"path {given}: there is no dafka store among the {len(children)} files and folders here"
            )
        return found

    def _local(self, path: str) -> str | None:
        """The absolute path that is meant; None for a plugin's URL."""
        if "\0" in path:
            raise ConfigError(f"option path: {path!r} holds a zero octet, which no path can")
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
                    raise ConfigError(f"option path: {scheme}:{path} is only read, so ?{options} means nothing here")
            elif scheme in self._schemes:
                return None
            elif path.startswith(f"{scheme}://"):
                kinds = ", ".join(sorted(self._schemes - {"memory"}))
                raise StorageError(f"path {path}: there is no storage {scheme!r}; installed are {kinds}")
        return os.path.abspath(os.path.expanduser(path))

    def _kind(self, path: str) -> str | None:
        """Which of our storages stands here, as far as its header tells."""
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
        # SQLite does the reading: closing a file of one's own would take its locks on it back.
        with closing(connect(path, read_only=True)) as connection:
            return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)
    except sqlite3.Error as error:
        return error.sqlite_errorcode != sqlite3.SQLITE_NOTADB  # opening it will say what is wrong


def _url(kind: str, path: str) -> str:
    if "?" in path:
        raise StorageError(f"path {path}: a store whose path holds a question mark cannot be named by a URL; rename it")
    return f"{kind}:{path}"


def _parse_list(text: str) -> list[str]:
    paths = json.loads(text)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError
    return paths
