"""Parses the head of an HTTP/1.1 request: its request line and headers. Does no I/O.

An ambiguous head is refused, to prevent request smuggling: one with bare line feeds or folded lines, with both a length
and a transfer encoding, or with more than one host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

import attrs
import h11

from dafka.http.server.errors import WebError

HEAD_BYTES_MAX = 16 * 1024
"""The largest request line with its headers, in bytes."""

PARAMETERS_MAX = 100
"""The largest number of parameters in a target."""

_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)|\x00")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_FOLDED = re.compile(rb"\r\n[ \t]")
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SINGLE = {b"authorization", b"content-length", b"content-type", b"host", b"origin", b"transfer-encoding"}


@attrs.frozen
class Head:
    """The head of a request.

    Attributes:
        method: The method.
        target: The path and the query, as they were sent.
        segments: The parts of the path between slashes, decoded.
        parameters: The parameters of the query, decoded, in their order.
        headers: The values of the headers by lower-case name. Headers of the same name are joined by commas.
    """

    method: str
    target: str
    segments: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    headers: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def path(self) -> str:
        """The path, as it was sent."""
        return self.target.partition("?")[0]

    @property
    def wants_websocket(self) -> bool:
        """Whether the client requests an upgrade to WebSocket."""
        options = {each.strip().lower() for each in self.headers.get("connection", "").split(",")}
        return self.headers.get("upgrade", "").lower() == "websocket" and "upgrade" in options


def take_head(received: bytearray) -> bytes | None:
    """Take the head of a request from the received bytes.

    Args:
        received: The bytes received, from which the head is removed.

    Returns:
        The head with the empty line at its end; None if it is not complete.

    Raises:
        WebError: It is too large.
    """
    while received[:2] == b"\r\n":  # some clients send an empty line after a body
        del received[:2]
    end = received.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX + 4)
    if end < 0:
        if len(received) > HEAD_BYTES_MAX:
            message = f"expected a request line and headers of at most {HEAD_BYTES_MAX} bytes"
            raise WebError("too_large", message, status=431)
        if _BARE_LF.search(received):
            raise WebError("bad_request", "expected lines that end with CR LF")
        return None
    head = bytes(received[: end + 4])
    del received[: end + 4]
    return head


def check_head(head: bytes) -> None:
    """Raise `WebError` if a head is ambiguous."""
    if _BARE.search(head):
        raise WebError("bad_request", "expected lines that end with CR LF")
    if _FOLDED.search(head):
        raise WebError("bad_request", "expected each header in one line")
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    repeated = next((each for each in _SINGLE if names.count(each) > 1), None)
    if repeated is not None:
        raise WebError("bad_request", f"expected one header {repeated.decode()}")
    if b"content-length" in names and b"transfer-encoding" in names:
        raise WebError("bad_request", "expected Content-Length or Transfer-Encoding, not both")


def read_head(request: h11.Request) -> Head:
    """Return the head of a request that h11 has parsed. Raises `WebError` if its target is malformed."""
    if request.http_version not in {b"1.0", b"1.1"}:
        raise WebError("bad_request", "expected HTTP/1.1", status=505)
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if "transfer-encoding" in headers and request.http_version < b"1.1":
        raise WebError("bad_request", "expected HTTP/1.1 with Transfer-Encoding")
    return parse_target(request.method.decode("ascii"), request.target.decode("ascii"), headers)


def parse_target(method: str, target: str, headers: Mapping[str, str]) -> Head:
    """Return the head of a request for a target.

    Args:
        method: The method.
        target: The path and the query.
        headers: The headers by lower-case name.

    Returns:
        The head.

    Raises:
        WebError: The target is malformed.
    """
    if not target.startswith("/"):
        raise WebError("bad_request", "expected a path that begins with '/'")
    path, _, query = target.partition("?")
    parameters = [each.partition("=") for each in query.split("&") if each]
    if len(parameters) > PARAMETERS_MAX:
        raise WebError("bad_request", f"expected at most {PARAMETERS_MAX} parameters")
    return Head(
        method,
        target,
        tuple(_decode(each) for each in path[1:].split("/")),
        tuple((_decode(name.replace("+", " ")), _decode(value.replace("+", " "))) for name, _, value in parameters),
        headers,
    )


def _decode(text: str) -> str:
    if _PERCENT.search(text):
        raise WebError("bad_request", f"expected two hexadecimal digits after each '%', unlike {text[:100]!r}")
    try:
        found = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise WebError("bad_request", f"expected UTF-8 in percent encoding, unlike {text[:100]!r}") from None
    if "\0" in found:
        raise WebError("bad_request", "a path and parameters have no character NUL")
    return found
