"""Produce: validates record batches, and appends them in the order in which the client sent them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import trio

from dafka.batches import Compression, check_crc, read_header
from dafka.batches.message_sets import convert_message_set, is_message_set
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.log.appending import (
    AppendRefusedError,
    Batch,
    read_batches,
    too_large,
)
from dafka.errors import (
    BatchError,
    BatchTooLargeError,
    EncodingError,
    NotLeaderError,
    OutcomeUnknownError,
    StorageError,
    TopicDeletedError,
)
from dafka.kafka.apis.shared.authorization import (
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    add_refused,
    may_use,
    split_unauthorized,
)
from dafka.kafka.apis.shared.registry import AUTHORIZATIONS, Decision, RequestContext
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.logs import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_ALL = -1
_ZSTD_VERSION = 7
_BATCHES_VERSION = 3

_ABORTABLE_VERSION = 11
"""The first version in which a client knows TRANSACTION_ABORTABLE."""

_JOINS_VERSION = 12
"""The first version that adds its logs to the transaction (KIP-890)."""


class PendingPart(NamedTuple):
    """The records of one log: a function that waits for the response, and whether it would wait for nothing."""

    wait: Callable[[], Awaitable[PartitionProduceResponse]]
    is_ready: Callable[[], bool]


class PendingProduce(NamedTuple):
    """A request whose records are being stored.

    `wait` waits until everything is durable (with acks=all on enough replicas) and returns the response; None with
    acks=0. `is_ready` returns whether that takes no time.
    """

    wait: Callable[[], Awaitable[ProduceResponse | None]]
    is_ready: Callable[[], bool]


class ProduceRefusedError(Exception):
    """A request with acks=0 cannot be appended. The client is disconnected, as in Kafka."""


def _authorize(user: Permissions, context: RequestContext, request: ProduceRequest) -> Decision:
    """Require `write` on the topics, and the permission for the transactional id."""
    name = request.transactional_id
    if name is not None and not user.may_use_transaction(name):
        refused, error = split_unauthorized(request, "topic_data", lambda _: False), TRANSACTION_REFUSED
    else:
        refused = split_unauthorized(request, "topic_data", lambda each: may_use(context, each, user.may_write))
        error = TOPIC_REFUSED
    return add_refused(refused, "responses", error, base_offset=-1)


AUTHORIZATIONS[ApiKey.PRODUCE] = _authorize


async def begin_produce(context: RequestContext, request: ProduceRequest) -> PendingProduce:
    """Append a client's records when there is memory for them."""
    refused = await _join(context, request) if request.transactional_id else {}
    pending = [
        [await _append(context, request, topic, each, refused) for each in topic.partition_data]
        for topic in request.topic_data
    ]

    async def wait() -> ProduceResponse | None:
        timeout_s = max(request.timeout_ms, 0) / 1000 if request.acks else float("inf")
        deadline = trio.current_time() + timeout_s
        responses = []
        for waits, topic in zip(pending, request.topic_data, strict=True):
            parts = []
            for each, data in zip(waits, topic.partition_data, strict=True):
                part = _answer(data.index, ErrorCode.REQUEST_TIMED_OUT)
                with trio.move_on_at(deadline), suppress(OutcomeUnknownError):
                    part = await (each.wait() if request.acks else _wait_unasked(context, each))
                parts.append(part)
            responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=parts))
        if request.acks:
            leaders = [part.current_leader for topic in responses for part in topic.partition_responses]
            endpoints = context.view_cluster().describe_endpoints(leaders) if any(leaders) else []
            return ProduceResponse(responses=responses, node_endpoints=endpoints)
        if any(part.error_code for topic in responses for part in topic.partition_responses):
            raise ProduceRefusedError
        return None

    def is_ready() -> bool:
        return bool(request.acks) and all(each.is_ready() for waits in pending for each in waits)

    return PendingProduce(wait, is_ready)


async def _wait_unasked(context: RequestContext, pending: PendingPart) -> PartitionProduceResponse:
    """Wait for records sent with acks=0, because later responses wait for them. It waits no longer than others."""
    try:
        with context.broker.node.storage.waits.bounded():
            return await pending.wait()
    except StorageError as error:
        raise ProduceRefusedError(str(error)) from None


async def _join(context: RequestContext, request: ProduceRequest) -> dict[Log, ErrorCode]:
    """Learn which logs take part in the transaction of a request. Return the errors of those that do not.

    From version 12 on, they are added. All records of a request come from one producer; those of others are refused
    later, so that no client waits for many coordinators.
    """
    logs: dict[Producer, list[Log]] = {}
    for topic in request.topic_data:
        for data in topic.partition_data:
            log = context.find_log(topic.name, topic.topic_id, data.index)
            with suppress(BatchError):  # it is refused later
                header = read_header(data.records or b"")
                if log is not None and log.leadership.is_led and header.is_transactional:
                    logs.setdefault(Producer(header.producer_id, header.producer_epoch), []).append(log)
    if not logs:
        return {}
    producer, joining = next(iter(logs.items()))
    adds, name = context.header.api_version >= _JOINS_VERSION, request.transactional_id or ""
    return await context.broker.joins.join_logs(name, producer, joining, adds=adds)


