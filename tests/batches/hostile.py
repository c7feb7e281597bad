"""Batches that are wrong in every way: valid ones changed at random, with and without correct lengths and counts."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random

from dafka.batches import Compression
from dafka.batches.compression import compress
from dafka.batches.header import HEADER_BYTES
from tests.batches.samples import SHAPES, Records

SEED_BYTES_MAX = 1500
FEW = 70
"""More records than have an offset delta of one byte."""

EXTREMES = [
    *(bytes((byte,)) for byte in (0, 1, 2, 3, 0x7F, 0x80, 0xFF)),
    *(b"\x80\x00", b"\x81\x80\x00", b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x1f"),
    *(b"\xff" * 5 + b"\x00", b"\xfe" + b"\xff" * 8 + b"\x01", b"\xff" * 9 + b"\x03", b"\xff" * 12),
]


def _seeds() -> list[bytes]:
    shapes = [
        Records(
            records.values[:FEW],
            records.times[:FEW],
            records.keys and records.keys[:FEW],
            records.headers and records.headers[:FEW],
        )
        for records in SHAPES.values()
    ]
    encoded = [records.encode(5) for records in shapes]
    return [batch for batch in encoded if len(batch) <= SEED_BYTES_MAX] + [
        batch[:SEED_BYTES_MAX] for batch in encoded if len(batch) > SEED_BYTES_MAX
    ]


SEEDS = _seeds()


def change(data: bytes, random: Random) -> bytes:
    """Return data with a bit flipped, cut, or with other bytes inserted or instead."""
    choice = random.random()
    position = random.randint(0, len(data))
    if choice < 0.35 and data:
        position = min(position, len(data) - 1)
        return data[:position] + bytes((data[position] ^ 1 << random.randrange(8),)) + data[position + 1 :]
    if choice < 0.5:
        return data[:position] if random.random() < 0.7 else data[position:]
    extra = random.choice(EXTREMES) if random.random() < 0.8 else random.randbytes(random.randint(1, 20))
    return data[:position] + extra + data[position + len(extra) * (choice < 0.8) :]


def hostile_batch(random: Random) -> bytes:
    """Return a batch in which something is probably wrong."""
    batch = random.choice(SEEDS)
    head, records = batch[:HEADER_BYTES], batch[HEADER_BYTES:]
    for _ in range(random.choice((0, 1, 1, 1, 2, 5))):
        records = change(records, random)
    kind = random.choice(list(Compression)) if random.random() < 0.1 else Compression.NONE
    if kind is not Compression.NONE:
        records = compress(kind, records)
        if random.random() < 0.5:
            records = change(records, random)
    head = head[:21] + struct.pack(">H", kind.value) + head[23:]
    if random.random() < 0.1:
        count = random.choice((0, 1, 2, len(records) // 7, len(records) // 7 + 1, 2**31 - 1, random.randrange(2**31)))
        head = head[:23] + struct.pack(">i", (count - 1) % 2**31) + head[27:57] + struct.pack(">i", count)
    if random.random() < 0.1:
        head = change(head, random)
    if random.random() < 0.9:
        head = head[:8] + struct.pack(">i", len(head) - 12 + len(records)) + head[12:]
    return head + records


def hostile_batches(seed: int, count: int) -> Iterator[bytes]:
    random = Random(seed)
    return (hostile_batch(random) for _ in range(count))
