"""Messages of WebSocket, right and wrong ones. `test_model` has histories of them."""

from __future__ import annotations

import json
import threading
import zlib
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
import trio
import trio.testing

from dafka import Config
from dafka.batches import decode_batch, encode_batch
from dafka.broker.access.permissions import Permissions
from dafka.broker.connections.memory import Memory
from dafka.broker.coordinator.transactions import TransactionCoordinators
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.transactions.coordinator import InitProducerResult
from dafka.broker.log.durable_waits import DurableWaits
from dafka.errors import ConfigError, StorageError
from dafka.http.logs.publishing import Publication
from dafka.http.server.errors import WebError
from dafka.http.server.http_server import HttpCounters
from dafka.http.server.messages import JSON as JSON_TYPE
from dafka.http.server.messages import Response
from dafka.http.websocket import session as session_module
from dafka.http.websocket.binary import RECORDS_HEAD_BYTES, encode_publish
from dafka.http.websocket.client_tasks import WatchedResource
from dafka.http.websocket.connection import SEND_BYTES, ClientStream, Connection
from dafka.http.websocket.messages import Ping
from dafka.http.websocket.session import FORWARDED_FACTOR, Session
from dafka.http.websocket.shared_reads import SharedReads
from tests.http.running import DEADLINE_S, RunningWeb, SharedWeb, open_web
from tests.http.server.test_authentication import basic
from tests.http.websocket.clients import BINARY, COMPRESSED, FINAL, JSON, KEY, TEXT, frame, open_client, open_raw
from tests.kafka.server.secured import PASSWORD, write_user_file
from tests.waiting import wait_until


async def create(web: RunningWeb, topic: str, log_count: int = 1) -> None:
    answer = await web.request("POST", "/topics", document={"name": topic, "log_count": log_count})
    assert answer.status == 201