async def _append(
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
    refused_logs: Mapping[Log, ErrorCode],
) -> PendingPart:
    node, problem = context.broker.node, ""
    try:
        await node.storage.wait_capacity()  # for the records of one log, because they can be compressed
    except StorageError as error:
        problem = str(error)
    log = context.find_log(topic.name, topic.topic_id, data.index)
    if log is None:
        return _refuse(data.index, AppendRefusedError(context.find_missing_error(topic.name)))
    waits_for_all = request.acks == _ALL
    name, appender = request.transactional_id or "", context.broker.appender
    try:
        _check_request(request, problem, refused_logs.get(log, ErrorCode.NONE))
        batches = _read_batches(context, log, data.records)
        async with appender.unpacked(log, batches, context.source) as (adapted, records):
            appended = appender.append(
                log,
                adapted,
                name,
                records=records,
                all_replicas=waits_for_all,
                has_own_epoch=context.header.api_version >= _JOINS_VERSION,
            )
    except AppendRefusedError as refused:
        return _refuse(data.index, _for_version(context, refused))
    except NotLeaderError:
        leader = context.view_cluster().describe_leader(log)
        return _refuse(data.index, AppendRefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER), leader)
    counters = context.server.counters
    if appended.is_duplicate:
        counters.duplicates += 1

    async def wait() -> PartitionProduceResponse:
        try:
            offset = await appended.wait_offset(all_replicas=waits_for_all)
        except NotLeaderError:
            leader = context.view_cluster().describe_leader(log)
            return _answer(data.index, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=leader)
        except TopicDeletedError:
            return _answer(data.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not appended.is_duplicate:
            counters.produced[log.topic] += appended.record_count
        return _answer(data.index, ErrorCode.NONE, offset=offset, log=log, append_time_ms=appended.append_time_ms)

    return PendingPart(wait, lambda: appended.is_durable() and not (waits_for_all and log.is_replicated))


def _for_version(context: RequestContext, refused: AppendRefusedError) -> AppendRefusedError:
    """Return the error for a client's version. From version 11 on, it knows that aborting the transaction helps."""
    if refused.error_code is ErrorCode.INVALID_TXN_STATE and context.header.api_version >= _ABORTABLE_VERSION:
        return AppendRefusedError(ErrorCode.TRANSACTION_ABORTABLE, "the log does not take part in the transaction")
    if refused.error_code is ErrorCode.CONCURRENT_TRANSACTIONS and context.header.api_version < _JOINS_VERSION:
        return AppendRefusedError(ErrorCode.NOT_ENOUGH_REPLICAS, "the last transaction is being ended: try again")
    return refused


def _check_request(request: ProduceRequest, problem: str, error: ErrorCode) -> None:
    """Raise `AppendRefusedError` if no part of a request can be appended, or for the error of a log."""
    if request.acks not in {_ALL, 0, 1}:
        raise AppendRefusedError(ErrorCode.INVALID_REQUIRED_ACKS)
    if problem:
        raise AppendRefusedError(ErrorCode.KAFKA_STORAGE_ERROR, problem)
    if error:
        raise AppendRefusedError(error)


def _read_batches(context: RequestContext, log: Log, records: bytes | memoryview | None) -> list[Batch]:
    """Return the batches in a request after checking their CRCs. Raises `AppendRefusedError`."""
    if not records:
        raise AppendRefusedError(ErrorCode.INVALID_RECORD, "there are no records")
    version = context.header.api_version
    context.broker.appender.check_size(log, len(records))
    if is_message_set(records):
        if version >= _BATCHES_VERSION:
            raise AppendRefusedError(ErrorCode.INVALID_RECORD, "expected record batches")
        try:
            data = convert_message_set(records, bytes_max=context.broker.appender.rules_of(log).decompressed_bytes_max)
        except BatchTooLargeError as error:
            raise too_large(error) from None
        except (BatchError, EncodingError) as error:
            raise AppendRefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        return [(check_crc(data), data)]
    found = read_batches(records)
    if len(found) > 1:
        raise AppendRefusedError(ErrorCode.INVALID_RECORD, "expected one record batch for each partition")
    if version < _ZSTD_VERSION and any(header.compression is Compression.ZSTD for header, _ in found):
        raise AppendRefusedError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    return found


def _refuse(index: int, refused: AppendRefusedError, leader: LeaderIdAndEpoch | None = None) -> PendingPart:
    async def answer() -> PartitionProduceResponse:
        found = _answer(index, refused.error_code, message=refused.message, leader=leader)
        found.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each.number, batch_index_error_message=each.message)
            for each in refused.problems
        ]
        return found

    return PendingPart(answer, lambda: True)


def _answer(
    index: int,
    error: ErrorCode,
    *,
    offset: int = -1,
    log: Log | None = None,
    append_time_ms: int = -1,
    message: str | None = None,
    leader: LeaderIdAndEpoch | None = None,
) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=error,
        base_offset=offset,
        log_append_time_ms=append_time_ms,
        log_start_offset=-1 if log is None else log.index.start_offset,
        error_message=message,
        current_leader=leader,
    )
