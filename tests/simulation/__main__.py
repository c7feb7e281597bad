"""`python -m tests.simulation` runs seeds, and prints the shortest history of one that fails."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence

import click

from tests.simulation.running import Outcome, run_plan, run_seed, shrink

LINES_MAX = 120
"""Lines of a history that are printed: the last ones, which are the most useful."""


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="Seeds to run.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--fresh", is_flag=True, help="Begin with a random seed.")
@click.option("--seed", type=int, help="Run this seed alone, and print what happens.")
@click.option("--whole", is_flag=True, help="With --seed: print the whole history.")
@click.option("--failures", default=1, show_default=True, help="Stop after this number of failed seeds.")
def main(seeds: int, first: int, fresh: bool, seed: int | None, whole: bool, failures: int) -> None:
    """Simulate clusters under faults. A seed determines everything, so one that fails does so again in the same way."""
    if seed is not None:
        outcome = run_seed(seed)
        print_failure(seed, outcome, is_whole=whole) if not outcome.is_good else print_good(seed, outcome)
        sys.exit(0 if outcome.is_good else 1)
    if fresh:
        first = random.SystemRandom().randrange(2**32)
    failed = run_many(range(first, first + seeds), failures)
    sys.exit(1 if failed else 0)


def run_many(seeds: range, failures: int = 1) -> list[int]:
    """Run seeds until a number of them has failed. Print each failure and a summary, and return the failed seeds."""
    began, failed, count, events, virtual = time.perf_counter(), list[int](), 0, 0, 0.0
    for seed in seeds:
        outcome = run_seed(seed)
        count, events, virtual = count + 1, events + outcome.events, virtual + outcome.seconds
        if not outcome.is_good:
            failed.append(seed)
            print_failure(seed, outcome)
            if len(failed) >= failures:
                break
    took = time.perf_counter() - began
    click.echo(
        f"seeds {seeds.start} to {seeds.start + count - 1}: {len(failed)} failed; {count} clusters, {virtual:.0f} "
        f"virtual seconds, {events} events in {took:.1f} s, {60 * count / max(took, 1e-9):.0f} seeds a minute"
    )
    return failed


def print_good(seed: int, outcome: Outcome) -> None:
    click.echo(str(outcome.plan))
    click.echo(f"seed {seed}: all promises were kept for {outcome.seconds:.1f} virtual seconds")


def print_failure(seed: int, outcome: Outcome, *, is_whole: bool = False) -> None:
    """Print the shortest history that breaks the same promise, and how to run it again."""
    least = outcome if is_whole else shrink(outcome)
    lines: list[str] = []
    run_plan(least.plan, lambda now, text: lines.append(f"{now:9.4f}  {text}"))
    click.echo(f"seed {seed} breaks a promise\n\n{least.plan}\n{changed_settings(least)}")
    if len(lines) > LINES_MAX:
        click.echo(f"... {len(lines) - LINES_MAX} lines before")
    click.echo("\n".join(lines[-LINES_MAX:]))
    click.echo(f"\n{least.promise}: {least.detail}\nagain: python -m tests.simulation --seed {seed}\n")


def changed_settings(outcome: Outcome) -> str:
    default = type(outcome.plan.config)()
    lines: Sequence[str] = [
        f"[{section}] {name} = {value}"
        for section in ("producer", "consumer", "store", "fetch")
        for name, value in vars_of(getattr(outcome.plan.config, section)).items()
        if value != vars_of(getattr(default, section))[name]
    ]
    return "\n".join(lines) + "\n"


def vars_of(settings: object) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__class__.__annotations__}


if __name__ == "__main__":
    main()
