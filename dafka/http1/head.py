"""Parses the head of an HTTP/1.1 request: its request line and headers. Does no I/O.

An ambiguous head is refused, to prevent request smuggling: one with bare line feeds or folded lines, with both a length
and a transfer encoding, or with more than one host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

import attrs
import h11

HEAD_BYTES_MAX = 16 * 1024
"""The default for the largest request line with its headers, in bytes."""

PARAMETERS_MAX = 100
"""The largest number of parameters in a target."""

_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)|\x00")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_FOLDED = re.compile(rb"\r\n[ \t]")
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SINGLE = {b"authorization", b"content-length", b"content-type", b"host", b"origin", b"transfer-encoding"}


class RequestError(Exception):
    """A request cannot be served: it is malformed or too large, or arrives too slowly."""

    def __init__(self, message: str, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = int(status)


@attrs.frozen
class Head:
    """The head of a request. Its target is the path and the query, as they were sent.

    Segments, the parts of the path between slashes, and parameters of the query are decoded. Headers have lower-case
    names; those of the same name are joined by commas.
    """

    method: str
    target: str
    segments: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        """The path, as it was sent."""
        return self.target.partition("?")[0]

    @property
    def wants_websocket(self) -> bool:
        """Whether the client requests an upgrade to WebSocket."""
        options = {each.strip().lower() for each in self.headers.get("connection", "").split(",")}
        return self.headers.get("upgrade", "").lower() == "websocket" and "upgrade" in options


def take_head(received: bytearray, bytes_max: int = HEAD_BYTES_MAX) -> bytes | None:
    """Remove the head of a request, with the empty line at its end, from the received bytes; None if it is incomplete.

    Raises `RequestError` if it is too large, or its lines end with a bare LF.
    """
    while received[:2] == b"\r\n":  # some clients send an empty line after a body
        del received[:2]
    end = received.find(b"\r\n\r\n", 0, bytes_max + 4)
    if end < 0:
        if len(received) >= bytes_max + 4:
            raise RequestError(f"expected a request line and headers of at most {bytes_max} bytes", 431)
        if _BARE_LF.search(received):
            raise RequestError("expected lines that end with CR LF")
        return None
    head = bytes(received[: end + 4])
    del received[: end + 4]
    return head


def read_head(framing: h11.Connection, raw: bytes) -> Head:
    """Parse a head, which h11 then knows. Raises `RequestError` if it is malformed or ambiguous."""
    check_head(raw)
    framing.receive_data(raw)
    try:
        request: Any = framing.next_event()
    except h11.RemoteProtocolError as error:
        raise RequestError(f"expected an HTTP/1.1 request: {error}", error.error_status_hint) from None
    if not isinstance(request, h11.Request):
        raise RequestError("expected an HTTP/1.1 request")
    if request.http_version not in {b"1.0", b"1.1"}:
        raise RequestError("expected HTTP/1.1", 505)
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if "transfer-encoding" in headers and request.http_version < b"1.1":
        raise RequestError("expected HTTP/1.1 with Transfer-Encoding")
    return parse_target(request.method.decode("ascii"), request.target.decode("ascii"), headers)


def check_head(head: bytes) -> None:
    """Raise `RequestError` if a head is ambiguous."""
    if _BARE.search(head):
        raise RequestError("expected lines that end with CR LF")
    if _FOLDED.search(head):
        raise RequestError("expected each header in one line")
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    repeated = next((each for each in _SINGLE if names.count(each) > 1), None)
    if repeated is not None:
        raise RequestError(f"expected one header {repeated.decode()}")
    if b"content-length" in names and b"transfer-encoding" in names:
        raise RequestError("expected Content-Length or Transfer-Encoding, not both")


def parse_target(method: str, target: str, headers: Mapping[str, str]) -> Head:
    """Return the head of a request. Raises `RequestError` if its target is malformed."""
    if not target.startswith("/"):
        raise RequestError("expected a path that begins with '/'")
    path, _, query = target.partition("?")
    parameters = [each.partition("=") for each in query.split("&") if each]
    if len(parameters) > PARAMETERS_MAX:
        raise RequestError(f"expected at most {PARAMETERS_MAX} parameters")
    return Head(
        method,
        target,
        tuple(_decode(each) for each in path[1:].split("/")),
        tuple((_decode(name.replace("+", " ")), _decode(value.replace("+", " "))) for name, _, value in parameters),
        headers,
    )


def _decode(text: str) -> str:
    if _PERCENT.search(text):
        raise RequestError(f"expected two hexadecimal digits after each '%', unlike {text[:100]!r}")
    try:
        found = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise RequestError(f"expected UTF-8 in percent encoding, unlike {text[:100]!r}") from None
    if "\0" in found:
        raise RequestError("a path and parameters have no character NUL")
    return found
