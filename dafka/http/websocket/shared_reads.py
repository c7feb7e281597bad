"""Shares reads of logs among subscribers: each part of a log is read and encoded once, and cached briefly."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import attrs
import trio

from dafka.batches import RecordColumns
from dafka.broker.connections.memory import MemoryPool
from dafka.broker.core.log.log import Log
from dafka.http.logs.log_access import LogAccess, ReadRecords
from dafka.http.logs.records import JsonRecord, encode_records, record_objects
from dafka.http.logs.unpacking import unpack
from dafka.http.server.documents import encode_document, iter_document
from dafka.http.websocket.connection import COMPRESSED_BYTES_MIN, deflate
from dafka.http.websocket.messages import encode_records_rest
from dafka.packed_bytes import content_ends, count_bytes

READ_BYTES = 2**19
"""The size of one read of a log, unless a single batch is larger."""

TEXT_CONTENT_BYTES = 2**17
"""The size of the keys and values in one JSON message, unless a single record is larger."""

RECORD_BYTES = 48
"""The approximate size of a record in JSON without its key and value."""

KEPT_BYTES = 2**25
"""The maximum size of all cached reads."""

KEPT_S = 1.0
"""How long a read is shared, in seconds. Later, compaction can have removed some of its records."""

LARGE_BYTES = 2**16
"""The minimum size of a record whose text is not cached, but encoded while it is sent."""

UNPACKING_FACTOR = 3
"""The number of copies during unpacking: the batch, the single records, and the text."""

JOIN_BYTES = 2**16
"""The maximum size of joined lines."""

_EVENT_END = b"\n\n"

_T = TypeVar("_T")


@attrs.define(eq=False)
class EncodedRecords:
    """Records of a log in one message, from `offset` up to `next_offset`.

    `data` is the message without its header, which differs for each subscription.
    """

    offset: int
    next_offset: int
    record_count: int
    data: bytes
    _deflated: bytes | None = attrs.field(default=None, init=False)

    def deflated(self) -> bytes | None:
        """Return the rest of the message compressed; None if compression saves too little."""
        if self._deflated is None and len(self.data) >= COMPRESSED_BYTES_MIN:
            self._deflated = deflate(self.data)
        return self._deflated


@attrs.frozen
class RecordLine:
    """A record as a JSON object with the number of its log."""

    offset: int
    document: bytes | JsonRecord
    """The text; for a large record, the input of `iter_document`."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the text in pieces of limited size."""
        if isinstance(self.document, bytes):
            yield self.document
        else:
            yield from iter_document(self.document)


def join_lines(lines: Iterable[RecordLine], begin: Callable[[int], bytes], end: bytes) -> Iterator[bytes]:
    """Join lines into pieces of about `JOIN_BYTES`. `begin` returns the prefix of the line of an offset."""
    parts: list[bytes] = []
    size = 0
    for line in lines:
        parts.append(begin(line.offset))
        for piece in line.pieces():
            parts.append(piece)
            size += len(piece)
            if size > JOIN_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        parts.append(end)
    if parts:
        yield b"".join(parts)


