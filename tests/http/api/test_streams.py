"""Server-sent events: every record comes once, also over lost connections and restarts of the broker."""

from __future__ import annotations

import json
import signal
import socket
import struct
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import trio

from dafka import Config
from dafka.http.api import streams
from tests.cli.harness import Dafka
from tests.http.api.events import EventSource
from tests.http.running import DEADLINE_S, RunningWeb, open_web

LINES = "application/x-ndjson"


async def publish(web: RunningWeb, topic: str, values: range, log: int | None = None) -> None:
    """Publish numbers."""
    body = "\n".join(json.dumps({"value": f"{value}"}) for value in values).encode()
    query = "" if log is None else f"?log={log}"
    answer = await web.request("POST", f"/topics/{topic}/records{query}", body, Content_Type=LINES)
    assert answer.status == 200, answer


def test_events_go_on_after_a_broker_was_killed(tmp_path: Path, dafka: Dafka) -> None:
    """Records are published while brokers are killed; a follower that resumes gets each that was acknowledged, once."""
    url, port = f"filelog:{tmp_path}/log", "0"
    found: dict[int, str] = {}
    acknowledged: list[str] = []
    last_event_id = None
    for turn in range(2):
        up = dafka.start_up("--http", f"127.0.0.1:{port}", "--storage", url)
        address = up.wait_output(3)[2].split()[-1]
        port = address.rpartition(":")[2]
        for number in range(20):
            value = f"{turn}-{number}"
            with urlopen(Request(f"{address}/topics/orders/records", value.encode()), timeout=DEADLINE_S) as answer:
                assert answer.status == 200
            acknowledged.append(value)
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        with urlopen(Request(f"{address}/topics/orders/records", headers=headers), timeout=DEADLINE_S) as events:
            event_id = ""
            while len(found) < len(acknowledged) - 5 * (turn < 1):  # the last ones come after the next start
                line = events.readline().decode().strip()
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    record = json.loads(line.removeprefix("data: "))
                    assert record["offset"] not in found
                    found[record["offset"]] = record["value"]
                    last_event_id = event_id
        up.end(signal.SIGKILL)
    assert [found[offset] for offset in sorted(found)] == acknowledged


async def test_followers_that_go_abruptly_while_records_flow_disturb_nobody(caplog: pytest.LogCaptureFixture) -> None:
    source = EventSource()
    async with open_web() as web:
        assert web.broker.web is not None
        counters = web.broker.web.counters
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


async def test_each_event_says_where_all_logs_are() -> None:
    source = EventSource()
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "orders", "log_count": 2})
        await publish(web, "orders", range(100), log=0)
        await publish(web, "orders", range(100), log=1)
        with trio.fail_after(DEADLINE_S):
            async with source.connect(web, "/topics/orders/records") as stream:
                for count in (1, 50, 101, 200):
                    await source.read(stream, count)
                    logs = [each["log"] for each in source.records]
                    assert source.last_event_id == f"0={logs.count(0)},1={logs.count(1)}"


async def test_a_stream_of_a_topic_that_is_deleted_ends_with_an_error() -> None:
    source = EventSource()
    async with open_web() as web:
        await publish(web, "orders", range(1))
        with trio.fail_after(DEADLINE_S):
            async with source.connect(web, "/topics/orders/records") as stream:
                await source.read(stream, 1)
                await web.request("DELETE", "/topics/orders")
                with pytest.raises(AssertionError, match="the stream has ended"):
                    await source.read(stream, 2)
        assert [each["code"] for each in source.errors] == ["topic_not_found"]
        assert (await web.get("/topics/orders/records", Accept="text/event-stream")).code == "topic_not_found"


async def test_a_stream_without_records_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.01)
    source = EventSource()
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "orders"})
        with trio.fail_after(DEADLINE_S):
            async with source.connect(web, "/topics/orders/records") as stream:
                received = b""
                while b": nothing new\n\n" not in received:
                    received += await stream.receive_some()


