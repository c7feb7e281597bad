"""How routes and sessions read and write logs, whichever broker leads them.

Three classes have the interface `LogAccess`: `LocalLogs` of the logs that this broker leads, `RemoteLogs` of those that
other brokers lead, and `ClusterLogs` of both. A request that another broker has forwarded uses `LocalLogs`, so that it
is not forwarded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from dafka.batches import BatchHeader, RecordColumns, decode_batch, decode_held, unpacked_bytes_max
from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import find_name_problem
from dafka.broker.log.appending import Batch
from dafka.http.logs.records import JsonRecord, record_objects
from dafka.http.server.errors import WebError, log_not_found, topic_not_found
from dafka.records import RecordBatch

LEADER_WAIT_S = 10.0
"""How long a request waits until the leader of a log is known and answers."""

READ_BYTES = 2**16
"""The size of one read, unless a single batch is larger."""


def find_logs(broker: Broker, topic: str, numbers: Iterable[int] | None = None) -> list[Log]:
    """Return the logs of a topic with these numbers, in order and without duplicates; None for all.

    Raises `WebError` if there is no such topic or log.
    """
    logs = broker.node.logs(topic)
    if not logs and broker.node.inventory.record_count(topic):
        raise WebError("topic_not_found", f"the topic {topic!r} has no logs: {find_name_problem(topic)}")
    if not logs:
        raise topic_not_found(topic)
    return list(logs) if numbers is None else [log_at(topic, logs, each) for each in sorted(set(numbers))]


def log_at(topic: str, logs: Sequence[Log], number: int) -> Log:
    """Return a log by its number. Raises `WebError` if the topic has no such log."""
    if not 0 <= number < len(logs):
        raise log_not_found(topic, number, len(logs))
    return logs[number]


@attrs.frozen
class LogOffsets:
    """The offsets of a log.

    Readers of committed records get the records before `end_offset`, the last stable offset. Records between it and the
    high watermark can belong to open or aborted transactions. `offset_max` is the largest offset at which a reader can
    begin.
    """

    start_offset: int
    end_offset: int
    high_watermark: int
    offset_max: int


@attrs.frozen
class ReadRecords:
    """Committed records of a log from `offset` up to `next_offset`, where the next read begins.

    `offset` is larger than the requested one if records were dropped. `unpacked_bytes` is the size of the records,
    uncompressed; -1 if it is not known.
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
        """An upper bound on the size of the uncompressed records."""
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


class PendingBatches(Protocol):
    """Record batches that are being appended to a log."""

    @property
    def log(self) -> Log:
        """The log."""

    @property
    def record_count(self) -> int:
        """The number of their records."""

    @property
    def is_durable(self) -> bool:
        """Whether they are durable."""

    async def wait_offset(self) -> int | None:
        """Wait until they are durable, and return the offset of the first record; None if it is not known.

        Raises `WebError` if they are refused or possibly lost, or the topic was deleted.
        """


class LogAccess(Protocol):
    """Access to logs.

    All methods raise `WebError` if the topic was deleted, the storage fails, or the leader cannot be reached in time;
    and `LeaderMovedError` for a log that is not led where this access reaches it.
    """

    async def bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of logs, in their order."""

    async def known_bounds(self, logs: Iterable[Log]) -> dict[Log, LogOffsets]:
        """Return the offsets of the logs that can be reached promptly, for display."""

    async def find_offset_by_time(self, log: Log, timestamp_ms: int) -> int:
        """Return the offset of the first committed record at a time or later; else the end of the log.

        The time is in milliseconds since 1970.
        """

    async def read(
        self, log: Log, offset: int, *, bytes_max: int = READ_BYTES, end_offset: int | None = None
    ) -> ReadRecords:
        """Return the committed records of a log from an offset on, up to about a size; one batch can be larger.

        If the record at the offset was dropped, the records begin after it. Records from `end_offset` on are not
        needed, but another broker can return them. `next_offset` is `offset` if the log ends there; another broker is
        asked until it has records.
        """

    def has_records(self, log: Log, offset: int) -> bool:
        """Return whether there are committed records at an offset or later, or the topic was deleted.

        For a log that another broker leads, `wait_records` must have fetched them.
        """

    async def wait_records(self, offsets: Mapping[Log, int]) -> None:
        """Wait until one of these logs has records at its offset or later, is deleted, or gets another leader."""

    async def wait_capacity(self) -> None:
        """Wait until records that are not yet durable take less than `[store] pending_bytes_max`."""

    def append(self, log: Log, batches: Sequence[Batch], records: RecordBatch | None = None) -> PendingBatches:
        """Append record batches of a client to a log. Raises `WebError` if they are refused.

        Their CRCs were checked, and a batch with a producer id comes alone. `records` is the result of
        `ClientAppender.unpacked`, if there is one.
        """

    async def delete_before(self, log: Log, offset: int) -> int:
        """Delete the records of a log before an offset. Return the log's new start offset."""
