"""The records of the log of metadata, and of a store's cluster."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import attrs
import pytest

from dafka.broker.core.metadata.commands import COMMAND_VERSION, CreateTopic, Order, decode_order, encode_order
from dafka.broker.core.metadata.features import FeatureLevels, FeatureSupport
from dafka.broker.core.metadata.store_record import (
    SentCounter,
    StoreRecord,
    decode_counters,
    decode_store_record,
    encode_counters,
    encode_store_record,
)
from dafka.errors import StorageFormatError
from tests.broker.core.metadata.test_cluster_state import draw_orders, topic
from tests.seeds import each_seed


@each_seed(10)
def test_an_order_is_read_as_it_was_written(seed: int) -> None:
    for number, each in enumerate(draw_orders(seed)):
        order = attrs.evolve(
            each, request_id=f"r{number}", ordered_by="ä\ud800"[: number % 3], ordered_at=2**62 - number
        )
        assert decode_order(encode_order(order)) == order


def test_a_broker_that_does_not_know_a_command_does_not_skip_it() -> None:
    fields = json.loads(encode_order(Order(CreateTopic(topic()))))
    new_fields = [{"command": fields["command"] | {"new": 1}}, {"command": {"topic": {"name": "orders", "new": 1}}}]
    for change in ({"kind": "new"}, {"version": COMMAND_VERSION + 1}, {"new": 1}, *new_fields):
        with pytest.raises(StorageFormatError, match="does not know: update dafka on this broker"):
            decode_order(json.dumps(fields | change).encode())
    for level in (1, 2):
        support = FeatureSupport(FeatureLevels(1, level), {"create-topic": 2})
        with nullcontext() if level == 2 else pytest.raises(StorageFormatError, match="does not know: update dafka"):
            decode_order(json.dumps(fields).encode(), support)
    commands: list[object] = [{}, [], {"topic": {"name": "orders", "topic_id": 1}}]
    malformed = [fields | {"command": each} for each in commands]
    malformed += [{key: each for key, each in fields.items() if key != name} for name in fields]
    for value in (b"", b"[]", b"\xff", *(json.dumps(each).encode() for each in malformed)):
        with pytest.raises(StorageFormatError):
            decode_order(value)


def test_counters_are_read_as_they_were_written() -> None:
    counters = {"a": SentCounter("s", 7), "b": SentCounter("", 2**40)}
    assert decode_counters(encode_counters(counters)) == counters
    for value in (b"", b"[]", b'{"a": 1}', b'{"a": [1, "s"]}'):
        with pytest.raises(StorageFormatError, match="the counters of stores"):
            decode_counters(value)


def test_the_record_of_a_store_is_read_as_it_was_written() -> None:
    fields: dict[str, Any] = {
        "applied": 7,
        "recovery": 2,
        "starts": ("s", "t"),
        "store_id": "i",
        "replaces": "j",
        "pending_recovery": 3,
    }
    record = StoreRecord("C" * 32, ("a", "b"), **fields)
    assert set(fields) | {"cluster_id", "first_voters"} == {each.name for each in attrs.fields(StoreRecord)}
    for each in (record, attrs.evolve(record, pending_recovery=0), StoreRecord("C" * 32, ("a",))):
        value = encode_store_record(each)
        assert decode_store_record(value) == each
        assert (b"pending_recovery" in value) == bool(each.pending_recovery), "the first release does not know it"
    newer = encode_store_record(record).replace(b'"version":1', b'"version":2')
    with pytest.raises(StorageFormatError, match="a newer version: update dafka"):
        decode_store_record(newer)
    for value in (b"", b"{}", b'{"cluster_id": 1, "first_voters": []}'):
        with pytest.raises(StorageFormatError, match="the record of the store's cluster"):
            decode_store_record(value)
