"""Fetch, ListOffsets, DeleteRecords and OffsetForLeaderEpoch of logs whose contents are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dafka import Config
from dafka.batches import decode_batch, encode_batch, iter_batches
from dafka.batches.message_sets import decode_message_set
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, open_door
from tests.waiting import poll_until

UNKNOWN, OUT_OF_RANGE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE
TIMES = (1000, 3000, 2000, 4000, 4000)
"""The timestamps of the batches of a log, each with two records, of which the first is 100 ms earlier."""

END = 2 * len(TIMES)
START = 3
"""Records before it were deleted."""

STABLE = END
"""A transaction is open from there on."""

LAST = END + 2
UNCOMMITTED, COMMITTED = 0, 1


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door(Config().with_kafka(auto_create_topics="off")) as found:
        yield found


@pytest.fixture(scope="module")
def client(door: Door) -> Iterator[Client]:
    with door.connect() as found:
        create(found, "t")
        for number, time_ms in enumerate(TIMES):
            values = [b"%d" % (2 * number + each) for each in range(2)]
            append(found, "t", encode_batch(0, values, timestamps=[time_ms - 100, time_ms]))
        delete(found, ("t", 0, START))
        begin_transaction(found, "t")
        yield found


def create(client: Client, *topics: str, logs: int = 2) -> None:
    rest = {"num_partitions": logs, "replication_factor": 1, "assignments": [], "configs": []}
    answer = client.ask(ApiKey.CREATE_TOPICS, 4, topics=[{"name": each, **rest} for each in topics])
    assert [each["error_code"] for each in answer["topics"]] == [0] * len(topics)


def append(client: Client, topic: str, records: bytes, index: int = 0, transaction: str | None = None) -> None:
    data = [{"name": topic, "partition_data": [{"index": index, "records": records}]}]
    values = {"acks": -1, "timeout_ms": 60_000, "topic_data": data, "transactional_id": transaction}
    answer = client.ask(ApiKey.PRODUCE, 7, **values)
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0


def begin_transaction(client: Client, topic: str) -> None:
    found = client.ask(ApiKey.INIT_PRODUCER_ID, 1, transactional_id="open", transaction_timeout_ms=60_000)
    producer = {"producer_id": found["producer_id"], "producer_epoch": found["producer_epoch"]}
    asked = {f"v3_and_below_{name}": value for name, value in {**producer, "transactional_id": "open"}.items()}
    client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 2, **asked, v3_and_below_topics=[{"name": topic, "partitions": [0]}])
    batch = encode_batch(0, [b"a", b"b"], timestamps=9000, base_sequence=0, is_transactional=True, **producer)
    append(client, topic, batch, transaction="open")


def delete(client: Client, *asked: tuple[str, int, int]) -> list[tuple[int, int]]:
    """Delete records. Return the error and the low watermark of each log, after checking their order."""
    topics = [{"name": name, "partitions": [{"partition_index": log, "offset": at}]} for name, log, at in asked]
    answer = client.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout_ms=60_000)
    assert [(each["name"], each["partitions"][0]["partition_index"]) for each in answer["topics"]] == [
        (name, log) for name, log, _ in asked
    ]
    parts = [each["partitions"][0] for each in answer["topics"]]
    return [(each["error_code"], each["low_watermark"]) for each in parts]


LISTED = [
    # The time, and the offset and its timestamp for readers of everything.
    (-1, LAST, -1),  # the end
    (-2, START, -1),  # the start
    (-3, LAST - 2, 9000),  # the first record with the largest timestamp
    (-4, START, -1),  # the start that is stored here
    (-5, -1, -1),  # nothing is stored elsewhere
    (0, START, 3000),
    (2900, START, 3000),
    (3000, START, 3000),
    (3001, 6, 3900),
    (3900, 6, 3900),
    (3901, 7, 4000),
    (4000, 7, 4000),
    (4001, LAST - 2, 9000),
    (9000, LAST - 2, 9000),
    (9001, -1, -1),
]


@pytest.mark.parametrize(("time_ms", "offset", "timestamp"), LISTED)
def test_offsets_of_times(client: Client, time_ms: int, offset: int, timestamp: int) -> None:
    for isolation in (UNCOMMITTED, COMMITTED):
        expected = (offset, timestamp)
        if isolation == COMMITTED and offset >= STABLE:
            expected = (STABLE, -1) if time_ms == -1 else (-1, -1)
        asked = [
            ("unknown", 0, UNKNOWN, (-1, -1)),
            ("t", 0, 0, expected),
            ("t", 2, UNKNOWN, (-1, -1)),
            ("t", 1, 0, (0, -1) if time_ms in {-1, -2, -4} else (-1, -1)),
        ]
        parts = list_offsets(client, time_ms, *((name, log) for name, log, *_ in asked), isolation=isolation)
        assert [(each["error_code"], (each["offset"], each["timestamp"])) for each in parts] == [
            (error, found) for *_, error, found in asked
        ]


def list_offsets(
    client: Client, time_ms: int, *logs: tuple[str, int], isolation: int = UNCOMMITTED
) -> list[dict[str, Any]]:
    """Return the responses for logs."""
    topics = [{"name": name, "partitions": [{"partition_index": log, "timestamp": time_ms}]} for name, log in logs]
    answer = client.ask(ApiKey.LIST_OFFSETS, 5, replica_id=-1, isolation_level=isolation, topics=topics)
    return [each["partitions"][0] for each in answer["topics"]]


def test_records_are_deleted_up_to_the_end_and_not_beyond(client: Client) -> None:
    create(client, "d", logs=1)
    append(client, "d", encode_batch(0, [b"x"] * 10, timestamps=1))
    unknown, out = (UNKNOWN, -1), (OUT_OF_RANGE, -1)
    for offset, expected in ((-2, out), (11, out), (0, (0, 0)), (4, (0, 4)), (2, (0, 4)), (10, (0, 10)), (-1, (0, 10))):
        found = delete(client, ("unknown", 0, 0), ("d", 0, offset), ("d", 1, 0))
        assert found == [unknown, expected, unknown], offset
    assert fetch(client, ("d", 0, 9)) == [(OUT_OF_RANGE, [])]
    create(client, "e", logs=1)
    append(client, "e", encode_batch(0, [b"x"] * 10, timestamps=1))
    assert delete(client, ("e", 0, -1)) == [(0, 10)]


def fetch(
    client: Client, *asked: tuple[str, int, int], version: int = 11, **values: Any
) -> list[tuple[int, list[bytes]]]:
    """Return the error and the values of each log."""
    topics = [
        {"topic": name, "partitions": [{"partition": log, "fetch_offset": at, "partition_max_bytes": 10**6}]}
        for name, log, at in asked
    ]
    found = client.ask(ApiKey.FETCH, version, **{"max_wait_ms": 0, "min_bytes": 1, "topics": topics, **values})
    parts = [part for each in found["responses"] for part in each["partitions"]]
    return [(part["error_code"], values_in(part["records"], version)) for part in parts]


def values_in(records: bytes, version: int) -> list[bytes]:
    if version < 4:
        return [each or b"" for each in decode_message_set(records, bytes_max=10**6).values] if records else []
    batches = [decode_batch(records[at : at + each.size], bytes_max=10**6) for at, each in iter_batches(records)]
    return [value or b"" for each in batches for value in each.values]


def stored(first: int, end: int = END) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("version", range(4, 13))
def test_what_is_fetched_begins_with_the_offset_or_its_batch(client: Client, version: int) -> None:
    for offset in range(START, END):
        for isolation, rest in ((COMMITTED, []), (UNCOMMITTED, [b"a", b"b"])):
            ((error, found),) = fetch(client, ("t", 0, offset), version=version, isolation_level=isolation)
            assert error == 0
            assert found in ([*stored(offset), *rest], [*stored(offset // 2 * 2), *rest])
    for offset, error in ((START - 1, OUT_OF_RANGE), (-1, OUT_OF_RANGE), (LAST, 0), (LAST + 1, OUT_OF_RANGE)):
        assert fetch(client, ("t", 0, offset), version=version) == [(error, [])]


@pytest.mark.parametrize("version", range(4))
def test_oldest_versions_get_message_sets(client: Client, version: int) -> None:
    create(client, f"old-{version}")
    append(client, f"old-{version}", encode_batch(0, [b"one", b"two"], timestamps=7))
    assert fetch(client, (f"old-{version}", 0, 0), version=version) == [(0, [b"one", b"two"])]


def test_logs_that_do_not_exist_affect_no_other(client: Client) -> None:
    found = fetch(client, ("unknown", 0, 0), ("t", 0, 8), ("t", 2, 0), ("t", 1, 0), isolation_level=COMMITTED)
    assert found == [(UNKNOWN, []), (0, stored(8)), (UNKNOWN, []), (0, [])]


def test_responses_are_as_large_as_the_client_accepts_but_never_empty(client: Client) -> None:
    create(client, "a", "b", logs=1)
    batch = encode_batch(0, [bytes(100)], timestamps=1)
    for topic in ("a", "b"):
        for _ in range(3):
            append(client, topic, batch)
    asked = ("a", 0, 0), ("b", 0, 0)
    for bytes_max, expected in (
        (1, [1, 0]),
        (len(batch), [1, 0]),
        (2 * len(batch), [2, 0]),
        (4 * len(batch), [3, 1]),
        (10**6, [3, 3]),
    ):
        assert [len(values) for _, values in fetch(client, *asked, max_bytes=bytes_max)] == expected, bytes_max


def test_watermarks_and_aborted_transactions_are_told(client: Client) -> None:
    topics = [{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 8, "partition_max_bytes": 10**6}]}]
    for isolation in (UNCOMMITTED, COMMITTED):
        found = client.ask(ApiKey.FETCH, 11, max_wait_ms=0, min_bytes=1, topics=topics, isolation_level=isolation)
        (part,) = found["responses"][0]["partitions"]
        assert (part["high_watermark"], part["last_stable_offset"], part["log_start_offset"]) == (LAST, STABLE, START)
        assert part["aborted_transactions"] == (None if isolation == UNCOMMITTED else [])


def test_fetch_waits_until_there_are_enough_bytes(door: Door, client: Client) -> None:
    create(client, "awaited", logs=1)
    batch = encode_batch(0, [b"x"], timestamps=1)
    topics = [{"topic": "awaited", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10**6}]}]
    with door.connect() as waiting:
        waiting.send(ApiKey.FETCH, 11, max_wait_ms=10**7, min_bytes=len(batch) + 1, topics=topics)
        append(client, "awaited", batch)
        assert fetch(client, ("awaited", 0, 0)) == [(0, [b"x"])]
        waiting.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            waiting.socket.recv(1)
        append(client, "awaited", batch)
        waiting.socket.settimeout(50)
        assert (waiting.receive() or b"").count(b"x") >= 2


def test_ends_of_leader_epochs(client: Client) -> None:
    epoch = list_offsets(client, -2, ("t", 0))[0]["leader_epoch"]
    for current, asked, expected in (
        (-1, epoch, (0, epoch, LAST)),
        (epoch, epoch, (0, epoch, LAST)),
        (epoch + 1, epoch, (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)),
        (-1, -1, (0, -1, -1)),
    ):
        topics = [
            {"topic": name, "partitions": [{"partition": log, "current_leader_epoch": current, "leader_epoch": asked}]}
            for name, log in (("unknown", 0), ("t", 0), ("t", 2))
        ]
        answer = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, topics=topics)
        parts = [each["partitions"][0] for each in answer["topics"]]
        assert [(each["error_code"], each["leader_epoch"], each["end_offset"]) for each in parts] == [
            (UNKNOWN, -1, -1),
            expected,
            (UNKNOWN, -1, -1),
        ]


@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("offset", [START, STABLE, LAST, LAST + 1])
def test_a_fetch_gives_all_its_memory_back(
    door: Door, client: Client, offset: int, version: int, isolation: int
) -> None:
    assert door.broker.kafka is not None
    answers = door.broker.kafka.answers
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 10**6}
    asked = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 10**6, "isolation_level": isolation}
    for _ in range(3):
        client.ask(ApiKey.FETCH, version, **asked, topics=[{"topic": "t", "partitions": [part]}])
        poll_until(lambda: answers.taken_bytes == 0)
