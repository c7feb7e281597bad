"""Leaves out the rows of a retried task that an earlier attempt has already published.

A retried task should have the same rows in the same order, which are compared with the stored records batch by batch.
Rows in another order, for example after a shuffle, are recognized by digests of the stored records. Different rows
cannot be published exactly once, and are an error.

Whole records are compared: value, key and headers. Timestamps are compared only if the rows contain them and the stores
know them: in the dialects of RFC 46, a record that has only a value is sent without its timestamp.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import trio

from dafka.config import Config
from dafka.errors import UnacknowledgedError, UnansweredError
from dafka.records import Partition, ProducerRecord, Record, record_bytes
from dafka.roles import Reader
from dafka.spark.errors import InputChangedError, PublishingError
from dafka.spark.rows import Rows

READ_BYTES = 8 * 2**20
"""The approximate number of bytes to read from stores at a time if rows come in another order."""

READ_RECORDS_MAX = 10_000
"""The limit of such a read, in records."""


class Deduplicator:
    """Compares a task's rows for one topic with the records that its partition already has.

    `stored_end` is the result of `find_stored_end`: the sequence after the last record that was stored before.
    """

    def __init__(self, reader: Reader, partition: Partition, stored_end: int, config: Config) -> None:
        self.partition = partition
        self.stored_end = stored_end
        self._reader = reader
        self._timeout_s = config.producer.close_timeout_ms / 1000
        self._position = 0
        self._digests: Counter[bytes] | None = None

    async def drop_published(self, rows: Rows) -> Rows:
        """Return the task's next rows without those that are already stored, in the same order.

        Raise `InputChangedError` if the task has other rows than before, and `PublishingError` if the stores do not
        send their records in time.
        """
        if self._digests is None:
            count = min(len(rows), self.stored_end - self._position)
            if not count:
                return rows
            stored = await self._read_stored(self._position, self._position + count)
            if all(old is None or _is_same(old, new) for old, new in zip(stored, rows[:count], strict=True)):
                self._position += count
                return rows[count:]
            self._digests = await self._digest_rest(has_timestamps=_has_timestamps(rows))
        digests = self._digests
        new = [index for index, row in enumerate(rows) if not _take_digest(_as_record(row), digests)]
        return [rows[index] for index in new]  # type: ignore[return-value]

    def check_complete(self) -> None:
        """Raise `InputChangedError` after the last row if some stored records were not among the rows."""
        missing = self.stored_end - self._position if self._digests is None else self._digests.total()
        if missing:
            raise self._input_changed(f"{missing} of them are not among its present rows")

    async def _read_stored(self, first_sequence: int, end_sequence: int) -> Sequence[Record | None]:
        """Return stored records; None for each record that retention has dropped."""
        found: list[Record | None] = []
        records = self._reader.read(self.partition, first_sequence, end_sequence)
        try:
            while len(found) < end_sequence - first_sequence:
                position = first_sequence + len(found)
                with trio.move_on_after(self._timeout_s) as scope:
                    batch = await records.next_batch()
                if scope.cancelled_caught:
                    raise PublishingError(
                        f"topic {self.partition.topic}: stores hold records of {self.partition.address}, and for "
                        f"{self._timeout_s:g} s none sent record {position}; check the stores, or raise ackTimeout"
                    )
                next_sequence = end_sequence if batch is None else batch.first_sequence
                found += [None] * (next_sequence - position)
                found += () if batch is None else batch
        finally:
            records.close()
        return found

    async def _digest_rest(self, *, has_timestamps: bool) -> Counter[bytes]:
        digests: Counter[bytes] = Counter()
        first, count = self._position, 100
        while first < self.stored_end:
            stored = await self._read_stored(first, min(first + count, self.stored_end))
            whole = [record for record in stored if record is not None]
            if len(whole) < len(stored):
                raise self._input_changed("its rows have another order, and retention has dropped some of the records")
            digests.update(_digest(each, each.timestamp if has_timestamps else None) for each in whole)
            first += len(stored)
            count = min(max(READ_BYTES * len(stored) // max(sum(map(record_bytes, whole)), 1), 1), READ_RECORDS_MAX)
        return digests

    def _input_changed(self, how: str) -> InputChangedError:
        return InputChangedError(
            f"topic {self.partition.topic}: an earlier attempt of this task has published {self.stored_end} records "
            f"({self.partition}), and {how}. The query is not deterministic, so they cannot be published exactly once: "
            "persist its result first, or remove what differs from run to run"
        )


async def find_stored_end(reader: Reader, partition: Partition, config: Config) -> int:
    """Return the sequence after the last record of a task's partition that any store holds.

    Raise `DiscoveryError` if no tower answers, and `PublishingError` if fewer than the minimum number of stores answer
    in time, or another attempt keeps adding to the partition.
    """
    timeout_s = config.producer.close_timeout_ms / 1000
    try:
        return await reader.held_end(partition, timeout_s, min_stores=config.producer.min_stores)
    except UnansweredError as error:
        raise PublishingError(f"topic {partition.topic}: {_explain_unanswered(partition, error)}") from None


def unacknowledged_error(partition: Partition, error: UnacknowledgedError) -> PublishingError:
    """Return the error for unacknowledged records, with advice for the user."""
    return PublishingError(
        f"topic {partition.topic}: {error}; check the stores, change the option minStores or ackTimeout, or stop "
        "an earlier attempt of the task that is still running"
    )


def _explain_unanswered(partition: Partition, error: UnansweredError) -> str:
    if error.lacking == "stores":
        return (
            f"{error}; start another store, check that the option towers names the stores' tower, "
            "or change minStores or ackTimeout"
        )
    if error.lacking == "answers":
        return f"{error}; check the stores, or raise ackTimeout"
    return (
        f"another attempt of this task is still publishing to its partition ({partition.address}); "
        "set spark.speculation to false"
    )


def _as_record(row: bytes | ProducerRecord | None) -> ProducerRecord:
    return row if isinstance(row, ProducerRecord) else ProducerRecord(row)


def _has_timestamps(rows: Rows) -> bool:
    return isinstance(rows[0], ProducerRecord) and rows[0].timestamp is not None


def _is_same(stored: Record, row: bytes | ProducerRecord | None) -> bool:
    new = _as_record(row)
    return (
        stored.value == new.value
        and stored.key == new.key
        and stored.headers == tuple(new.headers)
        and (stored.timestamp is None or new.timestamp is None or stored.timestamp == new.timestamp)
    )


def _take_digest(row: ProducerRecord, digests: Counter[bytes]) -> bool:
    """Remove a row from the stored records; return whether it was one of them."""
    # The store may not know the record's timestamp.
    for timestamp in dict.fromkeys((row.timestamp, None)):
        digest = _digest(row, timestamp)
        if digests[digest] > 1:
            digests[digest] -= 1
            return True
        if digests.pop(digest, 0):
            return True
    return False


def _digest(record: Record | ProducerRecord, timestamp: int | None) -> bytes:
    parts: list[bytes | None] = [record.value, record.key]
    for name, value in record.headers:
        parts += (name.encode("utf-8", "surrogateescape"), value)
    if timestamp is not None:
        parts.append(b"%d" % timestamp)
    digest = hashlib.blake2b(digest_size=16, salt=b"timestamp" if timestamp is not None else b"")
    for part in parts:
        digest.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return digest.digest()