class SharedRead:
    """A part of a log that was read. It is unpacked on first use.

    Its memory is released when the read is no longer referenced.
    """

    def __init__(self, log: int, read: ReadRecords, memory: MemoryPool) -> None:
        self.read = read
        self.read_at = trio.current_time()
        self.size = 0
        """About how much memory it takes, in bytes."""
        self._log = log
        self._memory = memory
        self._unpacking = trio.Lock()
        self._texts: Sequence[EncodedRecords] | None = None
        self._binary: EncodedRecords | None = None
        self._lines: Sequence[RecordLine] | None = None
        self._events: Sequence[bytes | RecordLine] | None = None
        self._take(1000 + sum(len(data) for _, data in read.batches))

    def __del__(self) -> None:
        self._memory.give_back(self.size)

    async def texts(self, host: str) -> Sequence[EncodedRecords]:
        """Return the records as JSON messages, at least one. Raises `WebError` if a batch cannot be unpacked.

        The memory for encoding them is taken for the client at `host`.
        """
        async with self._unpacking:
            if self._texts is None:
                self._texts = await self._unpack(host, lambda: list(self._encode_texts()))
                self._take(sum(len(each.data) for each in self._texts))
        return self._texts

    async def lines(self, host: str) -> Sequence[RecordLine]:
        """Return each record as a JSON object with the log's number. See `texts`."""
        async with self._unpacking:
            if self._lines is None:
                self._lines = await self._unpack(host, lambda: list(self._encode_lines()))
                self._take(sum(map(_memory_of, self._lines)))
        return self._lines

    def binary(self) -> EncodedRecords:
        """Return the binary message with the record batches."""
        if self._binary is None:
            read = self.read
            data = b"".join([data for _, data in read.batches])
            self._binary = EncodedRecords(read.offset, read.next_offset, read.record_count, data)
        return self._binary

    async def events(self, host: str) -> Iterator[bytes]:
        """Return the records as server-sent events of a stream of this log only, in pieces. See `texts`."""
        async with self._unpacking:
            if self._events is None:
                self._events = await self._unpack(host, lambda: list(self._encode_events()))
                self._take(sum(len(each) if isinstance(each, bytes) else _memory_of(each) for each in self._events))
        return self._event_pieces(self._events)

    async def text_of(self, offset: int, count: int, host: str) -> EncodedRecords:
        """Return a JSON message with at most `count` records from an offset on. See `texts`."""
        async with self._unpacking:
            return await self._unpack(host, lambda: self._encode_part(offset, count))

    def _take(self, size: int) -> None:
        self._memory.take_now(size)
        self.size += size

    async def _unpack(self, host: str, work: Callable[[], _T]) -> _T:
        return await unpack(self.read, self._log, work, memory=self._memory, source=host, copies=UNPACKING_FACTOR)

    def _encode_lines(self) -> Iterator[RecordLine]:
        for base_offset, columns in self.read.columns():
            is_large = _content_bytes(columns) > LARGE_BYTES
            for each in record_objects(columns, base_offset):
                document = {"log": self._log, **each}
                text = document if is_large and _text_bytes(each) > LARGE_BYTES else encode_document(document)
                yield RecordLine(each["offset"], text)

    def _encode_events(self) -> Iterator[bytes | RecordLine]:
        """Yield events: small ones joined; large ones as lines, which are encoded while they are sent."""
        small: list[RecordLine] = []
        size = 0
        for line in self._encode_lines():
            is_small = isinstance(line.document, bytes)
            if small and (not is_small or size > JOIN_BYTES):
                yield from join_lines(small, self._begin_event, _EVENT_END)
                small, size = [], 0
            if isinstance(line.document, bytes):
                small.append(line)
                size += len(line.document)
            else:
                yield line
        yield from join_lines(small, self._begin_event, _EVENT_END)

    def _event_pieces(self, events: Sequence[bytes | RecordLine]) -> Iterator[bytes]:
        for each in events:
            if isinstance(each, bytes):
                yield each
            else:
                yield from join_lines([each], self._begin_event, _EVENT_END)

    def _begin_event(self, offset: int) -> bytes:
        return b"id: %d=%d\ndata: " % (self._log, offset + 1)

    def _encode_part(self, offset: int, count: int) -> EncodedRecords:
        objects = [each for each in self.read.objects() if each["offset"] >= offset]
        part = objects[:count]
        next_offset = self.read.next_offset if len(part) == len(objects) else part[-1]["offset"] + 1
        return self._encode(offset, next_offset, len(part), encode_document(part))

    def _encode_texts(self) -> Iterator[EncodedRecords]:
        found: list[bytes] = []
        offset, count, size = self.read.offset, 0, 0
        for base_offset, part in self._parts():
            contents = _content_bytes(part)
            if found and size + contents > TEXT_CONTENT_BYTES:
                yield self._encode(offset, base_offset, count, b"[%b]" % b",".join(found))
                offset, found, count, size = base_offset, [], 0, 0
            found.append(encode_records(part, base_offset))
            count += len(part)
            size += contents
        yield self._encode(offset, self.read.next_offset, count, b"[%b]" % b",".join(found))

    def _parts(self) -> Iterator[tuple[int, RecordColumns]]:
        """Yield the records in parts of limited size, each with its base offset."""
        for base_offset, columns in self.read.columns():
            if _content_bytes(columns) <= TEXT_CONTENT_BYTES:
                yield base_offset, columns
                continue
            ends = _content_ends(columns)
            start = 0
            while start < len(columns):
                end = max(bisect_right(ends, ends[start] + TEXT_CONTENT_BYTES) - 1, start + 1)
                yield base_offset + start, columns[start:end]
                start = end

    def _encode(self, offset: int, next_offset: int, count: int, records: bytes) -> EncodedRecords:
        return EncodedRecords(offset, next_offset, count, encode_records_rest(self._log, offset, next_offset, records))


