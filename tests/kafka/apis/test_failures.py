"""What fails or takes long: each log has an error that lets its clients try again, and others are not affected."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_SEQUENCE, Offset
from dafka.errors import OutcomeUnknownError, StorageError, TopicDeletedError
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.fake_cluster import FakeCluster

BAD, GOOD = "bad", "t"
NONE, FAILED = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture
def cluster() -> FakeCluster:
    """A cluster with another topic: the storage fails for its log."""
    found = FakeCluster()
    found.broker.log_table.add_topic(Topic(BAD, "e" * 32))
    log = found.broker.find_log(BAD, 0)
    assert log is not None
    log.leadership, log.epochs = found.log.leadership, found.log.epochs
    log.index.append("native", FIRST_SEQUENCE, 10, is_open=True)
    log.high_watermark = Offset(8)
    return found


def failing(value: Any = None) -> Callable[..., Any]:
    """Return a part of the storage, which returns a value, and fails for one topic."""

    async def work(of: Log | str, *_: object) -> Any:
        await trio.lowlevel.checkpoint()
        if BAD in {of, getattr(of, "topic", None)}:
            raise StorageError("the disk is broken")
        return value

    return work


USES: dict[str, tuple[ApiKey, int, dict[str, Any], dict[str, Any]]] = {
    "records": (ApiKey.FETCH, 11, {"max_wait_ms": 0, "min_bytes": 1}, {"fetch_offset": 3, "partition_max_bytes": 100}),
    "offset of a time": (ApiKey.LIST_OFFSETS, 5, {"replica_id": -1}, {"timestamp": 1000}),
    "offset of the latest time": (ApiKey.LIST_OFFSETS, 7, {"replica_id": -1}, {"timestamp": -3}),
    "deletion": (ApiKey.DELETE_RECORDS, 1, {"timeout_ms": 0}, {"offset": 3}),
}
"""Requests that need the storage: the API and its version, further fields, and those of a log."""


@pytest.mark.parametrize("topics", [(BAD, GOOD), (GOOD, BAD)], ids=",".join)
@pytest.mark.parametrize("use", USES)
async def test_a_storage_that_fails_for_a_log_does_not_affect_others(
    cluster: FakeCluster, use: str, topics: tuple[str, ...]
) -> None:
    api, version, values, part = USES[use]
    broker = cluster.broker
    broker.reader = SimpleNamespace(
        read=failing([encode_batch(3, [b"x"], timestamps=1)]),
        find_offset_by_time=failing((3, 1000)),
        find_latest_time=failing((3, 1000)),
    )
    broker.deletion = SimpleNamespace(delete_before=failing())
    name, number = ("topic", "partition") if api is ApiKey.FETCH else ("name", "partition_index")
    asked = [{name: topic, "partitions": [{number: 0, **part}]} for topic in topics]
    found = await cluster.ask(api, version, **values, topics=asked)
    parts = [each["partitions"][0] for each in found.get("responses") or found["topics"]]
    assert [each["error_code"] for each in parts] == [FAILED if each == BAD else NONE for each in topics]
    if api is ApiKey.FETCH:
        assert [bool(each["records"]) for each in parts] == [each == GOOD for each in topics]


async def test_a_topic_that_cannot_be_deleted_does_not_affect_others(cluster: FakeCluster) -> None:
    broker: Any = cluster.listener.broker
    broker.delete_topic = failing()
    for names in ([BAD, GOOD], [GOOD, BAD], ["unknown", BAD, GOOD]):
        found = (await cluster.ask(ApiKey.DELETE_TOPICS, 5, topic_names=names, timeout_ms=1000))["responses"]
        errors = {BAD: FAILED, GOOD: NONE, "unknown": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert [(each["name"], each["error_code"]) for each in found] == [(each, errors[each]) for each in names]


async def test_a_read_ends_in_time_however_often_its_logs_advance(cluster: FakeCluster, autojump_clock: object) -> None:
    async def advance() -> None:
        while True:
            await trio.sleep(0.4)
            cluster.broker.watchers.notify(cluster.log)

    part = {"partition": 0, "fetch_offset": 8, "partition_max_bytes": 1000}
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(advance)
        topics = [{"topic": GOOD, "partitions": [part]}]
        await cluster.ask(ApiKey.FETCH, 11, max_wait_ms=1000, min_bytes=1, topics=topics)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - begun == pytest.approx(1)


async def test_a_topic_that_cannot_be_created_by_asking_is_asked_for_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_name: str) -> None:
        raise StorageError("the disk is broken")

    monkeypatch.setattr(cluster.broker, "create_topic", fail)
    topics = [{"name": "new"}, {"name": GOOD}]
    found = await cluster.ask(ApiKey.METADATA, 4, topics=topics, allow_auto_topic_creation=True)
    assert [each["error_code"] for each in found["topics"]] == [ErrorCode.LEADER_NOT_AVAILABLE, NONE]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicDeletedError("it was deleted"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (OutcomeUnknownError("the leader has changed"), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
async def test_records_that_are_lost_or_deleted_affect_no_others(
    cluster: FakeCluster, error: Exception, code: ErrorCode
) -> None:
    outcomes: list[Exception | int] = [error, 5]

    async def wait(_all_replicas: bool) -> int:
        await trio.lowlevel.checkpoint()
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    cluster.broker.appended = wait
    parts = [{"index": 0, "records": encode_batch(0, [b"x"], timestamps=1)}]
    data = [{"name": topic, "partition_data": parts} for topic in (BAD, GOOD)]
    found = await cluster.ask(ApiKey.PRODUCE, 10, acks=-1, timeout_ms=1000, topic_data=data)
    responses = [each["partition_responses"][0] for each in found["responses"]]
    assert [(each["error_code"], each["base_offset"]) for each in responses] == [(code, -1), (NONE, 5)]
