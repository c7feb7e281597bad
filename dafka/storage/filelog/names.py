"""Names as paths: any octets, reversibly, in characters that every file system of a Unix takes.

ASCII letters, digits, `_`, `-`, and dots that stand neither first nor last are themselves; every other octet is `%XX`.
The empty name is a lone `%`. A long name is cut into parts, a folder each, and every part but the last ends in `+`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from dafka.errors import StorageError
from dafka.records import decode_text

PART_LENGTH_MAX = 200
"""A path's component has at most 255 octets; this leaves room for what is put behind it."""

EMPTY = "%"
CONTINUED = "+"

_PLAIN = re.compile(rb"[A-Za-z0-9_-]([A-Za-z0-9_.-]*[A-Za-z0-9_-])?")
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def to_octets(name: str) -> bytes:
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
