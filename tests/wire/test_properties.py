"""Any message survives the wire, and the batch codec agrees with the one-by-one codec, which is its reference."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.errors import WireError
from dafka.records import Partition, RecordBatch, decode_text
from dafka.wire import (
    MESSAGES,
    NUMBER_4_MAX,
    NUMBER_8_MAX,
    Ack,
    BatchDecoder,
    BatchEncoder,
    Dialect,
    DirectRecord,
    Inbound,
    Kind,
    Message,
    Record,
    RecordRun,
    batch,
    decode,
    encode,
)

Frames: TypeAlias = Sequence[bytes]

texts = st.binary(max_size=255).map(decode_text)
topics_without_nul = st.binary(max_size=255).map(lambda octets: decode_text(octets.replace(b"\0", b"")))
numbers_8 = st.integers(0, NUMBER_8_MAX)
FIELDS: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.STRING: texts,
    Kind.STRINGS: st.lists(texts, max_size=4).map(tuple),
    Kind.NUMBER_4: st.integers(0, NUMBER_4_MAX),
    Kind.NUMBER_8: numbers_8,
    Kind.FRAME: st.binary(max_size=64),
}


def messages(kind: type[Message], dialect: Dialect) -> st.SearchStrategy[Message]:
    fields = {name: FIELDS[field] for name, field in kind.FIELDS}
    fields[kind.TOPIC] = topics_without_nul if dialect is Dialect.LIBDAFKA else texts
    if kind is Ack and dialect is Dialect.LIBDAFKA:
        del fields["address"]
    return st.builds(kind, **fields)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("kind", MESSAGES)
@settings(max_examples=50)
@given(data=st.data())
def test_message_survives_the_wire(kind: type[Message], dialect: Dialect, data: st.DataObject) -> None:
    message = data.draw(messages(kind, dialect))
    assert decode(encode(message, dialect)) == (message, dialect)


# A producer speaks one dialect; what differs here is each of the other parts of a header in turn.
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


@st.composite
def traffic(draw: st.DrawFn) -> list[Frames]:
    """Runs of several streams, interleaved, with gaps, repetitions, other commands and malformed frames."""
    others = [messages(kind, dialect) for kind in MESSAGES[2:] for dialect in Dialect]
    sequences: Counter[int] = Counter()
    drained: list[Frames] = []
    for stream, step, count, noise in draw(
        st.lists(
            st.tuples(
                st.sampled_from(BUSIEST) | st.integers(0, len(STREAMS) - 1),
                st.sampled_from(STEPS),
                st.integers(1, 4),
                st.sampled_from(["", "", "", "other", "cut", "frame", "octet", "topic", "empty"]),
            ),
            max_size=25,
        )
    ):
        for number in range(count):
            sequences[stream] = (sequences[stream] + (1 if number else step)) % (NUMBER_8_MAX + 1)
            drained.append(record(stream, sequences[stream]))
        frames = record(stream, sequences[stream])
        place = draw(st.integers(0, len(frames) - 1)) if noise else 0
        if noise == "other":
            dialect = draw(st.sampled_from(Dialect))
            drained.append(encode(draw(st.one_of(others[int(dialect is Dialect.LIBDAFKA) :: 2])), dialect))
        elif noise == "cut":
            length = draw(st.integers(0, len(frames[place])))
            drained.append([*frames[:place], frames[place][:length], *frames[place + 1 :]])
        elif noise == "frame":
            drained.append(draw(st.sampled_from([frames[:-1], frames[1:], [*frames, b""], [*frames, frames[place]]])))
        elif noise == "octet":
            drained.append([*frames[:place], frames[place] + b"\0", *frames[place + 1 :]])
        elif noise == "topic":
            drained.append([frames[0][:1] + b"u" + frames[0][1:], *frames[1:]])
        elif noise == "empty":
            drained.append([])
    return drained


@attrs.define
class Reference:
    """What a batch decoder must give, made from the one-by-one codec: each record joins its stream's last run, or
    begins another."""

    inbound: list[Message | list[Record | DirectRecord]] = attrs.field(factory=list)
    discarded: Counter[str] = attrs.field(factory=Counter)
    heard: set[Dialect] = attrs.field(factory=set)

    def decode(self, drained: Iterable[Frames]) -> list[Inbound]:
        inbound: list[Any] = []
        last_runs: dict[tuple[str | None, Partition], list[Record | DirectRecord]] = {}
        for frames in drained:
            try:
                message, dialect = decode(frames)
            except WireError as error:
                self.discarded[error.field] += 1
                continue
            self.heard.add(dialect)
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


def as_run(records: list[Record | DirectRecord]) -> RecordRun:
    first = records[0]
    contents = [each.content for each in records]
    requestor = first.requestor if isinstance(first, DirectRecord) else None
    return RecordRun(RecordBatch(Partition(first.subject, first.address), first.sequence, contents), requestor)


@settings(max_examples=300, deadline=None)
@given(drains=st.lists(traffic(), min_size=1, max_size=3))
def test_batch_decoder_agrees_with_the_codec(drains: list[list[Frames]]) -> None:
    decoder, reference = BatchDecoder(), Reference()
    for drained in drains:
        assert decoder.decode(drained) == reference.decode(drained)
    assert decoder.discarded == reference.discarded
    assert decoder.heard == reference.heard


def flat(inbound: Iterable[Inbound]) -> dict[tuple[str | None, Partition], list[tuple[int, bytes]]]:
    """Every stream's records in the order in which they came."""
    streams: dict[tuple[str | None, Partition], list[tuple[int, bytes]]] = {}
    for item in inbound:
        if isinstance(item, RecordRun):
            records = [(each.sequence, each.content) for each in item.batch]
            streams.setdefault((item.requestor, item.batch.partition), []).extend(records)
    return streams


@settings(max_examples=100, deadline=None)
@given(drained=traffic())
def test_batch_decoder_that_forgets_headers_loses_no_record(drained: list[Frames]) -> None:
    decoder, reference = BatchDecoder(), Reference()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "HEADERS_MAX", 2)
        assert flat(decoder.decode(drained)) == flat(reference.decode(drained))
    assert decoder.discarded == reference.discarded


def runs(dialect: Dialect) -> st.SearchStrategy[RecordRun]:
    def make(requestor: str | None, topic: str, address: str, sequence: int, count: int) -> RecordRun:
        first = min(sequence, NUMBER_8_MAX - count)
        contents = [b"%d" % number for number in range(first, first + count)]
        return RecordRun(RecordBatch(Partition(topic, address), first, contents), requestor)

    topics = topics_without_nul if dialect is Dialect.LIBDAFKA else texts
    return st.builds(make, st.none() | topics, topics, texts, numbers_8, st.integers(0, 5))


@pytest.mark.parametrize("dialect", Dialect)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_batch_encoder_agrees_with_the_codec(dialect: Dialect, data: st.DataObject) -> None:
    others = [messages(kind, dialect) for kind in MESSAGES[2:]]
    outbound: list[Any] = data.draw(st.lists(runs(dialect) | st.one_of(others), max_size=8))
    expected: list[list[bytes]] = []
    for item in outbound:
        if not isinstance(item, RecordRun):
            expected.append(encode(item, dialect))
            continue
        for each in item.batch:
            fields = (each.partition.address, each.topic, each.sequence, each.content)
            message = Record(*fields) if item.requestor is None else DirectRecord(item.requestor, *fields)
            expected.append(encode(message, dialect))
    encoded = BatchEncoder(dialect).encode(outbound)
    assert [list(frames) for frames in encoded] == expected
    assert BatchDecoder().decode(encoded) == Reference().decode(expected)
