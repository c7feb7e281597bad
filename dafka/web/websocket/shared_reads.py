"""Reads of logs that many subscribers share: each part of a log is read and encoded once, and kept for a while."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import attrs
import trio

from dafka.batches import RecordColumns
from dafka.contents import content_ends, count_bytes
from dafka.protocol.logs import LogState
from dafka.web.documents import encode_document
from dafka.web.log_access import LogAccess
from dafka.web.reading import ReadRecords
from dafka.web.records import encode_records
from dafka.web.websocket.codec import encode_records_rest
from dafka.web.websocket.connection import COMPRESSED_BYTES_MIN, deflate

READ_BYTES = 2**19
"""The size of one read of a log, unless a single batch is larger."""

TEXT_CONTENT_BYTES = 2**17
"""The size of the keys and values in one JSON message, unless a single record is larger."""

RECORD_BYTES = 48
"""About the size of a record in JSON without its key and value."""

KEPT_BYTES = 2**25
"""The size of all reads that are kept."""


class EncodedRecords:
    """Records of a log in one message, without the head, which each subscription has for itself.

    Args:
        offset: Where the message begins.
        next_offset: Where the next one begins.
        record_count: The number of records.
        data: The rest of the message.

    Attributes:
        offset: Where the message begins.
        next_offset: Where the next one begins.
        record_count: The number of records.
        data: The rest of the message.
    """

    def __init__(self, offset: int, next_offset: int, record_count: int, data: bytes) -> None:
        self.offset = offset
        self.next_offset = next_offset
        self.record_count = record_count
        self.data = data
        self._deflated: bytes | None = None

    def deflated(self) -> bytes | None:
        """Return the rest of the message compressed; None if that does not pay."""
        if self._deflated is None and len(self.data) >= COMPRESSED_BYTES_MIN:
            self._deflated = deflate(self.data)
        return self._deflated


class SharedRead:
    """A part of a log that was read.

    Args:
        log: The number of the log.
        read: The records.
        bytes_max: The maximum size of the records of a batch, uncompressed.

    Attributes:
        read: The records.
    """

    def __init__(self, log: int, read: ReadRecords, bytes_max: int) -> None:
        self.read = read
        self._log = log
        self._bytes_max = bytes_max
        self._texts: Sequence[EncodedRecords] | None = None
        self._binary: EncodedRecords | None = None
        self._lines: Sequence[tuple[int, bytes]] | None = None
        self._events: bytes | None = None

    @property
    def size(self) -> int:
        """About how much memory it takes, in bytes."""
        return 1000 + 4 * sum(len(data) for _, data in self.read.batches)

    def texts(self) -> Sequence[EncodedRecords]:
        """Return the messages with the records in JSON, at least one."""
        if self._texts is None:
            self._texts = list(self._encode_texts())
        return self._texts

    def lines(self) -> Sequence[tuple[int, bytes]]:
        """Return each record with its offset, as a JSON object with the number of the log."""
        if self._lines is None:
            self._lines = [
                (each["offset"], encode_document({"log": self._log, **each}))
                for each in self.read.objects(self._bytes_max)
            ]
        return self._lines

    def events(self) -> bytes:
        """Return the records as server-sent events of a stream with this log alone."""
        if self._events is None:
            self._events = b"".join(
                b"id: %d=%d\ndata: %b\n\n" % (self._log, offset + 1, line) for offset, line in self.lines()
            )
        return self._events

    def binary(self) -> EncodedRecords:
        """Return the message with the record batches."""
        if self._binary is None:
            read = self.read
            data = b"".join([data for _, data in read.batches])
            self._binary = EncodedRecords(read.offset, read.next_offset, read.record_count, data)
        return self._binary

    def text_of(self, offset: int, count: int) -> EncodedRecords:
        """Return a message with at most `count` records from an offset on, in JSON."""
        objects = [each for each in self.read.objects(self._bytes_max) if each["offset"] >= offset]
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
        """Yield the records in parts of limited size, with the offset of the first one of each."""
        for base_offset, columns in self.read.columns(self._bytes_max):
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


def _content_bytes(records: RecordColumns) -> int:
    size = len(records) * RECORD_BYTES + count_bytes(records.values)
    return size if records.keys is None else size + count_bytes(records.keys)


def _content_ends(records: RecordColumns) -> Sequence[int]:
    columns = [range(0, (len(records) + 1) * RECORD_BYTES, RECORD_BYTES), content_ends(records.values)]
    if records.keys is not None:
        columns.append(content_ends(records.keys))
    return list(map(sum, zip(*columns, strict=True)))


@attrs.define(eq=False)
class _Reading:
    """A read that has begun."""

    ended: trio.Event = attrs.field(factory=trio.Event)


class SharedReads:
    """The reads that subscribers of all connections share.

    Args:
        access: Reaches the logs.
        kept_bytes: The size of all reads that are kept.
    """

    def __init__(self, access: LogAccess, kept_bytes: int = KEPT_BYTES) -> None:
        self._access = access
        self._service = access.service
        self._left = kept_bytes
        self._kept: OrderedDict[tuple[LogState, int], SharedRead] = OrderedDict()
        self._reading: dict[tuple[LogState, int], _Reading] = {}

    async def read(self, log: LogState, offset: int) -> SharedRead:
        """Return committed records of a log from an offset on.

        Args:
            log: The log.
            offset: The offset.

        Returns:
            The records; none if there are no further ones yet.

        Raises:
            WebError: The topic was deleted, the storage fails, or the leader cannot be reached.
        """
        place = (log, offset)
        while (reading := self._reading.get(place)) is not None:
            await reading.ended.wait()
        found = self._kept.get(place)
        if found is not None and offset >= log.index.start_offset and not log.is_gone:
            self._kept.move_to_end(place)
            return found
        reading = self._reading[place] = _Reading()
        try:
            read = await self._access.read(log, offset, bytes_max=READ_BYTES)
        finally:
            del self._reading[place]
            reading.ended.set()
        found = SharedRead(log.number, read, self._service.config.kafka.batch_bytes_max)
        if read.next_offset > offset:
            self._keep(place, found)
        return found

    def _keep(self, place: tuple[LogState, int], read: SharedRead) -> None:
        former = self._kept.pop(place, None)
        if former is not None:
            self._left += former.size
        self._kept[place] = read
        self._left -= read.size
        while self._left < 0:
            _, oldest = self._kept.popitem(last=False)
            self._left += oldest.size
