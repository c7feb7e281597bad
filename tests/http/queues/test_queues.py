"""Queues over HTTP, as clients see them."""

from __future__ import annotations

import json
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, call

import pytest
import trio

from dafka import steady_clock
from dafka.broker.core.groups.share.share_partition import Acknowledgement, AcknowledgeType
from dafka.broker.core.metadata.features import DEAD_LETTERS, SHARE_GROUPS
from dafka.broker.core.metadata.group_settings import DEAD_LETTER_TOPIC
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.log.compaction import LogPolicy
from dafka.http.api.queues import NewQueue, create_queue
from dafka.http.queues import queue_access
from dafka.http.queues.local_queues import find_missing
from dafka.http.server.errors import WebError
from tests.http.api.test_brokers import make_request
from tests.http.queues.clients import HOUR_MS, Queue, counts, offsets
from tests.http.running import DEADLINE_S, Answer, SharedWeb, outcome
from tests.waiting import wait_until

RECEIVE = "/topics/{topic}/queues/{queue}/receive"


def test_each_record_is_locked_for_one_client_until_it_is_acknowledged(web: SharedWeb) -> None:
    queue = Queue.make(web)
    queue.publish(*"abcdef")
    assert queue.describe() == (6, 0)
    one, first = queue.receive(4)
    two, second = queue.receive(4)
    assert (offsets(first), offsets(second), queue.receive()[1]) == ([0, 1, 2, 3], [4, 5], [])
    assert first[0] == {**first[0], "log": 0, "value": "a", "delivery_count": 1}
    assert queue.describe() == (0, 6)
    assert queue.acknowledge(one, (0, 0, "accept"), (1, 1, "release"), (2, 2, "reject"), (3, 3, "renew")) == []
    again, third = queue.receive()
    assert counts(third) == {1: 2}
    assert queue.acknowledge(one, (0, 3, "accept"), (4, 4, "accept")) == [(0, 2, "lock_lost"), (4, 4, "lock_lost")]
    assert queue.acknowledge(again, (1, 1, "accept")) == []
    assert queue.acknowledge(two, others="accept") == []
    assert queue.acknowledge(two, (5, 9, "accept"), others="release") == [(5, 9, "lock_lost")]
    assert queue.describe() == (0, 0)
    assert queue.web.ask("GET", queue.path).document["logs"][0]["start_offset"] == 6


LARGE = {
    "value": {"value": "x" * 1000},
    "key": {"value": "x", "key": "x" * 1000},
    "headers": {"value": "x", "headers": [["x" * 500, "x" * 500]]},
}


@pytest.mark.parametrize("part", LARGE)
def test_a_client_takes_no_more_than_it_wants(web: SharedWeb, part: str) -> None:
    queue = Queue.make(web)
    body = b"\n".join([json.dumps(LARGE[part]).encode()] * 9)
    web.ask("POST", f"/topics/{queue.topic}/records", body, Content_Type="application/x-ndjson")
    _, first = queue.receive(bytes_max=2500)
    assert offsets(first) == [0, 1, 2]
    _, second = queue.receive(bytes_max=1)
    assert counts(second) == {3: 1}
    _, third = queue.receive(2)
    assert offsets(third) == [4, 5]
    assert counts(queue.receive()[1]) == {6: 1, 7: 1, 8: 1}


def test_records_come_again_when_their_locks_expire_up_to_a_number_of_deliveries(web: SharedWeb) -> None:
    queue = Queue.make(web, lock_ms="1000")
    assert queue.create(settings={"share.delivery.count.limit": "2"}).status == 200
    queue.publish("a", "b")
    one, first = queue.receive(wait_ms=60_000)
    assert counts(first) == {0: 1, 1: 1}
    _, second = queue.receive(wait_ms=60_000)
    assert counts(second) == {0: 2, 1: 2}
    assert queue.acknowledge(one, (0, 1, "accept")) == [(0, 1, "lock_lost")]
    queue.publish("c")
    _, third = queue.receive(wait_ms=60_000)
    assert counts(third) == {2: 1}


