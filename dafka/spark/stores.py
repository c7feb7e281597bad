"""The stores at a path, and what they hold: each partition once, however many replicas of it there are.

A path is a store (an SQLite file or a file log's folder), a folder of stores, a pattern such as `/data/*.db`, or a
storage's URL (`sqlite:orders.db`, or a plugin's). Several stand in a list.
"""

from __future__ import annotations

import glob
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from importlib.metadata import entry_points

import attrs

from dafka.errors import ConfigError, StorageError
from dafka.records import Partition
from dafka.spark.offsets import Name
from dafka.spark.options import Options
from dafka.spark.schema import printable
from dafka.storage import PartitionInfo, Storage, open_storage
from dafka.storage.filelog.marker import MARKER_FILE
from dafka.storage.sqlite.connection import connect
from dafka.storage.sqlite.schema import APPLICATION_ID

PATH_OPTIONS = ("path", "paths")


@attrs.frozen
class Replica:
    """A partition in one store, named by its URL."""

    url: str
    info: PartitionInfo


@attrs.frozen
class Held:
    """A partition in all stores that hold some of it.

    Attributes:
        replicas: the one that reaches furthest first.
        earliest: from here on, every record up to `end` is held by some store.
        end: the sequence after the last record that any of them holds.
    """

    partition: Partition
    replicas: tuple[Replica, ...]
    earliest: int
    end: int

    @property
    def record_bytes(self) -> int:
        """About how large a record is."""
        info = self.replicas[0].info
        return info.content_bytes // info.count if info.count else 0

    def cover(self, start: int, end: int) -> list[tuple[str, int, int]]:
        """Which store to read from: ranges that make up the given one, which must be held."""
        pieces: list[tuple[str, int, int]] = []
        while end > start:
            replica = next(
                each for each in self.replicas if each.info.earliest_sequence < end <= each.info.end_sequence
            )
            begin = max(start, replica.info.earliest_sequence)
            pieces.append((replica.url, begin, end))
            end = begin
        return pieces[::-1]


def find_stores(options: Options) -> list[str]:
    """The URLs of the stores that the options `path` and `paths` name, without repetition.

    Raises `ConfigError` where none is named, `StorageError` where there is none.
    """
    paths = [options.text("path")] if "path" in options else []
    if "paths" in options:
        paths += options.parse("paths", _parse_list, "a JSON list of paths", [])
    if not paths or not all(paths):
        raise ConfigError('option path: expected a store, a folder or pattern of stores, as in .load("orders.db")')
    return list(dict.fromkeys(url for path in paths for url in _find(path)))


async def hold(storages: Mapping[str, Storage]) -> dict[Name, Held]:
    """What these stores hold at this moment, by partition.

    Raises `StorageError` where a store fails, or where two partitions cannot be told apart by their printed names.
    """
    found: dict[Partition, list[Replica]] = {}
    for url, storage in storages.items():
        for partition, info in (await storage.partitions()).items():
            if info.end_sequence:
                found.setdefault(partition, []).append(Replica(url, info))
    named: dict[Name, Held] = {}
    for partition, replicas in found.items():
        name = printable(partition.topic), printable(partition.address)
        if name in named:
            raise StorageError(f"two partitions are called {name[0]}/{name[1]} once their names are printed")
        named[name] = _merge(partition, replicas)
    return named


@asynccontextmanager
async def open_stores(urls: Iterable[str]) -> AsyncIterator[dict[str, Storage]]:
    """These stores, by their URLs, to be read for the length of a block. Raises `StorageError`."""
    async with AsyncExitStack() as stack:
        yield {url: await stack.enter_async_context(open_storage(url, read_only=True)) for url in urls}


def _merge(partition: Partition, replicas: list[Replica]) -> Held:
    replicas.sort(key=lambda each: (-each.info.end_sequence, each.info.earliest_sequence, each.url))
    earliest = replicas[0].info.earliest_sequence
    for replica in replicas:
        if replica.info.end_sequence >= earliest:
            earliest = min(earliest, replica.info.earliest_sequence)
    return Held(partition, tuple(replicas), earliest, replicas[0].info.end_sequence)


def _find(path: str) -> Iterable[str]:
    path = path.removeprefix("file://")
    scheme, separator, _ = path.partition(":")
    if separator and scheme in entry_points(group="dafka.storage").names:
        if scheme == "memory":
            raise StorageError(f"path {path}: a storage in another process's memory cannot be read")
        return [path]
    path = os.path.abspath(path)
    kind = _kind(path)
    if kind is not None:
        return [f"{kind}:{path}"]
    if os.path.isdir(path):
        children = [f"{path}/{name}" for name in sorted(os.listdir(path))]
    elif os.path.exists(path):
        raise StorageError(f"path {path}: this is no dafka store (neither an SQLite file nor a file log's folder)")
    elif glob.has_magic(path):
        children = sorted(glob.glob(path, recursive=True))
    else:
        raise StorageError(f"path {path}: there is nothing here")
    found = [f"{kind}:{child}" for child in children if (kind := _kind(child)) is not None]
    if not found:
        raise StorageError(f"path {path}: there is no dafka store among the {len(children)} files and folders here")
    return found


def _kind(path: str) -> str | None:
    """Which of our storages stands here, as far as its header tells."""
    if os.path.isdir(path):
        return "filelog" if os.path.isfile(f"{path}/{MARKER_FILE}") else None
    if not os.path.isfile(path):
        return None
    try:
        # SQLite does the reading: closing a file of one's own would take its locks on it back.
        with closing(connect(path, read_only=True)) as connection:
            found = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    except sqlite3.Error as error:
        found = error.sqlite_errorcode != sqlite3.SQLITE_NOTADB  # opening it will say what is wrong
    return "sqlite" if found else None


def _parse_list(text: str) -> list[str]:
    paths = json.loads(text)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError
    return paths
