"""Frames to messages and back by the batch: what sits between a drained socket and a state machine.

Consecutive RECORDs of a partition differ in their last eight header octets alone, the sequence. The decoder knows a
header it has read before by the rest of it, and gathers records into runs; the encoder writes a run's header once.
Both agree with `codec`, message by message; a test compares them on random input. A transport that gathers runs by
itself hands them over as `EncodedRun`, which is also what the encoder gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import attrs

from dafka.contents import join_contents
from dafka.errors import WireError
from dafka.records import Partition, RecordBatch
from dafka.wire import codec
from dafka.wire.constants import NUMBER_8_MAX, Command, Dialect
from dafka.wire.messages import BatchedMessage, DirectRecord, Record, RecordRun
from dafka.wire.primitives import NUMBER_8

HEADERS_MAX = 16_384
"""Headers remembered: one a partition, and one a requestor and partition. When full it starts anew, at the cost of
one slow decode a header; a peer that invents headers gains nothing else."""

OPEN_RUNS_MAX = 8
"""Runs of one header that are gathered at once. Several nodes answer a node that asks for records, and their answers,
which have the same headers, come in turns."""

_RECORD_IDS = frozenset((Command.RECORD.value[0], Command.DIRECT_RECORD.value[0]))


@attrs.frozen
class EncodedRun:
    """A run of records as it stands on the wire, without the frames of each.

    A record's frames are the topic frame (None where the header holds the topic), the header, which is the header
    prefix and 8 bytes of sequence, and the content. `contents[0]` has sequence `first_sequence`, each next one the
    sequence after.
    """

    topic_frame: bytes | None
    header_prefix: bytes
    first_sequence: int
    contents: Sequence[bytes]

    def messages(self) -> Iterator[Sequence[bytes]]:
        """The frames of each record, in order."""
        pack, header_prefix = NUMBER_8.pack, self.header_prefix
        numbered = enumerate(self.contents, self.first_sequence)
        if self.topic_frame is None:
            return ((header_prefix + pack(sequence), content) for sequence, content in numbered)
        topic = self.topic_frame
        return ((topic, header_prefix + pack(sequence), content) for sequence, content in numbered)


def iter_frames(messages: Iterable[Sequence[bytes] | EncodedRun]) -> Iterator[Sequence[bytes]]:
    """The frames of every message, those of a run one by one."""
    for message in messages:
        if isinstance(message, EncodedRun):
            yield from message.messages()
        else:
            yield message


class _Run:
    """Records of one header that follow each other, while they are being gathered; they stand where the first did."""

    __slots__ = ("contents", "first_sequence", "header", "next_sequence")

    def __init__(self, header: _Header, sequence: int) -> None:
        self.header = header
        self.contents: Sequence[bytes] = ()
        self.first_sequence = sequence
        self.next_sequence = sequence

    def close(self) -> RecordRun:
        """Ends the run."""
        header = self.header
        return RecordRun(RecordBatch(header.partition, self.first_sequence, self.contents), header.requestor)


class _Header:
    """A record header without its sequence, and the runs of records that it is gathering in this batch."""

    __slots__ = ("dialect", "last", "partition", "requestor", "runs")

    def __init__(self, message: Record | DirectRecord, dialect: Dialect) -> None:
        self.partition = Partition(message.subject, message.address)
        self.requestor = message.requestor if isinstance(message, DirectRecord) else None
        self.dialect = dialect
        self.runs: list[_Run] = []
        self.last: _Run | None = None

    def find_run(self, sequence: int, inbound: list[BatchedMessage | _Run]) -> _Run:
        """The run that this record continues, which is the last one then; or the one that it begins."""
        runs = self.runs
        for run in reversed(runs):
            if run.next_sequence == sequence:
                self.last = run
                return run
        if len(runs) == OPEN_RUNS_MAX:
            del runs[0]
        self.last = run = _Run(self, sequence)
        runs.append(run)
        inbound.append(run)
        return run


def _close(run: _Run) -> RecordRun:
    """Ends a run, and what its header was gathering in this batch."""
    header = run.header
    if header.last is not None:
        header.last = None
        header.runs.clear()
    return run.close()


class BatchDecoder:
    """Turns drained messages into a list of runs and commands; discards and counts what is malformed.

    Attributes:
        discarded: how many messages were thrown away, by the field that was wrong.
        heard: the dialects that well-formed messages came in.
    """

    def __init__(self) -> None:
        self.discarded: Counter[str] = Counter()
        self.heard: set[Dialect] = set()
        self._headers: dict[bytes | tuple[bytes, bytes], _Header] = {}

    def decode(self, messages: Iterable[Sequence[bytes] | EncodedRun]) -> list[BatchedMessage]:
        """Runs and other commands in the order in which they began. Malformed messages leave only a count."""
        inbound: list[BatchedMessage | _Run] = []
        headers = self._headers
        for message in messages:
            if isinstance(message, EncodedRun):
                self._decode_run(message, inbound)
                continue
            frames = message
            first = frames[0] if frames else b""
            command = first[0] if first else -1
            if command not in _RECORD_IDS:
                self._decode_other(frames, inbound)
                continue
            key: bytes | tuple[bytes, bytes]
            if len(frames) == 2:
                key, octets = first[:-8], first[-8:]
            else:
                fields = frames[1] if len(frames) > 1 else b""
                key, octets = (first, fields[:-8]), fields[-8:]
            header = headers.get(key)
            if header is None:
                header = self._read_header(frames, key)
                if header is None:
                    continue
            elif len(frames) != (2 if header.dialect is Dialect.LIBDAFKA else 3):
                self.discarded["frames"] += 1
                continue
            sequence = int.from_bytes(octets, "big")
            run = header.last
            if run is None or sequence != run.next_sequence:
                run = header.find_run(sequence, inbound)
            contents = run.contents
            if type(contents) is not list:
                run.contents = contents = list(contents)
            contents.append(frames[-1])
            run.next_sequence = sequence + 1
        return [_close(item) if isinstance(item, _Run) else item for item in inbound]

    def _decode_run(self, run: EncodedRun, inbound: list[BatchedMessage | _Run]) -> None:
        """As its messages one by one would be. Whether a header is well-formed, its sequence does not say."""
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
            gathered = header.find_run(run.first_sequence, inbound)
        gathered.contents = join_contents([gathered.contents, run.contents]) if gathered.contents else run.contents
        gathered.next_sequence = run.first_sequence + len(run.contents)

    def _decode_other(self, frames: Sequence[bytes], inbound: list[BatchedMessage | _Run]) -> None:
        try:
            message, dialect = codec.decode(frames)
        except WireError as error:
            self.discarded[error.field] += 1
            return
        assert not isinstance(message, (Record, DirectRecord))
        self.heard.add(dialect)
        inbound.append(message)

    def _read_header(self, frames: Sequence[bytes], key: bytes | tuple[bytes, bytes]) -> _Header | None:
        try:
            message, dialect = codec.decode(frames)
        except WireError as error:
            self.discarded[error.field] += 1
            return None
        assert isinstance(message, (Record, DirectRecord))
        if len(self._headers) >= HEADERS_MAX:
            self._headers.clear()
        self.heard.add(dialect)
        self._headers[key] = header = _Header(message, dialect)
        return header


class BatchEncoder:
    """Turns runs and commands into messages of one dialect; leaves out and counts what the dialect cannot carry.

    That is for names that a peer gave: a program's own are checked before they are used.

    Attributes:
        discarded: how many messages were left out, by the field that cannot be written.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.discarded: Counter[str] = Counter()
        self._dialect = dialect

    def encode(self, messages: Iterable[BatchedMessage]) -> list[Sequence[bytes] | EncodedRun]:
        """The frames of every message, in order; of a run, what `EncodedRun` keeps of them."""
        encoded: list[Sequence[bytes] | EncodedRun] = []
        for message in messages:
            try:
                if isinstance(message, RecordRun):
                    encoded.extend(_encode_run(message, self._dialect))
                else:
                    encoded.append(codec.encode(message, self._dialect))
            except WireError as error:
                self.discarded[error.field] += 1
        return encoded


def _encode_run(run: RecordRun, dialect: Dialect) -> Sequence[EncodedRun]:
    batch = run.batch
    if not batch.contents:
        return ()
    partition, first_sequence = batch.partition, batch.first_sequence
    if batch.end_sequence - 1 > NUMBER_8_MAX:
        raise WireError("sequence", f"a number from 0 to {NUMBER_8_MAX}, not {batch.end_sequence - 1}")
    first: Record | DirectRecord
    if run.requestor is None:
        first = Record(partition.address, partition.topic, first_sequence, batch.contents[0])
    else:
        first = DirectRecord(run.requestor, partition.address, partition.topic, first_sequence, batch.contents[0])
    *topic_frame, header, _ = codec.encode(first, dialect)
    return (EncodedRun(topic_frame[0] if topic_frame else None, header[:-8], first_sequence, batch.contents),)
