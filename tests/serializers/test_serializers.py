"""Objects become bytes and come back; anything of another type is refused at both ends."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Any, cast

import fastavro
import msgspec
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2

from dafka.errors import ConfigError, RecordError
from dafka.records import Partition, ProducerRecord, Record, RecordBatch
from dafka.serializers import (
    AvroSerializer,
    JsonSerializer,
    MsgspecSerializer,
    ProtobufSerializer,
    Serializer,
    TypedTopic,
)

PARTITION = Partition("orders", "A" * 32)
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "int"}],
}
NOTE = {"name": "note", "type": "string"}
NEWER: dict[str, Any] = {**SCHEMA, "fields": [*SCHEMA["fields"], {**NOTE, "default": "-"}]}
WITHOUT_DEFAULT: dict[str, Any] = {**SCHEMA, "fields": [*SCHEMA["fields"], NOTE]}


class Order(msgspec.Struct):
    item: str
    count: int


ORDER = {"item": "tea", "count": 2}
FORM = fastavro.schema.to_parsing_canonical_form(SCHEMA)
FINGERPRINT = bytes.fromhex(fastavro.schema.fingerprint(FORM, "CRC-64-AVRO"))

NAME_PART = descriptor_pb2.UninterpretedOption.NamePart
"""A message that must have some fields."""

CASES: list[tuple[Serializer[Any], object, str, bytes]] = [
    (
        JsonSerializer(),
        [1, "\N{SNOWMAN}", None, {"a": 1.5}],
        "application/json",
        '[1,"\N{SNOWMAN}",null,{"a":1.5}]'.encode(),
    ),
    (JsonSerializer(dict), ORDER, "application/json", b'{"item":"tea","count":2}'),
    (MsgspecSerializer(Order), Order("tea", 2), "application/json", b'{"item":"tea","count":2}'),
    (MsgspecSerializer(list[int]), [1, 2], "application/json", b"[1,2]"),
    (MsgspecSerializer(Order, "msgpack"), Order("tea", 2), "application/msgpack", b"\x82\xa4item\xa3tea\xa5count\x02"),
    (AvroSerializer(SCHEMA), ORDER, "application/avro", b"\xc3\x01" + FINGERPRINT + b"\x06tea\x04"),
    (
        ProtobufSerializer(timestamp_pb2.Timestamp),
        timestamp_pb2.Timestamp(seconds=5),
        "application/protobuf; message=google.protobuf.Timestamp",
        b"\x08\x05",
    ),
]


def stored(record: ProducerRecord, sequence: int = 0) -> Record:
    return Record(PARTITION, sequence, record.value, record.key, tuple(record.headers), record.timestamp)


@pytest.mark.parametrize(("serializer", "value", "content_type", "data"), CASES)
def test_a_value_comes_back(serializer: Serializer[Any], value: object, content_type: str, data: bytes) -> None:
    assert serializer.dump(value) == data
    assert serializer.load(data) == value
    assert serializer.content_type == content_type


@pytest.mark.parametrize(
    ("serializer", "value", "message"),
    [
        (JsonSerializer(dict), [1], "value: expected dict, not list"),
        (JsonSerializer(), b"bytes", "value: expected something that JSON has"),
        (JsonSerializer(), float("nan"), "value: expected something that JSON has"),
        (JsonSerializer(), "\ud800", "value: expected something that JSON has"),
        (MsgspecSerializer(Order), ORDER, "value: expected Order, not dict"),
        (MsgspecSerializer(Order), Order("tea", cast(Any, object())), "value: msgspec cannot write it"),
        (AvroSerializer(SCHEMA), {"item": "tea"}, "value: expected one of the schema"),
        (AvroSerializer(SCHEMA), {**ORDER, "other": 1}, "value: expected one of the schema"),
        (ProtobufSerializer(timestamp_pb2.Timestamp), duration_pb2.Duration(), "value: expected Timestamp, not Dur"),
        (ProtobufSerializer(NAME_PART), NAME_PART(), "value: protobuf cannot write it: .*name_part"),
    ],
)
def test_a_value_of_another_type_is_not_written(serializer: Serializer[Any], value: object, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        serializer.dump(value)


@pytest.mark.parametrize(
    ("serializer", "data", "message"),
    [
        (JsonSerializer(dict), b"[]", "value: expected dict, not list"),
        (JsonSerializer(), b"{", "value: expected JSON"),
        (JsonSerializer(), b"\xff", "value: expected JSON"),
        (JsonSerializer(), b"[" * 100_000, "value: expected JSON"),
        (MsgspecSerializer(Order), b'{"item": "tea"}', "value: expected Order: .*`count`"),
        (MsgspecSerializer(Order), b'{"item": "tea", "count": "2"}', "value: expected Order: .*`int`"),
        (MsgspecSerializer(Order, "msgpack"), b"\xc1", "value: expected Order"),
        (MsgspecSerializer(list[int]), b'["1"]', r"value: expected list\[int\]: "),
        (AvroSerializer(SCHEMA), b"{}", "single-object encoding"),
        (
            AvroSerializer(NEWER),
            AvroSerializer(SCHEMA).dump(ORDER),
            f"written with another schema, of fingerprint {FINGERPRINT.hex()}; give",
        ),
        (AvroSerializer(SCHEMA), AvroSerializer(SCHEMA).dump(ORDER)[:-2], "value: expected one of the schema"),
        (ProtobufSerializer(timestamp_pb2.Timestamp), b"\xff", "value: expected google.protobuf.Timestamp"),
    ],
)
def test_bytes_of_another_type_are_not_read(serializer: Serializer[Any], data: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        serializer.load(data)


DEEP = 20_000


@pytest.mark.parametrize(("serializer", "value", "content_type", "written"), CASES)
def test_no_bytes_cause_another_error_and_whole_values_end_where_they_end(
    serializer: Serializer[Any], value: object, content_type: str, written: bytes
) -> None:
    is_self_delimiting = not isinstance(serializer, ProtobufSerializer)
    parts = [written[:end] for end in range(len(written))]
    longer = [written + tail for tail in (b"\0", b"}", b"\xff" * 9)]
    changed = [written[:at] + bytes([byte]) + written[at + 1 :] for at in range(len(written)) for byte in (0, 127, 255)]
    deep = [opening * DEEP for opening in (b"[", b'{"a":', b"\x91", b"\x0a")]
    for data in (*parts, *longer, *changed, *deep, b"", b"\xc3\x01", b'"\\ud800"', b"NaN", b"1e999"):
        found = None
        with suppress(RecordError):
            found = serializer.load(data)
            assert not is_self_delimiting or data not in (*parts, *longer), data
        assert found is None or type(found) in {type(value), float, str}


def test_deep_nesting_is_refused_whatever_the_type() -> None:
    for serializer, data in (
        (MsgspecSerializer[Any](list), b"[" * DEEP),
        (MsgspecSerializer[Any](list, "msgpack"), b"\x91" * DEEP),
        (JsonSerializer[Any](), b"[" * DEEP),
    ):
        with pytest.raises(RecordError, match="value: expected "):
            serializer.load(data)
    nested: list[Any] = []
    for _ in range(DEEP):
        nested = [nested]
    for each in (MsgspecSerializer[Any](list), JsonSerializer[Any]()):
        with pytest.raises(RecordError, match="value: "):
            each.dump(nested)


def test_avro_begins_with_a_fingerprint_and_converts_values_of_older_schemas() -> None:
    assert AvroSerializer({"type": "int"}).dump(1) == b"\xc3\x01" + bytes.fromhex("8f5c393f1ad57572") + b"\x02"
    newer = AvroSerializer(NEWER, WITHOUT_DEFAULT, SCHEMA)  # the first two have the same fingerprint
    assert newer.load(AvroSerializer(SCHEMA).dump(ORDER)) == {**ORDER, "note": "-"}
    assert newer.load(newer.dump({**ORDER, "note": "x"})) == {**ORDER, "note": "x"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: AvroSerializer({"type": "nonsense"}),
        lambda: MsgspecSerializer(Order, "xml"),  # type: ignore[arg-type]
        lambda: ProtobufSerializer(dict),
    ],
)
def test_wrong_types_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        make()


def test_a_typed_topic_makes_records_and_reads_them() -> None:
    orders = TypedTopic("orders", MsgspecSerializer(Order))
    made = orders.records([Order("tea", 1), None], key=lambda order: order.item.encode())
    assert made == [
        ProducerRecord(b'{"item":"tea","count":1}', b"tea", (("content-type", b"application/json"),)),
        ProducerRecord(None),
    ]
    batch = RecordBatch.from_records(PARTITION, 5, made, 0)
    assert orders.values(batch) == [Order("tea", 1), None]
    whole = orders.record(Order("tea", 1), key=b"k", headers=[("h", b"1")], timestamp=7)
    assert (whole.key, whole.headers, whole.timestamp) == (
        b"k",
        (("content-type", b"application/json"), ("h", b"1")),
        7,
    )
    assert [each.key for each in orders.records([Order("tea", 1)])] == [None]
    assert orders.record(None, key=b"k", headers=[("h", b"1")]) == ProducerRecord(None, b"k", [("h", b"1")])
    # A content type may be missing.
    assert TypedTopic("orders", JsonSerializer(dict)).value(Record(PARTITION, 0, b'{"a":1}')) == {"a": 1}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(PARTITION, 7, b"[]"), f"record 7 of orders/{'A' * 32}: value: expected dict, not list"),
        (
            Record(PARTITION, 7, b"{}", headers=(("content-type", b"application/avro"),)),
            f"record 7 of orders/{'A' * 32}: expected application/json, not application/avro",
        ),
        (Record(PARTITION, 7, b"{}", headers=(("content-type", None),)), ""),
        (Record(Partition("bills", "B"), 0, b"{}"), "bills/B: expected a record of the topic 'orders'"),
    ],
)
def test_a_typed_topic_names_the_record_that_is_wrong(record: Record, message: str) -> None:
    orders = TypedTopic("orders", JsonSerializer(dict))
    if not message:
        assert orders.value(record) == {}
        return
    with pytest.raises(RecordError) as caught:
        orders.value(record)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [
        ("msgspec", "MsgspecSerializer(dict)", "msgspec"),
        ("fastavro", "AvroSerializer({'type': 'int'})", "avro"),
        ("google", "ProtobufSerializer(dict)", "protobuf"),
    ],
)
def test_a_missing_extra_is_named(package: str, call: str, extra: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None\nfrom dafka.serializers import *\n{call}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.rstrip().endswith(f"pip install 'dafka[{extra}]'")