def _text_bytes(record: JsonRecord) -> int:
    """Return the size of the texts in a record, in characters."""
    sizes = [len(each) for each in record.values() if isinstance(each, str)]
    return sum(sizes) + sum(map(len, map(str, record.get("headers", ()))))


def _memory_of(line: RecordLine) -> int:
    return len(line.document) if isinstance(line.document, bytes) else _text_bytes(line.document)


def _content_bytes(records: RecordColumns) -> int:
    size = len(records) * RECORD_BYTES + count_bytes(records.values)
    return size if records.keys is None else size + count_bytes(records.keys)


def _content_ends(records: RecordColumns) -> Sequence[int]:
    columns = [range(0, (len(records) + 1) * RECORD_BYTES, RECORD_BYTES), content_ends(records.values)]
    if records.keys is not None:
        columns.append(content_ends(records.keys))
    return list(map(sum, zip(*columns, strict=True)))


_Place: TypeAlias = tuple[Log, str, int, int, int]


class SharedReads:
    """The reads that the subscribers of all connections share.

    They take at most about `kept_bytes` while they are cached, of the memory for unpacked records.
    """

    def __init__(self, memory: MemoryPool, kept_bytes: int = KEPT_BYTES) -> None:
        self._memory = memory
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[_Place, SharedRead] = OrderedDict()
        self._reading: dict[_Place, trio.Event] = {}

    async def read(self, access: LogAccess, log: Log, offset: int, bytes_max: int = READ_BYTES) -> SharedRead:
        """Return committed records of a log from an offset on, about up to a size; none if there are none yet.

        Raises `WebError` if the topic was deleted, the storage fails, or the leader cannot be reached.
        """
        # Another leader epoch can have other records at the same offset.
        key = (log, log.leadership.leader, log.leadership.epoch, offset, bytes_max)
        while (reading := self._reading.get(key)) is not None:
            await reading.wait()
        found = self._kept.get(key)
        is_recent = found is not None and trio.current_time() < found.read_at + KEPT_S
        if found is not None and is_recent and offset >= log.index.start_offset and not log.is_gone:
            self._kept.move_to_end(key)
            self._drop_oldest()  # a cached read can have been unpacked meanwhile
            return found
        reading = self._reading[key] = trio.Event()
        try:
            read = await access.read(log, offset, bytes_max=bytes_max)
        finally:
            del self._reading[key]
            reading.set()
        found = SharedRead(log.number, read, self._memory)
        if read.next_offset > offset:
            self._kept[key] = found
            self._drop_oldest()
        return found

    def _drop_oldest(self) -> None:
        size = sum(read.size for read in self._kept.values())
        while size > self._kept_bytes:
            _, oldest = self._kept.popitem(last=False)
            size -= oldest.size