async def test_reading_waits_for_a_record() -> None:
    async with open_web() as web, trio.open_nursery() as nursery:
        await web.request("POST", "/topics", document={"name": "orders", "log_count": 2})
        answers = []

        async def read() -> None:
            answers.append(await web.get("/topics/orders/records?from=latest&wait_ms=60000"))

        nursery.start_soon(read)
        assert web.broker.web is not None
        with trio.fail_after(DEADLINE_S):
            while not web.broker.web.counters.requests["GET", "/topics/{topic}/records"]:
                assert await web.is_alive()
            await publish(web, "orders", range(3), log=1)
            while not answers:
                assert await web.is_alive()
        assert [json.loads(line)["value"] for line in answers[0].body.splitlines()] == ["0", "1", "2"]
        assert (await web.get("/topics/orders/records?from=latest&wait_ms=1")).body == b""


async def test_waiting_ends_when_the_client_has_gone() -> None:
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "orders"})
        assert web.broker.web is not None
        head = "GET /topics/orders/records?wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with trio.fail_after(DEADLINE_S):
            assert (await web.exchange(head.encode(), eof=True)).startswith(b"HTTP/1.1 200 ")
            stream = await trio.open_tcp_stream("127.0.0.1", web.port)
            await stream.send_all(head.encode())
            while len(web.broker.web.quotas) < 1:
                await trio.lowlevel.checkpoint()
            await stream.aclose()
            while len(web.broker.web.quotas):
                await trio.lowlevel.checkpoint()


async def test_kafka_rest_says_what_has_become_of_each_record() -> None:
    async with open_web(config=Config()) as web:
        document = {"name": "orders", "log_count": 2, "settings": {"max.message.bytes": "500"}}
        await web.request("POST", "/topics", document=document)
        records = [
            {"partition": 1, "value": {"a": [1, None]}},
            {"partition": 0, "key": "k", "value": "b"},
            {"partition": 0, "value": "x" * 500},
            {"partition": 7, "value": "c"},
            {"partition": 1, "value": None},
        ]
        answer = await web.request(
            "POST",
            "/topics/orders/records",
            json.dumps({"records": records}).encode(),
            Content_Type="application/vnd.kafka.json.v2+json",
        )
        assert answer.headers["Content-Type"] == "application/vnd.kafka.v2+json"
        found = [(each["partition"], each["offset"], each["error_code"]) for each in answer.document["offsets"]]
        assert found == [(1, 0, None), (0, None, 1), (0, None, 1), (7, None, 1), (1, 1, None)]
        lines = (await web.get("/topics/orders/records?log=1")).body.splitlines()
        assert [json.loads(line)["value"] for line in lines] == ['{"a":[1,null]}', None]


async def test_records_of_kafka_rest_have_keys_and_headers() -> None:
    async with open_web() as web:
        headers = [{"name": "source", "value": "c2hvcA=="}, {"key": "none", "value": None}]
        body = json.dumps({"records": [{"key": "a2V5", "value": "/w==", "headers": headers}, {"value": "eA=="}]})
        content_type = "application/vnd.kafka.binary.v2+json; charset=utf-8"
        await web.request("POST", "/topics/orders/records", body.encode(), Content_Type=content_type)
        first, second = map(json.loads, (await web.get("/topics/orders/records")).body.splitlines())
        assert (first["key"], first["value_base64"]) == ("key", "/w==")
        assert first["headers"] == [["source", "shop"], ["none", None]]
        assert (second["value"], "headers" in second) == ("x", False)
        wrong_headers: list[Any] = [{"a": 1}, [1], [{}], [{"name": "a", "value": "?"}], [{"name": "a", "more": 1}]]
        for wrong in wrong_headers:
            body = json.dumps({"records": [{"value": "eA==", "headers": wrong}]})
            answer = await web.request("POST", "/topics/orders/records", body.encode(), Content_Type=content_type)
            assert answer.code == "bad_request", wrong
