"""Decoders turn any frames into a message or a `WireError`, in memory proportional to the frames."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest

from dafka import wire
from dafka.errors import WireError
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