def test_a_lock_that_is_renewed_does_not_expire(web: SharedWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, passed_ms = Queue.make(web), 0
    for module in ("share_partitions", "share_reads"):  # all locks last for an hour: only this clock ends them
        monkeypatch.setattr(
            f"dafka.broker.coordinator.{module}.steady_now_ms", lambda: steady_clock.steady_now_ms() + passed_ms
        )
    queue.publish("a")
    receipt, _ = queue.receive()
    for _ in range(4):
        passed_ms += int(HOUR_MS) // 2
        assert queue.receive()[1] == []
        assert queue.acknowledge(receipt, (0, 0, "renew")) == []
    passed_ms += int(HOUR_MS) // 2
    assert queue.acknowledge(receipt, (0, 0, "accept")) == []


def test_records_that_cannot_be_sent_are_released(web: SharedWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, failure = Queue.make(web), WebError("storage_failed", "they are damaged")
    queue.publish("a", "b")
    with monkeypatch.context() as patch:
        patch.setattr("dafka.http.api.queues.encode_locked", AsyncMock(side_effect=failure))
        assert web.ask("POST", f"{queue.path}/receive", document={}).code == "storage_failed"
    queue.wait_state(2, 0)


def test_a_group_can_forbid_to_renew_locks(web: SharedWeb) -> None:
    queue = Queue.make(web)
    assert queue.create(settings={"share.renew.acknowledge.enable": "false"}).status == 200
    said = {"receipt": "r", "acknowledgements": [{"log": 0, "offset": 0, "type": "renew"}]}
    for document in (said, {"receipt": "r", "others": "renew"}):
        assert web.ask("POST", f"{queue.path}/acknowledge", document=document).code == "conflict"


def test_compacted_records_are_not_delivered_and_keep_no_lock(web: SharedWeb) -> None:
    queue = Queue.make(web, cleanup_policy="compact")
    body = b"\n".join(b'{"key": "%d", "value": "x"}' % key for key in (1, 2, 1, 3, 1))
    web.ask("POST", f"/topics/{queue.topic}/records", body, Content_Type="application/x-ndjson")
    log = web.broker.node.find_log(queue.topic, 0)
    web.call(web.server.broker._compaction.compact_log, log, LogPolicy(dirty_ratio=0))
    one, first = queue.receive(1)
    assert counts(first) == {1: 1}
    two, second = queue.receive()
    assert counts(second) == {3: 1, 4: 1}
    assert queue.describe() == (0, 3)
    assert queue.acknowledge(one, (0, 3, "accept")) == [(0, 0, "lock_lost"), (2, 3, "lock_lost")]
    assert queue.acknowledge(two, others="accept") == []
    assert queue.web.ask("GET", queue.path).document["logs"][0]["start_offset"] == 5


async def test_a_client_waits_for_records_and_may_go_away(web: SharedWeb) -> None:
    queue = Queue.make(web)
    answers: list[Answer] = []

    async def receive() -> None:
        document = {"records_max": 5, "wait_ms": 60_000}
        answers.append(await web.request("POST", f"{queue.path}/receive", document=document))

    with trio.fail_after(DEADLINE_S):
        body = b'{"wait_ms": 60000}'
        head = f"POST {queue.path}/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        counters, quotas = web.server.counters, web.server.quotas
        await wait_until(lambda: not len(quotas))
        before = counters.requests["POST", RECEIVE]
        gone = await trio.open_tcp_stream("127.0.0.1", web.port)
        await gone.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await wait_until(lambda: counters.requests["POST", RECEIVE] > before)
        await gone.aclose()
        await wait_until(lambda: not len(quotas))  # the broker has noticed it
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.to_thread.run_sync(queue.publish, "a", "b")
    (answer,) = answers
    assert counts(answer.document["records"]) == {0: 1, 1: 1}


@pytest.mark.parametrize(
    ("path", "document", "code"),
    [
        ("/receive", {"records_max": 0}, "bad_request"),
        ("/receive", {"wait_ms": 60_001}, "bad_request"),
        ("/receive", {"bytes_max": -1}, "bad_request"),
        ("/acknowledge", {}, "bad_request"),
        ("/acknowledge", {"receipt": ""}, "bad_request"),
        ("/acknowledge", {"receipt": "x", "others": "gap"}, "bad_request"),
        (
            "/acknowledge",
            {"receipt": "x", "acknowledgements": [{"log": 0, "offset": 1, "type": "none"}]},
            "bad_request",
        ),
        (
            "/acknowledge",
            {"receipt": "x", "acknowledgements": [{"log": 0, "offset": 1, "last": 0, "type": "accept"}]},
            "bad_request",
        ),
        (
            "/acknowledge",
            {"receipt": "x", "acknowledgements": [{"log": 0, "offset": each, "type": "accept"} for each in (1, 1)]},
            "bad_request",
        ),
        (
            "/acknowledge",
            {"receipt": "x", "acknowledgements": [{"log": 7, "offset": 1, "type": "accept"}]},
            "log_not_found",
        ),
    ],
)
def test_requests_that_make_no_sense_are_refused(web: SharedWeb, path: str, document: Any, code: str) -> None:
    queue = Queue.make(web)
    answer = web.ask("POST", f"{queue.path}{path}", document=document)
    assert answer.code == code, answer.body
    assert queue.receive()[1] == []


def test_a_queue_is_a_share_group_that_exists(web: SharedWeb) -> None:
    queue = Queue.make(web)
    absent = f"/topics/{queue.topic}/queues/absent-{queue.topic}"
    for method, path, document in (("POST", "/receive", {}), ("GET", "", None)):
        answer = web.ask(method, absent + path, document=document)
        assert (answer.status, answer.code) == (404, "group_not_found")
    assert web.ask("POST", "/topics/absent/queues/x/receive", document={}).code == "topic_not_found"
    web.ask("PUT", f"/groups/absent-{queue.topic}/offsets", document={"topic": queue.topic, "to": "latest"})
    assert web.ask("PUT", absent, document={}).code == "conflict"
    unknown = web.ask("PUT", queue.path, document={"settings": {"share.none": "1"}})
    assert (unknown.code, "share.none" in unknown.document["error"]["message"]) == ("bad_request", True)
    assert web.ask("PUT", queue.path, document={"settings": {"share.delivery.count.limit": "0"}}).code == "bad_request"
    queue.publish("a")
    assert queue.create(**{"from": "latest"}).document["available_count"] == 1  # it has begun, and stays where it is
    late = f"/topics/{queue.topic}/queues/late-{queue.topic}"
    assert web.ask("PUT", late, document={"from": {"offset": 1}}).document["available_count"] == 0
    assert web.ask("DELETE", f"/groups/late-{queue.topic}").status == 204
    with_records = web.ask("POST", f"{late}/receive", document={"wait_ms": 60_000})
    assert with_records.code == "group_not_found"


def test_a_queue_begins_where_its_settings_say(web: SharedWeb) -> None:
    queue = Queue.make(web)
    body = b'{"value": "old", "timestamp": 1}\n{"value": "new"}'
    web.ask("POST", f"/topics/{queue.topic}/records", body, Content_Type="application/x-ndjson")
    for number, (reset, expected) in enumerate({None: 0, "latest": 0, "by_duration:PT10H": 1, "earliest": 2}.items()):
        document = {"settings": {"share.auto.offset.reset": reset}}
        answer = web.ask("PUT", f"{queue.path}-{number}", document=document)
        assert answer.document["available_count"] == expected, reset


async def test_a_queue_needs_the_feature_level_of_what_it_uses() -> None:
    dead, cases = {DEAD_LETTER_TOPIC: "dead"}, list[tuple[int, Any, str | None]]()
    cases += [(SHARE_GROUPS - 1, {}, "conflict"), (SHARE_GROUPS, {}, None)]
    cases += [(DEAD_LETTERS - 1, dead, "conflict"), (DEAD_LETTERS - 1, dict.fromkeys(dead), None)]
    cases += [(DEAD_LETTERS, dead, None)]
    for level, settings, code in cases:
        request = make_request(["up"], [LeaderAndIsr("")], arguments={"topic": "orders", "queue": "workers"})
        request.is_forwarded, request.groups = True, SimpleNamespace(create_queue=AsyncMock())
        request.broker.node.tables.state = SimpleNamespace(members=SimpleNamespace(feature_level=level))
        found = await outcome(create_queue(request, NewQueue({"offsets": {"0": 5}}, settings)))
        assert (found if isinstance(found, str) else None) == code, (level, settings)
        created = [call(queue_access.Queue("workers", "orders"), {0: 5})]
        assert request.groups.create_queue.await_args_list == ([] if code else created)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_refused_is_what_was_asked_and_not_found(seed: int) -> None:
    draw = Random(seed)
    asked, found = [
        [Acknowledgement(first, end, AcknowledgeType.ACCEPT) for first, end in zip(cuts[::2], cuts[1::2], strict=True)]
        for cuts in (sorted(draw.sample(range(40), 2 * draw.randint(0, 6))) for _ in range(2))
    ]
    missing = [offset for first, end in find_missing(asked, found) for offset in range(first, end)]
    had = {offset for first, end, _ in found for offset in range(first, end)}
    assert missing == [offset for first, end, _ in asked for offset in range(first, end) if offset not in had]
