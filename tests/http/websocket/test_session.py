"""Publishing, subscribing, committing and watching over WebSocket, with a client that is none of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from dafka.batches import decode_batch, encode_batch, iter_batches
from dafka.broker.core.positions import Offset
from dafka.http.websocket.binary import RECORDS_HEAD_BYTES, encode_publish
from tests.http.brokers import STORAGES
from tests.http.running import RunningWeb, open_web
from tests.http.websocket.clients import BINARY, Client, open_client


@pytest.fixture(params=STORAGES, ids=["memory", "sqlite", "filelog"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


async def create(web: RunningWeb, topic: str, log_count: int = 1) -> None:
    await web.broker.node.create_topic(topic, log_count).wait()


async def test_published_records_are_sent_to_subscribers(storage: str) -> None:
    async with open_web(storage) as web, open_client(web) as publisher, open_client(web, None) as subscriber:
        assert await publisher.publish("orders", "a", "b") == [{"log": 0, "offset": 0, "count": 2}]
        await subscriber.subscribe("orders")
        assert await subscriber.values(2) == ["a", "b"]
        assert await publisher.publish("orders", "c") == [{"log": 0, "offset": 2, "count": 1}]
        (record,) = await subscriber.take(1)
        assert (record["log"], record["offset"], record["value"]) == (0, 2, "c")


async def test_records_keep_key_headers_timestamp_and_bytes() -> None:
    async with open_web() as web, open_client(web) as client:
        record = {
            "key": "k",
            "value_base64": "/w==",
            "headers": [["h", "v"], ["b", {"base64": "/w=="}], ["n", None]],
            "timestamp": 5,
        }
        await client.ask("publish", topic="orders", records=[record, {"key": "k", "value": None, "timestamp": 6}])
        await client.subscribe("orders")
        assert await client.take(2) == [
            {"log": 0, "offset": 0, **record},
            {"log": 0, "offset": 1, "key": "k", "value": None, "timestamp": 6},
        ]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("earliest", ["0", "1", "2", "3", "new"]),
        ("latest", ["new"]),
        ({"offset": 2}, ["2", "3", "new"]),
        ({"offsets": {"0": 3}}, ["3", "new"]),
        ({"time": 1001}, ["1", "2", "3", "new"]),
        ({"time": "1970-01-01T00:00:01.002Z"}, ["2", "3", "new"]),
        ({"group": "g"}, ["1", "2", "3", "new"]),
        ({"group": "other", "otherwise": "latest"}, ["new"]),
    ],
)
async def test_subscription_begins_where_it_is_asked_to(position: Any, expected: list[str]) -> None:
    async with open_web() as web, open_client(web) as client:
        records = [{"value": f"{number}", "timestamp": 1000 + number} for number in range(4)]
        await client.ask("publish", topic="orders", records=records)
        assert (await client.ask("commit", group="g", topic="orders", offsets={"0": 1}))["type"] == "committed"
        identifier = await client.send("subscribe", topic="orders", from_=position, credit=100)
        answer = await client.expect("subscribed", identifier)
        assert answer["logs"] == [{"log": 0, "offset": 5 - len(expected), "start_offset": 0, "end_offset": 4}]
        async with open_client(web) as publisher:
            await publisher.publish("orders", "new")
        assert await client.values(len(expected)) == expected


async def test_several_subscriptions_on_one_connection() -> None:
    async with open_web() as web, open_client(web) as client, open_client(web) as publisher:
        await publisher.publish("first", "1")
        await publisher.publish("second", "2")
        first, second = await client.subscribe("first", id=10), await client.send("ping")
        assert (await client.expect("records", first))["records"][0]["value"] == "1"
        await client.expect("pong", second)
        second = await client.subscribe("second", id=20)
        assert await client.values(1, second) == ["2"]
        assert (await client.ask("unsubscribe", id=first))["type"] == "unsubscribed"
        await publisher.publish("first", "3")
        await publisher.publish("second", "4")
        assert await client.values(1, second) == ["4"]


async def test_chosen_logs_are_sent() -> None:
    async with open_web() as web, open_client(web) as client:
        await create(web, "orders", 3)
        for log in range(3):
            await client.publish("orders", f"{log}", log=log)
        await client.subscribe("orders", logs=[0, 2])
        assert {(each["log"], each["value"]) for each in await client.take(2)} == {(0, "0"), (2, "2")}


async def test_logs_that_a_topic_gets_later_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafka.http.websocket.client_tasks.REFRESH_S", 0.01)
    async with open_web() as web, open_client(web) as client, open_client(web) as publisher:
        await create(web, "orders")
        await client.subscribe("orders", "latest")
        await web.broker.node.change_topic("orders", log_count=2).wait()
        await publisher.publish("orders", "in the new log", log=1)
        assert await client.values(1) == ["in the new log"]


async def test_no_more_records_are_sent_than_there_is_credit() -> None:
    async with open_web() as web, open_client(web) as client:
        await client.publish("orders", *(f"{number}" for number in range(100)))
        identifier = await client.subscribe("orders", credit=0)
        assert (await client.ask("ping"))["type"] == "pong"
        await client.send("credit", id=identifier, records=3)
        assert await client.values(3) == ["0", "1", "2"]
        assert (await client.ask("ping"))["type"] == "pong"
        await client.send("credit", id=identifier, records=1)
        await client.send("credit", id=identifier, records=40)
        assert await client.values(41) == [f"{number}" for number in range(3, 44)]
        assert (await client.ask("ping"))["type"] == "pong"
        await client.send("credit", id=identifier, records=1000)
        message = await client.expect("records")
        assert (message["offset"], message["next_offset"], len(message["records"])) == (44, 100, 56)


async def test_credit_that_comes_while_a_part_is_sent_leaves_nothing_out() -> None:
    async with open_web() as web, open_client(web) as client, open_client(web) as publisher:
        for _ in range(4):
            await publisher.publish("orders", *["x"] * 2000)
        identifier = await client.subscribe("orders", credit=1)
        for _ in range(80):
            await client.send("credit", id=identifier, records=100)
        found: list[int] = []
        while len(found) < 8000:
            message = await client.expect("records")
            assert message["offset"] == len(found)
            found += [each["offset"] for each in message["records"]]
            assert message["next_offset"] == len(found)
        assert found == [*range(8000)]


async def test_resuming_leaves_nothing_out_and_repeats_nothing() -> None:
    async with open_web() as web:
        async with open_client(web) as client:
            await client.publish("orders", *(f"{number}" for number in range(10)))
            await client.subscribe("orders", credit=4)
            message = await client.expect("records")
            found = [each["value"] for each in message["records"]]
        async with open_client(web) as client:
            await client.subscribe("orders", {"offsets": {"0": message["next_offset"]}})
            assert found + await client.values(6) == [f"{number}" for number in range(10)]


async def test_dropped_records_show_as_a_step_of_offsets() -> None:
    async with open_web() as web, open_client(web) as client:
        await client.publish("orders", *(f"{number}" for number in range(10)))
        identifier = await client.subscribe("orders", credit=2)
        assert (await client.expect("records"))["next_offset"] == 2
        log = web.broker.node.log_table.find_log("orders", 0)
        assert log is not None
        await web.broker.node.deletion.delete_before(log, Offset(7))
        await client.send("credit", id=identifier, records=100)
        message = await client.expect("records")
        assert (message["offset"], message["next_offset"]) == (7, 10)


async def test_idempotent_records_are_appended_once(storage: str) -> None:
    async with open_web(storage) as web, open_client(web) as client:
        producer = await client.ask("init_producer")
        identity = {name: producer[name] for name in ("producer_id", "producer_epoch")}
        for _ in range(2):
            assert await client.publish("orders", "a", "b", base_sequence=0, **identity) == [
                {"log": 0, "offset": 0, "count": 2}
            ]
        await client.publish("orders", "c", base_sequence=2, **identity)
        answer = await client.ask("publish", topic="orders", records=[{"value": "e"}], base_sequence=4, **identity)
        assert answer["code"] == "conflict"
        await client.subscribe("orders")
        assert await client.values(3) == ["a", "b", "c"]


async def test_publishes_are_answered_in_order() -> None:
    async with open_web() as web, open_client(web) as client:
        for number in range(300):
            await client.send("publish", id=number, topic="orders", records=[{"value": f"{number}"}])
        for number in range(300):
            answer = await client.expect("published", number)
            assert answer["offsets"] == [{"log": 0, "offset": number, "count": 1}]


async def test_committed_offsets_are_those_of_kafkas_group() -> None:
    async with open_web() as web, open_client(web) as client:
        await client.publish("orders", "a", "b", "c")
        assert (await client.ask("commit", group="g", topic="orders", offsets={"0": 2}))["type"] == "committed"
        found = await web.broker.broker.groups.fetch_offsets("g")
        assert [each.offset for each in found.values()] == [2]
        answer = await client.ask("commit", group="g", topic="orders", offsets={"5": 2})
        assert answer["code"] == "log_not_found"


async def test_watched_resource_is_sent_when_it_changes() -> None:
    async with open_web() as web, open_client(web) as client:
        await create(web, "orders")
        watch = await client.send("watch", path="/topics?prefix=ord", interval_ms=500)
        view = await client.expect("view", watch)
        assert (view["status"], view["body"]["topics"][0]["end_offset"]) == (200, 0)
        async with open_client(web) as publisher:
            await publisher.publish("orders", "a")
        view = await client.expect("view", watch)
        assert view["body"]["topics"][0]["end_offset"] == 1
        assert (await client.ask("unwatch", id=watch))["type"] == "unwatched"


async def test_watched_resource_that_does_not_exist_has_a_status() -> None:
    async with open_web() as web, open_client(web) as client:
        view = await client.ask("watch", path="/topics/none", interval_ms=500)
        assert (view["type"], view["status"], view["body"]["error"]["code"]) == ("view", 404, "topic_not_found")


async def test_topic_that_is_deleted_ends_its_subscriptions() -> None:
    async with open_web() as web, open_client(web) as client:
        await client.publish("orders", "a")
        reading = await client.subscribe("orders", "latest")
        waiting = await client.subscribe("orders", "earliest", credit=0)
        await web.broker.node.delete_topic("orders")
        ended = {(await client.expect("error"))["id"] for _ in range(1)}
        await client.send("credit", id=waiting, records=1)
        error = await client.expect("error")
        assert error["code"] == "topic_not_found"
        assert ended | {error["id"]} == {reading, waiting}
        await client.publish("orders", "b")
        await client.subscribe("orders", id=reading)
        assert await client.values(1) == ["b"]


async def test_records_of_large_messages_come_in_several() -> None:
    async with open_web() as web, open_client(web) as client:
        values = [f"{number:05}" * 2000 for number in range(60)]
        await client.publish("orders", *values)
        await client.subscribe("orders")
        sizes = []
        found: list[str] = []
        while len(found) < len(values):
            message = await client.expect("records")
            sizes.append(len(message["records"]))
            found += [each["value"] for each in message["records"]]
        assert found == values
        assert 3 <= len(sizes) <= 20


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_compression_changes_nothing(compression: str | None) -> None:
    async with open_web() as web, open_client(web, compression=compression) as client:
        values = [f"value {number} " * (1 + number % 60) for number in range(2000)]
        await client.publish("orders", *values)
        await client.subscribe("orders", credit=10_000)
        assert await client.values(2000) == values


# Binary


async def test_record_batches_are_published_and_sent_as_they_are(storage: str) -> None:
    async with open_web(storage) as web, open_client(web, BINARY) as client:
        batch = encode_batch(0, [b"a", b"\xff"], keys=[b"k", None], timestamps=[5, 6], headers=[[("h", b"v")], []])
        await client.connection.send(encode_publish(7, "orders", 0, batch))
        assert await client.expect("published", 7) == {
            "type": "published",
            "id": 7,
            "offsets": [{"log": 0, "offset": 0, "count": 2}],
        }
        identifier = await client.subscribe("orders")
        message = await client.receive()
        assert message[:RECORDS_HEAD_BYTES] == (
            b"\x02\0\0\0" + bytes(4) + identifier.to_bytes(8, "big") + bytes(8) + (2).to_bytes(8, "big")
        )
        assert decode_batch(message[RECORDS_HEAD_BYTES:], bytes_max=2**20).values == [b"a", b"\xff"]


async def test_a_batch_is_never_cut() -> None:
    async with open_web() as web, open_client(web, BINARY) as client:
        for _ in range(2):
            batch = encode_batch(0, [b"a"] * 10, timestamps=5)
            await client.connection.send(encode_publish(7, "orders", 0, batch))
            await client.expect("published")
        identifier = await client.subscribe("orders", credit=1)
        message = await client.receive()
        count = sum(header.count for _, header in iter_batches(message[RECORDS_HEAD_BYTES:]))
        assert count in {10, 20}
        assert (await client.ask("ping"))["type"] == "pong"
        if count == 10:
            await client.send("credit", id=identifier, records=9)
            assert (await client.ask("ping"))["type"] == "pong"
            await client.send("credit", id=identifier, records=1)
            assert isinstance(await client.receive(), bytes)


async def test_text_publishes_are_accepted_beside_binary_ones() -> None:
    async with open_web() as web, open_client(web, BINARY) as client:
        assert await client.publish("orders", "a") == [{"log": 0, "offset": 0, "count": 1}]


# What clients do wrong


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"type": "publish", "topic": "t"}, "bad_request", "publish: object missing required field"),
        ({"type": "publish", "topic": "t", "records": []}, "bad_request", "records: expected a list of at least"),
        ({"type": "publish", "topic": "t", "records": [{}]}, "bad_request", "records[0]: expected value"),
        (
            {"type": "publish", "topic": "", "records": [{"value": "a"}]},
            "bad_request",
            "publish.topic: expected `str` of",
        ),
        ({"type": "publish", "topic": "$logs", "records": [{"value": "a"}]}, "bad_request", ""),
        ({"type": "publish", "topic": "t", "records": [{"value": "a"}], "log": 1}, "log_not_found", ""),
        ({"type": "publish", "topic": "t", "records": [{"value": "a"}], "log": -1}, "bad_request", "publish.log: "),
        (
            {"type": "publish", "topic": "t", "records": [{"value": "a"}], "x": 1},
            "bad_request",
            "publish: object contains unknown",
        ),
        (
            {"type": "publish", "topic": "t", "records": [{"value": "a"}], "producer_id": 1},
            "bad_request",
            "publish: producer_id needs",
        ),
        ({"type": "subscribe", "topic": "none", "from": "earliest", "credit": 1}, "topic_not_found", ""),
        ({"type": "subscribe", "topic": "t", "from": "first", "credit": 1}, "bad_request", "from: expected"),
        ({"type": "subscribe", "topic": "t", "from": "earliest", "credit": -1}, "bad_request", "subscribe.credit: "),
        ({"type": "subscribe", "topic": "t", "from": "earliest", "credit": 1.5}, "bad_request", "subscribe.credit: "),
        ({"type": "subscribe", "topic": "t", "from": {"offset": 99}, "credit": 1}, "offset_out_of_range", ""),
        ({"type": "subscribe", "topic": "t", "from": "earliest", "credit": 1, "logs": []}, "bad_request", ""),
        ({"type": "subscribe", "topic": "t", "from": "earliest", "credit": 1, "logs": [7]}, "log_not_found", ""),
        ({"type": "credit", "records": 0}, "bad_request", "credit.records: expected `int` >= 1"),
        ({"type": "commit", "group": "g", "topic": "t", "offsets": {}}, "bad_request", "commit.offsets: "),
        ({"type": "commit", "group": "g", "topic": "t", "offsets": {"0": "1"}}, "bad_request", "offsets: expected"),
        (
            {"type": "watch", "path": "/topics", "interval_ms": 499},
            "bad_request",
            "watch.interval_ms: expected `int`",
        ),
        ({"type": "describe", "topic": "none"}, "topic_not_found", "there is no topic 'none'"),
        ({"type": "authenticate"}, "bad_request", "authenticate: expected token, or user and password"),
        ({"type": "nothing"}, "bad_request", "type: expected one of authenticate, publish"),
        ({"type": 5}, "bad_request", "type: expected one of"),
        ({"type": None}, "bad_request", "type: expected one of"),
        ({"type": []}, "bad_request", "type: expected one of"),
        ({}, "bad_request", "type: expected one of"),
    ],
)
async def test_wrong_request_gets_an_error(fields: dict[str, Any], code: str, message: str) -> None:
    async with open_web() as web, open_client(web) as client:
        await create(web, "t")
        await client.connection.send(json.dumps({"id": 77, **fields}))
        error = await client.expect("error", 77)
        assert error["code"] == code
        assert error["message"].startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "5",
        "[]",
        "null",
        '"publish"',
        '{"type": "ping"}',
        '{"type": "ping", "id": "1"}',
        '{"type": "ping", "id": -1}',
        '{"type": "ping", "id": 1.0}',
        '{"type": "ping", "id": true}',
        '{"type": "ping", "id": 9007199254740992}',
        '{"type": "ping", "id": ' + "9" * 4000 + "}",
        '{"type": "ping", "id": NaN}',
        '{"type": "ping", "id": 1',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"type": "\\ud800", "id": 1.5}',
    ],
)
async def test_text_that_is_no_message_gets_an_error_without_id(text: str) -> None:
    async with open_web() as web, open_client(web) as client:
        await client.connection.send(text)
        error = await client.expect("error")
        assert (error["id"], error["code"]) == (None, "bad_request")
        assert (await client.ask("ping"))["type"] == "pong"


@pytest.mark.parametrize(
    ("data", "identifier", "message"),
    [
        (b"", None, "expected a header of 16 bytes"),
        (bytes(15), None, "expected a header of 16 bytes"),
        (bytes(16), 0, "expected a message of the type 1"),
        (b"\x02" + bytes(15), 0, "expected a message of the type 1"),
        (b"\x01" + bytes(15), 0, "topic: expected a name"),
        (b"\x01\0\xff\xff" + bytes(12) + b"orders", 0, "topic: expected a name"),
        (b"\x01\0\0\x01" + bytes(11) + b"\x09\xff", 9, "topic: expected UTF-8"),
        (b"\x01\0\0\x01" + b"\xff" * 4 + bytes(7) + b"\x09t", 9, "log: expected the number of a log"),
        (b"\x01\0\0\x01" + bytes(4) + b"\xff" * 8 + b"t", None, "id: expected"),
    ],
)
async def test_binary_garbage_gets_an_error(data: bytes, identifier: int | None, message: str) -> None:
    async with open_web() as web, open_client(web, BINARY) as client:
        await client.connection.send(data)
        error = await client.expect("error")
        assert (error["id"], error["code"]) == (identifier, "bad_request")
        assert error["message"].startswith(f"binary publish: {message}")


async def test_garbage_instead_of_batches_is_refused() -> None:
    async with open_web() as web, open_client(web, BINARY) as client:
        for batches in (b"", b"garbage", bytes(100), encode_batch(0, [b"a"], timestamps=5)[:-1] + b"b"):
            await client.connection.send(encode_publish(7, "orders", 0, batches))
            assert (await client.expect("error", 7))["code"] == "bad_request"
        log = web.broker.node.log_table.find_log("orders", 0)
        assert log is not None
        assert log.high_watermark == 0


async def test_binary_message_needs_its_subprotocol() -> None:
    async with open_web() as web, open_client(web) as client:
        await client.connection.send(b"x")
        assert (await client.expect("error"))["code"] == "unsupported"


async def test_id_of_a_subscription_cannot_be_used_twice() -> None:
    async with open_web() as web, open_client(web) as client:
        await create(web, "orders")
        await client.subscribe("orders", id=5)
        answer = await client.ask("subscribe", topic="orders", from_="earliest", credit=1, id=5)
        assert (answer["type"], answer["code"]) == ("error", "conflict")
        assert (await client.ask("watch", path="/topics", interval_ms=500, id=5))["code"] == "conflict"
        await client.ask("unsubscribe", id=5)
        await client.subscribe("orders", id=5)


async def test_subscriptions_are_limited() -> None:
    async with open_web(config=None) as web, open_client(web) as client:
        await create(web, "orders")
        count_max = client.welcome["subscriptions_max"]
        for number in range(count_max):
            await client.subscribe("orders", id=number)
        answer = await client.ask("subscribe", topic="orders", from_="earliest", credit=1, id=count_max)
        assert answer["code"] == "too_many_requests"
        await client.ask("unsubscribe", id=0)
        await client.subscribe("orders", id=count_max)


async def test_credit_for_no_subscription_is_ignored() -> None:
    async with open_web() as web, open_client(web) as client:
        await client.send("credit", id=5, records=1)
        assert (await client.ask("unsubscribe", id=5))["type"] == "unsubscribed"
        assert (await client.ask("unwatch", id=6))["type"] == "unwatched"


async def test_unsubscribing_is_answered_behind_the_last_records() -> None:
    async with open_web() as web, open_client(web) as client, open_client(web) as publisher:
        await publisher.publish("orders", *(f"{number}" for number in range(1000)))
        identifier = await client.send("subscribe", topic="orders", from_="earliest", credit=100_000)
        await client.send("unsubscribe", id=identifier)
        kinds = [(await client.receive())["type"]]
        while kinds[-1] != "unsubscribed":
            kinds.append((await client.receive())["type"])
        await publisher.publish("orders", "late")
        assert (await client.ask("ping"))["type"] == "pong"


async def test_other_clients_are_served_while_one_does_not_read() -> None:
    async with open_web() as web, open_client(web) as publisher, open_client(web) as slow, open_client(web) as quick:
        await create(web, "orders")
        await slow.send("subscribe", topic="orders", from_="earliest", credit=10**9)
        await quick.subscribe("orders", credit=10**9)
        found: list[str] = []
        for number in range(40):
            await publisher.publish("orders", *[f"{number}" * 1000] * 100)
            found += await quick.values(100)
        assert len(found) == 4000
        await slow.expect("subscribed")
        with trio.fail_after(30):
            assert await _take_all(slow, 4000) == found


async def _take_all(client: Client, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found += [each["value"] for each in (await client.expect("records"))["records"]]
    return found
