"""Server-sent events, and reading that waits."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
import trio

from dafka.http.api import streams
from dafka.http.server.errors import WebError
from dafka.http.websocket.shared_reads import RecordLine, SharedRead
from tests.http.api.events import EventSource
from tests.http.running import DEADLINE_S, Answer, RunningWeb, SharedWeb, open_web, read_all
from tests.http.websocket.clients import open_client
from tests.waiting import wait_until

LINES = "application/x-ndjson"


async def publish(web: RunningWeb, topic: str, values: range, log: int | None = None) -> None:
    body = "\n".join(json.dumps({"value": f"{value}"}) for value in values).encode()
    query = "" if log is None else f"?log={log}"
    answer = await web.request("POST", f"/topics/{topic}/records{query}", body, Content_Type=LINES)
    assert answer.status == 200, answer


async def test_followers_that_go_abruptly_while_records_flow_disturb_nobody(caplog: pytest.LogCaptureFixture) -> None:
    source = EventSource()
    async with open_web() as web:
        counters = web.server.counters
        await publish(web, "orders", range(1000))
        with trio.fail_after(DEADLINE_S):
            async with source.connect(web, "/topics/orders/records") as kept:
                for number in range(40):
                    async with EventSource().connect(web, "/topics/orders/records") as stream:
                        await stream.receive_some(100)
                        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    await publish(web, "orders", range(1000 + 10 * number, 1010 + 10 * number))
                await source.read(kept, 1400)
            while counters.disconnected["gone"] < 41:
                assert await web.is_alive()
        assert source.values() == [f"{value}" for value in range(1400)]
        assert counters.disconnected.keys() == {"gone"}
    assert not [each for each in caplog.records if each.name == "dafka.http"]


async def test_each_event_says_where_all_logs_are(web: SharedWeb, name: str) -> None:
    source, topic = EventSource(), web.create(name, 2)
    for log in (0, 1):
        await publish(web, topic, range(100), log=log)
    with trio.fail_after(DEADLINE_S):
        async with source.connect(web, f"/topics/{topic}/records") as stream:
            for count in (1, 50, 101, 200):
                await source.read(stream, count)
                logs = [each["log"] for each in source.records]
                assert source.last_event_id == f"0={logs.count(0)},1={logs.count(1)}"


async def test_a_stream_of_a_topic_that_is_deleted_ends_with_an_error(web: SharedWeb, topic: str) -> None:
    source = EventSource()
    await publish(web, topic, range(1))
    with trio.fail_after(DEADLINE_S):
        async with source.connect(web, f"/topics/{topic}/records") as stream:
            await source.read(stream, 1)
            await web.request("DELETE", f"/topics/{topic}")
            with pytest.raises(AssertionError, match="the stream has ended"):
                await source.read(stream, 2)
    assert [each["code"] for each in source.errors] == ["topic_not_found"]
    assert (await web.get(f"/topics/{topic}/records", Accept="text/event-stream")).code == "topic_not_found"


@pytest.mark.parametrize("failure", [WebError("storage_failed", "no"), RuntimeError("a mistake")])
async def test_a_response_that_fails_midway_does_not_look_complete(
    web: SharedWeb, topic: str, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_lines, disconnected = SharedRead.lines, web.server.counters.disconnected
    reason = failure.code if isinstance(failure, WebError) else "failed response"

    async def fail_later(read: SharedRead, host: str) -> Sequence[RecordLine]:
        if read.read.offset:
            raise failure
        return await read_lines(read, host)

    monkeypatch.setattr(SharedRead, "lines", fail_later)
    monkeypatch.setattr(streams, "READ_BYTES", 1)
    for number in range(2):
        await publish(web, topic, range(number, number + 1))
    before = disconnected[reason]
    request = f"GET /topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await web.exchange(request.encode())
    assert (b'"value":"0"' in answer, b"\r\n0\r\n" in answer) == (True, False)
    assert disconnected[reason] == before + 1


async def test_a_broker_that_stops_ends_what_waits_and_answers_what_has_come() -> None:
    async with open_web() as web, open_client(web) as client, AsyncExitStack() as stack:
        await publish(web, "orders", range(1))
        await client.subscribe("orders", "latest")
        idle, uploading = [
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", web.port)) for _ in range(2)
        ]
        await uploading.send_all(
            b"POST /topics/orders/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"
        )
        events = await stack.enter_async_context(EventSource().connect(web, "/topics/orders/records"))
        answers: list[Answer] = []

        async def read() -> None:
            answers.append(await web.get("/topics/orders/records?from=latest&wait_ms=60000"))

        route = "/topics/{topic}/records"
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                requests = web.server.counters.requests
                await wait_until(lambda: (requests["GET", route], requests["POST", route]) == (2, 2))
                web.broker.broker.stopping.begin()
            assert [(each.status, each.body, each.headers["Connection"]) for each in answers] == [(200, b"", "close")]
            assert (await read_all(idle), await read_all(uploading)) == (b"", b"")
            await read_all(events)
            await client.connection.wait_closed()
            assert client.connection.close_code == 1001


async def test_a_stream_has_limited_logs(web: SharedWeb, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "EVENT_LOGS_MAX", 2)
    for log_count, query in ((2, ""), (3, "?log=2"), (3, "")):
        topic = web.create(f"{name}{log_count}{bool(query)}", log_count)
        source = EventSource()
        with trio.fail_after(DEADLINE_S):
            async with source.connect(web, f"/topics/{topic}/records{query}") as stream:
                begun = await stream.receive_some(12)
        assert begun == (b"HTTP/1.1 400" if (log_count, query) == (3, "") else b"HTTP/1.1 200")


async def test_a_stream_without_records_is_kept_alive(
    web: SharedWeb, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.01)
    with trio.fail_after(DEADLINE_S):
        async with EventSource().connect(web, f"/topics/{topic}/records") as stream:
            received = b""
            while b": nothing new\n\n" not in received:
                received += await stream.receive_some()


async def test_reading_waits_for_a_record_as_long_as_its_client_is_there() -> None:
    async with open_web() as web, trio.open_nursery() as nursery:
        await web.request("POST", "/topics", document={"name": "orders", "log_count": 2})
        answers: list[Answer] = []

        async def read() -> None:
            answers.append(await web.get("/topics/orders/records?from=latest&wait_ms=60000"))

        nursery.start_soon(read)
        quotas = web.server.quotas
        with trio.fail_after(DEADLINE_S):
            while not web.server.counters.requests["GET", "/topics/{topic}/records"]:
                assert await web.is_alive()
            await publish(web, "orders", range(3), log=1)
            while not answers:
                assert await web.is_alive()
            assert [json.loads(line)["value"] for line in answers[0].body.splitlines()] == ["0", "1", "2"]
            assert (await web.get("/topics/orders/records?from=latest&wait_ms=1")).body == b""
            head = b"GET /topics/orders/records?from=latest&wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            assert (await web.exchange(head, eof=True)).startswith(b"HTTP/1.1 200 ")
            await wait_until(lambda: not len(quotas))
            stream = await trio.open_tcp_stream("127.0.0.1", web.port)
            await stream.send_all(head)
            await wait_until(lambda: len(quotas) == 1)
            await stream.aclose()
            await wait_until(lambda: not len(quotas))
