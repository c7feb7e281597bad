"""Requests that name topics by id (KIP-516): they never reach a later topic of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.config import Config
from dafka.kafka.apis import OFFERED
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import NIL
from tests.kafka.apis.door import Client, Door, open_door

NONE, UNKNOWN_ID, UNKNOWN_LOG = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NOBODY = UUID(int=7)
FETCHES = range(13, OFFERED[ApiKey.FETCH].last + 1)

Errors = dict[tuple[UUID, int], int]


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door(Config().with_kafka(auto_create_topics="off")) as found:
        yield found


def id_of(client: Client, name: str) -> UUID:
    (topic,) = client.ask(ApiKey.METADATA, 12, topics=[{"name": name}])["topics"]
    found: UUID = topic["topic_id"]
    return found


def create(client: Client, name: str) -> UUID:
    client.create_topics(name)
    return id_of(client, name)


def delete(client: Client, name: str) -> None:
    answer = client.ask(ApiKey.DELETE_TOPICS, 4, topic_names=[name], timeout_ms=30_000)
    assert answer["responses"][0]["error_code"] == NONE


def produce(client: Client, *logs: tuple[UUID, int]) -> Errors:
    records = encode_batch(0, [b"x"], timestamps=1)
    asked = [{"topic_id": each, "partition_data": [{"index": number, "records": records}]} for each, number in logs]
    answer = client.ask(ApiKey.PRODUCE, 13, topic_data=asked, acks=-1, timeout_ms=30_000)
    return {
        (topic["topic_id"], part["index"]): part["error_code"]
        for topic in answer["responses"]
        for part in topic["partition_responses"]
    }


def fetch(client: Client, version: int, *logs: tuple[UUID, int], **session: Any) -> tuple[Any, Errors]:
    """Return the response, and the error of each log in it."""
    parts = {"fetch_offset": 0, "partition_max_bytes": 10**6}
    asked = [{"topic_id": each, "partitions": [{"partition": number, **parts}]} for each, number in logs]
    answer = client.ask(ApiKey.FETCH, version, topics=asked, max_wait_ms=0, min_bytes=1, **session)
    return answer, {
        (topic["topic_id"], part["partition_index"]): part["error_code"]
        for topic in answer["responses"]
        for part in topic["partitions"]
    }


def test_logs_of_topics_that_do_not_exist_have_errors_beside_those_that_exist(client: Client) -> None:
    known = create(client, "beside")
    logs: Errors = {(known, 0): NONE, (NOBODY, 0): UNKNOWN_ID, (known, 9): UNKNOWN_LOG, (NIL, 0): UNKNOWN_ID}
    assert produce(client, *logs) == logs
    for version in FETCHES:
        answer, found = fetch(client, version, *logs)
        assert found == logs
        records = {each["topic_id"]: bool(each["partitions"][0]["records"]) for each in answer["responses"]}
        assert records == {known: True, NOBODY: False, NIL: False}


def test_records_and_positions_of_a_deleted_topic_are_not_those_of_the_next_one(client: Client) -> None:
    old = create(client, "recreated")
    commit = {"topic_id": old, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}
    assert produce(client, (old, 0)) == {(old, 0): NONE}
    answer = client.ask(ApiKey.OFFSET_COMMIT, 10, group_id="g", topics=[commit])
    assert [(each["topic_id"], each["partitions"][0]["error_code"]) for each in answer["topics"]] == [(old, NONE)]
    begun, _ = fetch(client, 17, (old, 0), session_epoch=0)
    session = {"session_id": begun["session_id"], "session_epoch": 1}
    delete(client, "recreated")
    assert fetch(client, 17, **session)[1] == {(old, 0): UNKNOWN_ID}
    new = create(client, "recreated")
    assert new != old
    assert produce(client, (old, 0), (new, 0)) == {(old, 0): UNKNOWN_ID, (new, 0): NONE}
    answer = client.ask(ApiKey.OFFSET_COMMIT, 10, group_id="g", topics=[commit])
    assert answer["topics"][0]["partitions"][0]["error_code"] == UNKNOWN_ID
    _, found = fetch(client, 17, (new, 0), session_id=session["session_id"], session_epoch=2)
    assert found == {(old, 0): UNKNOWN_ID, (new, 0): NONE}
    gone = [{"topic_id": old, "partitions": [0]}]
    _, found = fetch(client, 17, forgotten_topics_data=gone, session_id=session["session_id"], session_epoch=3)
    assert found == {(new, 0): NONE}


def test_positions_are_asked_by_id(client: Client) -> None:
    one, other = create(client, "one"), create(client, "other")
    topics = [
        {"topic_id": each, "partitions": [{"partition_index": 1, "committed_offset": 5, "committed_metadata": "m"}]}
        for each in (one, other)
    ]
    client.ask(ApiKey.OFFSET_COMMIT, 10, group_id="positions", topics=topics)

    def ask(*ids: UUID, **others: Any) -> dict[UUID, tuple[int, int]]:
        asked = {"topics": [{"topic_id": each, "partition_indexes": [1]} for each in ids], **others}
        (group,) = client.ask(ApiKey.OFFSET_FETCH, 10, groups=[{"group_id": "positions", **asked}])["groups"]
        parts = {each["topic_id"]: each["partitions"][0] for each in group["topics"]}
        return {key: (each["committed_offset"], each["error_code"]) for key, each in parts.items()}

    assert ask(one, NOBODY) == {one: (5, NONE), NOBODY: (-1, UNKNOWN_ID)}
    assert ask(topics=None) == {one: (5, NONE), other: (5, NONE)}
    delete(client, "other")
    assert ask(topics=None) == {one: (5, NONE)}


def test_session_keeps_to_ids_or_to_names(client: Client) -> None:
    known = create(client, "session")
    error = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    by_name = [{"topic": "session", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}]}]
    for first, second in ((12, 13), (17, 12)):
        begun = fetch(client, 17, (known, 0), session_epoch=0)[0]
        if first == 12:
            begun = client.ask(ApiKey.FETCH, 12, topics=by_name, max_wait_ms=0, min_bytes=1, session_epoch=0)
        answer, _ = fetch(client, second, session_id=begun["session_id"], session_epoch=1)
        assert answer["error_code"] == error
