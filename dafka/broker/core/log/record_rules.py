"""What a topic requires of the records of clients, and what its leader changes in their batches: time and compression.

Records of Dafka's own producers are outside of this: they come from partitions that no broker writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

import attrs

from dafka.batches import BatchHeader, Compression, TimestampType, with_timestamp_type
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.topic_settings import is_compacted, number_of, stored_compression_of, timestamp_type_of
from dafka.broker.core.metadata.topics import Topic
from dafka.config import Config
from dafka.packed_bytes import PackedContents, Repeated
from dafka.records import NO_TIMESTAMP

RECORD_ERRORS_MAX = 1000
"""The number of refused records that a response names. One request can have hundreds of thousands."""


class RecordProblem(NamedTuple):
    """Why a record is refused. `number` counts the records of the request from 0 on."""

    number: int
    message: str


class RefusedRecords(NamedTuple):
    """The records for which an append is refused as a whole, and Kafka's error."""

    error_code: ErrorCode
    message: str
    problems: tuple[RecordProblem, ...]


@attrs.frozen
class RecordRules:
    """The rules of a topic for records of clients.

    Attributes:
        bytes_max: The largest size of the batches in a request, in bytes.
        decompressed_bytes_max: The largest size of their records, decompressed, in bytes.
        needs_keys: Whether each record must have a key.
        timestamp_type: Whose time the records have.
        before_max_ms: How long before now a record may have been made, in ms; it does not apply to append times.
        after_max_ms: The same for times after now.
        compression: The compression in which the leader stores batches; None for that of the producer.
        level: The level of this compression; None for its default.
    """

    bytes_max: int
    decompressed_bytes_max: int
    needs_keys: bool
    timestamp_type: TimestampType
    before_max_ms: int
    after_max_ms: int
    compression: Compression | None
    level: int | None

    @property
    def is_append_time(self) -> bool:
        """Whether records have the time at which the leader appends them."""
        return self.timestamp_type is TimestampType.LOG_APPEND_TIME

    def recompresses(self, header: BatchHeader) -> bool:
        """Return whether the leader must compress a batch in another way, or decompress it."""
        return self.compression is not None and header.compression is not self.compression

    def set_time(
        self, batches: Sequence[tuple[BatchHeader, bytes | memoryview]], now_ms: int
    ) -> Sequence[tuple[BatchHeader, bytes | memoryview]]:
        """Return batches with the topic's type of timestamps. Records with append times get `now_ms`."""
        if not self.is_append_time and all(header.timestamp_type is self.timestamp_type for header, _ in batches):
            return batches
        time_ms = now_ms if self.is_append_time else None
        return [with_timestamp_type(*batch, self.timestamp_type, time_ms) for batch in batches]

    def find_refused(
        self, count: int, keys: Sequence[bytes | None] | None, timestamps: Sequence[int] | None, now_ms: int
    ) -> RefusedRecords | None:
        """Return the records that break a rule; None if none does.

        Args:
            count: The number of records.
            keys: The key of each record, None for a record without one; None if no record has one.
            timestamps: When each record was made, in ms since 1970; None if that is unknown.
            now_ms: The time of the broker, in ms since 1970.

        Returns:
            The refused records.
        """
        keyless = self._find_keyless(count, keys)
        untimely = self._find_untimely(timestamps, now_ms)
        problems = tuple(islice(chain(keyless, untimely), RECORD_ERRORS_MAX))
        if not problems:
            return None
        error_code = ErrorCode.INVALID_TIMESTAMP if untimely else ErrorCode.INVALID_RECORD
        return RefusedRecords(error_code, f"record {problems[0].number}: {problems[0].message}", problems)

    def _find_keyless(self, count: int, keys: Sequence[bytes | None] | None) -> list[RecordProblem]:
        if not self.needs_keys or isinstance(keys, PackedContents):
            return []
        message = "expected a key, because the topic is compacted"
        keyless = range(count) if keys is None else (number for number, key in enumerate(keys) if key is None)
        return [RecordProblem(number, message) for number in islice(keyless, RECORD_ERRORS_MAX)]

    def _find_untimely(self, timestamps: Sequence[int] | None, now_ms: int) -> list[RecordProblem]:
        if self.is_append_time or timestamps is None:
            return []
        earliest, latest = now_ms - self.before_max_ms, now_ms + self.after_max_ms
        is_late = (timestamps.value if isinstance(timestamps, Repeated) else max(timestamps)) > latest
        if not is_late and earliest <= 0:
            return []
        early = f"before it (message.timestamp.before.max.ms is {self.before_max_ms})"
        late = f"after it (message.timestamp.after.max.ms is {self.after_max_ms})"
        untimely = (
            RecordProblem(number, f"at {now_ms}, the time {each} is too far {late if each > latest else early}")
            for number, each in enumerate(timestamps)
            if each != NO_TIMESTAMP and not earliest <= each <= latest
        )
        return list(islice(untimely, RECORD_ERRORS_MAX))


def rules_of(topic: Topic, config: Config) -> RecordRules:
    """Return the rules of a topic."""
    compression, level = stored_compression_of(topic)
    return RecordRules(
        number_of(topic, config, "max.message.bytes"),
        number_of(topic, config, "max.decompressed.message.bytes"),
        is_compacted(topic, config),
        timestamp_type_of(topic),
        number_of(topic, config, "message.timestamp.before.max.ms"),
        number_of(topic, config, "message.timestamp.after.max.ms"),
        compression,
        level,
    )
