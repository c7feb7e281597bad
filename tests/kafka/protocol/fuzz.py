"""Decode hostile frames: `python -m tests.kafka.protocol.fuzz --frames 10000000`.

It ends at the first frame that raises anything but `WireError`, or that takes more memory than a small multiple of the
largest frame.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter

from dafka.errors import WireError
from tests.kafka.protocol.hostile import FRAME_BYTES_MAX, HostileFrame, hostile_frames

MEMORY_BYTES_MAX = 400 * FRAME_BYTES_MAX
STEP = 100_000


def outcome(frame: HostileFrame) -> str:
    """Return `well-formed`, or the last part of the name of the field that is wrong."""
    try:
        frame.decode()
    except WireError as error:
        return error.field.rpartition(".")[2]
    return "well-formed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    started, before = time.monotonic(), 0
    for number, frame in enumerate(hostile_frames(arguments.seed, arguments.frames)):
        try:
            outcomes[outcome(frame)] += 1
        except Exception:
            print(f"frame {number}, seed {arguments.seed}: {frame}", file=sys.stderr)
            raise
        if number % STEP == STEP // 10:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            before = before or peak
            assert peak - before < MEMORY_BYTES_MAX, f"{peak - before} bytes more than at first"
            print(f"{number:,} frames, {time.monotonic() - started:.0f} s, {peak >> 20} MiB", flush=True)
    for name, count in outcomes.most_common(30):
        print(f"{count:12,}  {name}")


if __name__ == "__main__":
    main()
