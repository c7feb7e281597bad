"""Hostile requests get a clear error, let nobody in, and leave the broker alive."""

from __future__ import annotations

import json
import re
import socket
import struct
from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from dafka import Config
from dafka.http.api.registry import DOCUMENT_BYTES_MAX
from tests.http.running import DEADLINE_S, SharedWeb, open_web, read_all

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
    "length and encoding": (head("Content-Length: 4", "Transfer-Encoding: chunked", method="POST"), 400, "bad_request"),
    "version 2": (b"PRI * HTTP/2.0\r\n\r\n", 505, "bad_request"),
    "large target": (b"GET /" + b"x" * 100_000, 431, "too_large"),
    "many headers": (head(*(f"X-{n}: {'y' * 50}" for n in range(1000))), 431, "too_large"),
    "large body": (head("Content-Length: 99999999", target="/topics/a/records", method="POST"), 413, "too_large"),
    "large document": (
        head("Content-Length: 1048577", "Content-Type: application/json", method="POST", target="/session"),
        413,
        "too_large",
    ),
    "malformed body": (
        head("Transfer-Encoding: chunked", target="/topics/a/records", method="POST") + b"-1\r\na\r\n0\r\n\r\n",
        400,
        "bad_request",
    ),
}


@pytest.mark.parametrize("sent", MALFORMED)
async def test_a_malformed_request_is_answered_once_and_ends_the_connection(web: SharedWeb, sent: str) -> None:
    """The table of the package `tests.http1` has more of them."""
    data, status, code = MALFORMED[sent]
    answer = await web.exchange(data + SMUGGLED)
    assert (status_of(answer), error_of(answer)) == (status, code)
    assert b"onnection: close" in answer
    assert b"X-Content-Type-Options: nosniff" in answer
    assert web.ask("GET", "/topics/a").status == 404


async def test_a_body_has_a_size_limit() -> None:
    async with open_web(config=SHORT) as web:
        target = "/topics/orders/records"
        for size, status in ((10_000, 200), (10_001, 413)):
            assert (await web.request("POST", target, b"x" * size)).status == status
            lines = ("Transfer-Encoding: chunked", "Connection: close")
            chunks = b"2000\r\n" + b"x" * 8192 + b"\r\n%x\r\n" % (size - 8192) + b"x" * (size - 8192) + b"\r\n0\r\n\r\n"
            answer = await web.exchange(head(*lines, target=target, method="POST") + chunks)
            assert status_of(answer) == status


def test_a_document_has_a_size_limit(web: SharedWeb, name: str) -> None:
    document = json.dumps({"name": name}).encode()
    for size, status in ((DOCUMENT_BYTES_MAX, 201), (DOCUMENT_BYTES_MAX + 1, 413)):
        padded = document + b" " * (size - len(document))
        assert web.ask("POST", "/topics", padded, Content_Type="application/json").status == status


def test_only_json_is_a_document(web: SharedWeb, name: str) -> None:
    document = json.dumps({"name": name}).encode()
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
        answer = web.ask("POST", "/topics", document, Content_Type=content_type)
        assert (answer.status, answer.code) == (415, "unsupported")
    assert web.ask("POST", "/topics", document, Content_Type="Application/JSON ; charset=utf-8").status == 201


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


async def test_requests_that_come_at_once_are_answered_in_their_order(web: SharedWeb, topic: str) -> None:
    publish = head("Content-Length: 1", target=f"/topics/{topic}/records", method="POST")
    sent = b"".join(publish + b"%d" % number for number in range(5))
    answer = await web.exchange(sent + head("Connection: close", target=f"/topics/{topic}/records"))
    assert re.findall(rb'"offset":(\d),"count"', answer) == [b"0", b"1", b"2", b"3", b"4"]
    assert re.findall(rb'"value":"(\d)"', answer) == [b"0", b"1", b"2", b"3", b"4"]


TARGETS = [
    "/topics/%ff",
    "/topics/orders%00.txt",
    "/topics/" + "x" * 10_000,
    "/topics/..",
    "/topics/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    *(f"/console/{each}" for each in ("../serve.py", "..%2fserve.py", "%2e%2e/%2e%2e/serve.py", "..%5c..%5cserve.py")),
    *(f"/console{each}" for each in ("", "/", "//etc/passwd", "/%2fetc%2fpasswd")),
    "//topics",
    "/topics//records",
    "/topics/a%2Frecords",
    "/topics/%0d%0aSet-Cookie:%20a=b",
    "/topics/<script>",
    "/topics/orders;a=b",
    "/Topics",
    "/topics/",
]


