"""Hostile frames are refused with one kind of error, and take little memory whatever they claim."""

from __future__ import annotations

import tracemalloc

import pytest

from dafka.errors import WireError
from dafka.kafka.protocol.frames import decode_request, encode_request
from dafka.kafka.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from dafka.kafka.protocol.reading import ITEMS_MAX
from tests.kafka.protocol.fuzz import outcome
from tests.kafka.protocol.hostile import honest_frames, hostile_frames


def test_hostile_frames() -> None:
    outcomes = {outcome(frame) for frame in hostile_frames(seed=1, count=10_000)}
    assert {"well-formed", "request header", "client_id", "tagged fields", "topics", "name", "records"} <= outcomes


@pytest.mark.long
def test_many_hostile_frames() -> None:
    assert outcome(honest_frames()[0]) == "well-formed"
    for frame in hostile_frames(seed=2, count=1_000_000):
        outcome(frame)


def test_every_cut_frame_is_refused() -> None:
    """At each byte of the first 200, and behind them at every seventh."""
    for frame in honest_frames():
        frame.decode()
        size = len(frame.data)
        for end in (*range(min(size, 200)), *range(200, size, 7), size - 1):
            with pytest.raises(WireError):
                frame._replace(data=frame.data[:end]).decode()


def memory_of(frame: bytes, items_max: int = ITEMS_MAX) -> int:
    """Return the most memory that decoding a frame with too many items takes, in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_request(frame, items_max=items_max)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_a_large_frame_of_small_items() -> None:
    """Each topic has three bytes in the frame, and more than a hundred in memory."""
    topics = [OffsetFetchRequestTopics(name="", partition_indexes=[])] * 300_000
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    frame = encode_request(request, 8, 1)[4:]
    assert len(frame) > 900_000
    assert memory_of(frame) < 100_000


def test_memory_of_many_arrays() -> None:
    """The limit counts the items of all arrays together: each of these groups has one topic."""
    groups = [OffsetFetchRequestGroup(group_id="", topics=[OffsetFetchRequestTopics(name="", partition_indexes=[1])])]
    frame = encode_request(OffsetFetchRequest(groups=groups * 2000), 8, 1)[4:]
    assert memory_of(frame, 3000) < 1_000_000
