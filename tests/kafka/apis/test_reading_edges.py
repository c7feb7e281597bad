"""Edges of Produce and Fetch: sequences that begin again, times far away, and readers of open transactions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dafka import Config
from dafka.batches import encode_batch
from dafka.broker.connections.uploads import SMALL_BYTES
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from dafka.storage.plugin_helpers import now_ms
from tests.kafka.apis.door import Client, Door, Log, open_door
from tests.kafka.apis.test_share_groups import set_group
from tests.kafka.share_member import ShareMember
from tests.waiting import poll_until

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


def test_a_producer_that_was_forgotten_continues_with_any_sequence(door: Door, client: Client) -> None:
    client.create_topics("t", logs=1)
    producer = client.ask(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout_ms=0)
    ids = {name: producer[name] for name in ("producer_id", "producer_epoch")}

    def send(sequence: int) -> tuple[int, int]:
        batch = encode_batch(0, [b"x"], timestamps=1, base_sequence=sequence, **ids)
        (found,) = client.ask_logs(ApiKey.PRODUCE, 7, {PLACE: {"records": batch}}).values()
        return found["error_code"], found["base_offset"]

    assert send(0) == (0, 0)
    assert send(5) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    (log,) = door.call(door.broker.broker.node.logs, "t")
    door.call(log.producers.expire, 2**60)
    assert [send(each) for each in (5, 6, 5)] == [(0, 1), (0, 2), (0, 1)], "it is known again"
    assert send(8) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


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


IN_1970, IN_2099 = 0, 4_070_908_800_000


@pytest.mark.parametrize("storage", ["memory:", "sqlite:{}/broker.db", "filelog:{}/log?segment_bytes=2000"])
@pytest.mark.parametrize("is_tiered", [False, True])
def test_records_of_any_time_are_kept_for_as_long_as_others(storage: str, is_tiered: bool, tmp_path: Path) -> None:
    """They expire by when they were stored. Kafka drops those of 1970 at once, and those of 2099 in 2099."""
    config = Config().with_store(retention_interval_ms=10)
    if is_tiered:
        config = config.with_cold(
            storage=f"file://{tmp_path}/bucket", local_retention_bytes=3000, segment_bytes=1000, interval_ms=10
        )
    with open_door(config, storage=storage.format(tmp_path)) as door, door.connect() as client:
        client.create_topics("t", logs=1, retention_ms="3600000", message_timestamp_after_max_ms=str(2**63 - 1))
        for number in range(60):
            time = (IN_1970, now_ms(), IN_2099)[number % 3]
            client.append("t", encode_batch(0, [b"%d" % number * 50], timestamps=time))
        node = door.broker.broker.node
        if is_tiered:
            (log,) = door.call(node.logs, "t")
            stored: Any = node.storage.storage
            poll_until(lambda: door.call(lambda: stored.cold_end(log.leader_partition)) > 10)
        retention = node.store.retention
        assert retention is not None
        for _ in range(3):
            assert not door.call_async(retention.apply)
        assert earliest(client) == 0
        changed = {"name": "retention.ms", "config_operation": 0, "value": "1"}
        resource = {"resource_type": 2, "resource_name": "t", "configs": [changed]}
        client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        poll_until(lambda: earliest(client) == 60)
        (part,) = client.ask_logs(ApiKey.FETCH, 4, {PLACE: {}}).values()
        assert part["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def earliest(client: Client) -> int:
    (found,) = client.ask_logs(ApiKey.LIST_OFFSETS, 7, {PLACE: {"timestamp": -2}}).values()
    assert found["error_code"] == 0
    return int(found["offset"])


def test_a_fetch_does_not_wait_while_the_log_has_as_much_as_it_may_get(client: Client) -> None:
    """The size of whole batches is often smaller than a limit: the rest of it would never come."""
    client.create_topics("t", logs=2)
    batch = encode_batch(0, [bytes(100)], timestamps=1)
    for number in (0, 1):
        for _ in range(5):
            client.append("t", batch, number)
    size = len(batch)
    for limits in ((2.5, 2.5), (0.5, 0.5), (9.5, 3.5), (3.5, 9.5)):  # of all logs, and of each
        whole, each = (int(size * limit) for limit in limits)
        parts = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": each} for number in (0, 1)]
        values = {"max_wait_ms": 10**7, "max_bytes": whole, "min_bytes": min(whole, 2 * each)}
        (topic,) = client.ask(ApiKey.FETCH, 4, topics=[{"topic": "t", "partitions": parts}], **values)["responses"]
        assert any(part["records"] for part in topic["partitions"])


@pytest.mark.parametrize("door", ["memory:", "filelog:{}/log"], indirect=True)
def test_responses_are_as_large_as_the_client_accepts_and_only_their_first_batch_may_be_larger(client: Client) -> None:
    client.create_topics("a", "b", logs=1)
    batch = encode_batch(0, [bytes(100)], timestamps=1)
    for topic in "ababab":
        client.append(topic, batch)
    limits = (0.1, [1, 0]), (1, [1, 0]), (1.9, [1, 0]), (2, [2, 0]), (3.9, [3, 0]), (4, [3, 1]), (9, [3, 3])
    for count, expected in limits:
        found = client.ask_logs(ApiKey.FETCH, 11, {("a", 0): {}, ("b", 0): {}}, max_bytes=int(count * len(batch)))
        assert [len(found[each, 0]["records"]) // len(batch) for each in "ab"] == expected, count


@pytest.mark.parametrize("door", ["memory:", "filelog:{}/log"], indirect=True)
@pytest.mark.parametrize("version", [3, 4, 11])
def test_whoever_accepts_no_bytes_gets_one_batch_at_a_time_as_with_one_byte(client: Client, version: int) -> None:
    client.create_topics("t", logs=2)
    batch = encode_batch(0, [bytes(100)], timestamps=1)
    for number in (0, 1, 0, 1):
        client.append("t", batch, number)

    def fetch_within(whole: int, each: int) -> list[bytes]:
        logs: dict[Log, dict[str, Any]] = {("t", number): {"partition_max_bytes": each} for number in (0, 1)}
        return [part["records"] for part in client.ask_logs(ApiKey.FETCH, version, logs, max_bytes=whole).values()]

    large = 10**6
    for whole, each in ((0, large), (-1, large), (large, 0), (large, -1), (0, 0)):
        found = fetch_within(whole, each)
        assert found == fetch_within(max(whole, 1), max(each, 1)), (whole, each)
        assert offsets_in(found[0]) == [0], (whole, each)


def test_whoever_accepts_no_bytes_waits_for_records(door: Door, client: Client) -> None:
    client.create_topics("t", logs=1)
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 0}
    asked = {"topics": [{"topic": "t", "partitions": [part]}], "max_bytes": 0, "min_bytes": 1, "max_wait_ms": 10**7}
    client.send(ApiKey.FETCH, 4, **asked)
    with door.connect() as other:
        other.append("t", encode_batch(0, [b"x"], timestamps=1))
    (topic,) = client.receive_answer(ApiKey.FETCH, 4)["responses"]
    assert offsets_in(topic["partitions"][0]["records"]) == [0]


def test_a_member_of_a_share_group_that_accepts_no_bytes_gets_records(door: Door, client: Client) -> None:
    client.create_topics("t", logs=1)
    set_group(client, "g", share_auto_offset_reset="earliest")
    client.append("t", encode_batch(0, [b"x"], timestamps=1))
    member = ShareMember(door.servers, "g", "t", "m").join()
    poll_until(lambda: bool(member.deliveries_in(member.fetch(max_bytes=0))))
    member.client.socket.close()


def test_a_batch_that_is_larger_than_the_memory_for_responses_is_delivered_alone() -> None:
    with open_door(Config().with_kafka(answers_bytes_max=1000)) as door, door.connect() as client:
        client.create_topics("t", logs=1)
        set_group(client, "g", share_auto_offset_reset="earliest")
        assert client.append("t", encode_batch(0, [bytes(2 * SMALL_BYTES)], timestamps=1)) == 0
        assert len(fetch(client, max_bytes=10**6)) > 2 * SMALL_BYTES
        member = ShareMember(door.servers, "g", "t", "m").join()
        poll_until(lambda: bool(member.deliveries_in(member.fetch())))
        member.client.socket.close()
