"""Requests over one HTTP/1.1 connection: what is understood, what is refused, and that nothing is smuggled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.http1.connection import Http1Connection, Send
from dafka.http1.head import HEAD_BYTES_MAX, PARAMETERS_MAX, Head, RequestError, parse_target, take_head

BODY_MAX = 100
HEAD_MAX = 400
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@attrs.define
class Wire:
    """The bytes of a client, which come in pieces, and what it is sent."""

    pieces: list[bytes]
    sent: bytes = b""
    receives: list[int] = attrs.field(factory=list)

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self.receives.append(max_bytes)
        piece = self.pieces.pop(0) if self.pieces else b""
        if len(piece) > max_bytes:
            self.pieces.insert(0, piece[max_bytes:])
        return piece[:max_bytes]

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.sent += data


@attrs.frozen
class Served:
    """What a server has understood: the head and the body of each request; and what it has sent."""

    requests: list[tuple[Head, bytes]]
    sent: bytes
    refusals: list[int]
    """The statuses of malformed requests."""
    is_open: bool
    """Whether the server would have read further requests."""


async def serve(*pieces: bytes, reads_bodies: bool = True, head_bytes_max: int = HEAD_BYTES_MAX) -> Served:
    """Serve a client that sends these pieces: answer each request with its body, until the connection must end."""
    wire = Wire([each for each in pieces if each])
    connection = Http1Connection(wire, head_bytes_max)
    requests: list[tuple[Head, bytes]] = []
    refusals: list[int] = []
    is_open = True

    async def receive(_size: int, most: int) -> bytes | bytearray:
        return await connection.receive(most)

    while is_open:
        try:
            head = await connection.next_request()
            if head is None:
                break
            body = await connection.body.read(BODY_MAX, receive, wire.send_all) if reads_bodies else b""
            requests.append((head, body))
            is_open = await connection.respond(200, [], body)
        except RequestError as error:
            refusals.append(error.status)
            is_open = await connection.respond(error.status, [])
        except trio.BrokenResourceError:
            is_open = False
    return Served(requests, wire.sent, refusals, is_open)


def head(*lines: str, target: str = "/", method: str = "GET", version: str = "1.1", host: str = "localhost") -> bytes:
    """Return the head of a request."""
    return "\r\n".join([f"{method} {target} HTTP/{version}", f"Host: {host}", *lines, "", ""]).encode("latin-1")


def post(*lines: str, version: str = "1.1") -> bytes:
    return head(*lines, method="POST", version=version)


REFUSED = {
    "length and encoding": (post("Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
    "encoding and length": (post("Transfer-Encoding: chunked", "Content-Length: 4") + b"0\r\n\r\n", 400),
    "two lengths": (post("Content-Length: 0", "Content-Length: 43"), 400),
    "equal lengths": (post("Content-Length: 0", "Content-Length: 0"), 400),
    "lengths in other letters": (post("content-length: 0", "CONTENT-LENGTH: 0"), 400),
    "list of lengths": (post("Content-Length: 0, 43"), 400),
    "negative length": (post("Content-Length: -1"), 400),
    "length with sign": (post("Content-Length: +0"), 400),
    "hexadecimal length": (post("Content-Length: 0x2b"), 400),
    "length with underscore": (post("Content-Length: 4_3"), 400),
    "length in other digits": (post("Content-Length: \xb2"), 400),
    "no length": (post("Content-Length: "), 400),
    "huge length": (post(f"Content-Length: {'9' * 30}"), 400),
    "length above the limit": (post(f"Content-Length: {BODY_MAX + 1}"), 413),
    "two encodings": (post("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), 400),
    "unknown encoding": (post("Transfer-Encoding: gzip, chunked"), 501),
    "repeated encoding": (post("Transfer-Encoding: chunked, chunked"), 501),
    "identity": (post("Transfer-Encoding: identity"), 501),
    "disguised encoding": (post("Transfer-Encoding: \x0bchunked"), 400),
    "space before colon": (post("Transfer-Encoding : chunked"), 400),
    "encoding in an old version": (post("Transfer-Encoding: chunked", version="1.0") + b"0\r\n\r\n", 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: localhost\n\n", 400),
    "one bare line feed": (b"GET / HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n", 400),
    "bare line feed in the first line": (b"GET / HTTP/1.1\nHost: localhost\r\n\r\n", 400),
    "bare carriage return": (head("X: a\rb"), 400),
    "folded line": (head("X: a", " b"), 400),
    "line folded by a tab": (head("X: a", "\tb"), 400),
    "space before the first header": (b"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n", 400),
    "NUL in a header": (head("X: a\0b"), 400),
    "header without name": (head(": a"), 400),
    "header without colon": (head("X"), 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (head("Host: example.com"), 400),
    "two credentials": (head("Authorization: Basic a", "Authorization: Bearer b"), 400),
    "two content types": (post("Content-Type: a/b", "content-type: c/d", "Content-Length: 0"), 400),
    "two origins": (head("Origin: https://a", "Origin: https://b"), 400),
    "version 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "version 9": (head(version="9.9"), 505),
    "version 1.2": (head(version="1.2"), 505),
    "no version": (b"GET /\r\n\r\n", 400),
    "version in small letters": (b"GET / http/1.1\r\nHost: localhost\r\n\r\n", 400),
    "TLS": (bytes.fromhex("16030100a5010000a10303") + b"\r\n\r\n", 400),
    "no text": (bytes(range(256)) + b"\r\n\r\n", 400),
    "spaces in the target": (head(target="/a b"), 400),
    "two spaces before the target": (b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "tunnel": (head(method="CONNECT", target="example.com:443"), 400),
    "as to a web proxy": (head(target="http://example.com/"), 400),
    "asterisk": (head(method="OPTIONS", target="*"), 400),
    "percent": (head(target="/%"), 400),
    "percent with one digit": (head(target="/%4"), 400),
    "percent with other letters": (head(target="/%zz"), 400),
    "percent with other digits": (head(target="/%+1"), 400),
    "Latin-1": (head(target="/%ff"), 400),
    "overlong UTF-8": (head(target="/%c0%af"), 400),
    "surrogate": (head(target="/%ed%a0%80"), 400),
    "NUL in the path": (head(target="/a%00.txt"), 400),
    "NUL in a parameter": (head(target="/?a=%00"), 400),
    "NUL in the name of a parameter": (head(target="/?%00=a"), 400),
    "percent in a parameter": (head(target="/?a=%"), 400),
    "too many parameters": (head(target="/?" + "&".join(["a=1"] * (PARAMETERS_MAX + 1))), 400),
    "chunk without size": (post("Transfer-Encoding: chunked") + b"\r\nabc\r\n0\r\n\r\n", 400),
    "negative chunk": (post("Transfer-Encoding: chunked") + b"-1\r\na\r\n0\r\n\r\n", 400),
    "chunk with prefix": (post("Transfer-Encoding: chunked") + b"0x1\r\na\r\n0\r\n\r\n", 400),
    "chunk of many digits": (post("Transfer-Encoding: chunked") + b"1" * 30 + b"\r\na\r\n0\r\n\r\n", 400),
    "chunk longer than its size": (post("Transfer-Encoding: chunked") + b"1\r\nabc\r\n0\r\n\r\n", 400),
    "chunk that ends with LF": (post("Transfer-Encoding: chunked") + b"1\na\r\n0\r\n\r\n", 400),
    "endless extension": (post("Transfer-Encoding: chunked") + b"1;" + b"x" * 2 * HEAD_BYTES_MAX, 400),
    "malformed trailer": (post("Transfer-Encoding: chunked") + b"0\r\nX\r\n\r\n", 400),
    "chunks above the limit": (post("Transfer-Encoding: chunked") + b"64\r\n" + b"x" * 100 + b"\r\n1\r\nx\r\n", 413),
    "endless head": (b"GET /" + b"x" * HEAD_BYTES_MAX, 431),
}


@pytest.mark.parametrize("sent", REFUSED)
async def test_a_malformed_request_is_answered_once_and_nothing_after_it_is_understood(sent: str) -> None:
    data, status = REFUSED[sent]
    for pieces in ([data + SMUGGLED], [data, SMUGGLED], [data[:-1], data[-1:], SMUGGLED]):
        served = await serve(*pieces)
        assert (served.requests, served.refusals, served.is_open) == ([], [status], False)
        assert served.sent.startswith(b"HTTP/1.1 %d " % status)
        assert served.sent.count(b"HTTP/1.1 ") == 1
        assert b"\r\nConnection: close\r\n" in served.sent


UNDERSTOOD: dict[str, tuple[bytes, Head, bytes]] = {
    "no body": (head(target="/a"), Head("GET", "/a", ("a",), (), {"host": "localhost"}), b""),
    "empty lines before": (b"\r\n\r\n" + head(), Head("GET", "/", ("",), (), {"host": "localhost"}), b""),
    "path and query": (
        head(target="/a%2Fb//%e2%82%ac?x=1+%2b&y&=z&&x=%3D="),
        Head(
            "GET",
            "/a%2Fb//%e2%82%ac?x=1+%2b&y&=z&&x=%3D=",
            ("a/b", "", "€"),
            (("x", "1 +"), ("y", ""), ("", "z"), ("x", "==")),
            {"host": "localhost"},
        ),
        b"",
    ),
    "plus in a path": (head(target="/a+b"), Head("GET", "/a+b", ("a+b",), (), {"host": "localhost"}), b""),
    "second question mark": (
        head(target="/a?b=?c"),
        Head("GET", "/a?b=?c", ("a",), (("b", "?c"),), {"host": "localhost"}),
        b"",
    ),
    "most parameters": (
        head(target="/?" + "&".join(["a=1"] * PARAMETERS_MAX)),
        Head(
            "GET",
            "/?" + "&".join(["a=1"] * PARAMETERS_MAX),
            ("",),
            (("a", "1"),) * PARAMETERS_MAX,
            {"host": "localhost"},
        ),
        b"",
    ),
    "headers of the same name": (
        head("Cookie: a", "cOOkie: b", "X:  c\t"),
        Head("GET", "/", ("",), (), {"host": "localhost", "cookie": "a, b", "x": "c"}),
        b"",
    ),
    "length": (
        post("Content-Length: 4") + b"body",
        Head("POST", "/", ("",), (), {"host": "localhost", "content-length": "4"}),
        b"body",
    ),
    "largest length": (
        post(f"Content-Length: {BODY_MAX}") + b"x" * BODY_MAX,
        Head("POST", "/", ("",), (), {"host": "localhost", "content-length": f"{BODY_MAX}"}),
        b"x" * BODY_MAX,
    ),
    "chunks": (
        post("Transfer-Encoding: Chunked") + b"3;ext=1\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
        Head("POST", "/", ("",), (), {"host": "localhost", "transfer-encoding": "chunked"}),
        b"abc0123456789",
    ),
    "largest chunks": (
        post("Transfer-Encoding: chunked") + b"63\r\n" + b"x" * 99 + b"\r\n1\r\nx\r\n0\r\n\r\n",
        Head("POST", "/", ("",), (), {"host": "localhost", "transfer-encoding": "chunked"}),
        b"x" * BODY_MAX,
    ),
}


@pytest.mark.parametrize("sent", UNDERSTOOD)
async def test_a_request_is_understood_as_it_was_sent_and_so_is_the_next_one(sent: str) -> None:
    data, expected, body = UNDERSTOOD[sent]
    following = head(target="/next")
    cuts = {1, len(data) // 2, len(data) - 1, len(data), len(data) + 1}
    for pieces in ([data + following], *([(data + following)[:cut], (data + following)[cut:]] for cut in cuts)):
        served = await serve(*pieces)
        assert served.requests[0] == (expected, body)
        assert [each.target for each, _ in served.requests[1:]] == ["/next"]
        assert served.is_open
        assert served.sent.count(b"HTTP/1.1 200 OK\r\n") == 2
        assert b"Content-Length: %d\r\n\r\n%b" % (len(body), body) in served.sent


# A body that is too large is skipped if it has come, or else ends the connection.
SHORT = [each for each, *_ in UNDERSTOOD.values()] + [
    each for each, status in REFUSED.values() if status != 413 and len(each) < 500
]


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(SHORT), max_size=3).map(b"".join), st.lists(st.integers(1, 300), min_size=1, max_size=6)
)
def test_requests_are_the_same_however_they_are_cut(stream: bytes, sizes: list[int]) -> None:
    pieces, position = list[bytes](), 0
    while position < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[position : position + size])
        position += size
    whole, cut = trio.run(serve, stream), trio.run(serve, *pieces)
    assert (cut.requests, cut.is_open, cut.sent) == (whole.requests, whole.is_open, whole.sent)
    assert len(cut.refusals) <= 1


@pytest.mark.parametrize("cut", [None, 1, 2, 3, 4])
async def test_a_head_has_a_size_limit(cut: int | None) -> None:
    """A cut is in the empty line at its end."""
    largest = head("X: ").removesuffix(b"\r\n\r\n")
    largest += b"x" * (HEAD_MAX - len(largest))
    for data, statuses in ((largest, []), (largest + b"x", [431])):
        sent = data + b"\r\n\r\n"
        pieces = [sent] if cut is None else [sent[:-cut], sent[-cut:]]
        served = await serve(*pieces, head_bytes_max=HEAD_MAX)
        assert (served.refusals, len(served.requests)) == (statuses, not statuses)
    received = bytearray(b"x" * (HEAD_MAX + 3))
    assert take_head(received, HEAD_MAX) is None
    with pytest.raises(RequestError) as refused:
        take_head(bytearray(b"x" * (HEAD_MAX + 4)), HEAD_MAX)
    assert refused.value.status == 431


@pytest.mark.parametrize(
    ("sent", "requests", "refusals"),
    [
        (b"", 0, []),
        (b"\r\n", 0, []),
        (head()[:-1], 0, []),
        (post("Content-Length: 4") + b"bod", 0, [400]),
        (post("Transfer-Encoding: chunked") + b"3\r\nabc\r\n", 0, [400]),
        (head() + head()[:10], 1, []),
    ],
)
async def test_a_client_that_goes_in_the_middle_has_sent_nothing(
    sent: bytes, requests: int, refusals: list[int]
) -> None:
    served = await serve(sent)
    assert (len(served.requests), served.refusals) == (requests, refusals)


ENDINGS = {
    "close": (head("Connection: close"), False),
    "close among others": (head("Connection: x, Close"), False),
    "keep-alive": (head("Connection: keep-alive"), True),
    "old version": (head(version="1.0"), False),
    "old version that continues": (head("Connection: keep-alive", version="1.0"), False),
}


@pytest.mark.parametrize("sent", ENDINGS)
async def test_the_connection_ends_when_the_client_wants_it(sent: str) -> None:
    data, is_open = ENDINGS[sent]
    served = await serve(data, head(target="/next"))
    assert [each.target for each, _ in served.requests] == (["/", "/next"] if is_open else ["/"])


async def test_an_answer_to_head_has_the_length_and_no_body() -> None:
    wire = Wire([head(method="HEAD"), head()])
    connection = Http1Connection(wire)
    for expected in (b"Content-Length: 4\r\n\r\n", b"Content-Length: 4\r\n\r\nbody"):
        wire.sent = b""
        await connection.next_request()
        assert await connection.respond(200, [], b"body")
        assert wire.sent.endswith(expected)


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_content_have_no_length(status: int) -> None:
    wire = Wire([head()])
    connection = Http1Connection(wire)
    await connection.next_request()
    await connection.respond(status, [])
    assert b"ontent-Length" not in wire.sent


@pytest.mark.parametrize("is_complete", [False, True])
async def test_a_body_that_nobody_reads_is_skipped_or_ends_the_connection(*, is_complete: bool) -> None:
    body = b"x" * (50 if is_complete else 20)
    served = await serve(post("Content-Length: 50") + body, head(target="/next"), reads_bodies=False)
    assert served.is_open == is_complete
    assert len(served.requests) == 1 + is_complete
    assert (b"onnection: close" in served.sent) != is_complete


async def test_the_lines_after_the_last_chunk_have_a_size_limit() -> None:
    begun = post("Transfer-Encoding: chunked") + b"0\r\nX: "
    served = await serve(begun, b"x" * HEAD_BYTES_MAX, SMUGGLED)
    assert (served.requests, served.refusals) == ([], [400])


async def test_a_client_is_asked_for_its_body_when_it_waits_for_that() -> None:
    expecting = post("Content-Length: 4", "Expect: 100-continue")
    served = await serve(expecting, b"body", head())
    assert served.sent.startswith(b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 200 ")
    assert [body for _, body in served.requests] == [b"body", b""]
    served = await serve(expecting + b"body")
    assert served.sent.startswith(b"HTTP/1.1 200 "), "the body has come already"
    too_large = post(f"Content-Length: {BODY_MAX + 1}", "Expect: 100-continue")
    assert (await serve(too_large)).sent.startswith(b"HTTP/1.1 413 ")


async def test_parts_of_a_streamed_answer_are_sent_at_once_and_have_an_end() -> None:
    wire = Wire([head(), head(method="HEAD"), head(version="1.0")])
    connection = Http1Connection(wire)

    async def produce(send: Send) -> None:
        for part in (b"a", b"", b"bc"):
            before = wire.sent
            await send(part)
            assert part in wire.sent.removeprefix(before)

    await connection.next_request()
    assert await connection.respond_stream(200, [], produce)
    assert wire.sent.endswith(b"\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")
    wire.sent = b""
    await connection.next_request()
    assert await connection.respond_stream(200, [], produce)
    assert wire.sent.endswith(b"\r\n\r\n")
    wire.sent = b""
    await connection.next_request()
    assert not await connection.respond_stream(200, [], produce)
    assert wire.sent.endswith(b"\r\n\r\nabc")


@attrs.define
class SlowWire:
    """A client that sends a byte each second."""

    data: bytes
    sent: bytes = b""

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.sleep(1)
        byte, self.data = self.data[:1], self.data[1:]
        return byte or await trio.sleep_forever()

    async def send_all(self, data: bytes) -> None:
        self.sent += data


@pytest.mark.parametrize(
    ("idle_s", "receive_s", "outcome"),
    [(0.9, math.inf, None), (1.1, math.inf, "/"), (1.1, len(head()) - 1.1, 408), (1.1, len(head()) - 0.9, "/")],
)
async def test_a_request_must_come_in_time(
    idle_s: float, receive_s: float, outcome: object, autojump_clock: trio.testing.MockClock
) -> None:
    connection = Http1Connection(SlowWire(head()))
    found: object = None
    try:
        request = await connection.next_request(idle_s=idle_s, receive_s=receive_s)
        found = request and request.target
    except RequestError as error:
        found = error.status
    assert found == outcome


async def test_bytes_are_received_in_limited_parts() -> None:
    wire = Wire([post("Content-Length: 50"), b"x" * 50])
    connection = Http1Connection(wire)
    await connection.next_request()

    async def receive(size: int, most: int) -> bytes | bytearray:
        assert size == connection.body.size
        return await connection.receive(min(most, 20))

    assert connection.body.size_max(1000) == 50
    assert await connection.body.read(50, receive, wire.send_all) == b"x" * 50
    assert wire.receives == [2**16, 20, 20, 20]
    assert connection.unprocessed() == post("Content-Length: 50")


@given(st.text(st.characters(codec="ascii"), max_size=60).map(lambda text: f"/{text}"))
def test_any_target_is_understood_or_refused(target: str) -> None:
    with suppress(RequestError):
        found = parse_target("GET", target, {})
        assert "\0" not in "".join(found.segments)
        assert len(found.segments) == found.path.count("/") == target.partition("?")[0].count("/")


UPGRADES: Sequence[tuple[dict[str, str], bool]] = [
    ({"connection": "Upgrade", "upgrade": "websocket"}, True),
    ({"connection": "keep-alive, uPGRADE", "upgrade": "WebSocket"}, True),
    ({"connection": "upgraded", "upgrade": "websocket"}, False),
    ({"connection": "Upgrade", "upgrade": "h2c"}, False),
    ({"upgrade": "websocket"}, False),
    ({"connection": "Upgrade"}, False),
]


@pytest.mark.parametrize(("headers", "wants_websocket"), UPGRADES)
def test_an_upgrade_to_websocket_needs_both_headers(headers: dict[str, str], *, wants_websocket: bool) -> None:
    assert Head("GET", "/ws", ("ws",), (), headers).wants_websocket == wants_websocket
