"""Routes for the console's files."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

import attrs

from dafka.http.api.registry import Answer, RequiredPermission, Route
from dafka.http.server.errors import WebError
from dafka.http.server.messages import AnyResponse, Request, Response

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
    ".svg": "image/svg+xml",
}

_SMALL_BYTES = 512
_UNCHANGED = Answer("The browser has it already.")

PAGE, CLIENT = "index.html", "dafka.js"

_PINNED_CACHE = "public, max-age=31536000, immutable"
_CHECKED_CACHE = "no-cache"


@attrs.frozen
class StaticFile:
    """A file of the console.

    `compressed` is its content compressed by gzip; empty if that does not make it smaller. The ETag changes with the
    content, which never changes under the name of a pinned file.
    """

    content: bytes = attrs.field(repr=False)
    compressed: bytes = attrs.field(repr=False)
    content_type: str
    tag: str
    is_pinned: bool


@cache
def _read_files() -> Mapping[str, StaticFile]:
    """Return all files of the console, by path. Only they are ever sent."""
    return {
        name: _read(path, is_pinned=name.startswith(PINNED))
        for path in sorted(FOLDER.rglob("*"))
        if path.is_file() and not (name := path.relative_to(FOLDER).as_posix()).startswith(".")
    }


def _read(path: Path, *, is_pinned: bool) -> StaticFile:
    content = path.read_bytes()
    compressed = gzip.compress(content, mtime=0)
    content_type = _TYPES.get(path.suffix, "text/plain; charset=utf-8")
    is_smaller = len(content) > _SMALL_BYTES and len(compressed) < len(content) * 0.9
    tag = f'"{sha256(content).hexdigest()[:24]}"'
    return StaticFile(content, compressed if is_smaller else b"", content_type, tag, is_pinned)


@Route(
    "GET /",
    RequiredPermission.NOTHING,
    name="showConsole",
    tag="Console",
    answers={200: Answer("The page.", others={"text/html": str}), 304: _UNCHANGED},
)
async def show_console(request: Request) -> AnyResponse:
    """Show the console."""
    return _respond(request, PAGE)


@Route(
    "GET /dafka.js",
    RequiredPermission.NOTHING,
    name="loadJavaScriptClient",
    tag="Console",
    answers={200: Answer("The module.", others={"text/javascript": str}), 304: _UNCHANGED},
)
async def load_client(request: Request) -> AnyResponse:
    """Load the JavaScript client, a module without dependencies."""
    return _respond(request, CLIENT)


@Route(
    "GET /console/{path...}",
    RequiredPermission.NOTHING,
    name="loadConsoleFile",
    tag="Console",
    answers={200: Answer("The file.", others={"*/*": str}), 304: _UNCHANGED},
    errors=("not_found",),
)
async def load_file(request: Request) -> AnyResponse:
    """Load a file of the console."""
    return _respond(request, request.arguments["path"])


def _respond(request: Request, path: str) -> Response:
    file = _read_files().get(path)
    if file is None:
        raise WebError("not_found", "the console has no such file")
    headers = (
        ("ETag", file.tag),
        ("Cache-Control", _PINNED_CACHE if file.is_pinned else _CHECKED_CACHE),
        ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
        ("Vary", "Accept-Encoding"),
    )
    tags = {each.strip().removeprefix("W/") for each in request.head.headers.get("if-none-match", "").split(",")}
    if file.tag in tags or "*" in tags:
        return Response(304, headers=headers)
    encodings = {each.partition(";")[0].strip() for each in request.head.headers.get("accept-encoding", "").split(",")}
    if file.compressed and "gzip" in encodings:
        return Response(200, file.compressed, file.content_type, (*headers, ("Content-Encoding", "gzip")))
    return Response(200, file.content, file.content_type, headers)
