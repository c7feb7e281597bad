"""Produce: what is wrong with a request or with any field of a batch has its error, and the rest is not affected."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c

from dafka import Config
from dafka.batches import Compression, encode_batch
from dafka.batches.message_sets import encode_message_set
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, open_door

BATCH_BYTES_MAX = 1000
CRC_AT, BODY_AT = 17, 21
FIELDS = {
    "base_offset": (0, ">q"),
    "length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "crc": (CRC_AT, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "count": (57, ">i"),
}
"""Where the fields of a batch are, and how they are encoded: from Kafka's description of the format."""

CORRUPT, INVALID = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD
TWO = encode_batch(0, [b"one", b"two"], timestamps=1)


def change(field: str, value: int, batch: bytes = TWO) -> bytes:
    """Return a batch with another value of a field, and a CRC that is right unless that is the field."""
    at, layout = FIELDS[field]
    found = bytearray(batch)
    struct.pack_into(layout, found, at, value)
    if field != "crc":
        struct.pack_into(">I", found, CRC_AT, crc32c(bytes(found[BODY_AT:])))
    return bytes(found)


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    config = Config().with_kafka(message_bytes_max=BATCH_BYTES_MAX, auto_create_topics="off")
    with open_door(config) as found, found.connect() as client:
        topics = [
            {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": configs}
            for name, configs in (("t", []), ("small", [{"name": "max.message.bytes", "value": "200"}]))
        ]
        assert [each["error_code"] for each in client.ask(ApiKey.CREATE_TOPICS, 4, topics=topics)["topics"]] == [0, 0]
        yield found


@pytest.fixture
def client(door: Door) -> Iterator[Client]:
    with door.connect() as found:
        yield found


def part(records: bytes | None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "records": records}


def produce(
    client: Client, *parts: dict[str, Any], topic: str = "t", version: int = 7, acks: int = -1
) -> list[dict[str, Any]]:
    """Return the responses for the logs of a topic."""
    data = [{"name": topic, "partition_data": list(parts)}]
    (found,) = client.ask(ApiKey.PRODUCE, version, acks=acks, timeout_ms=60_000, topic_data=data)["responses"]
    assert found["name"] == topic
    assert [each["index"] for each in found["partition_responses"]] == [each["index"] for each in parts]
    responses: list[dict[str, Any]] = found["partition_responses"]
    return responses


def ends(door: Door, topic: str = "t") -> list[int]:
    return door.call(lambda: [log.index.end_offset for log in door.broker.node.logs(topic)])


def faults() -> Iterator[tuple[str, bytes | None, ErrorCode]]:
    """Yield what can be wrong with records, by name, and its error."""
    yield from (("nothing", b"", INVALID), ("null", None, INVALID))
    yield from ((f"message set {magic}", encode_message_set(TWO, magic), INVALID) for magic in (0, 1))
    damaged = TWO[:-1] + b"\1"
    for name, records in {
        "cut": TWO[:-1],
        "cut header": TWO[:12],
        "more": TWO + b"\0",
        "damaged": damaged,
        "damaged behind": TWO + damaged,
        "wrong behind": TWO + change("count", 1),
    }.items():
        yield name, records, CORRUPT
    crc, size = struct.unpack_from(">I", TWO, CRC_AT)[0], len(TWO) - 12
    for field, values, error in (
        ("length", (size - 1, size + 1, -(2**31), 2**30), CORRUPT),
        ("magic", (3, 127, -1), CORRUPT),
        ("magic", (0, 1), INVALID),
        ("crc", (0, crc ^ 1), CORRUPT),
        ("attributes", (5, 6, 7), CORRUPT),
        ("attributes", (0x20, 0x30), INVALID),  # only the broker writes control batches
        ("last_offset_delta", (-1, 0, 2), CORRUPT),
        ("count", (0, 1, 3, -1), CORRUPT),
        ("producer_id", (5,), INVALID),  # without a sequence
    ):
        yield from ((f"{field} {value}", change(field, value), error) for value in values)


@pytest.mark.parametrize(("records", "error"), [pytest.param(*each, id=name) for name, *each in faults()])
def test_each_wrong_field_has_its_error_and_affects_no_other_log(
    door: Door, client: Client, records: bytes | None, error: ErrorCode
) -> None:
    before = ends(door)
    for index in (0, 1):
        parts = [part(TWO, 0), part(TWO, 1)]
        parts[index] = part(records, index)
        found = produce(client, *parts)
        assert [each["error_code"] for each in found] == [error if each == index else 0 for each in (0, 1)]
        assert (found[index]["base_offset"], found[index]["log_append_time_ms"]) == (-1, -1)
        assert found[1 - index]["base_offset"] == before[1 - index]
        before[1 - index] += 2
        assert ends(door) == before


def test_what_the_broker_sets_may_be_anything(door: Door, client: Client) -> None:
    before = ends(door)[0]
    records = change("base_offset", 99, change("leader_epoch", 99))
    (found,) = produce(client, part(records))
    assert (found["error_code"], found["base_offset"]) == (0, before)


@pytest.mark.parametrize(("acks", "is_valid"), [(-2, False), (-1, True), (1, True), (2, False), (2**15 - 1, False)])
def test_acknowledgements_are_of_the_leader_or_of_all(door: Door, client: Client, acks: int, is_valid: bool) -> None:
    before = ends(door)
    found = produce(client, part(TWO, 0), part(TWO, 1), acks=acks)
    expected = ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUIRED_ACKS
    assert [each["error_code"] for each in found] == [expected] * 2
    assert ends(door) == [each + 2 * is_valid for each in before]


def test_logs_that_do_not_exist_affect_no_other(door: Door, client: Client) -> None:
    before = ends(door)
    found = produce(client, part(TWO, 2), part(TWO, 1), part(TWO, -1), part(TWO, 0))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [each["error_code"] for each in found] == [unknown, 0, unknown, 0]
    assert ends(door) == [each + 2 for each in before]
    (alone,) = produce(client, part(TWO), topic="unknown")
    assert alone["error_code"] == unknown


@pytest.mark.parametrize(("topic", "bytes_max"), [("t", BATCH_BYTES_MAX), ("small", 200)])
def test_records_have_a_largest_size(client: Client, topic: str, bytes_max: int) -> None:
    overhead = len(encode_batch(0, [bytes(100)], timestamps=1)) - 100
    for excess, error in ((0, ErrorCode.NONE), (1, ErrorCode.MESSAGE_TOO_LARGE)):
        batch = encode_batch(0, [bytes(bytes_max - overhead + excess)], timestamps=1)
        assert abs(len(batch) - bytes_max - excess) <= 2  # the lengths in a record have one to three bytes
        batch = encode_batch(0, [bytes(2 * bytes_max - overhead + excess - len(batch) + excess)], timestamps=1)
        assert len(batch) == bytes_max + excess
        assert produce(client, part(batch), topic=topic)[0]["error_code"] == error


@pytest.mark.parametrize("version", range(3, 12))
def test_compression_is_known_from_its_version_on(client: Client, version: int) -> None:
    for compression in Compression:
        batch = encode_batch(0, [bytes(300)], timestamps=1, compression=compression)
        is_unknown = compression is Compression.ZSTD and version < 7
        expected = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if is_unknown else ErrorCode.NONE
        for records in (batch, batch + TWO, TWO + batch):
            assert produce(client, part(records), version=version)[0]["error_code"] == expected
    assert produce(client, part(encode_message_set(TWO, 1)), version=version)[0]["error_code"] == INVALID


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("magic", [0, 1])
def test_oldest_versions_take_message_sets(door: Door, client: Client, version: int, magic: int) -> None:
    before = ends(door)
    good = encode_message_set(TWO, magic)
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    found = produce(client, part(damaged, 0), part(good, 1), version=version)
    assert [(each["error_code"], each["base_offset"]) for each in found] == [(CORRUPT, -1), (0, before[1])]
    assert ends(door) == [before[0], before[1] + 2]


def numbered(sequence: int, *, producer_id: int = 77, epoch: int = 0, count: int = 1) -> bytes:
    return encode_batch(
        0,
        [b"x"] * count,
        timestamps=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def test_batches_of_a_producer_are_stored_once_and_in_order(door: Door, client: Client) -> None:
    first = ends(door)[0]
    counters = door.broker.kafka
    assert counters is not None
    duplicates = counters.counters.duplicates
    for batch, error, offset in (
        (numbered(0, count=2), ErrorCode.NONE, first),
        (numbered(2), ErrorCode.NONE, first + 2),
        (numbered(0, count=2), ErrorCode.NONE, first),
        (numbered(2), ErrorCode.NONE, first + 2),
        (numbered(4), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (numbered(0, epoch=1), ErrorCode.NONE, first + 3),
        (numbered(3), ErrorCode.INVALID_PRODUCER_EPOCH, -1),
        (numbered(2, epoch=1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (numbered(1, epoch=1), ErrorCode.NONE, first + 4),
    ):
        (found,) = produce(client, part(batch))
        assert (found["error_code"], found["base_offset"]) == (error, offset)
    assert ends(door)[0] == first + 5
    assert counters.counters.duplicates == duplicates + 2
    (found,) = produce(client, part(numbered(0, producer_id=78), 1))
    assert found["error_code"] == ErrorCode.NONE, "producers are told apart"


def test_requests_without_acknowledgement_get_none_and_a_wrong_one_ends_the_connection(
    door: Door, client: Client
) -> None:
    before = ends(door)[0]
    data: dict[str, Any] = {"acks": 0, "timeout_ms": 1000, "topic_data": [{"name": "t", "partition_data": [part(TWO)]}]}
    client.send(ApiKey.PRODUCE, 7, **data)
    assert client.ask(ApiKey.API_VERSIONS, 0)["error_code"] == 0, "the first response is that of the next request"
    assert ends(door)[0] == before + 2
    data["topic_data"].append({"name": "t", "partition_data": [part(TWO[:-1])]})
    client.send(ApiKey.PRODUCE, 7, **data)
    assert client.receive() is None
    assert ends(door)[0] == before + 4


def test_responses_say_where_the_log_starts(door: Door, client: Client) -> None:
    produce(client, part(TWO))
    end = ends(door)[0]
    values = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": end - 1}]}], "timeout_ms": 1000}
    client.ask(ApiKey.DELETE_RECORDS, 1, **values)
    (found,) = produce(client, part(TWO))
    assert (found["base_offset"], found["log_start_offset"]) == (end, end - 1)
