"""The file `filelog.json`, which makes a folder a file log: the version of its form, and the storage's identity."""

from __future__ import annotations

import json
import os

from crc32c import crc32c

from dafka.errors import StorageError, StorageFormatError
from dafka.records import new_address
from dafka.storage.filelog.files import is_temporary, read_file, replace_file, sync_folder

MARKER_FILE = "filelog.json"
LOCK_FILE = "filelog.lock"
TOPICS_FOLDER = "topics"
FORMAT = "dafka file log"
VERSION = 1


def read_identity(folder: str) -> str:
    """The identity of the file log in this folder.

    Raises `StorageFormatError` where that is none, or of a newer version, `StorageError` where nothing is there.
    """
    path = f"{folder}/{MARKER_FILE}"
    if not os.path.isdir(folder):
        if os.path.lexists(folder):
            raise StorageFormatError(f"{folder} is no folder, so it is no file log")
        raise StorageError(f"{folder} does not exist")
    octets = read_file(path)
    if octets is None:
        raise StorageFormatError(f"{folder} is not a file log: it has no {MARKER_FILE}")
    try:
        document = json.loads(octets)
        version, identity = document["version"], document["identity"]
        is_good = document["format"] == FORMAT and document["crc32c"] == _crc(version, identity)
    except (ValueError, KeyError, TypeError, RecursionError):
        is_good = False
    if not is_good:
        raise StorageFormatError(f"{folder} cannot be opened: {MARKER_FILE} is damaged, or is not a file log's")
    if version != VERSION:
        raise StorageFormatError(f"{folder} has version {version}; this dafka knows versions up to {VERSION}")
    return str(identity)


def prepare(folder: str) -> None:
    """Makes the folder of a writer, if it is missing; its parent must be there.

    Raises `StorageFormatError` where something else is in it, `OSError`.
    """
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.lexists(folder):
        if not os.path.isdir(parent):
            raise StorageError(f"cannot open {folder}: there is no folder {parent}")
        os.mkdir(folder)
        sync_folder(parent)
    elif not os.path.isdir(folder) or not _is_empty(folder):
        read_identity(folder)


def make_identity(folder: str) -> str:
    """The identity of the file log in this folder, which is made one if it is empty. Raises as `prepare` does."""
    if _is_empty(folder):
        document = {"format": FORMAT, "version": VERSION, "identity": (identity := new_address())}
        document["crc32c"] = _crc(VERSION, identity)
        replace_file(f"{folder}/{MARKER_FILE}", json.dumps(document).encode() + b"\n")
    return read_identity(folder)


def _is_empty(folder: str) -> bool:
    return all(name == LOCK_FILE or is_temporary(name) for name in os.listdir(folder))


def _crc(version: object, identity: object) -> int:
    return crc32c(f"{FORMAT} {version} {identity}".encode())
