"""`python -m tests.broker.core.coordination.model` plays seeds of the simulated groups and transactions."""

from __future__ import annotations

import sys
import time

import click

from tests.broker.core.coordination.model.events import ViolationError
from tests.broker.core.coordination.model.groups import GroupWorld
from tests.broker.core.coordination.model.transactions import TransactionWorld

WORLDS = {"groups": GroupWorld, "transactions": TransactionWorld}


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="Seeds to run.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--world", type=click.Choice(list(WORLDS)), multiple=True, help="What to simulate; default: everything.")
def main(seeds: int, first: int, world: tuple[str, ...]) -> None:
    """Simulate clients of coordinators. A seed determines everything, so one that fails does so again."""
    failed = 0
    for name in world or WORLDS:
        began, events = time.perf_counter(), 0
        for seed in range(first, first + seeds):
            try:
                events += WORLDS[name](seed).run()
            except ViolationError as error:
                failed += 1
                click.echo(f"{name}, seed {seed}: {error}")
        took = time.perf_counter() - began
        click.echo(f"{name}: seeds {first} to {first + seeds - 1}, {events} events in {took:.1f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
