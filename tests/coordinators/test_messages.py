"""Messages between brokers, and that late ones do no harm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import trio

from dafka.batches import check_crc, encode_batch
from dafka.broker import Service
from dafka.broker.appending import append_batches
from dafka.broker.post import WAITING_MAX, Post
from dafka.kafka.errors import ErrorCode
from dafka.kafka.topics import TopicPartition
from dafka.kafka.transactions import Producer
from tests.web.services import open_broker_service

DEADLINE_S = 60


class Network:
    """Posts of brokers, whose messages are delivered when the test says so."""

    def __init__(self, *addresses: str) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.received: list[tuple[str, str, Mapping[str, Any]]] = []
        self.posts = {address: self.make(address) for address in addresses}

    def make(self, address: str) -> Post:
        post = Post(address, lambda value: self.sent.append((address, value)))
        post.on("say", lambda sender, fields: self.received.append((address, sender, fields)))
        return post

    def deliver(self) -> None:
        while self.sent:
            sender, value = self.sent.pop(0)
            for address, post in self.posts.items():
                if address != sender:
                    post.receive(sender, value)


def test_messages_arrive_in_order_at_one_broker() -> None:
    network = Network("a", "b", "c")
    for number in range(3):
        network.posts["a"].send("b", "say", {"number": number})
    network.deliver()
    network.posts["a"].send("b", "say", {"number": 3})
    network.posts["b"].send("a", "say", {"number": 4})
    network.deliver()
    assert network.received == [
        *(("b", "a", {"number": number}) for number in range(4)),
        ("a", "b", {"number": 4}),
    ]


def test_messages_to_a_former_life_do_not_count() -> None:
    network = Network("a", "b")
    network.posts["a"].send("b", "say", {"number": 0})
    network.deliver()
    network.posts["a"].send("b", "say", {"number": 1})
    network.posts["b"] = network.make("b")
    network.posts["b"].introduce()
    network.deliver()
    network.posts["a"].send("b", "say", {"number": 2})
    network.deliver()
    assert [fields["number"] for _, _, fields in network.received] == [0, 2]


def test_messages_do_not_wait_without_limit() -> None:
    network = Network("a", "b")
    network.posts["a"].send("b", "say", {"number": -1})
    network.sent.clear()  # the question whether it lives is lost
    for number in range(WAITING_MAX + 10):
        network.posts["a"].send("b", "say", {"number": number})
    network.posts["b"].introduce()
    network.deliver()
    assert len(network.received) == WAITING_MAX


def test_what_cannot_be_read_is_discarded() -> None:
    network = Network("a")
    post = network.posts["a"]
    values = [
        None,
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"to":"a"}',
        b'{"to":"","life":1,"kind":"life","fields":{},"version":1}',
    ]
    for value in values:
        post.receive("b", value)
    assert post.discarded == len(values)
    post.receive("b", b'{"to":"a","life":1,"kind":"say","fields":{},"version":2}')
    post.receive("b", b'{"to":"c","life":1,"kind":"say","fields":{},"version":1}')
    assert (post.discarded, network.received) == (len(values), [])


async def begin_transaction(service: Service) -> Producer:
    """Let a producer begin a transaction with a record in a log."""
    await service.broker.create_topic("orders", 1).wait()
    result = await service.transactions.init_producer_id("payments", 60_000)
    log = service.broker.find_log("orders", 0)
    assert log is not None
    added = await service.transactions.add_partitions("payments", result.producer, [TopicPartition("orders", 0)])
    assert added is ErrorCode.NONE
    data = encode_batch(
        0,
        [b"record"],
        timestamps=1000,
        producer_id=result.producer.producer_id,
        producer_epoch=result.producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    await append_batches(service, log, [(check_crc(data), data)], "payments").wait_offset()
    return result.producer


async def test_messages_of_former_leaders_end_no_transaction() -> None:
    async with open_broker_service() as service:
        producer = await begin_transaction(service)
        log = service.broker.find_log("orders", 0)
        assert log is not None
        sent: list[dict[str, Any]] = []
        post: Any = service._post
        post.send = lambda _to, kind, fields: sent.append({"kind": kind, **fields})

        def end(slot_epoch: int, place_epoch: int, request: int) -> None:
            fields = {
                "slot": 3,
                "slot_epoch": slot_epoch,
                "producer": producer,
                "place": ("orders", "", 0),
                "place_epoch": place_epoch,
                "is_commit": True,
                "request": request,
            }
            message = {"version": 1, "to": service.broker.address, "life": service._post._life, "kind": "end"}
            service.broker.on_message("other", json.dumps({**message, "fields": fields}).encode())

        begin = {"slot": 3, "slot_epoch": 7, "producer": producer, "place": ("orders", "", 0), "place_epoch": 0}
        message = {"version": 1, "to": service.broker.address, "life": service._post._life, "kind": "begin"}
        service.broker.on_message("other", json.dumps({**message, "fields": begin}).encode())
        end(6, 0, 1)  # of the slot's former leader
        end(7, 1, 2)  # for another leader of the log
        await service.broker.wait_durable()
        assert (service.last_stable_offset(log), log.high_watermark) == (0, 1)
        end(7, 0, 3)
        with trio.fail_after(DEADLINE_S):
            while not sent:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert sent == [{"kind": "ended", "request": 3}]
        assert (service.last_stable_offset(log), log.high_watermark) == (2, 2)
