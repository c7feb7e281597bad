"""Produce: batches of records are checked, and appended in the order in which the client has sent them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs
import trio

from dafka.batches import BatchHeader, Compression, check_crc, iter_batches
from dafka.batches.message_sets import convert_message_set, is_message_set
from dafka.errors import BatchError, EncodingError
from dafka.kafka.errors import ErrorCode
from dafka.kafka.protocol.messages.logs import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from dafka.kafka.topics import TopicPartition
from dafka.kafka.transactions import Producer
from dafka.listener.handlers.registry import Client
from dafka.protocol.logs import OWN, LogState
from dafka.storage.plugin_helpers import now_ms

_ZSTD_VERSION = 7
_BATCHES_VERSION = 3

Pending: TypeAlias = Callable[[], Awaitable[PartitionProduceResponse]]
_Batch: TypeAlias = tuple[BatchHeader, bytes | memoryview]


class ProduceRefusedError(Exception):
    """A client that wants no acknowledgement has sent what cannot be appended: it is disconnected, as by Kafka."""


class _RefusedError(Exception):
    """The records for one log are refused."""

    def __init__(self, error_code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message


def begin_produce(client: Client, request: ProduceRequest) -> Callable[[], Awaitable[ProduceResponse | None]]:
    """Append what a client has sent.

    Args:
        client: The client.
        request: The request.

    Returns:
        A function that waits until everything is durable, and returns the response; None if the client wants none.
    """
    pending: list[tuple[str, list[Pending]]] = []
    for topic in request.topic_data:
        appended = [_append(client, request, topic.name, each) for each in topic.partition_data]
        pending.append((topic.name, appended))

    async def wait() -> ProduceResponse | None:
        timeout_s = max(request.timeout_ms, 0) / 1000 if request.acks else float("inf")
        deadline = trio.current_time() + timeout_s
        responses = []
        for (name, waits), topic in zip(pending, request.topic_data, strict=True):
            parts = []
            for each, data in zip(waits, topic.partition_data, strict=True):
                part = _answer(data.index, ErrorCode.REQUEST_TIMED_OUT)
                with trio.move_on_at(deadline):
                    part = await each()
                parts.append(part)
            responses.append(TopicProduceResponse(name=name, partition_responses=parts))
        if request.acks:
            return ProduceResponse(responses=responses)
        if any(part.error_code for topic in responses for part in topic.partition_responses):
            raise ProduceRefusedError
        return None

    return wait


def _append(client: Client, request: ProduceRequest, topic: str, data: PartitionProduceData) -> Pending:
    try:
        if request.acks not in {-1, 0, 1}:
            raise _RefusedError(ErrorCode.INVALID_REQUIRED_ACKS)
        log = client.service.broker.order.find_log(topic, data.index)
        if log is None:
            raise _RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        batches = _read_batches(client, log, data.records)
        if all(header.producer_id < 0 for header, _ in batches):
            return _append_checked(client, log, data.index, batches)
        if len(batches) > 1:
            raise _RefusedError(ErrorCode.INVALID_RECORD, "expected one batch of a producer with an id")
        return _append_of_producer(client, request, log, data.index, batches[0])
    except _RefusedError as refused:
        return _refuse(data.index, refused)
    except BatchError as error:
        return _refuse(data.index, _RefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)))


def _append_of_producer(client: Client, request: ProduceRequest, log: LogState, index: int, batch: _Batch) -> Pending:
    """Append a batch of an idempotent or transactional producer, unless it was appended before."""
    header = batch[0]
    service = client.service
    producers = service.producers.of(log)
    if header.is_transactional:
        producer = Producer(header.producer_id, header.producer_epoch)
        place = TopicPartition(log.topic, log.number)
        error = service.transactions.check_partition(request.transactional_id or "", producer, place)
        if error:
            raise _RefusedError(error)
    check = producers.check_batch(header)
    if check.error_code:
        raise _RefusedError(check.error_code)
    if check.duplicate_of is not None:
        client.listener.counters.duplicates += 1
        sequence = check.duplicate_of.base_offset

        async def wait_duplicate() -> PartitionProduceResponse:
            while service.broker.durable_end(log) <= sequence:
                with service.broker.watching([log]) as advanced:
                    if service.broker.durable_end(log) <= sequence:
                        await advanced.wait()
            return _answer(index, ErrorCode.NONE, offset=log.index.find_from(OWN, sequence), log=log)

        return wait_duplicate
    sequence = service.broker.next_sequence(log)
    pending = _append_checked(client, log, index, [batch])
    producers.add_batch(attrs.evolve(header, base_offset=sequence), now_ms())
    return pending


def _append_checked(client: Client, log: LogState, index: int, batches: list[_Batch]) -> Pending:
    try:
        appended = client.service.broker.append(log, batches)
    except BatchError as error:
        raise _RefusedError(ErrorCode.INVALID_RECORD, str(error)) from None

    count = sum(header.count for header, _ in batches)

    async def wait() -> PartitionProduceResponse:
        offset = await appended.wait_offset()
        if offset < 0:  # the topic was deleted meanwhile
            return _answer(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        client.listener.counters.produced[log.topic] += count
        return _answer(index, ErrorCode.NONE, offset=offset, log=log)

    return wait


def _read_batches(client: Client, log: LogState, records: bytes | memoryview | None) -> list[_Batch]:
    """Return the batches in a request, whose CRCs are checked. Raises `BatchError`, or why they are refused."""
    if not records:
        raise _RefusedError(ErrorCode.INVALID_RECORD, "there are no records")
    version, config = client.header.api_version, client.service.config.kafka
    topic = client.service.broker.order.topics[log.topic]
    size_max = int(topic.settings.get("max.message.bytes", config.message_bytes_max))
    if len(records) > size_max:
        raise _RefusedError(ErrorCode.MESSAGE_TOO_LARGE)
    if is_message_set(records):
        if version >= _BATCHES_VERSION:
            raise _RefusedError(ErrorCode.INVALID_RECORD, "expected record batches")
        try:
            data = convert_message_set(records, bytes_max=config.batch_bytes_max)
        except EncodingError as error:
            raise BatchError("message set", str(error)) from None
        return [(check_crc(data), data)]
    whole = memoryview(records)
    found: list[_Batch] = []
    for position, each in iter_batches(whole):
        header = check_crc(whole, position)
        if header.compression is Compression.ZSTD and version < _ZSTD_VERSION:
            raise _RefusedError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if header.is_control or header.last_offset_delta != header.count - 1:
            raise _RefusedError(ErrorCode.INVALID_RECORD)
        found.append((header, whole[position : position + each.size]))
    return found


def _refuse(index: int, refused: _RefusedError) -> Pending:
    async def answer() -> PartitionProduceResponse:
        await trio.lowlevel.checkpoint()
        return _answer(index, refused.error_code, message=refused.message)

    return answer


def _answer(
    index: int, error: ErrorCode, *, offset: int = -1, log: LogState | None = None, message: str | None = None
) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=error,
        base_offset=offset,
        log_start_offset=-1 if log is None else log.index.start_offset,
        error_message=message,
    )
