"""Every kind of message between brokers: a malformed one is refused, and a well-formed one ends no broker."""

from __future__ import annotations

import json
import random
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest
import trio

from dafka.broker.broker import Broker
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.runs import RecordState
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.interbroker.link import Refusal
from dafka.broker.interbroker.messenger import Message
from tests.broker.replication.virtual_cluster import batch
from tests.http.running import open_broker_service
from tests.spoiled import spoil_fields

DEADLINE_S = 60


async def test_every_kind_of_message_with_a_wrong_or_missing_field_is_refused() -> None:
    async with open_broker_service() as broker:
        messenger = broker.node.messenger
        received: list[Message] = []
        tried = 0
        for kind, (message, _) in list(messenger._handlers.items()):
            messenger._handlers[kind] = message, lambda _sender, each: received.append(each)
            sample = {"kind": kind, "fields": make_sample(message)}
            messenger.process("other", json.dumps(sample).encode())
            for wrong in spoil_fields(sample):
                if isinstance(wrong.get("kind"), str) and wrong["kind"] != kind:
                    continue  # an unknown kind is of a newer version
                before = messenger.refused[Refusal.MALFORMED]
                messenger.process("other", json.dumps(wrong).encode())
                assert messenger.refused[Refusal.MALFORMED] == before + 1, wrong
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
    return {bool: True, int: 1, str: "x", ErrorCode: 3, RecordState: 2}[kind]


def fields_of(kind: Any) -> dict[str, Any]:
    return {name: each for name, each in get_type_hints(kind).items() if name != "KIND"}


@pytest.mark.parametrize("seed", range(3))
async def test_no_well_formed_message_ends_a_broker(seed: int) -> None:
    draw = random.Random(seed)
    async with open_broker_service() as broker:
        producer = await begin_transaction(broker)
        log = broker.node.find_log("orders", 0)
        assert log is not None
        names = [each.name for each in broker.node.replicator.logs]
        texts = ["", "x", "orders", "payments", log.leader_partition.address, *names]
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
            enums: dict[Any, Any] = {each: list(each) for each in (ErrorCode, RecordState)}
            values: Any = {bool: [True, False], int: numbers, str: texts, **enums}[kind]
            return draw.choice(values)

        messenger = broker.node.messenger
        for _ in range(300):
            kind, (message, _) = draw.choice(list(messenger._handlers.items()))
            messenger.process("other", json.dumps({"kind": kind, "fields": make(message)}).encode())
        assert messenger.refused.total() == 0
        await broker.node.storage.wait_durable()
        with trio.fail_after(DEADLINE_S):
            await broker.appender.append(log, batch(b"further")).wait_offset()


async def begin_transaction(broker: Broker) -> Producer:
    """Let a producer begin a transaction with a record in a log."""
    await broker.node.admin.create_topic("orders", 1)
    result = await broker.transactions.init_producer_id("payments", 60_000)
    log = broker.node.find_log("orders", 0)
    assert log is not None
    added = await broker.transactions.add_partitions("payments", result.producer, [TopicPartition("orders", 0)])
    assert added is ErrorCode.NONE
    sent = batch(b"record", producer=(*result.producer, 0), is_transactional=True)
    await broker.appender.append(log, sent, "payments").wait_offset()
    return result.producer
