"""Edges of Produce and Fetch: sequences that begin again, times far away, and readers of open transactions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, open_door

PLACE = ("t", 0)


@pytest.fixture(params=["memory:", "sqlite:{}/store.db"])
def door(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Door]:
    with open_door(storage=request.param.format(tmp_path)) as found:
        yield found


def fetch(client: Client, **values: Any) -> bytes:
    asked = {"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10**6}]}
    values = {"max_wait_ms": 0, "min_bytes": 0, **values}
    found = client.ask(ApiKey.FETCH, 4, topics=[asked], **values)["responses"][0]["partitions"][0]
    assert found["error_code"] == 0
    return bytes(found["records"])


def offsets_in(records: bytes) -> list[int]:
    """Return the offsets in a message set."""
    found, position = [], 0
    while position + 12 <= len(records):
        offset, size = struct.unpack_from(">qi", records, position)
        found.append(offset)
        position += 12 + size
    return found


def test_sequences_begin_again_after_two_to_the_31(client: Client) -> None:
    client.create_topics("t", logs=1)
    producer = client.ask(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout_ms=0)
    producer = {name: producer[name] for name in ("producer_id", "producer_epoch")}
    sequence = 2**31 - 5
    for count in (3, 4, 1, 2):  # the second batch goes beyond the largest sequence
        batch = encode_batch(0, [b"x"] * count, timestamps=1, base_sequence=sequence, **producer)
        offset = client.append("t", batch)
        assert client.append("t", batch) == offset, "it is repeated"
        sequence = (sequence + count) % 2**31
    assert sequence == 5


@pytest.mark.parametrize("version", [11, 12])
def test_a_transaction_with_its_own_epoch_begins_with_the_first_sequence(client: Client, version: int) -> None:
    """A batch that overtakes the first one is refused. Before, an unknown producer could have been forgotten."""
    client.create_topics("t", logs=1)
    name = {"transactional_id": "x"}
    found = client.ask(ApiKey.INIT_PRODUCER_ID, 1, **name, transaction_timeout_ms=60_000)
    producer = {key: found[key] for key in ("producer_id", "producer_epoch")}
    if version == 11:
        added = {**name, **producer, "topics": [{"name": "t", "partitions": [0]}]}
        client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **{f"v3_and_below_{key}": each for key, each in added.items()})

    def send(sequence: int) -> int:
        batch = encode_batch(0, [b"x"], timestamps=1, base_sequence=sequence, is_transactional=True, **producer)
        return int(client.ask_logs(ApiKey.PRODUCE, version, {PLACE: {"records": batch}}, **name)[PLACE]["error_code"])

    refused = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(1) == (refused if version == 12 else ErrorCode.NONE)
    assert send(0) == (ErrorCode.NONE if version == 12 else refused)
    assert send(2) == (refused if version == 12 else ErrorCode.NONE)


def test_readers_of_committed_records_wait_for_the_end_of_a_transaction(door: Door, client: Client) -> None:
    client.create_topics("t", logs=1)
    name = {"transactional_id": "x"}
    found = client.ask(ApiKey.INIT_PRODUCER_ID, 1, **name, transaction_timeout_ms=60_000)
    producer = {key: found[key] for key in ("producer_id", "producer_epoch")}
    batch = encode_batch(0, [b"x"], timestamps=1, base_sequence=0, is_transactional=True, **producer)
    (part,) = client.ask_logs(ApiKey.PRODUCE, 12, {PLACE: {"records": batch}}, **name).values()
    assert part["error_code"] == 0
    client.append("t", encode_batch(0, [b"beyond"], timestamps=1))
    assert fetch(client, isolation_level=0)
    with door.connect() as reader:
        assert fetch(reader, isolation_level=1, min_bytes=1, max_wait_ms=100) == b""
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10**6}
        waiting = {"topics": [{"topic": "t", "partitions": [partition]}], "isolation_level": 1}
        reader.send(ApiKey.FETCH, 4, **waiting, min_bytes=len(batch) + 1, max_wait_ms=10**6)
        ended = client.ask(ApiKey.END_TXN, 5, **name, **producer, committed=True)
        assert (ended["error_code"], ended["producer_epoch"]) == (0, producer["producer_epoch"] + 1)
        (found,) = reader.receive_answer(ApiKey.FETCH, 4)["responses"]
        assert offsets_in(bytes(found["partitions"][0]["records"])) == [0, 1, 2]


def test_any_time_of_a_record_is_kept_and_found(client: Client) -> None:
    client.create_topics("t", logs=1, message_timestamp_after_max_ms=str(2**63 - 1))
    times = [-1, 0, 1, 2**41, 2**53 + 1, 2**62, 2**63 - 1]
    for each in times:
        client.append("t", encode_batch(0, [b"x"], timestamps=[each]))
    for offset, each in enumerate(times[1:], 1):
        found = client.ask_logs(ApiKey.LIST_OFFSETS, 7, {PLACE: {"timestamp": each}})[PLACE]
        assert (found["error_code"], found["offset"], found["timestamp"]) == (0, offset, each)