async def test_what_is_durable_is_answered_before_what_is_not_yet() -> None:
    written: list[list[int]] = []

    class Append:
        """Stands for records on their way to a disk."""

        log, record_count = SimpleNamespace(number=0), 1

        def __init__(self) -> None:
            self.durable = trio.Event()

        @property
        def is_durable(self) -> bool:
            return self.durable.is_set()

        async def wait_offset(self) -> int:
            await self.durable.wait()
            return 7

    async def send_all_texts(texts: list[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        written.append([json.loads(each)["id"] for each in texts])

    connection: Any = SimpleNamespace(subprotocol=None, send_all_texts=send_all_texts)
    request: Any = SimpleNamespace(web=None, broker=SimpleNamespace(config=Config()), is_forwarded=False)
    session, appends = Session(connection, request), [Append() for _ in range(5)]
    for number, each in enumerate(appends):
        session._unanswered.send_nowait((number, Publication(cast(Any, [each]), DurableWaits())))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session._answer_publishes)
        for durable, expected in (([0, 1, 3], [[0, 1]]), ([2], [[0, 1], [2, 3]]), ([4], [[0, 1], [2, 3], [4]])):
            for number in durable:
                appends[number].durable.set()
            await trio.testing.wait_all_tasks_blocked()
            assert written == expected
        nursery.cancel_scope.cancel()


FAILURES: list[tuple[Exception, str | None]] = [
    (WebError("conflict", "taken"), "conflict"),
    (ConfigError("no such thing"), "bad_request"),
    (StorageError("disk full"), "storage_failed"),
    (RuntimeError("a mistake"), None),
]


@pytest.mark.parametrize(("failure", "code"), FAILURES)
async def test_a_request_that_fails_gets_an_error_and_a_mistake_of_the_broker_ends_the_connection_only(
    web: SharedWeb, failure: Exception, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise failure

    ended = web.server.counters.disconnected["unexpected error"]
    handlers: Any = session_module._HANDLERS
    monkeypatch.setitem(handlers, Ping, fail)
    async with open_client(web) as client:
        await client.send("ping", id=5)
        if code is None:
            with trio.fail_after(DEADLINE_S):
                await client.connection.wait_closed()
            assert client.connection.close_code == 1011
            await wait_until(lambda: web.server.counters.disconnected["unexpected error"] == ended + 1)
        else:
            error = await client.expect("error", 5)
            assert (error["code"], str(failure) in error["message"]) == (code, True)
            assert (await client.ask("init_producer"))["type"] == "producer", "others go on"
    assert await web.is_alive()


async def test_a_publish_that_fails_later_gets_its_error_in_its_turn() -> None:
    written: list[tuple[int, str]] = []

    class Outcome:
        """Stands for records, which become durable or fail."""

        def __init__(self, error: WebError | None) -> None:
            self.error, self.is_durable = error, True

        async def wait(self) -> list[Any]:
            await trio.lowlevel.checkpoint()
            if self.error is not None:
                raise self.error
            return []

    async def send_all_texts(texts: list[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        written.extend((answer["id"], answer["type"]) for answer in map(json.loads, texts))

    connection: Any = SimpleNamespace(subprotocol=None, send_all_texts=send_all_texts)
    request: Any = SimpleNamespace(web=None, broker=SimpleNamespace(config=Config()), is_forwarded=False)
    session = Session(connection, request)
    for number in range(6):
        outcome: Any = Outcome(WebError("storage_failed", "no") if number % 3 == 1 else None)
        session._unanswered.send_nowait((number, outcome))
    session._unanswered.close()
    await session._answer_publishes()
    assert written == [(number, "error" if number % 3 == 1 else "published") for number in range(6)]


async def test_only_documents_are_watched_and_a_broker_without_ids_says_so(
    web: SharedWeb, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> InitProducerResult:
        await trio.lowlevel.checkpoint()
        return InitProducerResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async with open_client(web) as client:
        error = await client.ask("watch", path=f"/topics/{topic}/records", interval_ms=500)
        assert (error["type"], error["code"]) == ("error", "unsupported")
        monkeypatch.setattr(TransactionCoordinators, "init_producer_id", refuse)
        error = await client.ask("init_producer")
        assert (error["type"], error["code"], "COORDINATOR_NOT_AVAILABLE" in error["message"]) == (
            "error",
            "conflict",
            True,
        )


async def test_idempotent_records_are_appended_once(web: SharedWeb, name: str) -> None:
    async with open_client(web) as client:
        producer = await client.ask("init_producer")
        identity = {each: producer[each] for each in ("producer_id", "producer_epoch")}
        for _ in range(2):
            found = await client.publish(name, "a", "b", base_sequence=0, **identity)
            assert found == [{"log": 0, "offset": 0, "count": 2}]
        answer = await client.ask("publish", topic=name, records=[{"value": "e"}], base_sequence=4, **identity)
        assert answer["code"] == "conflict"


async def test_watched_resource_is_sent_when_it_changes(web: SharedWeb, name: str) -> None:
    async with open_client(web) as client:
        await create(web, name)
        watch = await client.send("watch", path=f"/topics?prefix={name}", interval_ms=500)
        view = await client.expect("view", watch)
        assert (view["status"], view["body"]["topics"][0]["end_offset"]) == (200, 0)
        async with open_client(web) as publisher:
            await publisher.publish(name, "a")
        view = await client.expect("view", watch)
        assert view["body"]["topics"][0]["end_offset"] == 1
        assert (await client.ask("unwatch", id=watch))["type"] == "unwatched"
        view = await client.ask("watch", path="/topics/none", interval_ms=500)
        assert (view["type"], view["status"], view["body"]["error"]["code"]) == ("view", 404, "topic_not_found")


async def test_a_watched_resource_is_not_sent_again_unless_it_changes(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies, sent = [b"1", b"1", b"2", b"2", b"1"], list[bytes]()

    async def answer(*_: object) -> Response:
        await trio.lowlevel.checkpoint()
        if not bodies:
            watch.stop()
        return Response(200, bodies.pop(0) if bodies else b"1", JSON_TYPE)

    async def send_text(message: bytes) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(message)

    monkeypatch.setattr("dafka.http.websocket.client_tasks.answer_get", answer)
    connection: Any = SimpleNamespace(send_text=send_text)
    request: Any = SimpleNamespace(principal=None)
    watch = WatchedResource(7, "/session", 500, request, connection)
    await watch.run()
    assert [json.loads(each)["body"] for each in sent] == [1, 2, 1]


# Binary


async def test_record_batches_are_published_and_sent_as_they_are(web: SharedWeb, name: str) -> None:
    async with open_client(web, BINARY) as client:
        batch = encode_batch(0, [b"a", b"\xff"], keys=[b"k", None], timestamps=[5, 6], headers=[[("h", b"v")], []])
        await client.connection.send(encode_publish(7, name, 0, batch))
        assert (await client.expect("published", 7))["offsets"] == [{"log": 0, "offset": 0, "count": 2}]
        identifier = await client.subscribe(name)
        message = await client.receive()
        place = bytes(4) + identifier.to_bytes(8, "big") + bytes(8) + (2).to_bytes(8, "big")
        assert message[:RECORDS_HEAD_BYTES] == b"\x02\0\0\0" + place
        assert decode_batch(message[RECORDS_HEAD_BYTES:], bytes_max=2**20).values == [b"a", b"\xff"]
        assert web.server.counters.produced[name] == 2


@pytest.mark.parametrize("subprotocol", [JSON, BINARY])
async def test_messages_are_framed_whatever_their_size(web: SharedWeb, topic: str, subprotocol: str) -> None:
    sizes, values = set[int](), [*range(40), *range(2**16 - 150, 2**16 - 80)]
    async with open_client(web, subprotocol) as client:
        identifier = await client.subscribe(topic, credit=0)
        for size in values:
            await client.publish(topic, "x" * size)
            await client.send("credit", id=identifier, records=1)
            received = await client.connection.recv()
            assert (b"x" * size if isinstance(received, bytes) else "x" * size) in received
            sizes.add(len(received))
    assert {125, 126, 127, 2**16 - 1, 2**16} <= sizes


async def test_messages_are_compressed_as_the_client_can_take_them(web: SharedWeb, topic: str) -> None:
    """A small window does not reach back to where the text was first."""
    value = "".join(Random(1).choices("abcdefghij", k=2000)) * 2
    await web.request("POST", f"/topics/{topic}/records", value.encode())
    subscribe = json.dumps({"type": "subscribe", "id": 1, "topic": topic, "from": "earliest", "credit": 1})
    for offer, is_compressed in (("", True), ("; server_max_window_bits=9", False)):
        async with open_raw(web, f"Sec-WebSocket-Extensions: permessage-deflate{offer}") as client:
            await client.send(frame(TEXT, subscribe.encode()))
            await client.receive()
            first, payload = await client.receive()
            assert first == FINAL | TEXT | (COMPRESSED if is_compressed else 0)
            text = zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff") if is_compressed else payload
            assert json.loads(text)["records"][0]["value"] == value


async def test_a_client_that_is_quiet_is_pinged_and_ended_and_one_that_reads_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for activity_s, is_sending, pings, ended in (
        (60.0, False, [5, 10, 15], 20),
        (60.0, True, [], 20),
        (3.0, False, [], None),
        (7.0, False, [5, 20], None),
    ):
        begun, pinged, counters = trio.current_time(), list[float](), HttpCounters()
        connection = SimpleNamespace(subprotocol=None, is_sending=is_sending, last_activity=begun)

        async def ping(begun: float = begun, pinged: list[float] = pinged) -> None:
            pinged.append(trio.current_time() - begun)

        async def act(connection: Any = connection, activity_s: float = activity_s) -> None:
            while True:
                await trio.sleep(activity_s)
                connection.last_activity = trio.current_time()

        config = Config().with_http(idle_ms=20_000)
        connection.ping = ping
        connection.end = AsyncMock()
        web: Any = SimpleNamespace(counters=counters)
        request: Any = SimpleNamespace(web=web, broker=SimpleNamespace(config=config), is_forwarded=False)
        given: Any = connection
        with trio.move_on_after(22):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(act)
                await Session(given, request)._keep_alive()
                assert trio.current_time() - begun == ended
                nursery.cancel_scope.cancel()
        assert (pinged, counters.disconnected["idle"]) == (pings, int(ended is not None))
        assert connection.end.await_count == int(ended is not None)


async def test_a_client_is_active_when_it_reads_much(autojump_clock: trio.testing.MockClock) -> None:
    class Stream:
        async def send_all(self, _data: object) -> None:
            await trio.sleep(1)

        async def receive_some(self, _max_bytes: int) -> bytes:
            await trio.sleep_forever()

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()

    stream: Any = Stream()
    client = ClientStream(stream, b"", Memory(2**30).make_pool(2**29), "ada", 2**20, 1000)
    async with trio.open_nursery() as nursery:
        connection, begun = Connection(nursery, client, lambda *_: None, 2**20), trio.current_time()
        await client.send_all(b"x")
        assert connection.last_activity == begun
        nursery.start_soon(client.send_all, bytes(3 * SEND_BYTES))
        for sent_s in range(1, 4):
            await trio.sleep(1)
            await trio.testing.wait_all_tasks_blocked()
            assert connection.last_activity == begun + 1 + sent_s
        nursery.cancel_scope.cancel()


# What clients do wrong


RECORDS = {"records": [{"value": "a"}]}
PUBLISH, COMMIT = {"type": "publish", "topic": "t"}, {"type": "commit", "group": "g", "topic": "t"}
SUBSCRIBE = {"type": "subscribe", "topic": "t", "from": "earliest", "credit": 1}

WRONG: list[tuple[dict[str, Any], str, str]] = [
    (PUBLISH, "bad_request", "publish: object missing required field"),
    ({**PUBLISH, "records": []}, "bad_request", "records: expected a list of at least"),
    ({**PUBLISH, "records": [{}]}, "bad_request", "records[0]: expected value"),
    ({**PUBLISH, **RECORDS, "topic": ""}, "bad_request", "publish.topic: expected `str` of"),
    ({**PUBLISH, **RECORDS, "topic": "$logs"}, "bad_request", ""),
    ({**PUBLISH, **RECORDS, "log": 1}, "log_not_found", ""),
    ({**PUBLISH, **RECORDS, "log": -1}, "bad_request", "publish.log: "),
    ({**PUBLISH, **RECORDS, "x": 1}, "bad_request", "publish: object contains unknown"),
    ({**PUBLISH, **RECORDS, "producer_id": 1}, "bad_request", "publish: producer_id needs"),
    ({**SUBSCRIBE, "topic": "none"}, "topic_not_found", ""),
    ({**SUBSCRIBE, "from": "first"}, "bad_request", "from: expected"),
    ({**SUBSCRIBE, "credit": -1}, "bad_request", "subscribe.credit: "),
    ({**SUBSCRIBE, "credit": 1.5}, "bad_request", "subscribe.credit: "),
    ({**SUBSCRIBE, "from": {"offset": 99}}, "offset_out_of_range", ""),
    ({**SUBSCRIBE, "logs": []}, "bad_request", ""),
    ({**SUBSCRIBE, "logs": [7]}, "log_not_found", ""),
    ({"type": "credit", "records": 0}, "bad_request", "credit.records: expected `int` >= 1"),
    ({**COMMIT, "offsets": {}}, "bad_request", "commit.offsets: "),
    ({**COMMIT, "offsets": {"0": "1"}}, "bad_request", "offsets: expected"),
    ({**COMMIT, "offsets": {"5": 2}}, "log_not_found", ""),
    ({"type": "watch", "path": "/topics", "interval_ms": 499}, "bad_request", "watch.interval_ms: expected `int`"),
    ({"type": "describe", "topic": "none"}, "topic_not_found", "there is no topic 'none'"),
    ({"type": "nothing"}, "bad_request", "type: expected one of authenticate, publish"),
    ({"type": 5}, "bad_request", "type: expected one of"),
    ({"type": None}, "bad_request", "type: expected one of"),
    ({"type": []}, "bad_request", "type: expected one of"),
    ({}, "bad_request", "type: expected one of"),
    ({"type": "authenticate"}, "bad_request", "authenticate: expected token, or user and password"),  # and the end
]


async def test_wrong_request_gets_an_error(web: SharedWeb) -> None:
    await create(web, "t")
    async with open_client(web) as client:
        for fields, code, message in WRONG:
            await client.connection.send(json.dumps({"id": 77, **fields}))
            error = await client.expect("error", 77)
            assert (error["code"], error["message"][: len(message)]) == (code, message), fields


NO_MESSAGES = [
    *("", "x", "5", "[]", "null", '"publish"', '{"type": "ping"}', '{"type": "ping", "id": 1'),
    *(f'{{"type": "ping", "id": {each}}}' for each in ('"1"', "-1", "1.0", "true", f"{2**53}", "9" * 4000, "NaN")),
    "[" * 100_000,
    '{"a":' * 100_000,
    '{"type": "\\ud800", "id": 1.5}',
]


async def test_text_that_is_no_message_gets_an_error_without_id(web: SharedWeb) -> None:
    async with open_client(web) as client:
        for text in NO_MESSAGES:
            await client.connection.send(text)
            error = await client.expect("error")
            assert (error["id"], error["code"]) == (None, "bad_request"), text[:50]
        await client.connection.send(b"x")
        assert (await client.expect("error"))["code"] == "unsupported", "binary messages need their subprotocol"


NO_BINARY_MESSAGES = [
    (b"", None, "expected a header of 16 bytes"),
    (bytes(15), None, "expected a header of 16 bytes"),
    (bytes(16), 0, "expected a message of the type 1"),
    (b"\x02" + bytes(15), 0, "expected a message of the type 1"),
    (b"\x01" + bytes(15), 0, "topic: expected a name"),
    (b"\x01\0\xff\xff" + bytes(12) + b"orders", 0, "topic: expected a name"),
    (b"\x01\0\0\x01" + bytes(11) + b"\x09\xff", 9, "topic: expected UTF-8"),
    (b"\x01\0\0\x01" + b"\xff" * 4 + bytes(7) + b"\x09t", 9, "log: expected the number of a log"),
    (b"\x01\0\0\x01" + bytes(4) + b"\xff" * 8 + b"t", None, "id: expected"),
]


async def test_binary_garbage_gets_an_error(web: SharedWeb, name: str) -> None:
    async with open_client(web, BINARY) as client:
        for data, identifier, message in NO_BINARY_MESSAGES:
            await client.connection.send(data)
            error = await client.expect("error")
            assert (error["id"], error["code"]) == (identifier, "bad_request")
            assert error["message"].startswith(f"binary publish: {message}")
        await client.connection.send(encode_publish(7, name, 0, b"garbage"))
        assert (await client.expect("error", 7))["code"] == "bad_request"


@pytest.mark.parametrize(("is_forwarded", "count_max"), [(False, 3), (True, 3 * FORWARDED_FACTOR)])
async def test_a_broker_has_the_subscriptions_of_many_clients(is_forwarded: bool, count_max: int) -> None:
    config = Config().with_http(subscriptions_max=3)
    request: Any = SimpleNamespace(web=None, broker=SimpleNamespace(config=config), is_forwarded=is_forwarded)
    connection: Any = SimpleNamespace(subprotocol=BINARY)
    session, task = Session(connection, request), cast(Any, None)
    for number in range(count_max):
        session._check_id(number)
        (session._watches if number % 2 else session._subscriptions)[number] = task
    with pytest.raises(WebError, match=f"at most {count_max} "):
        session._check_id(count_max)


async def test_a_subscription_can_end_while_its_records_are_read(
    web: SharedWeb, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = threading.Event()

    async def never_read(*_: object) -> None:
        reading.set()
        await trio.sleep_forever()

    async with open_client(web) as client:
        await client.publish(name, "a")
        with monkeypatch.context() as patch:
            patch.setattr(SharedReads, "read", never_read)
            identifier = await client.subscribe(name)
            await trio.to_thread.run_sync(reading.wait)
            await client.send("unsubscribe", id=identifier)
            await client.expect("unsubscribed", identifier)
        assert await client.publish(name, "b") == [{"log": 0, "offset": 1, "count": 1}]


# Handshakes: what is no WebSocket, comes from elsewhere or has no permission gets an HTTP response


UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY}


WRONG_HANDSHAKES: list[tuple[dict[str, str], int]] = [
    ({"Sec-WebSocket-Version": "8"}, 400),
    ({"Sec-WebSocket-Key": "short"}, 400),
    ({"Sec-WebSocket-Protocol": "chat"}, 400),
    ({"Origin": "https://example.com"}, 403),
    ({"Host": "example.com"}, 403),
    ({"Authorization": basic("ada", "wrong")}, 401),
]


async def test_handshake_that_is_wrong_is_refused(web: SharedWeb, tmp_path: Path) -> None:
    write_user_file(tmp_path / "users", ada=Permissions(read=("*",)))
    answer = await web.get("/ws")
    assert (answer.status, answer.headers["Upgrade"], answer.code) == (426, "websocket", "bad_request")
    async with open_web(config=Config().with_clients(users=str(tmp_path / "users"))) as with_users:
        for changes, expected in WRONG_HANDSHAKES:
            answer = await (with_users if expected == 401 else web).get("/ws", **{**UPGRADE, **changes})
            assert (answer.status, bool(answer.body)) == (expected, True), changes
    assert await web.is_alive()


async def test_subprotocol_is_chosen(web: SharedWeb) -> None:
    for offered, chosen in (
        ("", None),
        (JSON, JSON),
        (BINARY, BINARY),
        (f"{JSON}, {BINARY}", BINARY),
        (f"x, {JSON}", JSON),
    ):
        async with open_raw(web, *([f"Sec-WebSocket-Protocol: {offered}"] if offered else [])) as client:
            assert client.subprotocol == chosen


async def test_login_must_come_in_time(tmp_path: Path) -> None:
    """A client that has logged in before stays when the time of a later one is over, and when others want its place."""
    users = tmp_path / "users"
    write_user_file(users, ada=Permissions(write=("orders",)))
    config = Config().with_clients(users=str(users), login_ms=4000).with_http(connections_max=2)
    async with open_web(config=config) as web, open_client(web) as early:
        assert (await early.ask("authenticate", user="ada", password=PASSWORD))["type"] == "authenticated"
        async with open_client(web) as late:
            with trio.fail_after(DEADLINE_S):
                await late.connection.wait_closed()
            assert late.connection.close_code == 1008
        async with AsyncExitStack() as stack:
            for _ in range(3):
                silent = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", web.port))
            await silent.send_all(b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 401 " in await silent.receive_some()
        assert await early.publish("orders", "a") == [{"log": 0, "offset": 0, "count": 1}]
