"""Decode hostile batches with both codecs: `python -m tests.batches.fuzz --batches 10000000`.

It ends at the first batch that one of them reads otherwise than the other, that raises anything but `BatchError`, or
that takes more memory than a small multiple of the limit.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter

from dafka.batches import decode_batch
from dafka.batches.codec import PURE, RecordsCodec, load_compiled
from dafka.errors import BatchError
from tests.batches.hostile import hostile_batches

BYTES_MAX = 1 << 20
MEMORY_BYTES_MAX = 48 * BYTES_MAX
STEP = 100_000


def outcome(batch: bytes, codec: RecordsCodec) -> tuple[object, ...] | str:
    """Return the columns of a batch, or why it is refused."""
    try:
        decoded = decode_batch(batch, bytes_max=BYTES_MAX, codec=codec)
    except BatchError as error:
        return str(error)
    return (
        decoded.values,
        decoded.keys,
        None if decoded.headers is None else (decoded.headers, list(decoded.headers)),
        list(decoded.timestamps),
    )


def check(batch: bytes, codecs: list[RecordsCodec]) -> str:
    """Return the field that is wrong in a batch, or `well-formed`. Raise AssertionError if the codecs differ."""
    first, *others = [outcome(batch, codec) for codec in codecs]
    assert all(other == first for other in others), f"{batch.hex()}\n{first}\n{others}"
    return first.partition(" at byte ")[0].partition(":")[0] if isinstance(first, str) else "well-formed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--codec", choices=["both", "compiled", "pure"], default="both")
    arguments = parser.parse_args()
    compiled = load_compiled()
    codecs: list[RecordsCodec] = [PURE] if arguments.codec == "pure" else []
    if arguments.codec != "pure":
        if isinstance(compiled, str):
            sys.exit(f"The codec in C is not available: {compiled}.")
        codecs = [compiled, PURE] if arguments.codec == "both" else [compiled]
    outcomes: Counter[str] = Counter()
    started, before = time.monotonic(), 0
    for number, batch in enumerate(hostile_batches(arguments.seed, arguments.batches)):
        outcomes[check(batch, codecs)] += 1
        if number % STEP == STEP // 10:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            before = before or peak
            assert peak - before < MEMORY_BYTES_MAX, f"{peak - before} bytes more than at first"
            print(f"{number:,} batches, {time.monotonic() - started:.0f} s, {peak >> 20} MiB", flush=True)
    for name, count in outcomes.most_common():
        print(f"{count:12,}  {name}")


if __name__ == "__main__":
    main()
