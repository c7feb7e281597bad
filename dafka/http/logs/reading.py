"""Reads committed records of logs that this broker leads.

Clients get no records of open or aborted transactions, and no transaction markers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import trio

from dafka.batches import BatchHeader, RecordColumns, decode_batch, decode_held, read_header, unpacked_bytes_max
from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import find_name_problem
from dafka.broker.core.positions import Offset
from dafka.broker.log.reader import split_committed
from dafka.errors import BatchError, StorageError
from dafka.http.logs.records import JsonRecord, record_objects
from dafka.http.server.errors import WebError, log_not_found, topic_not_found

READ_BYTES = 2**16
"""The size of one read, unless a single batch is larger."""

UNPACKED_BYTES = 2**20
"""The size of the records of one read, uncompressed, unless a single record is larger."""


# Logs


def find_logs(broker: Broker, topic: str, numbers: Iterable[int] | None = None) -> list[Log]:
    """Return the logs of a topic with these numbers, in order and without duplicates; None for all.

    Raises `WebError` if there is no such topic or log.
    """
    logs = broker.node.logs(topic)
    if not logs and broker.node.inventory.record_count(topic):
        raise WebError("topic_not_found", f"the topic {topic!r} has no logs: {find_name_problem(topic)}")
    if not logs:
        raise topic_not_found(topic)
    if numbers is None:
        return list(logs)
    found = []
    for number in sorted(set(numbers)):
        if not 0 <= number < len(logs):
            raise log_not_found(topic, number, len(logs))
        found.append(logs[number])
    return found


async def find_offset_by_time(broker: Broker, log: Log, timestamp_ms: int) -> int:
    """Return the offset of the first committed record at a time or later; else the end of the log.

    The time is in milliseconds since 1970. Raises `WebError` if the storage fails.
    """
    end = log.last_stable_offset
    try:
        at = await broker.node.reader.find_offset_by_time(log, timestamp_ms)
    except StorageError as error:
        raise WebError("storage_failed", f"the storage fails: {error}") from None
    return end if at is None else min(at[0], end)


# Records


@attrs.frozen
class ReadRecords:
    """Committed records of one log.

    Attributes:
        offset: Where the read begins. It is larger than the requested offset if records were dropped.
        next_offset: The offset of the next read.
        batches: The record batches, with the log's offsets.
        unpacked_bytes: The size of the records in the batches, uncompressed; -1 if it is not known.
    """

    offset: int
    next_offset: int
    batches: Sequence[tuple[BatchHeader, bytes]]
    unpacked_bytes: int = -1

    @property
    def record_count(self) -> int:
        """The number of records."""
        return sum(header.count for header, _ in self.batches)

    @property
    def unpacked_bytes_max(self) -> int:
        """The maximum uncompressed size of the records."""
        if self.unpacked_bytes >= 0:
            return self.unpacked_bytes
        return sum(unpacked_bytes_max(header, data) for header, data in self.batches)

    def columns(self) -> Iterator[tuple[int, RecordColumns]]:
        """Yield the records in parts, each with its base offset."""
        for header, data in self.batches:
            if header.is_compacted:
                yield from decode_held(header, data)
            else:
                yield header.base_offset, decode_batch(data, header=header)

    def objects(self) -> list[JsonRecord]:
        """Return the records as JSON objects. See `columns`."""
        return [each for offset, part in self.columns() for each in record_objects(part, offset)]


async def read_committed(
    broker: Broker, log: Log, offset: int, *, bytes_max: int = READ_BYTES, end_offset: int | None = None
) -> ReadRecords:
    """Return the committed records of a log from an offset on, up to a size.

    Args:
        broker: The broker and its coordinators.
        log: The log.
        offset: The offset of the first record. If it was dropped, the records begin after it.
        bytes_max: The approximate maximum size. One batch is returned even if it is larger.
        end_offset: The offset after the last record to return; None for no limit.

    Returns:
        The records. If there are none and `next_offset` is `offset`, there are no more records yet.

    Raises:
        WebError: The topic was deleted, or the storage fails.
    """
    offset = max(Offset(offset), log.index.start_offset)
    stable = log.last_stable_offset
    end = stable if end_offset is None else min(stable, Offset(end_offset))
    if log.is_gone:
        raise topic_not_found(log.topic)
    if offset >= end:
        return ReadRecords(offset, offset, ())
    try:
        reader = broker.node.reader
        read, unpacked_bytes = await reader.read_measured(log, offset, end, bytes_max, UNPACKED_BYTES)
        batches = [(read_header(data), data) for data in read]
    except (StorageError, BatchError) as error:
        if log.is_gone:
            raise topic_not_found(log.topic) from None
        raise WebError("storage_failed", f"the storage fails: {error}") from None
    next_offset = Offset(batches[-1][0].end_offset) if batches else end
    committed = _committed(batches, log.aborted_between(offset, next_offset))
    return ReadRecords(offset, next_offset, committed, unpacked_bytes)


def _committed(
    batches: Sequence[tuple[BatchHeader, bytes]], aborted: Sequence[tuple[int, int]]
) -> Sequence[tuple[BatchHeader, bytes]]:
    """Return the batches without aborted transactions and without transaction markers."""
    return [batch for batch, is_committed in split_committed(batches, aborted) if is_committed]


def has_records(broker: Broker, log: Log, offset: int) -> bool:
    """Return whether a log has committed records at an offset or later, or was deleted."""
    return log.last_stable_offset > offset or log.is_gone


async def wait_records(broker: Broker, offsets: Mapping[Log, int]) -> None:
    """Wait until one of these logs has records at its offset or later, or is deleted."""
    while not any(has_records(broker, log, offset) for log, offset in offsets.items()):
        with broker.node.watchers.watching(offsets) as advanced:
            await advanced.wait()
    await trio.lowlevel.checkpoint()
