"""The file `filelog.json`, which makes a folder a file log: the version of its form, and the storage's identity."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from dafka.errors import StorageError, StorageFormatError
from dafka.records import decode_text, new_address
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


PART_LENGTH_MAX = 200
"""A path's component has at most 255 octets; this leaves room for what is put behind it."""

EMPTY = "%"
CONTINUED = "+"

_PLAIN = re.compile(rb"[A-Za-z0-9_-]([A-Za-z0-9_.-]*[A-Za-z0-9_-])?")
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def encode_name(name: str) -> bytes:
    """The octets of a topic's, an address's or a consumer's name.

    Raises `StorageError` for text that `decode_text` would not give back.
    """
    try:
        octets = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        pass
    else:
        if name.isascii() or decode_text(octets) == name:
            return octets
    raise StorageError(f"the name {name!r} cannot be stored: its lone surrogates stand for no octets of their own")


def escape(octets: bytes) -> str:
    """A name in safe characters, however long."""
    if _PLAIN.fullmatch(octets):
        return octets.decode("ascii")
    last = len(octets) - 1
    return (
        EMPTY
        if last < 0
        else "".join(
            chr(octet) if octet in _SAFE or (octet == ord(".") and 0 < place < last) else f"%{octet:02X}"
            for place, octet in enumerate(octets)
        )
    )


def unescape(text: str) -> bytes:
    """The name that `escape` spelled so. Raises `ValueError` for any other text."""
    octets = (
        b"" if text == EMPTY else _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode("ascii"))
    )
    if escape(octets) != text:
        raise ValueError(f"{text!r} is no escaped name")
    return octets


def to_parts(octets: bytes) -> list[str]:
    """A name as the components of a path."""
    text = escape(octets)
    parts = []
    while len(text) > PART_LENGTH_MAX:
        parts.append(text[:PART_LENGTH_MAX] + CONTINUED)
        text = text[PART_LENGTH_MAX:]
    return [*parts, text]


def from_parts(parts: Sequence[str]) -> bytes:
    """The name whose path this is. Raises `ValueError` where it is none."""
    octets = unescape("".join(part.removesuffix(CONTINUED) for part in parts))
    if to_parts(octets) != list(parts):
        raise ValueError(f"{'/'.join(parts)!r} is no name's path")
    return octets


def walk_names(folder: str, suffix: str = "", strange: list[str] | None = None) -> Iterator[tuple[bytes, str]]:
    """Every name with a path under this folder, with that path. What is no name's is added to `strange`.

    Names are folders, or, where they end in `suffix`, files. A folder that is not there has none.
    """
    yield from _walk(folder, (), suffix, [] if strange is None else strange)


def _walk(folder: str, parts: tuple[str, ...], suffix: str, strange: list[str]) -> Iterator[tuple[bytes, str]]:
    try:
        with os.scandir(folder) as found:
            entries = [(entry.name, entry.path, entry.is_dir(follow_symlinks=False)) for entry in found]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, path, is_folder in sorted(entries):
        if is_folder and name.endswith(CONTINUED):
            yield from _walk(path, (*parts, name), suffix, strange)
            continue
        try:
            if is_folder == bool(suffix) or not name.endswith(suffix):
                raise ValueError
            octets = from_parts((*parts, name.removesuffix(suffix) if suffix else name))
        except ValueError:
            strange.append(path)
        else:
            yield octets, path
