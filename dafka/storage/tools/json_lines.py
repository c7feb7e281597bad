"""Records as JSON Lines: one object a line, in ASCII, and back into a storage.

    {"topic": "orders", "partition": "4F0C", "sequence": 7, "stored_at": 1767225600000, "content": "..."}

`stored_at` (milliseconds since 1970, UTC) may be left out. Contents that are not UTF-8 stand as `content_base64`
instead. Octets of a topic or a partition that are not UTF-8 stand as lone surrogates, `\\udc80` to `\\udcff` (PEP 383).
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any

import attrs
import trio

from dafka.errors import StorageError
from dafka.records import RECORD_MEMORY_BYTES, Partition, RecordBatch, encode_text
from dafka.storage.base import READ_BYTES, Storage
from dafka.storage.plugin_helpers import now_ms
from dafka.storage.tools.partitions import Progress, read_next, select_partitions

EXPORT_BYTES = READ_BYTES // 4
"""From so much on, what was read of any partitions is handed on: each time costs a thread's turn and a write."""

SEQUENCE_MAX = 2**64 - 1
"""The largest that the protocol can number."""

TIME_MAX = 2**63 - 1

_FIELDS = {"topic", "partition", "sequence", "stored_at", "content", "content_base64"}


class JsonLineError(StorageError):
    """A line is not a record, or not the one that comes next. The message names the line, and what would be right."""


@attrs.frozen
class ImportSummary:
    """What was imported: records, octets of their contents; `skipped` counts lines that the storage held already."""

    records: int
    content_bytes: int
    skipped: int


def format_lines(batch: RecordBatch) -> str:
    """The records as lines; with `stored_at` where the batch has it."""
    # Only the content differs much from line to line: the rest need not go through the encoder.
    head = f'{{"topic": {json.dumps(batch.partition.topic)}, "partition": {json.dumps(batch.partition.address)}, '
    sequences = range(batch.first_sequence, batch.end_sequence)
    if batch.stored_at is None:
        middles: Iterable[str] = (f'"sequence": {sequence}' for sequence in sequences)
    else:
        middles = (
            f'"sequence": {sequence}, "stored_at": {time}'
            for sequence, time in zip(sequences, batch.stored_at, strict=True)
        )
    return "".join(
        f"{head}{middle}, {_format_content(content)}}}\n"
        for middle, content in zip(middles, batch.contents, strict=True)
    )


async def export_lines(
    storage: Storage, topics: Sequence[str] | None = None, *, progress: Progress | None = None
) -> AsyncGenerator[bytes]:
    """Everything held, or these topics, in the order of topic, partition and sequence; many lines at a time.

    Raises `StorageError` for a topic of which there is no partition, `StorageCorruptError` at a damaged record,
    `StorageSequenceError` where records were dropped before they were read.
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
                if group:  # what comes before is handed on all the same
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
    storage: Storage, lines: AsyncIterator[list[bytes]], *, progress: Progress | None = None
) -> ImportSummary:
    """Appends the records that these lines spell, in about the order in which they come; empty lines are none.

    Lines of different partitions may alternate. Where a line brings no time, its record is stored now. Returns when
    all is durable. Raises `JsonLineError` for a line that is wrong; what comes before it has been imported.
    """
    held = await storage.partitions()
    reader = _LineReader({partition: info.end_sequence for partition, info in held.items()})
    records = content_bytes = 0
    failure: JsonLineError | None = None

    async def append() -> None:
        nonlocal records, content_bytes
        batches = reader.take()
        await storage.append(batches)
        records += sum(map(len, batches))
        content_bytes += sum(batch.content_bytes for batch in batches)
        if progress is not None:
            progress(records + reader.skipped, None)

    async for some_lines in lines:
        try:
            await trio.to_thread.run_sync(reader.add, some_lines)
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


@attrs.define
class _Run:
    first_sequence: int
    contents: list[bytes]
    stored_at: list[int]


class _LineReader:
    """Reads lines into a run of records a partition, and sees that each continues its partition."""

    def __init__(self, ends: dict[Partition, int]) -> None:
        self.skipped = 0
        self.memory_bytes = 0
        self._ends = ends
        self._runs: dict[Partition, _Run] = {}
        self._partitions: dict[tuple[Any, Any], Partition] = {}
        self._number = 0

    def add(self, lines: Iterable[bytes]) -> None:
        time_ms = now_ms()
        for line in lines:
            self._number += 1
            if not line or line.isspace():
                continue
            try:
                self._add(_read_object(line), time_ms)
            except ValueError as error:
                raise JsonLineError(f"line {self._number}: {error}") from None

    def take(self) -> list[RecordBatch]:
        batches = [
            RecordBatch(partition, run.first_sequence, run.contents, run.stored_at)
            for partition, run in self._runs.items()
        ]
        self._runs = {}
        self.memory_bytes = 0
        return batches

    def _add(self, record: dict[str, Any], time_ms: int) -> None:
        partition = self._read_partition(record)
        sequence = _read_number(record, "sequence", SEQUENCE_MAX)
        stored_at = _read_number(record, "stored_at", TIME_MAX) if "stored_at" in record else time_ms
        content = _read_content(record)
        end = self._ends.get(partition, sequence)
        if sequence < end:
            self.skipped += 1
            return
        if sequence > end:
            raise ValueError(f"{partition}: sequence {sequence} would leave a gap, expected {end}")
        run = self._runs.get(partition)
        if run is None:
            run = self._runs[partition] = _Run(sequence, [], [])
        run.contents.append(content)
        run.stored_at.append(stored_at)
        self._ends[partition] = sequence + 1
        self.memory_bytes += len(content) + RECORD_MEMORY_BYTES

    def _read_partition(self, record: dict[str, Any]) -> Partition:
        names = _require(record, "topic"), _require(record, "partition")
        try:
            return self._partitions[names]
        except (KeyError, TypeError):  # unknown yet, or no text
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


def _read_number(record: dict[str, Any], field: str, maximum: int) -> int:
    number = _require(record, field)
    if type(number) is not int or not 0 <= number <= maximum:
        raise ValueError(f"{field}: expected a whole number from 0 to {maximum}, not {json.dumps(number)}")
    return number


def _read_content(record: dict[str, Any]) -> bytes:
    is_text = "content" in record
    if is_text == ("content_base64" in record):
        raise ValueError("expected either content or content_base64")
    text = record["content" if is_text else "content_base64"]
    try:
        return text.encode("utf-8") if is_text else base64.b64decode(text, validate=True)
    except (AttributeError, TypeError, ValueError):
        pass
    if is_text:
        raise ValueError("content: expected text without lone surrogates")
    raise ValueError("content_base64: expected text in base 64")


def _format_group(batches: Iterable[RecordBatch]) -> bytes:
    return "".join(map(format_lines, batches)).encode("ascii")


def _format_content(content: bytes) -> str:
    try:
        return f'"content": {json.dumps(content.decode("utf-8"))}'
    except UnicodeDecodeError:
        return f'"content_base64": "{base64.b64encode(content).decode("ascii")}"'
