"""Messages between brokers, and that late ones do no harm."""

from __future__ import annotations

import json
import random
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest
import trio

from dafka.batches import check_crc, encode_batch
from dafka.broker.broker import Broker
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.interbroker.messenger import WAITING_MAX, BrokerMessenger, Message
from tests.http.brokers import open_broker_service
from tests.spoiled import spoil_fields

DEADLINE_S = 60


@attrs.frozen
class Say(Message):
    """A message of these tests."""

    KIND = "say"
    number: int


class Network:
    """Posts of brokers, whose messages are delivered when the test says so."""

    def __init__(self, *addresses: str) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.received: list[tuple[str, str, Say]] = []
        self.posts = {address: self.make(address) for address in addresses}

    def make(self, address: str) -> BrokerMessenger:
        messenger = BrokerMessenger(address, lambda value: self.sent.append((address, value)))
        messenger.on(Say, lambda sender, message: self.received.append((address, sender, message)))
        return messenger

    def deliver(self) -> None:
        while self.sent:
            sender, value = self.sent.pop(0)
            for address, messenger in self.posts.items():
                if address != sender:
                    messenger.receive(sender, value)


def test_messages_arrive_in_order_at_one_broker() -> None:
    network = Network("a", "b", "c")
    for number in range(3):
        network.posts["a"].send("b", Say(number))
    network.deliver()
    network.posts["a"].send("b", Say(3))
    network.posts["b"].send("a", Say(4))
    network.deliver()
    assert network.received == [
        *(("b", "a", Say(number)) for number in range(4)),
        ("a", "b", Say(4)),
    ]


def test_messages_to_a_former_life_do_not_count() -> None:
    network = Network("a", "b")
    network.posts["a"].send("b", Say(0))
    network.deliver()
    network.posts["a"].send("b", Say(1))
    network.posts["b"] = network.make("b")
    network.posts["b"].introduce()
    network.deliver()
    network.posts["a"].send("b", Say(2))
    network.deliver()
    assert [message.number for _, _, message in network.received] == [0, 2]


def test_messages_do_not_wait_without_limit() -> None:
    network = Network("a", "b")
    network.posts["a"].send("b", Say(-1))
    network.sent.clear()  # the question whether it lives is lost
    for number in range(WAITING_MAX + 10):
        network.posts["a"].send("b", Say(number))
    network.posts["b"].introduce()
    network.deliver()
    assert len(network.received) == WAITING_MAX


def test_what_cannot_be_read_is_discarded() -> None:
    network = Network("a")
    messenger = network.posts["a"]
    values = [
        None,
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"to":"a"}',
        b'{"to":"","incarnation":1,"kind":"incarnation","fields":{},"version":1}',
        b"[" * 100_000,
    ]
    for value in values:
        messenger.receive("b", value)
    assert messenger.discarded == len(values)
    messenger.receive("b", b'{"to":"a","incarnation":1,"kind":"say","fields":{},"version":2}')
    messenger.receive("b", b'{"to":"c","incarnation":1,"kind":"say","fields":{},"version":1}')
    assert (messenger.discarded, network.received) == (len(values), [])


def test_mistakes_of_a_handler_are_not_taken_for_malformed_messages() -> None:
    network = Network("a", "b")
    network.posts["a"].on(Say, lambda _sender, message: print([][message.number]))
    network.posts["b"].send("a", Say(0))
    with pytest.raises(IndexError):
        network.deliver()
    assert network.posts["a"].discarded == 0


async def test_every_kind_of_message_with_a_wrong_or_missing_field_is_refused() -> None:
    async with open_broker_service() as broker:
        messenger = broker.node.messenger
        received: list[Message] = []
        tried = 0
        for kind, (message, _) in list(messenger._handlers.items()):
            messenger._handlers[kind] = message, lambda _sender, each: received.append(each)
            sample = {
                "version": 1,
                "to": "",
                "incarnation": messenger._incarnation,
                "kind": kind,
                "fields": make_sample(message),
            }
            messenger.receive("other", json.dumps(sample).encode())
            for wrong in spoil_fields(sample):
                is_other = isinstance(wrong.get("kind"), str) and wrong["kind"] != kind
                if is_other or (kind.startswith("incarnation") and wrong.get("incarnation") != messenger._incarnation):
                    continue  # an unknown kind is of a newer version; these two are for any life
                before = messenger.discarded
                messenger.receive("other", json.dumps(wrong).encode())
                assert messenger.discarded == before + 1, wrong
                tried += 1
        assert [each.KIND for each in received] == list(messenger._handlers)
        assert tried > 100


def make_sample(kind: Any) -> Any:
    """Return what JSON has of some value of a type."""
    if attrs.has(kind):
        return {name: make_sample(each) for name, each in fields_of(kind).items()}
    if hasattr(kind, "_fields"):
        return [make_sample(each) for each in fields_of(kind).values()]
    if get_origin(kind) is tuple:
        return [make_sample(get_args(kind)[0])]
    return {bool: True, int: 1, str: "x", ErrorCode: 3}[kind]


def fields_of(kind: Any) -> dict[str, Any]:
    return {name: each for name, each in get_type_hints(kind).items() if name != "KIND"}


@pytest.mark.parametrize("seed", range(3))
async def test_no_well_formed_message_ends_a_broker(seed: int) -> None:
    draw = random.Random(seed)
    async with open_broker_service() as broker:
        producer = await begin_transaction(broker)
        log = broker.node.find_log("orders", 0)
        assert log is not None
        texts = [
            "",
            "x",
            "orders",
            "payments",
            log.leader_partition.address,
            *(each.name for each in broker.node.replicator.logs),
        ]
        numbers = [-(2**63), -1, 0, 1, 3, log.leadership.epoch, *producer, 2**63 - 1]

        def make(kind: Any) -> Any:
            if attrs.has(kind):
                return {name: make(each) for name, each in fields_of(kind).items()}
            if kind is Producer and draw.random() < 0.5:
                return list(producer)
            if hasattr(kind, "_fields"):
                return [make(each) for each in fields_of(kind).values()]
            if get_origin(kind) is tuple:
                return [make(get_args(kind)[0]) for _ in range(draw.randrange(3))]
            values: Any = {bool: [True, False], int: numbers, str: texts, ErrorCode: list(ErrorCode)}[kind]
            return draw.choice(values)

        messenger = broker.node.messenger
        for _ in range(300):
            kind, (message, _) = draw.choice(list(messenger._handlers.items()))
            sent = {
                "version": 1,
                "to": "",
                "incarnation": messenger._incarnation,
                "kind": kind,
                "fields": make(message),
            }
            broker.node.messenger.receive("other", json.dumps(sent).encode())
        assert messenger.discarded == 0
        await broker.node.storage.wait_durable()
        with trio.fail_after(DEADLINE_S):
            await broker.appender.append(log, [make_batch(b"further")]).wait_offset()


def make_batch(value: bytes) -> tuple[Any, bytes]:
    data = encode_batch(0, [value], timestamps=1000)
    return check_crc(data), data


async def begin_transaction(broker: Broker) -> Producer:
    """Let a producer begin a transaction with a record in a log."""
    await broker.node.create_topic("orders", 1).wait()
    result = await broker.transactions.init_producer_id("payments", 60_000)
    log = broker.node.find_log("orders", 0)
    assert log is not None
    added = await broker.transactions.add_partitions("payments", result.producer, [TopicPartition("orders", 0)])
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
    await broker.appender.append(log, [(check_crc(data), data)], "payments").wait_offset()
    return result.producer
