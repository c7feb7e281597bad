"""What clients of Kafka see of a topic's rules for records: refused records, append times, compression, tiers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dafka import Config
from dafka.batches import Compression, TimestampType, decode_batch, decode_held, encode_batch, iter_batches
from dafka.batches.message_sets import decode_message_set
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from dafka.storage.plugin_helpers import now_ms
from tests.kafka.apis.door import Client, Door, open_door
from tests.waiting import poll_until

NONE = ErrorCode.NONE
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
VERSIONS = [2, 3, 7, 8, 11, 12]


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door(Config().with_kafka(auto_create_topics="off")) as found:
        yield found


def produce(client: Client, topic: str, version: int, records: bytes) -> dict[str, Any]:
    (found,) = client.ask_logs(ApiKey.PRODUCE, version, {(topic, 0): {"records": records}}).values()
    return dict(found)


def read(client: Client, topic: str) -> list[bytes]:
    asked = {"fetch_offset": 0, "partition_max_bytes": 10**6}
    (found,) = client.ask_logs(ApiKey.FETCH, 11, {(topic, 0): asked}).values()
    return [found["records"][at : at + header.size] for at, header in iter_batches(found["records"])]


def list_offset(client: Client, topic: str, time: int, version: int = 11) -> tuple[int, int, int]:
    (found,) = client.ask_logs(ApiKey.LIST_OFFSETS, version, {(topic, 0): {"timestamp": time}}).values()
    return found["error_code"], found["offset"], found["timestamp"]


def test_refused_records_are_named_from_version_8_on_and_none_is_stored(client: Client) -> None:
    client.create_topics("compacted", cleanup_policy="compact", message_timestamp_after_max_ms="5000")
    keyless = encode_batch(0, [b"a", b"b", b"c"], keys=[b"k", None, None], timestamps=now_ms())
    late = encode_batch(0, [b"a", b"b"], keys=[b"k", None], timestamps=[now_ms() + 60_000, 0])
    for version in VERSIONS[1:]:
        for records, error, named in (
            (keyless, ErrorCode.INVALID_RECORD, [1, 2]),
            (late, ErrorCode.INVALID_TIMESTAMP, [1, 0]),
        ):
            found = produce(client, "compacted", version, records)
            assert (found["error_code"], found["base_offset"]) == (error, -1)
            errors = found["record_errors"]
            assert [each["batch_index"] for each in errors] == (named if version >= 8 else [])
            assert all(each["batch_index_error_message"] for each in errors)
            assert bool(found["error_message"]) is (version >= 8)
    assert read(client, "compacted") == []
    good = encode_batch(0, [b"a"], keys=[b"k"], timestamps=now_ms())
    assert produce(client, "compacted", 8, good)["error_code"] == NONE


def test_clients_delete_records_unless_a_topic_is_only_compacted(client: Client) -> None:
    for name, policy, error in [
        ("both", "compact,delete", NONE),
        ("only", "compact", ErrorCode.POLICY_VIOLATION),
        ("deleted", "delete", NONE),
        ("kept", "", NONE),
    ]:
        client.create_topics(name, cleanup_policy=policy)
        client.append(name, encode_batch(0, [b"a", b"b"], keys=[b"a", b"b"], timestamps=0))
        (found,) = client.ask_logs(ApiKey.DELETE_RECORDS, 1, {(name, 0): {"offset": 1}}).values()
        assert (found["error_code"], found["low_watermark"]) == (error, -1 if error else 1)


def test_append_times_are_answered_read_and_found(client: Client) -> None:
    client.create_topics("appended", message_timestamp_type="LogAppendTime")
    client.create_topics("created")
    began = now_ms()
    producer = client.ask(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout_ms=1000)
    times = []
    for number, version in enumerate([*VERSIONS, 12]):  # the last one is sent again
        ids = {each: producer[each] for each in ("producer_id", "producer_epoch")}
        base = 2 * min(number, len(VERSIONS) - 1)
        for topic in ("appended", "created"):
            data = encode_batch(
                0, [b"a", b"b"], timestamps=[5, 3], base_sequence=base, compression=Compression.GZIP, **ids
            )
            found = produce(client, topic, max(version, 3), data)
            assert (found["error_code"], found["base_offset"]) == (NONE, base)
            if topic == "created":
                assert found["log_append_time_ms"] == -1
            else:
                times.append(found["log_append_time_ms"])
    assert times[-1] == times[-2]
    assert times == sorted(times)
    assert all(isinstance(each, int) and began <= each <= now_ms() for each in times)
    found_batches = [decode_batch(each) for each in read(client, "appended")]
    assert [list(each.timestamps) for each in found_batches] == [[each, each] for each in times[:-1]]
    assert {each.header.timestamp_type for each in found_batches} == {TimestampType.LOG_APPEND_TIME}
    assert [list(decode_batch(each).timestamps) for each in read(client, "created")] == [[5, 3]] * len(VERSIONS)
    for time in times:
        assert list_offset(client, "appended", time) == (NONE, 2 * times.index(time), time)
    assert list_offset(client, "appended", -3) == (NONE, 2 * times.index(times[-1]), times[-1])


def test_batches_are_stored_as_the_topic_says_until_it_says_otherwise(client: Client) -> None:
    client.create_topics("packed", compression_type="lz4", compression_lz4_level="12")
    values = [b"value %d" % (number % 7) for number in range(900)]
    stored = []
    for name in ("", "gzip", "uncompressed", "producer"):
        if name:
            change = [{"name": "compression.type", "config_operation": 0, "value": name}]
            resources = [{"resource_type": 2, "resource_name": "packed", "configs": change}]
            answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, resources=resources, validate_only=False)
            assert answer["responses"][0]["error_code"] == NONE
        stored.append({"": "lz4", "uncompressed": "none", "producer": "zstd"}.get(name, name))
        sent = encode_batch(0, values, timestamps=0, compression=Compression.ZSTD)
        assert produce(client, "packed", 7, sent)["error_code"] == NONE
    found = [decode_batch(each) for each in read(client, "packed")]
    assert [each.header.compression.name.lower() for each in found] == stored
    assert [list(each.values) for each in found] == [values] * len(stored)


def test_offsets_of_the_cold_tier_are_found(tmp_path: Path) -> None:
    config = Config().with_cold(storage=f"file://{tmp_path}/bucket", local_retention_bytes=3000, segment_bytes=1000)
    with open_door(config, storage=f"sqlite:{tmp_path}/broker.db") as door, door.connect() as client:
        client.create_topics("t", logs=1)
        storage: Any = door.broker.broker.node.storage.storage
        for number in range(60):
            client.append("t", encode_batch(0, [b"%d" % number * 50], timestamps=0))
            if number == 5:
                assert list_offset(client, "t", LATEST_TIERED) == (NONE, -1, -1)
                assert list_offset(client, "t", EARLIEST_LOCAL) == (NONE, 0, -1)
                assert list_offset(client, "t", EARLIEST_PENDING_UPLOAD) == (NONE, 0, -1)
        assert door.call(storage.move_due) > 0
        (log,) = door.call(door.broker.broker.node.logs, "t")
        end = storage.cold_end(log.leader_partition)
        assert 0 < end < 60
        assert list_offset(client, "t", LATEST_TIERED) == (NONE, end - 1, -1)
        assert list_offset(client, "t", EARLIEST_LOCAL) == (NONE, end, -1)
        assert list_offset(client, "t", EARLIEST_PENDING_UPLOAD) == (NONE, end, -1)
        assert list_offset(client, "t", -2) == (NONE, 0, -1)


def walk(client: Client, version: int, limit: int, begin: int, end: int) -> dict[int, bytes | None]:
    """Read as a client does that asks again after the last record, or record batch, that it has got."""
    offset, found = begin, dict[int, bytes | None]()
    while offset < end:
        asked = {"fetch_offset": offset, "partition_max_bytes": limit}
        (part,) = client.ask_logs(ApiKey.FETCH, version, {("gaps", 0): asked}).values()
        assert part["error_code"] == NONE
        records = part["records"]
        assert records, f"version {version}, {limit} bytes: nothing at {offset} of {end}"
        if version < 4:
            messages = decode_message_set(records, bytes_max=10**6)
            found |= dict(zip(messages.offsets, messages.values, strict=True))
            offset = messages.offsets[-1] + 1
        else:
            for at, header in iter_batches(records):
                data = records[at : at + header.size]
                if header.is_compacted:
                    for first, columns in decode_held(header, data):
                        found |= dict(enumerate(columns.values, first))
                elif not header.is_control:
                    found |= dict(enumerate(decode_batch(data).values, header.base_offset))
                offset = header.end_offset
    return {at: value for at, value in found.items() if at >= begin}


@pytest.mark.parametrize("storage", ["memory:", "sqlite:{}/broker.db", "filelog:{}/log?segment_bytes=2000"])
def test_clients_of_every_version_get_past_each_gap_to_the_end(storage: str, tmp_path: Path) -> None:
    config = Config().with_store(compaction_interval_ms=10, compaction_rate_bytes=0)
    with open_door(config, storage=storage.format(tmp_path)) as door, door.connect() as client:
        client.create_topics("gaps", logs=1, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        producer = client.ask(ApiKey.INIT_PRODUCER_ID, 1, transactional_id="x", transaction_timeout_ms=60_000)
        ids = {each: producer[each] for each in ("producer_id", "producer_epoch")}
        keys = [b"%d" % (number % 3) for number in range(40)]
        for number in range(6):
            client.append("gaps", encode_batch(0, [b"%d" % number] * 40, keys=keys, timestamps=0))
        topics = [{"name": "gaps", "partitions": [0]}]
        asked = {
            f"v3_and_below_{key}": each for key, each in {**ids, "transactional_id": "x", "topics": topics}.items()
        }
        client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 0, **asked)
        aborted = encode_batch(
            0, [b"aborted"] * 40, keys=keys, timestamps=0, base_sequence=0, is_transactional=True, **ids
        )
        client.append("gaps", aborted, transactional_id="x")
        client.ask(ApiKey.END_TXN, 0, transactional_id="x", committed=False, **ids)
        client.append("gaps", encode_batch(0, [b"last"], keys=[b"last"], timestamps=0))
        end = 7 * 40 + 2
        poll_until(lambda: len(walk(client, 4, 10**6, 0, end)) == 4)  # nothing is left to compact
        expected = walk(client, 4, 10**6, 0, end)
        assert {237, 238, 239, 281} <= {*expected}, "the last record of each key"
        for version, limit in product((0, 1, 2, 3, 4, 11, 12), (1, 300, 10**6)):
            for begin in (0, 1, 39, 40, 100, 199, 238, 240, 250, 279, 280, 281):
                found = walk(client, version, limit, begin, end)
                assert found == {at: value for at, value in expected.items() if at >= begin}
