r"""Exporting records as JSON Lines, and importing them: one JSON object per line, in ASCII.

    {"topic": "orders", "partition": "4F0C", "sequence": 7, "stored_at": 1767225600000, "timestamp": 1767225599000,
     "key": "...", "headers": [{"name": "trace", "value": "..."}], "value": "..."}

`stored_at`, `timestamp` (milliseconds since 1970, UTC), `key` and `headers` are optional. The value of a tombstone is
null; the value of a header can be null, too. A key or a value that is not UTF-8 is given as `key_base64` or
`value_base64` instead. Bytes of a topic, a partition or the name of a header that are not UTF-8 are given as lone
surrogates, `\udc80` to `\udcff` (PEP 383). Where compaction has removed records, a line has the first sequence and
their number:

    {"topic": "orders", "partition": "4F0C", "sequence": 8, "compacted": 120}
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import attrs
import trio

from dafka.errors import StorageError
from dafka.records import (
    NO_TIMESTAMP,
    RECORD_MEMORY_BYTES,
    Header,
    Partition,
    ProducerRecord,
    RecordBatch,
    encode_text,
    record_bytes,
)
from dafka.storage.base import READ_BYTES, Storage
from dafka.storage.capabilities import CompactsPartitions
from dafka.storage.plugin_helpers import now_ms
from dafka.storage.tools.partitions import ProgressCallback, read_next, select_partitions

EXPORT_BYTES = READ_BYTES // 4
"""The minimum size of an exported chunk, in bytes of memory. Each chunk costs a thread switch and a write."""

SEQUENCE_MAX = 2**64 - 1
"""The largest sequence in the protocol."""

TIME_MAX = 2**63 - 1
"""The latest time that a storage can keep, in milliseconds since 1970."""

TIMESTAMP_MIN = -(2**63)
"""The earliest timestamp that a record can have, in milliseconds since 1970."""

COMPACTED_MAX = 2**16
"""The largest number of removed records that one line can represent; an export writes several lines for more."""

_FIELDS = {
    "compacted",
    "topic",
    "partition",
    "sequence",
    "stored_at",
    "timestamp",
    "key",
    "key_base64",
    "headers",
    "value",
    "value_base64",
}


class JsonLineError(StorageError):
    """A line is not a valid record, or does not continue its partition.

    The message gives the line number and what was expected.
    """


@attrs.frozen
class ImportSummary:
    """The result of `import_lines`: the records that were appended, and those that the storage already held."""

    records: int
    content_bytes: int
    skipped: int


def format_lines(batch: RecordBatch) -> str:
    """Return records as lines, with `stored_at` if the batch has it.

    Each line has a line end. Consecutive records that compaction has removed have one line.
    """
    if batch.compacted is not None:
        return "".join(_format_compacted(batch))
    # Encoding only the value with `json.dumps` is faster than encoding the whole object.
    head = f'{{"topic": {json.dumps(batch.partition.topic)}, "partition": {json.dumps(batch.partition.address)}, '
    columns = [(f'"sequence": {sequence}' for sequence in range(batch.first_sequence, batch.end_sequence))]
    if batch.stored_at is not None:
        columns.append(f', "stored_at": {time_ms}' for time_ms in batch.stored_at)
    if batch.timestamps is not None:
        columns.append("" if each == NO_TIMESTAMP else f', "timestamp": {each}' for each in batch.timestamps)
    if batch.keys is not None:
        columns.append("" if key is None else f", {_format_bytes('key', key)}" for key in batch.keys)
    if batch.headers is not None:
        columns.append(_format_headers(headers) if headers else "" for headers in batch.headers)
    columns.append(f", {_format_bytes('value', value)}}}\n" for value in batch.values)
    return "".join(head + "".join(parts) for parts in zip(*columns, strict=True))


def _format_compacted(batch: RecordBatch) -> Iterator[str]:
    sequence = batch.first_sequence
    names = f'{{"topic": {json.dumps(batch.partition.topic)}, "partition": {json.dumps(batch.partition.address)}, '
    for run in chain(batch.held_runs(), [batch.between(batch.end_sequence, batch.end_sequence)]):
        if run.first_sequence > sequence:
            count, at = run.first_sequence - sequence, batch.stored_at
            time = "" if at is None else f', "stored_at": {at[sequence - batch.first_sequence]}'
            yield f'{names}"sequence": {sequence}{time}, "compacted": {count}}}\n'
        yield format_lines(run)
        sequence = run.end_sequence


async def export_lines(
    storage: Storage, topics: Sequence[str] | None = None, *, progress: ProgressCallback | None = None
) -> AsyncGenerator[bytes]:
    """Yield the records of some topics, or all, as chunks of JSON Lines, sorted by topic, partition and sequence.

    Raise `StorageCorruptError` if a record is damaged, after the records before it, `StorageSequenceError` if records
    were dropped before they were read, and `StorageError` if a topic has no partition.
    """
    partitions = await select_partitions(storage, topics)
    done, total = 0, sum(info.count for info in partitions.values())
    group: list[RecordBatch] = []
    size = 0
    for partition, info in partitions.items():
        sequence = info.earliest_sequence
        while sequence < info.end_sequence:
            try:
                batch = await read_next(storage, partition, sequence, info.end_sequence)
            except StorageError:
                if group:  # the records before the error are yielded first
                    yield await trio.to_thread.run_sync(_format_group, group)
                raise
            group.append(batch)
            size += batch.memory_bytes
            sequence = batch.end_sequence
            done += len(batch)
            if size >= EXPORT_BYTES or done >= total:
                yield await trio.to_thread.run_sync(_format_group, group)
                group, size = [], 0
                if progress is not None:
                    progress(done, total)


async def import_lines(
    storage: Storage, lines: AsyncIterator[list[bytes]], *, progress: ProgressCallback | None = None
) -> ImportSummary:
    """Append the records in JSON Lines, and return when they are durable.

    Lines of different partitions may alternate. Empty lines are ignored. A record without `stored_at` is stored with
    the current time. If a line is invalid, raise `JsonLineError` after the lines before it have been imported.
    """
    held = await storage.partitions()
    ends = {partition: info.end_sequence for partition, info in held.items()}
    reader = _LineReader(ends, keeps_compacted=isinstance(storage, CompactsPartitions))
    records = content_bytes = 0
    failure: JsonLineError | None = None

    async def append() -> None:
        nonlocal records, content_bytes
        batches = reader.take_batches()
        await storage.append(batches)
        records += sum(map(len, batches))
        content_bytes += sum(batch.content_bytes for batch in batches)
        if progress is not None:
            progress(records + reader.skipped, None)

    async for some_lines in lines:
        try:
            await trio.to_thread.run_sync(reader.add_lines, some_lines)
        except JsonLineError as error:
            failure = error
            break
        if reader.memory_bytes >= READ_BYTES:
            await append()
    await append()
    await storage.flush()
    if failure is not None:
        raise failure
    return ImportSummary(records, content_bytes, reader.skipped)


_REMOVED = ProducerRecord(None, timestamp=NO_TIMESTAMP)
"""Represents a record that compaction has removed."""


@attrs.define
class _Run:
    first_sequence: int
    records: list[ProducerRecord] = attrs.Factory(list)
    stored_at: list[int] = attrs.Factory(list)

    def to_batch(self, partition: Partition) -> RecordBatch:
        batch = RecordBatch.from_records(partition, self.first_sequence, self.records, NO_TIMESTAMP)
        assert batch.timestamps is not None
        has_timestamps = any(timestamp != NO_TIMESTAMP for timestamp in batch.timestamps)
        timestamps = batch.timestamps if has_timestamps else None
        removed = bytes(each is _REMOVED for each in self.records)
        compacted = removed if 1 in removed else None
        return attrs.evolve(batch, timestamps=timestamps, stored_at=self.stored_at, compacted=compacted)


class _LineReader:
    """Reads lines into one run of records per partition, and checks that each record continues its partition."""

    def __init__(self, ends: dict[Partition, int], *, keeps_compacted: bool) -> None:
        self._keeps_compacted = keeps_compacted
        self.skipped = 0
        self.memory_bytes = 0
        self._ends = ends
        self._runs: dict[Partition, _Run] = {}
        self._partitions: dict[tuple[Any, Any], Partition] = {}
        self._number = 0

    def add_lines(self, lines: Iterable[bytes]) -> None:
        time_ms = now_ms()
        for line in lines:
            self._number += 1
            if not line or line.isspace():
                continue
            try:
                self._add_record(_read_object(line), time_ms)
            except ValueError as error:
                raise JsonLineError(f"line {self._number}: {error}") from None

    def take_batches(self) -> list[RecordBatch]:
        batches = [run.to_batch(partition) for partition, run in self._runs.items()]
        self._runs = {}
        self.memory_bytes = 0
        return batches

    def _add_record(self, record: dict[str, Any], time_ms: int) -> None:
        partition = self._read_partition(record)
        sequence = _read_number(record, "sequence", SEQUENCE_MAX)
        stored_at = _read_number(record, "stored_at", TIME_MAX) if "stored_at" in record else time_ms
        timestamp = _read_number(record, "timestamp", TIME_MAX, TIMESTAMP_MIN) if "timestamp" in record else None
        if "compacted" in record:
            removed = _read_number(record, "compacted", COMPACTED_MAX, 1)
            skipped = self._check_sequence(partition, sequence, removed)
            sequence += skipped
            if skipped < removed and not self._keeps_compacted:
                raise ValueError(
                    f"{partition}: sequence {sequence} was removed by compaction, and this storage cannot keep the "
                    "places of such records; import into sqlite: or filelog:"
                )
            self._extend_run(partition, sequence, [_REMOVED] * (removed - skipped), stored_at)
            return
        value = _read_bytes(record, "value")
        key = _read_bytes(record, "key") if record.keys() & {"key", "key_base64"} else None
        headers = _read_headers(record["headers"]) if "headers" in record else ()
        if not self._check_sequence(partition, sequence, 1):
            self._extend_run(partition, sequence, [ProducerRecord(value, key, headers, timestamp)], stored_at)

    def _extend_run(self, partition: Partition, sequence: int, records: list[ProducerRecord], stored_at: int) -> None:
        if not records:
            return
        run = self._runs.get(partition)
        if run is None:
            run = self._runs[partition] = _Run(sequence)
        run.records += records
        run.stored_at += [stored_at] * len(records)
        self._ends[partition] = sequence + len(records)
        self.memory_bytes += record_bytes(records[0]) + RECORD_MEMORY_BYTES * len(records)

    def _check_sequence(self, partition: Partition, sequence: int, count: int) -> int:
        """Return how many records from a sequence on are held already. Raise `ValueError` if there is a gap."""
        end = self._ends.get(partition, sequence)
        if sequence > end:
            raise ValueError(f"{partition}: sequence {sequence} would leave a gap, expected {end}")
        skipped = min(end - sequence, count)
        self.skipped += skipped
        return skipped

    def _read_partition(self, record: dict[str, Any]) -> Partition:
        names = _require(record, "topic"), _require(record, "partition")
        try:
            return self._partitions[names]
        except (KeyError, TypeError):  # not seen yet, or not text
            for field, name in zip(("topic", "partition"), names, strict=True):
                encode_text(name, field)
        partition = self._partitions[names] = Partition(*names)
        return partition


def _read_object(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object in UTF-8")
    for field in record.keys() - _FIELDS:
        raise ValueError(f"unknown field {field!r}, expected {', '.join(sorted(_FIELDS))}")
    return record


def _require(record: dict[str, Any], field: str) -> Any:
    if field not in record:
        raise ValueError(f"{field} is missing")
    return record[field]


def _read_number(record: dict[str, Any], field: str, maximum: int, minimum: int = 0) -> int:
    number = _require(record, field)
    if type(number) is not int or not minimum <= number <= maximum:
        raise ValueError(f"{field}: expected a whole number from {minimum} to {maximum}, not {json.dumps(number)}")
    return number


def _read_bytes(record: dict[str, Any], name: str) -> bytes | None:
    """Read the field `name`, or `name_base64`; exactly one must be there."""
    is_text = name in record
    if is_text == (f"{name}_base64" in record):
        raise ValueError(f"expected either {name} or {name}_base64")
    text = record[name if is_text else f"{name}_base64"]
    if text is None and is_text:
        return None
    try:
        return text.encode("utf-8") if is_text else base64.b64decode(text, validate=True)
    except (AttributeError, TypeError, ValueError):
        pass
    if is_text:
        raise ValueError(f"{name}: expected text without lone surrogates, or null")
    raise ValueError(f"{name}_base64: expected text in base 64")


def _read_headers(headers: object) -> tuple[Header, ...]:
    if not isinstance(headers, list):
        raise ValueError("headers: expected a list of objects")
    found = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(name := header.get("name"), str):
            raise ValueError("headers: expected objects with a name that is text, and a value")
        if unknown := header.keys() - {"name", "value", "value_base64"}:
            raise ValueError(f"headers: unknown field {min(unknown)!r}, expected name, value, value_base64")
        try:
            name.encode("utf-8", "surrogateescape")
            found.append((name, _read_bytes(header, "value")))
        except UnicodeEncodeError:
            raise ValueError(r"headers: expected a name without lone surrogates other than \udc80 to \udcff") from None
        except ValueError as error:
            raise ValueError(f"headers: {error}") from None
    return tuple(found)


def _format_group(batches: Iterable[RecordBatch]) -> bytes:
    return "".join(map(format_lines, batches)).encode("ascii")


def _format_headers(headers: Iterable[Header]) -> str:
    items = (f'{{"name": {json.dumps(name)}, {_format_bytes("value", value)}}}' for name, value in headers)
    return f', "headers": [{", ".join(items)}]'


def _format_bytes(name: str, data: bytes | None) -> str:
    try:
        return f'"{name}": {json.dumps(None if data is None else data.decode("utf-8"))}'
    except UnicodeDecodeError:
        assert data is not None
        return f'"{name}_base64": "{base64.b64encode(data).decode("ascii")}"'
