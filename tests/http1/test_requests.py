"""Requests over one HTTP/1.1 connection: what is understood, what is refused, and that nothing is smuggled."""

from __future__ import annotations

import math
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
                with trio.testing.assert_checkpoints():
                    assert not await connection.receive(), "the client has closed its side"
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
    return "\r\n".join([f"{method} {target} HTTP/{version}", f"Host: {host}", *lines, "", ""]).encode("latin-1")


def post(*lines: str, version: str = "1.1") -> bytes:
    return head(*lines, method="POST", version=version)


CHUNKED = post("Transfer-Encoding: Chunked")
BOTH = ("Content-Length: 4", "Transfer-Encoding: chunked")
REFUSED: dict[int, list[bytes]] = {
    400: [
        # The length of the body is not clear.
        *(post(*each) + b"0\r\n\r\n" for each in (BOTH, reversed(BOTH))),
        *(post("Content-Length: 0", each) for each in ("Content-Length: 43", "Content-Length: 0", "content-LENGTH: 0")),
        *(post(f"Content-Length: {each}") for each in ("0, 43", "-1", "+0", "0x2b", "4_3", "\xb2", "", "9" * 30)),
        post("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        *(post(each) for each in ("Transfer-Encoding: \x0bchunked", "Transfer-Encoding : chunked")),
        post("Transfer-Encoding: chunked", version="1.0") + b"0\r\n\r\n",
        # Lines do not end as they must.
        b"GET / HTTP/1.1\nHost: localhost\n\n",
        b"GET / HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\r\n\r\n",
        *(head(*each) for each in (["X: a\rb"], ["X: a", " b"], ["X: a", "\tb"], ["X: a\0b"], [": a"], ["X"])),
        b"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
        # Headers are missing, or come twice.
        b"GET / HTTP/1.1\r\n\r\n",
        head("Host: example.com"),
        head("Authorization: Basic a", "Authorization: Bearer b"),
        post("Content-Type: a/b", "content-type: c/d", "Content-Length: 0"),
        head("Origin: https://a", "Origin: https://b"),
        # The first line is of another form.
        b"GET /\r\n\r\n",
        b"GET / http/1.1\r\nHost: localhost\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100a5010000a10303") + b"\r\n\r\n",
        bytes(range(256)) + b"\r\n\r\n",
        head(method="CONNECT", target="example.com:443"),
        head(method="OPTIONS", target="*"),
        *(head(target=each) for each in ("/a b", "http://example.com/", "/%", "/%4", "/%zz", "/%+1", "/a%00.txt")),
        *(head(target=each) for each in ("/%ff", "/%c0%af", "/%ed%a0%80", "/?a=%00", "/?%00=a", "/?a=%")),
        head(target="/?" + "&".join(["a=1"] * (PARAMETERS_MAX + 1))),
        # The chunks of the body are malformed.
        *(CHUNKED + each + b"\r\na\r\n0\r\n\r\n" for each in (b"", b"-1", b"0x1", b"1" * 30)),
        *(CHUNKED + each for each in (b"1\r\nabc\r\n0\r\n\r\n", b"1\na\r\n0\r\n\r\n", b"0\r\nX\r\n\r\n")),
        CHUNKED + b"1;" + b"x" * 2 * HEAD_BYTES_MAX,
    ],
    413: [post(f"Content-Length: {BODY_MAX + 1}"), CHUNKED + b"64\r\n" + b"x" * 100 + b"\r\n1\r\nx\r\n"],
    431: [b"GET /" + b"x" * HEAD_BYTES_MAX],
    501: [post(f"Transfer-Encoding: {each}") for each in ("gzip, chunked", "chunked, chunked", "identity")],
    505: [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", head(version="9.9"), head(version="1.2")],
}
"""Malformed requests, by the status of their answers."""


async def test_a_malformed_request_is_answered_once_and_nothing_after_it_is_understood() -> None:
    for status, data in ((status, each) for status, several in REFUSED.items() for each in several):
        for pieces in ([data + SMUGGLED], [data, SMUGGLED], [data[:-1], data[-1:], SMUGGLED]):
            served = await serve(*pieces)
            assert (served.requests, served.refusals, served.is_open) == ([], [status], False), data[:100]
            assert served.sent.startswith(b"HTTP/1.1 %d " % status)
            assert served.sent.count(b"HTTP/1.1 ") == 1
            assert b"\r\nConnection: close\r\n" in served.sent


MANY = "/?" + "&".join(["a=1"] * PARAMETERS_MAX)
QUERY = "/a%2Fb//%e2%82%ac?x=1+%2b&y&=z&&x=%3D="
UNDERSTOOD: list[tuple[bytes, tuple[str, ...], tuple[tuple[str, str], ...], dict[str, str], bytes]] = [
    (head(target="/a"), ("a",), (), {}, b""),
    (b"\r\n\r\n" + head(), ("",), (), {}, b""),
    (head(target=QUERY), ("a/b", "", "€"), (("x", "1 +"), ("y", ""), ("", "z"), ("x", "==")), {}, b""),
    (head(target="/a+b"), ("a+b",), (), {}, b""),
    (head(target="/a?b=?c"), ("a",), (("b", "?c"),), {}, b""),
    (head(target=MANY), ("",), (("a", "1"),) * PARAMETERS_MAX, {}, b""),
    (head("Cookie: a", "cOOkie: b", "X:  c\t"), ("",), (), {"cookie": "a, b", "x": "c"}, b""),
    (post("Content-Length: 4") + b"body", ("",), (), {"content-length": "4"}, b"body"),
    (post("Content-Length: 100") + b"x" * BODY_MAX, ("",), (), {"content-length": "100"}, b"x" * BODY_MAX),
    *(
        (CHUNKED + chunks, ("",), (), {"transfer-encoding": "chunked"}, body)
        for chunks, body in (
            (b"3;ext=1\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n", b"abc0123456789"),
            (b"63\r\n" + b"x" * 99 + b"\r\n1\r\nx\r\n0\r\n\r\n", b"x" * BODY_MAX),
        )
    ),
]
"""Requests; the segments and parameters of their targets, their headers besides Host, and their bodies."""


async def test_a_request_is_understood_as_it_was_sent_and_so_is_the_next_one() -> None:
    for data, segments, parameters, headers, body in UNDERSTOOD:
        following = data + head(target="/next")
        for cut in {0, 1, len(data) // 2, len(data) - 1, len(data), len(data) + 1}:
            served = await serve(following[:cut], following[cut:])
            (found, found_body), (found_next, _) = served.requests
            method, target = data.strip().decode().split(" ")[:2]
            expected = Head(method, target, segments, parameters, {"host": "localhost", **headers})
            assert (found, found_body, found_next.target) == (expected, body, "/next")
            assert served.is_open
            assert served.sent.count(b"HTTP/1.1 200 OK\r\n") == 2
            assert b"Content-Length: %d\r\n\r\n%b" % (len(body), body) in served.sent


# A body that is too large is skipped if it has come, or else ends the connection.
SHORT = [each for each, *_ in UNDERSTOOD] + [
    each for status, several in REFUSED.items() for each in several if status != 413 and len(each) < 500
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


async def test_a_head_has_a_size_limit() -> None:
    """It can be cut in the empty line at its end."""
    largest = head("X: ").removesuffix(b"\r\n\r\n").ljust(HEAD_MAX, b"x")
    for data, statuses in ((largest, []), (largest + b"x", [431])):
        sent = data + b"\r\n\r\n"
        for cut in range(len(sent) - 4, len(sent) + 1):
            served = await serve(sent[:cut], sent[cut:], head_bytes_max=HEAD_MAX)
            assert (served.refusals, len(served.requests)) == (statuses, not statuses)
    assert take_head(bytearray(b"x" * (HEAD_MAX + 3)), HEAD_MAX) is None
    with pytest.raises(RequestError) as refused:
        take_head(bytearray(b"x" * (HEAD_MAX + 4)), HEAD_MAX)
    expected = f"expected a request line and headers of at most {HEAD_MAX} bytes"
    assert (refused.value.status, str(refused.value)) == (431, expected)


CUT_SHORT = [
    (b"", 0, []),
    (b"\r\n", 0, []),
    (head()[:-1], 0, []),
    (post("Content-Length: 4") + b"bod", 0, [400]),
    (CHUNKED + b"3\r\nabc\r\n", 0, [400]),
    (head() + head()[:10], 1, []),
]
LAST = [
    (head("Connection: close"), True),
    (head("Connection: x, Close"), True),
    (head("Connection: keep-alive"), False),
    (head(version="1.0"), True),
    (head("Connection: keep-alive", version="1.0"), True),
]


async def test_the_connection_ends_when_the_client_wants_it_or_goes_in_the_middle() -> None:
    for data, count, refusals in CUT_SHORT:
        served = await serve(data)
        assert (len(served.requests), served.refusals) == (count, refusals), data
    for data, is_last in LAST:
        served = await serve(data, head(target="/next"))
        assert [each.target for each, _ in served.requests] == ["/", "/next"][: 1 if is_last else 2], data


async def test_an_answer_to_head_has_the_length_and_no_body_and_one_without_content_neither() -> None:
    wire = Wire([head(method="HEAD"), head(), head(), head()])
    connection = Http1Connection(wire)
    for status, expected in ((200, b"Content-Length: 4\r\n\r\n"), (200, b"Content-Length: 4\r\n\r\nbody")):
        wire.sent = b""
        await connection.next_request()
        assert await connection.respond(status, [], b"body")
        assert wire.sent.endswith(expected)
    for status in (204, 304):
        wire.sent = b""
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
    wire = Wire([post("Content-Length: 50"), b"x" * 49])
    connection = Http1Connection(wire)
    await connection.next_request()
    with pytest.raises(RequestError, match="the body is incomplete"):
        await connection.body.read(50, receive, wire.send_all)
    assert connection.body.failure == "gone"


@given(st.text(st.characters(codec="ascii"), max_size=60).map(lambda text: f"/{text}"))
def test_any_target_is_understood_or_refused(target: str) -> None:
    with suppress(RequestError):
        found = parse_target("GET", target, {})
        assert "\0" not in "".join(found.segments)
        assert len(found.segments) == found.path.count("/") == target.partition("?")[0].count("/")


UPGRADES: list[tuple[dict[str, str], bool]] = [
    ({"connection": "Upgrade", "upgrade": "websocket"}, True),
    ({"connection": "keep-alive, uPGRADE", "upgrade": "WebSocket"}, True),
    ({"connection": "upgraded", "upgrade": "websocket"}, False),
    ({"connection": "Upgrade", "upgrade": "h2c"}, False),
    ({"upgrade": "websocket"}, False),
    ({"connection": "Upgrade"}, False),
]


def test_an_upgrade_to_websocket_needs_both_headers() -> None:
    for headers, wants_websocket in UPGRADES:
        assert Head("GET", "/ws", ("ws",), (), headers).wants_websocket == wants_websocket
