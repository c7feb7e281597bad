"""Every message survives the wire, and the batch codec agrees with the single-message codec."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.records import Partition, RecordBatch
from dafka.wire import (
    MESSAGES,
    NUMBER_8_MAX,
    BatchDecoder,
    BatchEncoder,
    Dialect,
    DirectRecord,
    Message,
    Record,
    RecordRun,
    batch,
    batch_runs,
    decode,
    encode,
)
from dafka.wire.batch import iter_frames
from tests.wire.record_traffic import Frames, Reference, alike, messages, numbers_8, texts, topics_without_nul, traffic


@settings(max_examples=250)
@given(data=st.data(), kind=st.sampled_from(MESSAGES), dialect=st.sampled_from(Dialect))
def test_a_message_survives_the_wire(data: st.DataObject, kind: type[Message], dialect: Dialect) -> None:
    message = data.draw(messages(kind, dialect))
    assert decode(encode(message, dialect)) == (message, dialect)


@settings(max_examples=50)
@given(drains=st.lists(traffic(), min_size=1, max_size=3))
def test_the_batch_decoder_agrees_with_the_codec(drains: list[list[Frames]]) -> None:
    decoder, reference = BatchDecoder(), Reference()
    for drained in drains:
        assert alike(decoder.decode(drained)) == alike(reference.decode(drained))
    assert decoder.discarded == reference.discarded
    assert decoder.dialects == reference.dialects


@settings(max_examples=40)
@given(drained=traffic())
def test_a_batch_decoder_that_forgets_headers_loses_no_record(drained: list[Frames]) -> None:
    decoder, reference = BatchDecoder(), Reference()
    with pytest.MonkeyPatch.context() as patch:
        for each in (batch, batch_runs):
            patch.setattr(each, "HEADERS_MAX", 2)
        assert alike(decoder.decode(drained)) == alike(reference.decode(drained))
    assert decoder.discarded == reference.discarded


def runs(dialect: Dialect) -> st.SearchStrategy[RecordRun]:
    def make(requestor: str | None, topic: str, address: str, sequence: int, count: int) -> RecordRun:
        first = min(sequence, NUMBER_8_MAX - count)
        contents = [b"%d" % number for number in range(first, first + count)]
        return RecordRun(RecordBatch(Partition(topic, address), first, contents), requestor)

    topics = topics_without_nul if dialect is Dialect.LIBDAFKA else texts
    return st.builds(make, st.none() | topics, topics, texts, numbers_8, st.integers(0, 5))


@pytest.mark.parametrize("dialect", Dialect)
@settings(max_examples=40)
@given(data=st.data())
def test_the_batch_encoder_agrees_with_the_codec(dialect: Dialect, data: st.DataObject) -> None:
    others = [messages(kind, dialect) for kind in MESSAGES[4:]]
    outbound: list[Any] = data.draw(st.lists(runs(dialect) | st.one_of(others), max_size=8))
    expected: list[list[bytes]] = []
    for item in outbound:
        if not isinstance(item, RecordRun):
            expected.append(encode(item, dialect))
            continue
        for each in item.batch:
            fields = (each.partition.address, each.topic, each.sequence, each.value or b"")
            message = Record(*fields) if item.requestor is None else DirectRecord(item.requestor, *fields)
            expected.append(encode(message, dialect))
    encoded = BatchEncoder(dialect).encode(outbound)
    assert [list(frames) for frames in iter_frames(encoded)] == expected
    assert alike(BatchDecoder().decode(encoded)) == alike(Reference().decode(expected))
