"""Converts batches of messages to frames and back, between a socket and a state machine.

Consecutive RECORDs of a partition differ only in the last eight bytes of their header, the sequence. The decoder
recognizes a header it has read before by all bytes but these, and gathers records into runs; the encoder writes the
header of a run once. Both agree with `dafka.wire.codec` message by message, which a test checks on random input. A
transport that gathers runs itself passes them as `EncodedRun`, which is also what the encoder returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TypeAlias

import attrs

from dafka.batches import COMPRESSED_BYTES_MAX, ENCODED_BYTES_MAX, Compression, encode_records
from dafka.config import BATCH_BYTES_MAX
from dafka.errors import EncodingError, WireError
from dafka.packed_bytes import join_contents
from dafka.records import Partition, RecordBatch, encode_text
from dafka.wire import codec
from dafka.wire.batch_runs import HEADERS_MAX, BatchRun, BatchRunDecoder
from dafka.wire.commands import NUMBER_8_MAX, Command, Dialect
from dafka.wire.envelope import unwrap_records, wrap_records
from dafka.wire.messages import (
    Ack,
    BatchedMessage,
    DirectRecord,
    DirectRecordBatchMessage,
    Record,
    RecordBatchMessage,
    RecordRun,
    WithRecords,
)
from dafka.wire.primitives import NUMBER_8

UNPACKED_BYTES_MAX = 2**22
"""The maximum size of the records that are unpacked at a time, unless a single record batch is larger."""

OPEN_RUNS_MAX = 8
"""The maximum number of runs with the same header that are gathered at once: answers of several nodes to one FETCH
interleave."""

_RECORD_IDS = frozenset(Command.RECORD.value + Command.DIRECT_RECORD.value)
_BATCH_IDS = frozenset(Command.RECORD_BATCH.value + Command.DIRECT_RECORD_BATCH.value)


@attrs.frozen
class EncodedRun:
    """A run of records in wire format, without separate frames for each.

    The frames of a record are the topic frame, the header (the prefix and 8 bytes of sequence) and the content.
    """

    topic_frame: bytes | None
    """None if the header holds the topic (libdafka dialect)."""
    header_prefix: bytes
    first_sequence: int
    """The sequence of `contents[0]`; each following record has the next one."""
    contents: Sequence[bytes]

    def messages(self) -> Iterator[Sequence[bytes]]:
        """Return the frames of each record, in order."""
        pack, header_prefix = NUMBER_8.pack, self.header_prefix
        numbered = enumerate(self.contents, self.first_sequence)
        if self.topic_frame is None:
            return ((header_prefix + pack(sequence), content) for sequence, content in numbered)
        topic = self.topic_frame
        return ((topic, header_prefix + pack(sequence), content) for sequence, content in numbered)


def iter_frames(messages: Iterable[Sequence[bytes] | EncodedRun]) -> Iterator[Sequence[bytes]]:
    """Yield the frames of every message that `BatchEncoder.encode` returns, those of a run one by one."""
    for message in messages:
        if isinstance(message, EncodedRun):
            yield from message.messages()
        else:
            yield message


class _Run:
    """Consecutive records with one header, while they are gathered.

    The run stands at the position of its first record.
    """

    __slots__ = ("contents", "first_sequence", "header", "next_sequence")

    def __init__(self, header: _Header, sequence: int) -> None:
        self.header = header
        self.contents: Sequence[bytes] = ()
        self.first_sequence = sequence
        self.next_sequence = sequence

    def close(self) -> RecordRun:
        """Return the run as a message, and stop gathering for its header."""
        header = self.header
        if header.last is not None:
            header.last = None
            header.runs.clear()
        return RecordRun(unwrap_records(header.partition, self.first_sequence, self.contents), header.requestor)


class _Header:
    """A record header without its sequence, and the runs that are gathered for it in this batch."""

    __slots__ = ("dialect", "last", "partition", "requestor", "runs")

    def __init__(self, message: Record | DirectRecord, dialect: Dialect) -> None:
        self.partition = Partition(message.subject, message.address)
        self.requestor = message.requestor if isinstance(message, DirectRecord) else None
        self.dialect = dialect
        self.runs: list[_Run] = []
        self.last: _Run | None = None

    def find_run(self, sequence: int, batch: list[_Gathered]) -> _Run:
        """Return the run that a record continues, or a new one; it becomes the last run."""
        runs = self.runs
        for run in reversed(runs):
            if run.next_sequence == sequence:
                self.last = run
                return run
        if len(runs) == OPEN_RUNS_MAX:
            del runs[0]
        self.last = run = _Run(self, sequence)
        runs.append(run)
        batch.append(run)
        return run


_Gathered: TypeAlias = "BatchedMessage | _Run | BatchRun"


class BatchDecoder:
    """Decodes received messages to runs and commands; discards and counts malformed ones.

    Args:
        batch_bytes_max: The largest size of a record batch after decompression, in bytes.
        keeps_encoded: Whether records keep their received record batch, so that it can be stored or sent unchanged.

    Attributes:
        discarded: The number of discarded messages, by the field that was wrong.
        dialects: The dialects of the well-formed messages so far.
    """

    def __init__(self, batch_bytes_max: int = BATCH_BYTES_MAX, *, keeps_encoded: bool = False) -> None:
        self.discarded: Counter[str] = Counter()
        self.dialects: set[Dialect] = set()
        self._headers: dict[bytes | tuple[bytes, bytes], _Header] = {}
        self._batch_runs = BatchRunDecoder(self.discarded, batch_bytes_max, keeps_encoded=keeps_encoded)

    def decode(self, messages: Iterable[Sequence[bytes] | EncodedRun]) -> list[BatchedMessage]:
        """Decode the frames of each ZeroMQ message, or runs that the transport has gathered.

        Return runs and other commands, in the order of their first messages. Malformed messages are counted.
        """
        return [message for part in self.decode_in_parts(messages) for message in part]

    def decode_in_parts(self, messages: Iterable[Sequence[bytes] | EncodedRun]) -> Iterator[list[BatchedMessage]]:
        """Decode messages as `decode` does, but unpack few compressed record batches at a time.

        Take all parts before the next call. Each part is emptied when the next one is requested.
        """
        part: list[BatchedMessage] = []
        size = 0
        for item in self._gather(messages):
            if isinstance(item, BatchRun):
                runs = list(self._batch_runs.decode(item))
                size += sum(run.batch.content_bytes for run in runs) if item.is_compressed else 0
                part += runs
                runs.clear()
            else:
                part.append(item.close() if isinstance(item, _Run) else item)
            if size > UNPACKED_BYTES_MAX:
                unpacked, part, size = part, [], 0
                yield unpacked
                unpacked.clear()  # the caller is done with it, and more is unpacked now
        yield part

    def _gather(self, messages: Iterable[Sequence[bytes] | EncodedRun]) -> list[_Gathered]:
        batch: list[_Gathered] = []
        headers = self._headers
        for message in messages:
            if isinstance(message, EncodedRun):
                self._decode_run(message, batch)
                continue
            frames = message
            first = frames[0] if frames else b""
            command = first[0] if first else -1
            if command not in _RECORD_IDS:
                self._decode_other(command, frames, batch)
                continue
            key: bytes | tuple[bytes, bytes]
            if len(frames) == 2:
                key, number = first[:-8], first[-8:]
            else:
                fields = frames[1] if len(frames) > 1 else b""
                key, number = (first, fields[:-8]), fields[-8:]
            header = headers.get(key)
            if header is None:
                header = self._read_header(frames, key)
                if header is None:
                    continue
            elif len(frames) != (2 if header.dialect is Dialect.LIBDAFKA else 3):
                self.discarded["frames"] += 1
                continue
            sequence = int.from_bytes(number, "big")
            run = header.last
            if run is None or sequence != run.next_sequence:
                run = header.find_run(sequence, batch)
            contents = run.contents
            if type(contents) is not list:
                run.contents = contents = list(contents)
            contents.append(frames[-1])
            run.next_sequence = sequence + 1
        self._batch_runs.end()
        return batch

    def _decode_run(self, run: EncodedRun, batch: list[_Gathered]) -> None:
        """Decode a run as its messages would be decoded. Its sequences cannot make a header malformed."""
        topic, header_prefix = run.topic_frame, run.header_prefix
        key = header_prefix if topic is None else (topic, header_prefix)
        header = self._headers.get(key)
        if header is None:
            for frames in run.messages():
                header = self._read_header(frames, key)
                if header is not None:
                    break
        if header is None or not run.contents:
            return
        gathered = header.last
        if gathered is None or run.first_sequence != gathered.next_sequence:
            gathered = header.find_run(run.first_sequence, batch)
        gathered.contents = join_contents([gathered.contents, run.contents]) if gathered.contents else run.contents
        gathered.next_sequence = run.first_sequence + len(run.contents)

    def _decode_other(self, command: int, frames: Sequence[bytes], batch: list[_Gathered]) -> None:
        if command in _BATCH_IDS:
            begun = self._batch_runs.add(frames)
            if begun is not None:
                batch.append(begun)
            return
        try:
            message, dialect = codec.decode(frames)
        except WireError as error:
            self.discarded[error.field] += 1
            return
        assert not isinstance(message, WithRecords)
        self.dialects.add(dialect)
        batch.append(message)

    def _read_header(self, frames: Sequence[bytes], key: bytes | tuple[bytes, bytes]) -> _Header | None:
        try:
            message, dialect = codec.decode(frames)
        except WireError as error:
            self.discarded[error.field] += 1
            return None
        assert isinstance(message, (Record, DirectRecord))
        if len(self._headers) >= HEADERS_MAX:
            self._headers.clear()
        self.dialects.add(dialect)
        self._headers[key] = header = _Header(message, dialect)
        return header


class BatchEncoder:
    """Encodes runs and commands in one dialect; omits and counts messages that the dialect cannot carry.

    That happens only to names that a peer chose: the names that a program chooses are checked before they are used.

    Args:
        dialect: The dialect to write.
        named_ack_takers: The addresses of producers whose ACKs are always written in the dialect of RFC 46, because
            libdafka's ACK does not name its store.
        is_wanted: Returns whether a message with this topic frame reaches any subscriber, so that records are encoded
            only in the forms that are read. If None, records are written one by one.
        compression: The compression of record batches.
        batch_bytes_max: The size of a record batch, as `dafka.batches.encode_records` counts it.

    Attributes:
        dialect: The dialect to write. It may be changed.
        discarded: The number of messages that were left out, by the field that cannot be written.
    """

    def __init__(
        self,
        dialect: Dialect,
        named_ack_takers: Container[str] = (),
        *,
        is_wanted: Callable[[bytes], bool] | None = None,
        compression: Compression = Compression.NONE,
        batch_bytes_max: int = COMPRESSED_BYTES_MAX,
    ) -> None:
        self.dialect = dialect
        self._is_wanted = is_wanted
        self._compression = compression
        size = ENCODED_BYTES_MAX if compression is Compression.NONE else COMPRESSED_BYTES_MAX
        self._batch_bytes_max = min(batch_bytes_max, size)
        self.discarded: Counter[str] = Counter()
        self._named_ack_takers = named_ack_takers

    def encode(self, messages: Iterable[BatchedMessage]) -> list[Sequence[bytes] | EncodedRun]:
        """Return the frames of every message, in order, or an `EncodedRun` for a run.

        Messages that the dialect cannot carry are left out and counted.
        """
        encoded: list[Sequence[bytes] | EncodedRun] = []
        for message in messages:
            try:
                if isinstance(message, RecordRun):
                    encoded.extend(self._encode_records(message))
                elif isinstance(message, Ack) and message.partition.partition("/")[0] in self._named_ack_takers:
                    encoded.append(codec.encode(message, Dialect.RFC46))
                else:
                    encoded.append(codec.encode(message, self.dialect))
            except EncodingError as error:
                self.discarded[error.field] += 1
        return encoded

    def compresses(self, topic: str) -> bool:
        """Return whether the records of a topic are sent in compressed batches."""
        if self._compression is Compression.NONE or self._is_wanted is None:
            return False
        return self._is_wanted(Command.RECORD_BATCH.value + encode_text(topic))

    def compress(self, batch: RecordBatch) -> RecordBatch:
        """Return records with the record batches that `encode` makes of them. It can be called in any thread."""
        return attrs.evolve(batch, encoded=encode_records(batch, self._compression, self._batch_bytes_max))

    def _encode_records(self, run: RecordRun) -> list[Sequence[bytes] | EncodedRun]:
        """Return a run as record batches, single records, both or neither, depending on its readers."""
        if self._is_wanted is None:
            return [*_encode_run(run, self.dialect)]
        if run.requestor is None:
            single, batch, topic = Command.RECORD, Command.RECORD_BATCH, run.batch.partition.topic
        else:
            single, batch, topic = Command.DIRECT_RECORD, Command.DIRECT_RECORD_BATCH, run.requestor
        encoded: list[Sequence[bytes] | EncodedRun] = []
        if self._is_wanted(batch.value + encode_text(topic)):
            encoded += _encode_batches(run, self._compression, self._batch_bytes_max)
        if self._is_wanted(single.value + encode_text(topic)):
            encoded += _encode_run(run, self.dialect)
        return encoded


def _encode_batches(run: RecordRun, compression: Compression, bytes_max: int) -> Iterator[Sequence[bytes]]:
    """Return the RECORD-BATCHes or DIRECT-RECORD-BATCHes of a run."""
    partition = run.batch.partition
    for content in encode_records(run.batch, compression, bytes_max):
        message: RecordBatchMessage | DirectRecordBatchMessage
        if run.requestor is None:
            message = RecordBatchMessage(partition.address, partition.topic, content)
        else:
            message = DirectRecordBatchMessage(run.requestor, partition.address, partition.topic, content)
        yield codec.encode(message, Dialect.RFC46)


def _encode_run(run: RecordRun, dialect: Dialect) -> Sequence[EncodedRun]:
    batch = run.batch
    if not len(batch):
        return ()
    partition, first_sequence = batch.partition, batch.first_sequence
    if batch.end_sequence - 1 > NUMBER_8_MAX:
        raise EncodingError("sequence", f"a number from 0 to {NUMBER_8_MAX}, not {batch.end_sequence - 1}")
    contents = wrap_records(batch)
    first: Record | DirectRecord
    if run.requestor is None:
        first = Record(partition.address, partition.topic, first_sequence, contents[0])
    else:
        first = DirectRecord(run.requestor, partition.address, partition.topic, first_sequence, contents[0])
    *topic_frame, header, _ = codec.encode(first, dialect)
    return (EncodedRun(topic_frame[0] if topic_frame else None, header[:-8], first_sequence, contents),)
