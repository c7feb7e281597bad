"""Decoders turn any frames into a message or a `WireError`, in memory proportional to the frames."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest
import zmq

from dafka import wire
from dafka.errors import WireError
from dafka.transport.loops import PureLoops, load_compiled
from dafka.wire.batch import iter_frames
from tests.adversarial import NODE_ATTACKS, Target, generate

MEMORY_FACTOR = 40
"""An empty text is an object too, so that a frame of a list costs memory beyond its own bytes."""

MEMORY_BYTES = 100_000
AIM = Target("A" * 32, "orders", "B" * 32, "store")


@pytest.mark.parametrize("attack", NODE_ATTACKS)
def test_decoding_takes_memory_in_proportion(attack: str) -> None:
    count = 20 if attack == "hellos" else 500
    messages = list(islice(generate(attack, AIM, 7), count))
    size = sum(len(frame) + 64 for message in messages for frame in message)
    decoder = wire.BatchDecoder()
    tracemalloc.start()
    try:
        decoder.decode(messages)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY_FACTOR * size + MEMORY_BYTES


def test_a_list_that_claims_to_be_huge_takes_no_memory() -> None:
    frames = [b"WSTORE", b"\xaa\xa5W\1\1C" + b"\xff" * 4 + b"\0" * 100_000]
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="at most"):
            wire.decode(frames)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("attack", [*NODE_ATTACKS, "mixed"])
def test_both_loops_receive_the_same(attack: str) -> None:
    compiled = load_compiled()
    if isinstance(compiled, str):
        pytest.skip(compiled)
    messages = list(islice(generate(attack, AIM, 3), 10 if attack == "hellos" else 150))
    found = []
    for loops in (PureLoops(), compiled):
        with zmq.Context() as context, context.socket(zmq.PAIR) as near, context.socket(zmq.PAIR) as far:
            near.bind("inproc://here")
            far.connect("inproc://here")
            for message in messages:
                near.send_multipart(message, zmq.NOBLOCK)
            items = loops.receive_runs(far, len(messages) + 1, len(messages) + 1, 2**40)
        assert sorted(map(list, iter_frames(items))) == sorted(messages)
        decoder = wire.BatchDecoder()
        found.append((decoder.decode(items), decoder.discarded))
    assert found[0] == found[1]
