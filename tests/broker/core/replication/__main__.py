"""Runs many seeds of the simulated brokers: `python -m tests.broker.core.replication --seeds 10000`."""

from __future__ import annotations

import argparse
import sys
import time

from dafka.broker.core.replication.settings import Availability
from tests.broker.core.replication.running import run_seed


def main() -> int:
    """Run seeds, and print those that fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.core.replication", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--availability", choices=[each.value for each in Availability], help="one policy only")
    arguments = parser.parse_args()
    failed = 0
    for availability in Availability:
        if arguments.availability in {None, availability.value}:
            started, acknowledged = time.monotonic(), 0
            for seed in range(arguments.first, arguments.first + arguments.seeds):
                try:
                    acknowledged += run_seed(seed, availability).acknowledged()
                except AssertionError as error:
                    failed += 1
                    print(f"{availability.value}, seed {seed}: {error!r}", flush=True)
            seconds = time.monotonic() - started
            print(f"{availability.value}: {arguments.seeds} seeds, {acknowledged} records, {seconds:.0f} s", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
