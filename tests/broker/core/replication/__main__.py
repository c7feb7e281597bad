"""Runs many seeds of the simulated brokers: `python -m tests.broker.core.replication --seeds 10000`.

It prints how often replicas have taken each transition of their table, by the state that they left. With `--planted`,
it prints the first seeds that show the planted bugs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from dafka.broker.core.replication.settings import Availability
from dafka.broker.core.replication.transitions import Transition
from tests.broker.core.replication.planted import BUGS, is_noticed
from tests.broker.core.replication.running import run_seed


def main() -> int:
    """Run seeds, and print those that fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.core.replication", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--availability", choices=[each.value for each in Availability], help="one policy only")
    parser.add_argument("--planted", action="store_true", help="find a seed for each planted bug")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.planted:
        for name, bug in BUGS.items():
            found = next((seed for seed in seeds if is_noticed(bug, seed)), None)
            print(f"{bug.availability.value}, {name}: {found}", flush=True)
        return 0
    failed = 0
    transitions: Counter[tuple[Transition, str]] = Counter()
    for availability in Availability:
        if arguments.availability in {None, availability.value}:
            started, acknowledged = time.monotonic(), 0
            for seed in seeds:
                try:
                    world = run_seed(seed, availability)
                except AssertionError as error:
                    failed += 1
                    print(f"{availability.value}, seed {seed}: {error!r}", flush=True)
                else:
                    acknowledged += world.acknowledged()
                    transitions.update(world.transitions)
            seconds = time.monotonic() - started
            print(f"{availability.value}: {arguments.seeds} seeds, {acknowledged} records, {seconds:.0f} s", flush=True)
    for transition in Transition:
        for source in transition.value.sources:
            print(f"{transition.name:20}{source:20}{transitions[transition, source]:12,}")
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
