"""Routes that publish and delete records, and find their offsets."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import trio

from dafka.batches import RecordColumns
from dafka.broker.core.log.partitioner import log_of_key
from dafka.http.api.record_documents import (
    KAFKA_ANSWER,
    KAFKA_BINARY,
    KAFKA_JSON,
    DeletedRecords,
    KafkaRestBinaryRecords,
    KafkaRestOffsets,
    KafkaRestRecords,
    LogOffsets,
    Offsets,
    PublishedRecords,
    RestRecord,
    join_rest_records,
    parse_rest_records,
    split_records,
)
from dafka.http.api.registry import Answer, Body, Parameter, RequiredPermission, Route
from dafka.http.logs.log_access import find_logs
from dafka.http.logs.positions import find_offsets, parse_position_text
from dafka.http.logs.publishing import Publication
from dafka.http.logs.records import Record, parse_json_lines
from dafka.http.server.documents import Count, doc, encode_document
from dafka.http.server.errors import WebError
from dafka.http.server.messages import JSON_LINES, AnyResponse, Request, Response, respond
from dafka.storage.plugin_helpers import now_ms

_REST_REFUSED = 1
"""The code of Kafka REST for an error that a retry does not solve."""

THREAD_BYTES = 2**18
"""Larger bodies are parsed in a thread."""

_PARSING = trio.CapacityLimiter(2)
_T = TypeVar("_T")

_STRUCTURED = {JSON_LINES, KAFKA_JSON, KAFKA_BINARY}


@Route(
    "POST /topics/{topic}/records",
    RequiredPermission.WRITE,
    name="publishRecords",
    tag="Records",
    parameters=[
        Parameter("key", Annotated[str, doc("The key of the record, if the body is one value.")], example="anne"),
        Parameter("log", Annotated[Count, doc("The log. If it is not given, the key chooses it.")], example=0),
    ],
    body=Body(
        "One record, or several.",
        {
            "*/*": Annotated[str, doc("The value of one record, as it is.")],
            JSON_LINES: Record,
            KAFKA_JSON: KafkaRestRecords,
            KAFKA_BINARY: KafkaRestBinaryRecords,
        },
    ),
    answers={
        200: Answer(
            "Where the records are, which are durable. The answer to a form of Kafka REST has its form.",
            PublishedRecords,
            {KAFKA_ANSWER: KafkaRestOffsets},
        )
    },
    errors=("log_not_found", "too_large", "leader_unavailable", "leader_changed"),
)
async def publish_records(request: Request) -> AnyResponse:
    """Publish records, and answer when they are durable.

    The content type determines the format of the body: JSON Lines (one record per line), a format of Kafka REST, or,
    with any other type, a single value. A topic that does not exist is created if `[kafka] auto_create_topics` is on.
    """
    topic, log, key = request.arguments["topic"], request.query["log"], request.query["key"]
    body = await request.read_body(None)
    content_type = request.content_type
    if content_type in _STRUCTURED and key is not None:
        raise WebError("bad_request", "expected keys in the body, and no parameter 'key'")
    if content_type in {KAFKA_JSON, KAFKA_BINARY}:
        records = await _parse(body, partial(parse_rest_records, is_binary=content_type == KAFKA_BINARY))
        return await _publish_rest(request, topic, records, log)
    bytes_max = _batch_bytes_max(request, topic)
    if content_type == JSON_LINES:
        parts = await _parse(body, lambda body, now_ms: list(split_records(parse_json_lines(body, now_ms), bytes_max)))
    else:
        record = RecordColumns([body], None if key is None else [key.encode()], None, [now_ms()])
        parts = list(split_records(record, bytes_max))
    publisher = request.publisher
    pending: list[Publication] = []
    for part in parts:
        await request.prepare_publishing(topic)
        pending.append(await publisher.begin(topic, part, request.source, log=log))
        await trio.lowlevel.checkpoint()  # large bodies must not delay other clients
    published = [stored for each in pending for stored in await each.wait()]
    request.web.counters.produced[topic] += sum(map(len, parts))
    return respond({"offsets": published})


async def _parse(body: bytes, parse: Callable[[bytes, int], _T]) -> _T:
    """Parse a body; a large one in a thread, so that it does not delay other clients. Raises `WebError`."""
    if len(body) <= THREAD_BYTES:
        return parse(body, now_ms())
    return await trio.to_thread.run_sync(parse, body, now_ms(), limiter=_PARSING)


async def _publish_rest(request: Request, topic: str, records: list[RestRecord], log: int | None) -> Response:
    """Publish records of Kafka REST, whose response has the outcome of each record."""
    log_count = len(request.broker.node.logs(topic)) or request.broker.config.kafka.log_count
    keyless = secrets.randbelow(log_count)
    indexes: dict[int, list[int]] = {}
    for index, each in enumerate(records):
        chosen = each.log if log is None else log
        if chosen is None:
            chosen = keyless if each.key is None else log_of_key(each.key, log_count)
        indexes.setdefault(chosen, []).append(index)
    found: list[dict[str, Any]] = [{}] * len(records)
    for number, chosen_indexes in indexes.items():
        for index, answer in zip(
            chosen_indexes,
            await _publish_to_log(request, topic, number, [records[each] for each in chosen_indexes]),
            strict=True,
        ):
            found[index] = answer
    body = encode_document({"offsets": found, "key_schema_id": None, "value_schema_id": None})
    return Response(200, body, KAFKA_ANSWER)


async def _publish_to_log(request: Request, topic: str, log: int, records: list[RestRecord]) -> list[dict[str, Any]]:
    publisher = request.publisher
    pending: list[Publication] = []
    try:
        for part in split_records(join_rest_records(records), _batch_bytes_max(request, topic)):
            await request.prepare_publishing(topic)
            pending.append(await publisher.begin(topic, part, request.source, log=log))
        error = None
    except WebError as refused:
        if refused.code == "topic_not_found":
            raise
        error = refused.message
    found: list[dict[str, Any]] = []
    for each in pending:
        for stored in await each.wait():
            found += [
                {"partition": log, "offset": (stored.offset or 0) + number, "error_code": None, "error": None}
                for number in range(stored.count)
            ]
    request.web.counters.produced[topic] += len(found)
    refused_count = len(records) - len(found)
    return found + [{"partition": log, "offset": None, "error_code": _REST_REFUSED, "error": error}] * refused_count


def _batch_bytes_max(request: Request, topic: str) -> int:
    logs = request.broker.node.logs(topic)
    return (
        request.broker.appender.rules_of(logs[0]).bytes_max if logs else request.broker.config.kafka.message_bytes_max
    )


@Route(
    "DELETE /topics/{topic}/records",
    RequiredPermission.ADMIN,
    name="deleteRecords",
    tag="Records",
    parameters=[
        Parameter("log", Annotated[Count, doc("The log. It may be missing if the topic has one.")], example=0),
        Parameter(
            "before",
            Annotated[
                str,
                doc("The offset of the first record that is left, `latest`, or `time:` with a time.", max_length=100),
            ],
            is_required=True,
            example="100",
        ),
    ],
    errors=("log_not_found", "offset_out_of_range", "leader_unavailable"),
)
async def delete_records(request: Request) -> DeletedRecords:
    """Delete the records of a log before an offset."""
    topic, number = request.arguments["topic"], request.query["log"]
    logs = find_logs(request.broker, topic, None if number is None else [number])
    if len(logs) > 1:
        raise WebError("bad_request", f"the topic {topic!r} has {len(logs)} logs: name one with the parameter 'log'")
    log = logs[0]
    if request.query["before"] == "latest":
        offset = (await request.logs.bounds(logs))[log].high_watermark
    else:
        position = parse_position_text(request.query["before"])
        offset = (await find_offsets(request.logs, request.groups, logs, position))[log]
    return DeletedRecords(log.number, await request.logs.delete_before(log, offset))


@Route(
    "GET /topics/{topic}/offsets",
    RequiredPermission.SEE,
    name="listOffsets",
    tag="Records",
    parameters=[
        Parameter(
            "time",
            Annotated[str, doc("A time, `2026-01-31T12:00:00Z` or in milliseconds since 1970.", max_length=100)],
            example="2026-01-31T12:00:00Z",
        )
    ],
    errors=("leader_unavailable",),
)
async def list_offsets(request: Request) -> Offsets:
    """List the first offset and the end offset of each log, and the offset for a time."""
    logs = find_logs(request.broker, request.arguments["topic"])
    found = [
        LogOffsets(log.number, each.start_offset, each.high_watermark)
        for log, each in (await request.logs.bounds(logs)).items()
    ]
    if request.query["time"] is not None:
        position = parse_position_text(f"time:{request.query['time']}")
        offsets = await find_offsets(request.logs, request.groups, logs, position)
        for log, described in zip(logs, found, strict=True):
            described.offset = offsets[log]
    return Offsets(found)
