"""The folder of a file log: its marker file, its identity, and the paths of topics, partitions and consumers.

A name of any bytes becomes a path that can be converted back, of characters that every Unix file system accepts. ASCII
letters, digits, `_`, `-`, and dots that are neither first nor last stand for themselves; every other byte is `%XX`. The
empty name is `%`. A long name is split into parts, one folder per part; all parts but the last end in `+`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from urllib.parse import quote_from_bytes, unquote_to_bytes

from crc32c import crc32c

from dafka.durable_files import sync_folder
from dafka.errors import StorageError, StorageFormatError
from dafka.records import decode_text, new_address
from dafka.storage.filelog.files import is_temporary_file, read_file, replace_file

MARKER_FILE = "filelog.json"
"""The file that makes a folder a file log. It holds the version of the format and the identity of the storage."""

LOCK_FILE = "filelog.lock"
TOPICS_FOLDER = "topics"
FORMAT = "dafka file log"
VERSION = 2

PART_LENGTH_MAX = 200
"""The maximum length of a part of a path, in bytes. File systems allow 255; the rest is for suffixes."""

EMPTY = "%"
CONTINUED = "+"


def read_identity(folder: str) -> str:
    """Return the identity, a node address, of the file log in a folder.

    Raise `StorageFormatError` if the folder holds no file log or one of another version, and `StorageError` if it does
    not exist.
    """
    path = f"{folder}/{MARKER_FILE}"
    if not os.path.isdir(folder):
        if os.path.lexists(folder):
            raise StorageFormatError(f"{folder} is not a file log: expected a folder")
        raise StorageError(f"{folder} does not exist")
    data = read_file(path)
    if data is None:
        raise StorageFormatError(f"{folder} is not a file log: it has no {MARKER_FILE}")
    try:
        document = json.loads(data)
        version, identity = document["version"], document["identity"]
        is_valid = document["format"] == FORMAT and document["crc32c"] == _crc(version, identity)
    except (ValueError, KeyError, TypeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise StorageFormatError(f"{folder} cannot be opened: {MARKER_FILE} is damaged, or not that of a file log")
    if version != VERSION:
        raise StorageFormatError(f"{folder} has version {version}, expected {VERSION}; use the dafka that wrote it")
    return str(identity)


def prepare_folder(folder: str) -> None:
    """Create the folder of a writer if it is missing, in a folder that exists.

    Raise `StorageFormatError` if the folder holds something else, `StorageError` if its parent does not exist, and
    `OSError` if it cannot be created or read.
    """
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.lexists(folder):
        if not os.path.isdir(parent):
            raise StorageError(f"cannot open {folder}: folder {parent} does not exist; create it first")
        os.mkdir(folder)
    elif not os.path.isdir(folder) or not _is_empty(folder):
        read_identity(folder)
        return
    sync_folder(parent)  # also for an empty folder: its creator may have been killed before this


def create_identity(folder: str) -> str:
    """Make a folder a file log if it is empty, and return the identity of the file log. Raises like `read_identity`."""
    if not _is_empty(folder):
        return read_identity(folder)
    identity = new_address()
    document = {"format": FORMAT, "version": VERSION, "identity": identity, "crc32c": _crc(VERSION, identity)}
    replace_file(f"{folder}/{MARKER_FILE}", json.dumps(document).encode() + b"\n")
    return identity


def _is_empty(folder: str) -> bool:
    return all(name == LOCK_FILE or is_temporary_file(name) for name in os.listdir(folder))


def _crc(version: object, identity: object) -> int:
    return crc32c(f"{FORMAT} {version} {identity}".encode())


def encode_name(name: str) -> bytes:
    """Return the bytes of a topic, an address, or a consumer's name.

    Raise `StorageError` if `decode_text` would not return the same text.
    """
    try:
        data = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        pass
    else:
        if name.isascii() or decode_text(data) == name:
            return data
    raise StorageError(f"the name {name!r} cannot be stored: its lone surrogates do not stand for bytes")


def escape_name(name: bytes) -> str:
    """Return a name in safe characters, of any length."""
    text = quote_from_bytes(name, safe="").replace("~", "%7E")
    if text.startswith("."):
        text = "%2E" + text[1:]
    if text.endswith("."):
        text = text[:-1] + "%2E"
    return text or EMPTY


def unescape_name(text: str) -> bytes:
    """Return the name that `escape_name` escaped. Raises `ValueError` for any other text."""
    name = b"" if text == EMPTY else unquote_to_bytes(text)
    if escape_name(name) != text:
        raise ValueError(f"{text!r} is not an escaped name")
    return name


def name_to_parts(name: bytes) -> list[str]:
    """Return a name as the components of a path."""
    text = escape_name(name)
    parts = []
    while len(text) > PART_LENGTH_MAX:
        parts.append(text[:PART_LENGTH_MAX] + CONTINUED)
        text = text[PART_LENGTH_MAX:]
    return [*parts, text]


def parts_to_name(parts: Sequence[str]) -> bytes:
    """Return the name that the components of a path stand for. Raises `ValueError` if there is none."""
    name = unescape_name("".join(part.removesuffix(CONTINUED) for part in parts))
    if name_to_parts(name) != list(parts):
        raise ValueError(f"{'/'.join(parts)!r} is not the path of a name")
    return name


def walk_names(
    folder: str, suffix: str = "", unexpected: list[str] | None = None, parts: tuple[str, ...] = ()
) -> Iterator[tuple[bytes, str]]:
    """Yield each name under a folder, with its path; nothing if the folder does not exist.

    Names are folders, or files with a suffix. `unexpected` receives the paths that do not encode a name. `parts` are
    the parts of long names before the folder.
    """
    try:
        with os.scandir(folder) as found:
            entries = [(entry.name, entry.path, entry.is_dir(follow_symlinks=False)) for entry in found]
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry_name, path, is_folder in sorted(entries):
        if is_folder and entry_name.endswith(CONTINUED):
            yield from walk_names(path, suffix, unexpected, (*parts, entry_name))
            continue
        try:
            if is_folder == bool(suffix) or not entry_name.endswith(suffix):
                raise ValueError
            name = parts_to_name((*parts, entry_name.removesuffix(suffix)))
        except ValueError:
            if unexpected is not None:
                unexpected.append(path)
        else:
            yield name, path
