"""Append record batches of clients to logs. What an idempotent producer sends again is not appended again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import attrs

from dafka.batches import BatchHeader, check_crc, iter_batches
from dafka.broker.service import Service
from dafka.errors import BatchError, DafkaError
from dafka.kafka.errors import ErrorCode
from dafka.kafka.topics import TopicPartition
from dafka.kafka.transactions import Producer
from dafka.protocol.logs import OWN, LogState
from dafka.storage.plugin_helpers import now_ms

Batch: TypeAlias = tuple[BatchHeader, bytes | memoryview]
"""The header of a record batch, and the record batch."""


class AppendRefusedError(DafkaError):
    """The records for a log are refused.

    Args:
        error_code: What is wrong, in Kafka's terms.
        message: The same for people; None if the code says it all.

    Attributes:
        error_code: What is wrong, in Kafka's terms.
        message: The same for people; None if the code says it all.
    """

    def __init__(self, error_code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or error_code.name)
        self.error_code = error_code
        self.message = message


@attrs.frozen(eq=False)
class AppendedBatches:
    """Record batches that a log has, but perhaps not durably yet.

    Attributes:
        log: The log.
        record_count: The number of their records.
        is_duplicate: Whether they were appended before.
        is_durable: Returns whether they are durable.
        wait_offset: Waits until they are durable, and returns the offset of the first record; -1 if the topic was
            deleted meanwhile.
    """

    log: LogState
    record_count: int
    is_duplicate: bool
    is_durable: Callable[[], bool]
    wait_offset: Callable[[], Awaitable[int]]


def message_bytes_max(service: Service, log: LogState) -> int:
    """Return the size of the largest batch that clients may append to a log, in bytes."""
    topic = service.broker.order.topics[log.topic]
    return int(topic.settings.get("max.message.bytes", service.config.kafka.message_bytes_max))


def read_batches(records: bytes | memoryview) -> list[Batch]:
    """Return record batches of a client, whose CRCs are checked.

    Args:
        records: Whole record batches, one after the other.

    Returns:
        The batches.

    Raises:
        AppendRefusedError: They are damaged, or not what a client may append.
    """
    whole = memoryview(records)
    found: list[Batch] = []
    try:
        for position, each in iter_batches(whole):
            header = check_crc(whole, position)
            if header.is_control or header.last_offset_delta != header.count - 1:
                raise AppendRefusedError(ErrorCode.INVALID_RECORD)
            found.append((header, whole[position : position + each.size]))
    except BatchError as error:
        raise AppendRefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return found


def append_batches(
    service: Service, log: LogState, batches: Sequence[Batch], transactional_id: str = ""
) -> AppendedBatches:
    """Append record batches of a client to a log, unless its producer has appended them before.

    Args:
        service: The broker and its coordinators.
        log: The log.
        batches: The batches, whose CRCs were checked. A batch of a producer with an id comes alone.
        transactional_id: The name of the producer, if the batch belongs to a transaction.

    Returns:
        The batches, to wait for.

    Raises:
        AppendRefusedError: They are malformed or too large, or do not follow what the producer has sent before.
    """
    if all(header.producer_id < 0 for header, _ in batches):
        return _append(service, log, batches)
    if len(batches) > 1:
        raise AppendRefusedError(ErrorCode.INVALID_RECORD, "expected one batch of a producer with an id")
    header = batches[0][0]
    producers = service.producers.of(log)
    if header.is_transactional:
        producer = Producer(header.producer_id, header.producer_epoch)
        place = TopicPartition(log.topic, log.number)
        error = service.transactions.check_partition(transactional_id, producer, place)
        if error:
            raise AppendRefusedError(error)
    check = producers.check_batch(header)
    if check.error_code:
        raise AppendRefusedError(check.error_code)
    if check.duplicate_of is not None:
        return _find_duplicate(service, log, check.duplicate_of.base_offset, header.count)
    sequence = service.broker.next_sequence(log)
    appended = _append(service, log, batches)
    producers.add_batch(attrs.evolve(header, base_offset=sequence), now_ms())
    return appended


def _append(service: Service, log: LogState, batches: Sequence[Batch]) -> AppendedBatches:
    try:
        appended = service.broker.append(log, batches)
    except BatchError as error:
        raise AppendRefusedError(ErrorCode.INVALID_RECORD, str(error)) from None
    count = sum(header.count for header, _ in batches)
    return AppendedBatches(
        log, count, is_duplicate=False, is_durable=appended.durable.is_set, wait_offset=appended.wait_offset
    )


def _find_duplicate(service: Service, log: LogState, sequence: int, count: int) -> AppendedBatches:
    """Return records that were appended before, from a sequence of the broker's own partition on."""
    broker = service.broker

    async def wait_offset() -> int:
        while broker.durable_end(log) <= sequence:
            if broker.order.find_log(log.topic, log.number) is not log:
                return -1
            with broker.watching([log]) as advanced:
                await advanced.wait()
        return log.index.find_from(OWN, sequence)

    def is_durable() -> bool:
        return broker.durable_end(log) > sequence

    return AppendedBatches(log, count, is_duplicate=True, is_durable=is_durable, wait_offset=wait_offset)
