"""Received messages made by hypothesis, and the expected result of a batch decoder, by the single-message codec."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import attrs
from hypothesis import strategies as st

from dafka.batches import Compression, check_crc, decode_records, encode_records
from dafka.errors import BatchError, WireError
from dafka.records import Partition, RecordBatch, decode_text
from dafka.wire import (
    MESSAGES,
    NUMBER_4_MAX,
    NUMBER_8_MAX,
    Ack,
    BatchedMessage,
    Dialect,
    DirectRecord,
    DirectRecordBatchMessage,
    FieldType,
    Message,
    Record,
    RecordBatchMessage,
    RecordRun,
    decode,
    encode,
)

Frames: TypeAlias = Sequence[bytes]

texts = st.binary(max_size=255).map(decode_text)
topics_without_nul = st.binary(max_size=255).map(lambda data: decode_text(data.replace(b"\0", b"")))
numbers_8 = st.integers(0, NUMBER_8_MAX)
FIELDS: dict[FieldType, st.SearchStrategy[Any]] = {
    FieldType.STRING: texts,
    FieldType.STRINGS: st.lists(texts, max_size=4).map(tuple),
    FieldType.NUMBER_4: st.integers(0, NUMBER_4_MAX),
    FieldType.NUMBER_8: numbers_8,
    FieldType.FRAME: st.binary(max_size=64),
}


def messages(kind: type[Message], dialect: Dialect) -> st.SearchStrategy[Message]:
    fields = {name: FIELDS[field] for name, field in kind.FIELDS}
    fields[kind.TOPIC] = topics_without_nul if dialect is Dialect.LIBDAFKA else texts
    if kind is Ack and dialect is Dialect.LIBDAFKA:
        del fields["address"]
    return st.builds(kind, **fields)


# A producer writes one dialect; each of the other parts of the header differs in turn.
STREAMS: list[tuple[Dialect, str | None, Partition]] = [
    (dialect, requestor, Partition(topic, address))
    for dialect, suffix in ((Dialect.RFC46, "r"), (Dialect.LIBDAFKA, "l"))
    for topic, address in (("t", "a" + suffix), ("t", "b" + suffix), ("tt", "a" + suffix))
    for requestor in (None, "x", "t")
]
BUSIEST = (0, 1, 3, 9, 10, 12)
STEPS = (1, 1, 1, 1, 1, 1, 0, 2, -1, 2**63)


def record(stream: int, sequence: int) -> list[bytes]:
    dialect, requestor, partition = STREAMS[stream]
    fields = (partition.address, partition.topic, sequence, b"%d" % sequence)
    return encode(Record(*fields) if requestor is None else DirectRecord(requestor, *fields), dialect)


def batch(stream: int, first: int, count: int, kind: Compression, *, is_compacted: bool) -> list[bytes]:
    """Return a record batch in a message; compacted ones are sent to who fetched them only."""
    _, requestor, partition = STREAMS[stream]
    records = RecordBatch(partition, first, [b"%d" % number * 20 for number in range(first, first + count)])
    (data,) = encode_records(records.without(bytes(count - 1) + b"\1") if is_compacted else records, kind)
    fields = (partition.address, partition.topic, data)
    message = RecordBatchMessage(*fields) if requestor is None else DirectRecordBatchMessage(requestor, *fields)
    return encode(message, Dialect.RFC46)


@st.composite
def traffic(draw: st.DrawFn) -> list[Frames]:
    """Runs of several streams, interleaved, with gaps, repetitions, other commands and malformed frames."""
    others = [messages(kind, dialect) for kind in MESSAGES[4:] for dialect in Dialect]
    sequences: Counter[int] = Counter()
    drained: list[Frames] = []
    for stream, step, count, noise in draw(
        st.lists(
            st.tuples(
                st.sampled_from(BUSIEST) | st.integers(0, len(STREAMS) - 1),
                st.sampled_from(STEPS),
                st.integers(1, 4),
                st.sampled_from(["", "", "", "other", "cut", "frame", "byte", "topic", "empty"]),
            ),
            max_size=25,
        )
    ):
        frames = record(stream, sequences[stream])
        if draw(st.integers(0, 3)) == 0:
            first = (sequences[stream] + step) % 2**62
            kind = draw(st.sampled_from([Compression.NONE, Compression.NONE, Compression.GZIP]))
            frames = batch(stream, first, count, kind, is_compacted=draw(st.integers(0, 5)) == 0)
            sequences[stream] = first + count - 1
            drained.append(frames)
        else:
            for number in range(count):
                sequences[stream] = (sequences[stream] + (1 if number else step)) % (NUMBER_8_MAX + 1)
                drained.append(record(stream, sequences[stream]))
        place = draw(st.integers(0, len(frames) - 1)) if noise else 0
        if noise == "other":
            dialect = draw(st.sampled_from(Dialect))
            drained.append(encode(draw(st.one_of(others[int(dialect is Dialect.LIBDAFKA) :: 2])), dialect))
        elif noise == "cut":
            length = draw(st.integers(0, len(frames[place])))
            drained.append([*frames[:place], frames[place][:length], *frames[place + 1 :]])
        elif noise == "frame":
            drained.append(draw(st.sampled_from([frames[:-1], frames[1:], [*frames, b""], [*frames, frames[place]]])))
        elif noise == "byte":
            drained.append([*frames[:place], frames[place] + b"\0", *frames[place + 1 :]])
        elif noise == "topic":
            drained.append([frames[0][:1] + b"u" + frames[0][1:], *frames[1:]])
        elif noise == "empty":
            drained.append([])
    return drained


@attrs.define
class Reference:
    """The expected result of a batch decoder, by the single-message codec, except for how it gathers records.

    Here each record joins the last run of its stream, or begins another. `alike` compares the two.
    """

    inbound: list[Message | list[Record | DirectRecord]] = attrs.field(factory=list)
    discarded: Counter[str] = attrs.field(factory=Counter)
    dialects: set[Dialect] = attrs.field(factory=set)

    def decode(self, drained: Iterable[Frames]) -> list[BatchedMessage]:
        inbound: list[Any] = []
        last_runs: dict[tuple[str | None, Partition], list[Record | DirectRecord]] = {}
        for frames in drained:
            try:
                message, dialect = decode(frames)
            except WireError as error:
                self.discarded[error.field] += 1
                continue
            if isinstance(message, (RecordBatchMessage, DirectRecordBatchMessage)):
                inbound += self._decode_batch(message)
                continue
            self.dialects.add(dialect)
            if not isinstance(message, (Record, DirectRecord)):
                inbound.append(message)
                continue
            key = (getattr(message, "requestor", None), Partition(message.subject, message.address))
            run = last_runs.get(key)
            if run is None or message.sequence != run[-1].sequence + 1:
                last_runs[key] = run = []
                inbound.append(run)
            run.append(message)
        return [as_run(item) if isinstance(item, list) else item for item in inbound]

    def _decode_batch(self, message: RecordBatchMessage | DirectRecordBatchMessage) -> list[RecordRun]:
        requestor = message.requestor if isinstance(message, DirectRecordBatchMessage) else None
        try:
            check_crc(message.content, may_be_compacted=requestor is not None)
            records = decode_records(Partition(message.subject, message.address), message.content)
        except BatchError as error:
            self.discarded[f"batch: {error.field}"] += 1
            return []
        return [RecordRun(records, requestor)]


def as_run(records: list[Record | DirectRecord]) -> RecordRun:
    first = records[0]
    contents = [each.content for each in records]
    requestor = first.requestor if isinstance(first, DirectRecord) else None
    return RecordRun(RecordBatch(Partition(first.subject, first.address), first.sequence, contents), requestor)


def alike(
    inbound: Iterable[BatchedMessage],
) -> tuple[list[BatchedMessage], dict[tuple[str | None, Partition], list[Any]]]:
    """Return what does not depend on how records were gathered: all other messages, and the records of each stream."""
    others: list[BatchedMessage] = []
    streams: dict[tuple[str | None, Partition], list[Any]] = {}
    for item in inbound:
        if isinstance(item, RecordRun):
            records = [(each.sequence, each.value, each.key, each.headers) for each in item.batch]
            streams.setdefault((item.requestor, item.batch.partition), []).extend(records)
        else:
            others.append(item)
    return others, {stream: sorted(records) for stream, records in streams.items()}
