"""Routes for the console's files."""

from __future__ import annotations

from functools import cache

from dafka.http.api.registry import Answer, RequiredPermission, route
from dafka.http.api.schemas import Text
from dafka.http.api.static_files import CONTENT_SECURITY_POLICY, StaticFile, read_files
from dafka.http.server.errors import WebError
from dafka.http.server.messages import AnyResponse, Request, Response

PAGE, CLIENT = "index.html", "dafka.js"

_PINNED_CACHE = "public, max-age=31536000, immutable"
_CHECKED_CACHE = "no-cache"

_files = cache(read_files)


@route(
    "GET",
    "/",
    needs=RequiredPermission.NOTHING,
    tag="Console",
    answers={200: Answer("The page.", others={"text/html": Text()}), 304: Answer("The browser has it already.")},
)
async def show_console(request: Request) -> AnyResponse:
    """Show the console."""
    return _respond(request, PAGE)


@route(
    "GET",
    "/dafka.js",
    needs=RequiredPermission.NOTHING,
    tag="Console",
    answers={
        200: Answer("The module.", others={"text/javascript": Text()}),
        304: Answer("The browser has it already."),
    },
)
async def load_client(request: Request) -> AnyResponse:
    """Load the JavaScript client, a module without dependencies."""
    return _respond(request, CLIENT)


@route(
    "GET",
    "/console/{path...}",
    needs=RequiredPermission.NOTHING,
    tag="Console",
    answers={200: Answer("The file.", others={"*/*": Text()}), 304: Answer("The browser has it already.")},
    errors=("not_found",),
)
async def load_file(request: Request) -> AnyResponse:
    """Load a file of the console."""
    return _respond(request, request.arguments["path"])


def _respond(request: Request, path: str) -> Response:
    file = _files().get(path)
    if file is None:
        raise WebError("not_found", "the console has no such file")
    headers = _headers(file)
    tags = {each.strip().removeprefix("W/") for each in request.head.headers.get("if-none-match", "").split(",")}
    if file.tag in tags or "*" in tags:
        return Response(304, headers=headers)
    encodings = {each.partition(";")[0].strip() for each in request.head.headers.get("accept-encoding", "").split(",")}
    if file.compressed and "gzip" in encodings:
        return Response(200, file.compressed, file.content_type, (*headers, ("Content-Encoding", "gzip")))
    return Response(200, file.content, file.content_type, headers)


def _headers(file: StaticFile) -> tuple[tuple[str, str], ...]:
    return (
        ("ETag", file.tag),
        ("Cache-Control", _PINNED_CACHE if file.is_pinned else _CHECKED_CACHE),
        ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
        ("Vary", "Accept-Encoding"),
    )
