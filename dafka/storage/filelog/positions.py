"""The positions of consumers: one small JSON file per name, replaced atomically."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping

from crc32c import crc32c

from dafka.durable_files import sync_folder
from dafka.errors import StorageError
from dafka.records import Partition, decode_text
from dafka.storage.filelog.files import ancestors, is_temporary_file, make_folders, read_file, replace_file
from dafka.storage.filelog.layout import encode_name, name_to_parts, walk_names

POSITIONS_FOLDER = "positions"
SUFFIX = ".json"


class PositionFiles:
    """The files with positions in the folder of a file log. Every method raises `OSError`."""

    def __init__(self, folder: str) -> None:
        self.folder = f"{folder}/{POSITIONS_FOLDER}"
        self._lock = threading.Lock()
        self._synced: set[str] = set()
        """The paths whose folders are durable."""

    def save(self, name: str, positions: Mapping[Partition, int]) -> None:
        """See `Storage.save_positions`."""
        path = self._path(name)
        for partition in positions:
            encode_name(partition.topic)
            encode_name(partition.address)
        with self._lock:
            known = self.load(name) | dict(positions)
            rows = [[partition.topic, partition.address, position] for partition, position in known.items()]
            make_folders(os.path.dirname(path))
            if path not in self._synced:  # a process that was killed may have created the folders, and not synced them
                for above in ancestors(path, os.path.dirname(self.folder)):
                    sync_folder(above)
                self._synced.add(path)
            text = json.dumps(rows)
            document = f'{{"crc32c": {crc32c(text.encode())}, "positions": {text}}}\n'
            replace_file(path, document.encode())

    def load(self, name: str) -> dict[Partition, int]:
        """See `Storage.load_positions`."""
        path = self._path(name)
        data = read_file(path)
        if data is None:
            return {}
        try:
            document = json.loads(data)
            rows = document["positions"]
            if crc32c(json.dumps(rows).encode()) != document["crc32c"]:
                raise ValueError
            return {Partition(topic, address): position for topic, address, position in rows}
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StorageError(
                f"{path} is damaged: delete it to let the consumer {name!r} start without positions"
            ) from None

    def names(self, unexpected: list[str] | None = None) -> list[str]:
        """See `Storage.position_names`. Other files are added to `unexpected`."""
        found: list[str] = []
        names = [decode_text(data) for data, _ in walk_names(self.folder, SUFFIX, found)]
        if unexpected is not None:
            unexpected += [path for path in found if not is_temporary_file(os.path.basename(path))]
        return sorted(names)

    def _path(self, name: str) -> str:
        return "/".join((self.folder, *name_to_parts(encode_name(name)))) + SUFFIX
