"""Loads the console's files. Only files of the package are ever sent."""

from __future__ import annotations

import gzip
import mimetypes
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import attrs

FOLDER = Path(__file__).parent.parent / "console"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Pages load only the broker's files, run only its scripts, and cannot be framed."""

PINNED = "vendor/"
"""The folder with files whose content never changes under a name."""

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
    "": "text/plain; charset=utf-8",
}

_SMALL_BYTES = 512


@attrs.frozen
class StaticFile:
    """A static file.

    Attributes:
        content: The content.
        compressed: The content compressed by gzip; empty if that does not make it smaller.
        content_type: Its type.
        tag: The ETag, which changes with the content.
        is_pinned: Whether its content never changes under this name.
    """

    content: bytes = attrs.field(repr=False)
    compressed: bytes = attrs.field(repr=False)
    content_type: str
    tag: str
    is_pinned: bool


def read_files(folder: Path = FOLDER) -> Mapping[str, StaticFile]:
    """Return all files in a folder, by path."""
    return {
        name: _read(path, is_pinned=name.startswith(PINNED))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(".")
    }


def _read(path: Path, *, is_pinned: bool) -> StaticFile:
    content = path.read_bytes()
    compressed = gzip.compress(content, mtime=0)
    content_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    is_smaller = len(content) > _SMALL_BYTES and len(compressed) < len(content) * 0.9
    tag = f'"{sha256(content).hexdigest()[:24]}"'
    return StaticFile(content, compressed if is_smaller else b"", content_type, tag, is_pinned)