async def test_no_path_leads_astray(web: SharedWeb) -> None:
    for target in TARGETS:
        answer = await web.exchange(head("Connection: close", target=target))
        assert status_of(answer) in {400, 404, 431}, target
        assert b"\r\nSet-Cookie" not in answer, target
        error_of(answer)


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
def test_a_parameter_of_another_form_is_refused(web: SharedWeb, topic: str, target: str) -> None:
    answer = web.ask("GET", target.replace("/orders/", f"/{topic}/"))
    assert answer.status in {400, 404}
    assert answer.code in {"bad_request", "log_not_found", "offset_out_of_range"}


DOCUMENTS = [
    *(b"", b"{", b"[]", b"null", b"NaN", b"[" * 100_000, b'{"name":' * 50_000, b"\xff\xfe{\x00}\x00"),
    *(b'{"name": "a", "log_count": %b}' % each for each in (b"1.5", b"true", b"0", b"10001", b"9" * 5000)),
    *(b'{"name": "%b"}' % each for each in (b"\\ud800", b"a\xff", b"a\\u0000", b"", b"..", b"<script>")),
    b'{"name": "a", "more": 1}',
    b'{"name": "a", "settings": {"retention.ms": 5}}',
    b'{"name": "a", "settings": {"__proto__": "x"}}',
    b'{"log_count": 1}',
]
"""Documents that are no topic. The tests of documents have more that are no JSON."""


def test_a_document_of_another_form_is_refused(web: SharedWeb) -> None:
    for document in DOCUMENTS:
        answer = web.ask("POST", "/topics", document, Content_Type="application/json")
        assert (answer.status, answer.code) == (400, "bad_request"), document[:50]
    assert web.ask("GET", "/topics/a").status == 404


LINES = [
    *(b"", b"\n\n", b"{}", b"[1]", b'{"value": 1}', b'{"value": "a\xff"}', b'{"value_base64": "?"}'),
    b'{"value": "a"}\n{"value": ',
    b'{"value": "a"}{"value": "b"}',
    b'{"value": "a", "headers": ' + b"[" * 50_000,
]
"""Lines that are no records. The tests of records have more."""


def test_records_of_another_form_are_refused_and_none_of_them_is_published(web: SharedWeb, name: str) -> None:
    for body in LINES:
        answer = web.ask("POST", f"/topics/{name}/records", body, Content_Type="application/x-ndjson")
        assert answer.code == "bad_request", body[:50]
        kafka = b'{"records": [' + body + b"]}"
        for kind in ("json", "binary"):
            content_type = f"application/vnd.kafka.{kind}.v2+json"
            rest = web.ask("POST", f"/topics/rest.{name}/records", kafka, Content_Type=content_type)
            assert rest.status in {200, 400}, body[:50]
    assert web.ask("GET", f"/topics/{name}").status == 404


def test_a_large_record_is_refused_and_none_beside_it_is_published(web: SharedWeb, name: str) -> None:
    topic = web.create(name, max_message_bytes="1000")
    small, large = {"value": "a"}, {"value": "x" * 1000}
    body = "\n".join(json.dumps(each) for each in [small, large]).encode()
    answer = web.ask("POST", f"/topics/{topic}/records", body, Content_Type="application/x-ndjson")
    assert answer.code == "too_large"
    assert web.ask("GET", f"/topics/{topic}").document["record_count"] == 0
    body = "\n".join([json.dumps({"value": "x" * 100})] * 100).encode()
    answer = web.ask("POST", f"/topics/{topic}/records", body, Content_Type="application/x-ndjson")
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


async def test_connections_are_limited_and_silent_ones_give_way() -> None:
    async with open_web(config=Config().with_http(connections_max=3)) as web, AsyncExitStack() as stack:
        assert web.broker.web is not None
        quotas = web.broker.web.quotas

        async def connect() -> trio.SocketStream:
            return await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", web.port))

        async def get(stream: trio.SocketStream) -> bytes:
            await stream.send_all(head())
            return bytes(await stream.receive_some())

        with trio.fail_after(DEADLINE_S):
            for _ in range(20):
                silent = await connect()
            assert status_of(await get(silent)) == 200
            served = [silent, *[await connect() for _ in range(2)]]
            for stream in served:
                assert status_of(await get(stream)) == 200
            assert len(quotas) == 3
            assert await read_all(await connect()) == b"", "nobody can be replaced"
            assert (len(quotas), quotas.refused) == (3, 1)
            await served.pop().aclose()
            while len(quotas) == 3:
                await trio.testing.wait_all_tasks_blocked()
            assert await web.is_alive()


async def test_connections_of_an_address_are_limited() -> None:
    async with open_web(config=Config().with_http(connections_per_address_max=1)) as web, AsyncExitStack() as stack:
        stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", web.port))
        await stream.send_all(head())
        assert status_of(bytes(await stream.receive_some())) == 200
        assert await web.exchange(head()) == b""
