"""Produce: what is wrong with a request or with any field of a batch has its error, and the rest is not affected."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from crc32c import crc32c

from dafka import Config
from dafka.batches import Compression, encode_batch
from dafka.batches.message_sets import encode_message_set
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, of_logs, open_door

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
        client.create_topics("t")
        client.create_topics("small", max_message_bytes="200")
        yield found


def produce(
    client: Client, *records: bytes | None, topic: str = "t", version: int = 7, acks: int = -1
) -> list[tuple[int, int]]:
    """Append records to the logs of a topic. Return the error and the offset of each."""
    logs = {(topic, number): {"records": each} for number, each in enumerate(records)}
    found = client.ask_logs(ApiKey.PRODUCE, version, logs, acks=acks).values()
    return [(each["error_code"], each["base_offset"]) for each in found]


def ends(door: Door) -> list[int]:
    return door.call(lambda: [log.index.end_offset for log in door.broker.node.logs("t")])


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
    first, second = ends(door)
    assert produce(client, records, TWO) == [(error, -1), (0, second)]
    assert produce(client, TWO, records) == [(0, first), (error, -1)]
    assert ends(door) == [first + 2, second + 2]


@pytest.mark.parametrize(("acks", "is_valid"), [(-2, False), (-1, True), (1, True), (2, False), (2**15 - 1, False)])
def test_acknowledgements_are_of_the_leader_or_of_all(door: Door, client: Client, acks: int, is_valid: bool) -> None:
    before = ends(door)
    expected = [(0, each) if is_valid else (ErrorCode.INVALID_REQUIRED_ACKS, -1) for each in before]
    assert produce(client, TWO, TWO, acks=acks) == expected
    assert ends(door) == [each + 2 * is_valid for each in before]


@pytest.mark.parametrize(("topic", "bytes_max"), [("t", BATCH_BYTES_MAX), ("small", 200)])
def test_records_have_a_largest_size(client: Client, topic: str, bytes_max: int) -> None:
    sizes = {
        len(batch): batch for count in range(bytes_max) for batch in [encode_batch(0, [bytes(count)], timestamps=1)]
    }
    for excess, error in ((0, ErrorCode.NONE), (1, ErrorCode.MESSAGE_TOO_LARGE)):
        assert produce(client, sizes[bytes_max + excess], topic=topic)[0][0] == error


@pytest.mark.parametrize("version", range(3, 12))
def test_compression_is_known_from_its_version_on(client: Client, version: int) -> None:
    for compression in Compression:
        batch = encode_batch(0, [bytes(300)], timestamps=1, compression=compression)
        is_unknown = compression is Compression.ZSTD and version < 7
        expected = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if is_unknown else ErrorCode.NONE
        assert produce(client, batch, version=version)[0][0] == expected
        for records in (batch + TWO, TWO + batch):
            assert produce(client, records, version=version)[0][0] == INVALID, "expected one batch"
    assert produce(client, encode_message_set(TWO, 1), version=version)[0][0] == INVALID


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("magic", [0, 1])
def test_oldest_versions_take_message_sets(door: Door, client: Client, version: int, magic: int) -> None:
    before = ends(door)
    good = encode_message_set(TWO, magic)
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    assert produce(client, damaged, good, version=version) == [(CORRUPT, -1), (0, before[1])]
    assert ends(door) == [before[0], before[1] + 2]


def test_batches_of_a_producer_are_stored_once_and_in_order(door: Door, client: Client) -> None:
    def send(sequence: int, epoch: int = 0, *, count: int = 1, producer_id: int = 77) -> bytes:
        return encode_batch(
            0, [b"x"] * count, timestamps=1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )

    first = ends(door)[0]
    assert door.broker.kafka is not None
    counters = door.broker.kafka.counters
    before = counters.duplicates, counters.produced["t"]
    for batch, error, offset in (
        (send(0, count=2), ErrorCode.NONE, first),
        (send(2), ErrorCode.NONE, first + 2),
        (send(0, count=2), ErrorCode.NONE, first),
        (send(2), ErrorCode.NONE, first + 2),
        (send(4), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (send(0, 1), ErrorCode.NONE, first + 3),
        (send(3), ErrorCode.INVALID_PRODUCER_EPOCH, -1),
        (send(2, 1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (send(1, 1), ErrorCode.NONE, first + 4),
        (send(0, producer_id=78), ErrorCode.NONE, first + 5),
    ):
        assert produce(client, batch) == [(error, offset)]
    assert ends(door)[0] == first + 6
    assert (counters.duplicates, counters.produced["t"]) == (before[0] + 2, before[1] + 6)


def test_requests_without_acknowledgement_get_none_and_a_wrong_one_ends_the_connection(
    door: Door, client: Client
) -> None:
    before = ends(door)
    asked = of_logs(ApiKey.PRODUCE, {("t", 0): {"records": TWO}}, acks=0)
    client.send(ApiKey.PRODUCE, 7, **asked)
    assert client.ask(ApiKey.API_VERSIONS, 0)["error_code"] == 0, "the first response is that of the next request"
    asked = of_logs(ApiKey.PRODUCE, {("t", 0): {"records": TWO}, ("t", 1): {"records": TWO[:-1]}}, acks=0)
    client.send(ApiKey.PRODUCE, 7, **asked)
    assert client.receive() is None
    assert ends(door) == [before[0] + 4, before[1]]
