"""Connections to other brokers, and what is asked over them: publishes, offsets, and reads that are shared."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from websockets.exceptions import ConnectionClosedOK

from dafka import Config
from dafka.batches import check_crc, encode_batch
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.http.forwarding.broker_client import BrokerError
from dafka.http.forwarding.broker_link import BrokerLink, Reply
from dafka.http.forwarding.leaders import Leaders
from dafka.http.forwarding.remote_reads import KEPT_S, RemoteReads
from dafka.http.logs.log_access import ReadRecords
from dafka.http.server.connection import find_advertised_url
from dafka.http.server.errors import WebError
from dafka.http.websocket.binary import decode_publish, encode_records_head
from tests.http.forwarding.test_appends import B
from tests.http.running import make_log

# One connection: requests in order, replies to those that asked, and what its end means for each


BROKER: Any = SimpleNamespace(http_url="http://other:1", address="b")
WELCOME = {"type": "welcome", "needs_authentication": False}


@attrs.define(slots=False)
class Connection:
    """Stands for a WebSocket to a broker, and for the client that opens it."""

    sent: list[Any] = attrs.field(factory=list)
    can_send: trio.Event = attrs.field(factory=trio.Event)
    failure: Exception | None = None

    def __attrs_post_init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Any](100)
        self.can_send.set()

    @asynccontextmanager
    async def open_websocket(self, _broker: object) -> AsyncIterator[Connection]:
        if self.failure is not None:
            raise self.failure
        yield self

    async def recv(self) -> Any:
        try:
            message = await self._receive.receive()
        except trio.EndOfChannel:
            raise ConnectionClosedOK(None, None) from None
        return message if isinstance(message, bytes) else json.dumps(message)

    async def send(self, message: str | bytes) -> None:
        await self.can_send.wait()
        self.sent.append(message if isinstance(message, bytes) else json.loads(message))

    def answer(self, message: Any) -> None:
        self._send.send_nowait(message)

    def close(self) -> None:
        self._send.close()


@asynccontextmanager
async def open_link() -> AsyncIterator[tuple[BrokerLink, Connection]]:
    connection = Connection()
    client: Any = connection
    link = BrokerLink(client, BROKER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        connection.answer(WELCOME)
        yield link, connection
        nursery.cancel_scope.cancel()
    assert link.is_closed


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


def outcome(reply: Reply) -> object:
    """Return what a reply has: a value, the code of an error, or the reason why it does not come."""
    if not reply.arrived.is_set():
        return "waiting"
    try:
        return reply.result()
    except WebError as error:
        return error.code
    except BrokerError as error:
        return str(error)


async def test_each_publish_gets_its_own_reply() -> None:
    notified: list[int] = []
    async with open_link() as (link, connection):
        replies = [link.publish("orders", number, b"data", partial(notified.append, number)) for number in range(4)]
        assert not any(each.is_sent for each in replies)
        await settle()
        assert all(each.is_sent for each in replies)
        published = [decode_publish(each) for each in connection.sent]
        assert [(each.topic, each.log, bytes(each.batches)) for each in published] == [
            ("orders", number, b"data") for number in range(4)
        ]
        identifiers = [each.id for each in published]
        connection.answer({"type": "published", "id": identifiers[2], "offsets": [{"offset": 7}]})
        connection.answer({"type": "error", "id": identifiers[0], "code": "too_large", "message": "no"})
        connection.answer({"type": "error", "id": identifiers[1], "code": "of a later version", "message": "no"})
        connection.answer({"type": "published", "id": 999, "offsets": [{"offset": 1}]})
        await settle()
        assert [outcome(each) for each in replies] == ["too_large", "bad_request", 7, "waiting"]
        assert notified == [2, 0, 1]
        connection.close()
        await settle()
        assert outcome(replies[3]) == "has ended the connection"
        assert notified == [2, 0, 1, 3]
        late = link.publish("orders", 0, b"x", lambda: None)
        assert (outcome(late), late.is_sent) == ("has ended the connection", False)


async def test_what_was_withdrawn_before_it_was_sent_is_not_sent() -> None:
    async with open_link() as (link, connection):
        connection.can_send = trio.Event()
        first, second, third = (link.publish("orders", number, b"x", lambda: None) for number in range(3))
        await settle()
        assert [each.withdraw() for each in (first, second)] == [False, True], "the first one is being sent"
        connection.can_send.set()
        await settle()
        assert [decode_publish(each).log for each in connection.sent] == [0, 2]
        assert (first.is_sent, second.is_sent, third.is_sent) == (True, False, True)


async def note(found: list[Any], call: Awaitable[object]) -> None:
    """Note what a call returns, or why it fails."""
    try:
        found.append(await call)
    except BrokerError as error:
        found.append(str(error))


async def test_a_read_is_a_subscription_for_one_message() -> None:
    batch, found = encode_batch(5, [b"a", b"b"], timestamps=5), list[Any]()
    async with open_link() as (link, connection), trio.open_nursery() as nursery:
        nursery.start_soon(note, found, link.read("orders", 2, 5))
        await settle()
        (request,) = connection.sent
        identifier = request.pop("id")
        assert request == {"type": "subscribe", "topic": "orders", "logs": [2], "from": {"offset": 5}, "credit": 1}
        connection.answer({"type": "subscribed", "id": identifier, "logs": []})
        await settle()
        assert found == [], "the records have not come"
        connection.answer(encode_records_head(identifier, 2, 5, 7) + batch)
        await settle()
        assert (found[0].offset, found[0].next_offset, found[0].record_count) == (5, 7, 2)
        assert connection.sent[1:] == [{"type": "unsubscribe", "id": identifier}]
        nursery.start_soon(note, found, link.read("orders", 0, 0))
        await settle()
        connection.answer(encode_records_head(connection.sent[2]["id"], 0, 0, 1) + b"garbage")
        await settle()
        assert found[1].startswith("has sent damaged records")


async def test_offsets_are_asked_for_and_the_subscription_ends() -> None:
    found: list[Any] = []
    async with open_link() as (link, connection), trio.open_nursery() as nursery:
        nursery.start_soon(note, found, link.find_offset_by_time("orders", 1, 77))
        await settle()
        request = connection.sent[0]
        assert (request["from"], request["credit"], request["logs"]) == ({"time": 77}, 0, [1])
        connection.answer({"type": "subscribed", "id": request["id"], "logs": [{"offset": 9}]})
        await settle()
        nursery.start_soon(note, found, link.describe("orders"))
        await settle()
        assert [each["type"] for each in connection.sent] == ["subscribe", "unsubscribe", "describe"]
        bounds = {"start_offset": 1, "end_offset": 2, "high_watermark": 3, "offset_max": 4}
        connection.answer({"type": "described", "id": connection.sent[2]["id"], "logs": [{"log": 3, **bounds}]})
        await settle()
        assert (found[0], attrs.asdict(found[1][3])) == (9, bounds)
        with trio.move_on_after(0.01):
            await link.describe("orders")
        assert not link._replies, "nothing is kept of a request that was cancelled"


REASONS = [
    ({**WELCOME, "needs_authentication": True}, "does not accept this broker"),
    (b"x", "has sent a malformed message"),
    (b"\1" + bytes(60), "has sent a malformed message"),
    (BrokerError("refuses this broker"), "refuses this broker"),
    (OSError(111, "Connection refused"), "does not answer at http://other:1 (Connection refused)"),
    (trio.TooSlowError(), "does not answer at http://other:1 (too slow)"),
    (trio.BrokenResourceError("reset"), "does not answer at http://other:1 (reset)"),
    (None, "does not listen to HTTP"),
]


async def test_a_broker_that_is_not_reached_does_not_accept_this_one_or_sends_nonsense_is_left() -> None:
    for what, reason in REASONS:
        connection = Connection(failure=what if isinstance(what, Exception) else None)
        client: Any = connection
        broker: Any = BROKER if what else SimpleNamespace(http_url="", address="b")
        link = BrokerLink(client, broker)
        reply = link.publish("orders", 0, b"x", lambda: None)
        connection.answer(what if isinstance(what, (bytes, dict)) else WELCOME)
        await link.run()
        assert (str(outcome(reply))[: len(reason)], connection.sent, link.is_closed) == (reason, [], True)


# Reads are shared, and those that failed or are not used are forgotten


BATCH = encode_batch(0, [bytes(100)], timestamps=1)
RECORDS = ReadRecords(0, 1, [(check_crc(BATCH), BATCH)])


@attrs.define
class Leader:
    """Stands for the leader of a log. The last one of its replies comes again and again."""

    replies: list[ReadRecords | Exception]
    takes_s: float = 1
    asked: int = 0

    async def retry_on_leader_change(self, *_: object) -> list[ReadRecords]:
        await trio.sleep(self.takes_s)
        self.asked += 1
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return [reply]

    async def wait_leader_change(self, _log: object, wait_s: float) -> None:
        await trio.sleep(wait_s)


@asynccontextmanager
async def open_reads(*replies: ReadRecords | Exception) -> AsyncIterator[tuple[RemoteReads, Leader]]:
    leader = Leader([*replies])
    leaders: Any = leader
    async with trio.open_nursery() as nursery:
        start_soon: Any = nursery.start_soon
        reads = RemoteReads(leaders, start_soon)
        nursery.start_soon(reads.run)
        yield reads, leader
        nursery.cancel_scope.cancel()


async def test_a_read_is_shared_and_kept_while_it_is_used(autojump_clock: trio.testing.MockClock) -> None:
    log = make_log(leader=B)
    async with open_reads(BrokerError("is lost"), WebError("not_leader", "not yet"), RECORDS) as (reads, leader):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(reads.begin(log, 0).wait)
        assert leader.asked == 3, "what passes is asked for again"
        for _ in range(5):
            await trio.sleep(KEPT_S - 1)
            assert reads.has_records(log, 0)
            assert reads.begin(log, 0).records is RECORDS
        assert leader.asked == 3
        await trio.sleep(2 * KEPT_S)
        assert not reads.has_records(log, 0)
        leader.takes_s = 3 * KEPT_S
        await reads.begin(log, 0).wait()
        await trio.sleep(KEPT_S - 1)
        assert reads.has_records(log, 0), "others can want it, too"


async def test_a_read_that_failed_is_told_to_nobody_later(autojump_clock: trio.testing.MockClock) -> None:
    log = make_log(leader=B)
    async with open_reads(WebError("storage_failed", "the disk is broken"), RECORDS) as (reads, _):
        first, second = reads.begin(log, 0), reads.begin(log, 0)
        for each in (first, second):
            with pytest.raises(WebError, match="the disk is broken"):
                await each.wait()
        assert not reads.has_records(log, 0)
        later = reads.begin(log, 0)
        await later.wait()
        assert later.records is RECORDS


async def test_reads_that_are_kept_take_limited_memory(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(leader=B)
    async with open_reads(RECORDS) as (reads, _):
        await reads.begin(log, 0).wait()
        size = reads.begin(log, 0).size
        monkeypatch.setattr("dafka.http.forwarding.remote_reads.KEPT_BYTES", 2 * size)
        for offset in (1, 0, 2):  # the offset 0 is used again
            await reads.begin(log, offset).wait()
        assert [offset for offset in range(3) if reads.has_records(log, offset)] == [0, 2]


def test_brokers_are_reached_where_they_listen_unless_they_say_otherwise() -> None:
    for url, advertised, endpoint, expected in (
        ("http://127.0.0.1:80", "", "tcp://1.2.3.4:5", "http://127.0.0.1:80"),
        ("http://127.0.0.1:80", "https://a.example/", "tcp://1.2.3.4:5", "https://a.example"),
        ("https://0.0.0.0:80", "", "tcp://1.2.3.4:5", "https://1.2.3.4:80"),
        ("http://[::]:80", "", "tcp://1.2.3.4:5", "http://1.2.3.4:80"),
        ("http://0.0.0.0:80", "", "inproc://here", "http://0.0.0.0:80"),
    ):
        store = SimpleNamespace(endpoint=endpoint)
        broker = SimpleNamespace(
            config=Config().with_http(advertised_url=advertised), node=SimpleNamespace(store=store)
        )
        web: Any = SimpleNamespace(url=url, broker=broker)
        assert find_advertised_url(web) == expected


def test_the_connection_to_a_leader_is_used_until_it_ends_or_the_leader_listens_elsewhere() -> None:
    log, known, started = (
        make_log(leader=B),
        BrokerRegistration(address=B, number=1, http_url="http://one:1"),
        list[Any](),
    )
    node = SimpleNamespace(address="a" * 32, brokers=SimpleNamespace(find=lambda _address: known))
    broker: Any = SimpleNamespace(node=node)
    client: Any = None
    leaders = Leaders(broker, client, lambda run, *_: started.append(run))
    first = leaders.link(log)
    assert leaders.link(log) is first
    known = attrs.evolve(known, http_url="http://two:1")
    second = leaders.link(log)
    assert (second is first, second.broker.http_url) == (False, "http://two:1")
    second.is_closed = True
    assert leaders.link(log) not in (first, second)
    assert len(started) == 3
