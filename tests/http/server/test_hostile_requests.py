"""Hostile requests get a clear error, let nobody in, and leave the broker alive."""

from __future__ import annotations

import json
import re
import socket
import struct

import pytest
import trio
import trio.testing

from dafka import Config
from tests.http.running import DEADLINE_S, open_web, read_all

SHORT = Config().with_http(receive_ms=300, send_ms=300, idle_ms=500, body_bytes_max=10_000)


def head(*lines: str, target: str = "/topics", method: str = "GET") -> bytes:
    """Return the head of a request."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode("latin-1")


def status_of(answer: bytes) -> int:
    """Return the status of the first response."""
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert found is not None, answer[:100]
    return int(found[1])


def error_of(answer: bytes) -> str:
    """Return the code of the error in the only response, after which the broker has ended the connection."""
    assert len(re.findall(rb"HTTP/1\.1 \d{3} ", answer)) == 1, answer
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"])


SMUGGLED = b"GET /groups HTTP/1.1\r\nHost: localhost\r\n\r\n"

MALFORMED = {
    "length and encoding": head("Content-Length: 4", "Transfer-Encoding: chunked", method="POST")
    + b"0\r\n\r\n"
    + SMUGGLED,
    "two lengths": head("Content-Length: 0", "Content-Length: 40", method="POST") + SMUGGLED,
    "equal lengths": head("Content-Length: 0", "Content-Length: 0", method="POST") + SMUGGLED,
    "list of lengths": head("Content-Length: 0, 40", method="POST") + SMUGGLED,
    "negative length": head("Content-Length: -1", method="POST") + SMUGGLED,
    "length with sign": head("Content-Length: +0", method="POST") + SMUGGLED,
    "huge length": head(f"Content-Length: {'9' * 30}", method="POST") + SMUGGLED,
    "length in other digits": head("Content-Length: \xb2", method="POST") + SMUGGLED,
    "two encodings": head("Transfer-Encoding: chunked", "Transfer-Encoding: identity", method="POST") + SMUGGLED,
    "unknown encoding": head("Transfer-Encoding: gzip, chunked", method="POST") + SMUGGLED,
    "disguised encoding": head("Transfer-Encoding: \x0bchunked", method="POST") + SMUGGLED,
    "space before colon": head("Transfer-Encoding : chunked", method="POST") + SMUGGLED,
    "old version": b"POST /topics HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "bare line feeds": b"GET /topics HTTP/1.1\nHost: localhost\n\n" + SMUGGLED,
    "one bare line feed": b"GET /topics HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n" + SMUGGLED,
    "bare carriage return": b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n" + SMUGGLED,
    "folded line": b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n" + SMUGGLED,
    "space before the first header": b"GET /topics HTTP/1.1\r\n Host: localhost\r\n\r\n" + SMUGGLED,
    "NUL in a header": head("X: a\0b") + SMUGGLED,
    "no host": b"GET /topics HTTP/1.1\r\n\r\n" + SMUGGLED,
    "two hosts": b"GET /topics HTTP/1.1\r\nHost: localhost\r\nHost: example.com\r\n\r\n" + SMUGGLED,
    "version 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version 9": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no version": b"GET /topics\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + b"\r\n\r\n",
    "no text": bytes(range(256)) + b"\r\n\r\n",
    "spaces in the target": b"GET /topics and more HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tunnel": b"CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    "as to a web proxy": b"GET http://example.com/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_request_is_answered_once_and_ends_the_connection(sent: bytes) -> None:
    async with open_web() as web:
        answer = await web.exchange(sent)
        assert 400 <= status_of(answer) <= 505
        error_of(answer)
        assert b"onnection: close" in answer
        assert await web.is_alive()


BODIES = {
    "chunk without size": b"\r\nabc\r\n0\r\n\r\n",
    "negative chunk": b"-1\r\na\r\n0\r\n\r\n",
    "chunk with prefix": b"0x1\r\na\r\n0\r\n\r\n",
    "chunk of many digits": b"1" * 30 + b"\r\na\r\n0\r\n\r\n",
    "longer than its size": b"1\r\nabc\r\n0\r\n\r\n",
    "endless extension": b"1;" + b"x" * 100_000,
    "endless trailer": b"0\r\nX: " + b"x" * 100_000,
    "bad trailer": b"0\r\nX\r\n\r\n",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_malformed_body_is_refused_and_ends_the_connection(body: bytes) -> None:
    async with open_web() as web:
        sent = head("Transfer-Encoding: chunked", target="/topics/orders/records", method="POST") + body
        answer = await web.exchange(sent + SMUGGLED)
        assert error_of(answer) == "bad_request"
        assert (await web.get("/topics")).document["topics"] == []


async def test_a_large_head_is_refused() -> None:
    async with open_web() as web:
        for sent in (b"GET /" + b"x" * 100_000, head(*(f"X-{n}: {'y' * 50}" for n in range(1000)))):
            assert status_of(await web.exchange(sent)) == 431
        many = "&".join(f"p{n}=1" for n in range(2000))
        assert status_of(await web.exchange(head("Connection: close", target=f"/topics?{many}"))) in {400, 431}
        assert await web.is_alive()


async def test_a_large_body_is_refused_before_it_is_sent() -> None:
    async with open_web(config=SHORT) as web:
        target = "/topics/orders/records"
        expecting = head("Content-Length: 10001", "Expect: 100-continue", target=target, method="POST")
        answer = await web.exchange(expecting)
        assert error_of(answer) == "too_large"
        chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        sent = head("Transfer-Encoding: chunked", "Connection: close", target=target, method="POST")
        assert error_of(await web.exchange(sent + chunk * 3 + b"0\r\n\r\n")) == "too_large"
        assert (await web.request("POST", target, b"x" * 10_000)).status == 200
        assert (await web.request("POST", target, b"x" * 1_000_000)).status == 413


async def test_a_client_that_resets_its_connection_within_a_body_is_no_failure_of_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_web() as web:
        stream = await trio.open_tcp_stream("127.0.0.1", web.port)
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.send_all(head("Content-Length: 100000", target="/topics/orders/records", method="POST") + b"x")
        await trio.testing.wait_all_tasks_blocked(0.01)
        stream.socket.close()
        assert await web.is_alive()
    assert not [each for each in caplog.records if each.name == "dafka.http"]


async def test_a_large_document_is_refused() -> None:
    async with open_web() as web:
        document = b"[" + b"[]," * 2**20
        assert (await web.request("POST", "/session", document, Content_Type="application/json")).code == "too_large"


async def test_a_client_that_expects_it_is_told_to_continue() -> None:
    async with open_web() as web:
        stream = await trio.open_tcp_stream("127.0.0.1", web.port)
        async with stream:
            lines = ("Content-Length: 5", "Expect: 100-continue", "Connection: close")
            await stream.send_all(head(*lines, target="/topics/orders/records", method="POST"))
            with trio.fail_after(DEADLINE_S):
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
                await stream.send_all(b"hello")
                assert status_of(await read_all(stream)) == 200


async def test_requests_that_come_at_once_are_answered_in_their_order() -> None:
    async with open_web() as web:
        publish = head("Content-Length: 1", target="/topics/orders/records", method="POST")
        sent = b"".join(publish + b"%d" % number for number in range(5))
        answer = await web.exchange(sent + head("Connection: close", target="/topics/orders/records"))
        assert re.findall(rb'"offset":(\d),"count"', answer) == [b"0", b"1", b"2", b"3", b"4"]
        assert re.findall(rb'"value":"(\d)"', answer) == [b"0", b"1", b"2", b"3", b"4"]


async def test_bytes_that_come_one_by_one_are_understood() -> None:
    async with open_web() as web:
        sent = head("Content-Length: 5", "Connection: close", target="/topics/orders/records", method="POST") + b"hello"
        answer = await web.exchange(*(sent[number : number + 1] for number in range(len(sent))))
        assert status_of(answer) == 200


TARGETS = [
    "/topics/%",
    "/topics/%zz",
    "/topics/%ff",
    "/topics/%c0%af",
    "/topics/%00",
    "/topics/orders%00.txt",
    "/topics/" + "x" * 10_000,
    "/topics/..",
    "/topics/%2e%2e",
    "/topics/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/console/../serve.py",
    "/console/..%2fserve.py",
    "/console/%2e%2e/%2e%2e/serve.py",
    "/console//etc/passwd",
    "/console/%2fetc%2fpasswd",
    "/console/..%5c..%5cserve.py",
    "/console/",
    "/console",
    "//topics",
    "/topics//records",
    "/topics/a%2Frecords",
    "/topics/%0d%0aSet-Cookie:%20a=b",
    "/groups/%0d%0a",
    "/topics/%F0%9F%92%A9",
    "/topics/<script>",
    "/topics/orders;a=b",
    "/Topics",
    "/topics/",
]


async def test_no_path_leads_astray() -> None:
    async with open_web() as web:
        for target in TARGETS:
            answer = await web.exchange(head("Connection: close", target=target))
            assert status_of(answer) in {400, 404, 431}, target
            assert b"\r\nSet-Cookie" not in answer, target
            error_of(answer)
        assert await web.is_alive()


@pytest.mark.parametrize(
    "target",
    [
        "/topics?limit=1e3",
        "/topics?limit=-1",
        "/topics?limit=99999999999999999999999",
        "/topics?limit=1&limit=2",
        "/topics?limit=%d9%a1",
        "/topics?unknown=1",
        "/topics?sizes=yes",
        "/topics/orders/records?from=yesterday",
        "/topics/orders/records?from=offsets:0=a",
        "/topics/orders/records?from=offsets:0=1,7=1",
        "/topics/orders/records?from=time:9999999999999999999",
        "/topics/orders/records?from=" + "9" * 19,
        "/topics/orders/records?log=-1",
        "/topics/orders/records?log=9223372036854775808",
        "/topics/orders/records?wait_ms=60001",
        "/topics/orders/offsets?time=NaN",
    ],
)
async def test_a_parameter_of_another_form_is_refused(target: str) -> None:
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "orders"})
        assert 400 <= (await web.get(target)).status <= 404


DOCUMENTS = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"NaN",
    b'{"name": NaN}',
    b'{"name": Infinity}',
    b'{"name": "a", "log_count": 1e400}',
    b'{"name": "a", "log_count": 1.5}',
    b'{"name": "a", "log_count": true}',
    b'{"name": "a", "log_count": 0}',
    b'{"name": "a", "log_count": 10001}',
    b'{"name": "a", "log_count": ' + b"9" * 5000 + b"}",
    b'{"name": "\\ud800"}',
    b'{"name": "a\xff"}',
    b'{"name": "a\\u0000"}',
    b'{"name": ""}',
    b'{"name": ".."}',
    b'{"name": "<script>"}',
    b'{"name": "a", "more": 1}',
    b'{"name": "a", "settings": {"retention.ms": 5}}',
    b'{"name": "a", "settings": {"__proto__": "x"}}',
    b'{"log_count": 1}',
    b"[" * 100_000,
    b'{"name":' * 50_000,
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
]


async def test_a_document_of_another_form_is_refused() -> None:
    async with open_web() as web:
        for document in DOCUMENTS:
            answer = await web.request("POST", "/topics", document, Content_Type="application/json")
            assert answer.code == "bad_request", document[:50]
        assert (await web.get("/topics")).document["topics"] == []


LINES = [
    b"",
    b"\n\n",
    b"{}",
    b"[1]",
    b'{"value": 1}',
    b'{"value": "a"}\n{"value": ',
    b'{"value": "a"}{"value": "b"}',
    b'{"value": "a\xff"}',
    b'{"value": "\\ud800"}',
    b'{"value_base64": "?"}',
    b'{"value": "a", "value_base64": "YQ=="}',
    b'{"value": "a", "timestamp": NaN}',
    b'{"value": "a", "timestamp": -1}',
    b'{"value": "a", "timestamp": 1e20}',
    b'{"value": "a", "headers": {"a": "b"}}',
    b'{"value": "a", "headers": [["a"]]}',
    b'{"value": "a", "nonsense": 1}',
    b'{"value": "a", "headers": ' + b"[" * 50_000,
]


async def test_records_of_another_form_are_refused_and_none_of_them_is_published() -> None:
    async with open_web() as web:
        for body in LINES:
            answer = await web.request("POST", "/topics/orders/records", body, Content_Type="application/x-ndjson")
            assert answer.code == "bad_request", body[:50]
            kafka = b'{"records": [' + body + b"]}"
            for kind in ("json", "binary"):
                content_type = f"application/vnd.kafka.{kind}.v2+json"
                rest = await web.request("POST", "/topics/rest/records", kafka, Content_Type=content_type)
                assert rest.status in {200, 400}, body[:50]
        names = [each["name"] for each in (await web.get("/topics")).document["topics"]]
        assert "orders" not in names


async def test_a_large_record_is_refused_and_none_beside_it_is_published() -> None:
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "orders", "settings": {"max.message.bytes": "1000"}})
        small, large = {"value": "a"}, {"value": "x" * 1000}
        body = "\n".join(json.dumps(each) for each in [small, large]).encode()
        answer = await web.request("POST", "/topics/orders/records", body, Content_Type="application/x-ndjson")
        assert answer.code == "too_large"
        assert (await web.get("/topics/orders")).document["record_count"] == 0
        body = "\n".join([json.dumps({"value": "x" * 100})] * 100).encode()
        answer = await web.request("POST", "/topics/orders/records", body, Content_Type="application/x-ndjson")
        assert sum(each["count"] for each in answer.document["offsets"]) == 100


async def test_slow_clients_are_ended_and_others_are_served_meanwhile() -> None:
    async with open_web(config=SHORT) as web, trio.open_nursery() as nursery:
        answers: dict[str, bytes] = {}

        async def send_slowly(name: str, begin: bytes) -> None:
            stream = await trio.open_tcp_stream("127.0.0.1", web.port)
            async with stream:
                await stream.send_all(begin)
                answers[name] = await read_all(stream)

        publish = {"target": "/topics/orders/records", "method": "POST"}
        nursery.start_soon(send_slowly, "head", b"GET /topics HTTP/1.1\r\nHost: ")
        nursery.start_soon(send_slowly, "body", head("Content-Length: 9000", **publish) + b"a")
        nursery.start_soon(send_slowly, "chunks", head("Transfer-Encoding: chunked", **publish) + b"1\r\na\r\n")
        nursery.start_soon(send_slowly, "nothing", b"")
        nursery.start_soon(send_slowly, "no further request", head())
        with trio.fail_after(DEADLINE_S):
            while len(answers) < 5:
                assert await web.is_alive()
        assert error_of(answers["head"]) == "request_timeout"
        assert error_of(answers["body"]) == "request_timeout"
        assert error_of(answers["chunks"]) == "request_timeout"
        assert answers["nothing"] == b""
        assert status_of(answers["no further request"]) == 200


async def test_a_client_that_does_not_read_is_ended(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = SHORT.with_http(body_bytes_max=2**24)
    async with open_web(f"filelog:{tmp_path_factory.mktemp('log')}", config) as web:
        for _ in range(20):
            assert (await web.request("POST", "/topics/orders/records", b"x" * 900_000)).status == 200
        stream = await trio.open_tcp_stream("127.0.0.1", web.port)
        async with stream:
            await stream.send_all(head(target="/topics/orders/records"))
            with trio.fail_after(DEADLINE_S):
                while not (web.broker.web and web.broker.web.counters.disconnected["slow reader"]):
                    assert await web.is_alive()


async def test_a_client_that_goes_ends_its_stream() -> None:
    async with open_web() as web:
        assert web.broker.web is not None
        await web.request("POST", "/topics", document={"name": "orders"})
        stream = await trio.open_tcp_stream("127.0.0.1", web.port)
        await stream.send_all(head("Accept: text/event-stream", target="/topics/orders/records"))
        with trio.fail_after(DEADLINE_S):
            assert b"retry: " in await _receive_until(stream, b"retry: ")
            assert len(web.broker.web.quotas) == 1
            await stream.aclose()
            while not web.broker.web.counters.disconnected["gone"]:
                assert await web.is_alive()


async def _receive_until(stream: trio.abc.ReceiveStream, end: bytes) -> bytes:
    received = b""
    while end not in received:
        received += await stream.receive_some()
    return received


async def test_a_client_that_has_nothing_else_to_send_is_answered() -> None:
    async with open_web() as web:
        stream = await trio.open_tcp_stream("127.0.0.1", web.port)
        async with stream:
            await stream.send_all(head(target="/topics"))
            await stream.send_eof()
            with trio.fail_after(DEADLINE_S):
                assert status_of(await read_all(stream)) == 200


async def test_idle_connections_give_way_to_clients_that_send_requests() -> None:
    async with open_web(config=Config().with_http(connections_max=50)) as web, trio.open_nursery() as nursery:
        idle = [await trio.open_tcp_stream("127.0.0.1", web.port) for _ in range(200)]
        with trio.fail_after(DEADLINE_S):
            for _ in range(20):
                assert await web.is_alive()
        for stream in idle:
            nursery.start_soon(stream.aclose)
