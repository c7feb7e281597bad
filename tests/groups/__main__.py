"""Runs many seeds of simulated groups: `python -m tests.groups --seeds 10000`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.groups.running import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.groups", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    failed = handled = repeated = handovers = 0
    started = time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            checker = run_seed(seed)
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error!r}", flush=True)
            continue
        handled += sum(each.handled for each in checker.partitions.values())
        repeated += sum(each.repeated for each in checker.partitions.values())
        handovers += checker.handovers
    seconds = time.monotonic() - started
    print(
        f"{arguments.seeds} seeds, {handled} records, {repeated} of them handled again, {handovers} hand-overs, "
        f"{seconds:.0f} s"
    )
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
