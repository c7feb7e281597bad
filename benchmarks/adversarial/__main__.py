"""`python -m benchmarks.adversarial --target store` attacks a role, and prints the measurements."""

from __future__ import annotations

import sys

import click

from tests.adversarial.attacks import NODE_ATTACKS, TOWER_ATTACKS

from .runner import describe, run_attack


@click.command()
@click.option("--target", required=True, type=click.Choice(["store", "producer", "consumer", "tower"]))
@click.option("--frames", default=1_000_000, show_default=True, help="Messages to send in each attack.")
@click.option("--seconds", default=200.0, show_default=True, help="The longest duration of each attack.")
@click.option(
    "--attack",
    multiple=True,
    help="The kind of messages to send; repeat it for several. --list prints them.  [default: mixed]",
)
@click.option("--seed", default=0, show_default=True, help="Determines every message.")
@click.option("--attackers", default=1, show_default=True, help="Attackers that run at the same time.")
@click.option("--list", "is_list", is_flag=True, help="Print the attacks that this target knows, and exit.")
def main(
    target: str, frames: int, seconds: float, attack: tuple[str, ...], seed: int, attackers: int, is_list: bool
) -> None:
    """Attack a role that runs as a process. Exit with status 1 if it did not keep its bounds."""
    known = [*(TOWER_ATTACKS if target == "tower" else NODE_ATTACKS), "subscriptions", "mixed"]
    if is_list:
        click.echo("\n".join(known))
        return
    for name in attack:
        if name not in known:
            raise click.BadParameter(f"expected one of {', '.join(known)}, not {name!r}", param_hint="--attack")
    is_broken = False
    for name in attack or ("mixed",):
        outcome = run_attack(target, name, frames, seconds, seed, attackers)
        click.echo(describe(outcome))
        is_broken = is_broken or bool(outcome.broken())
    sys.exit(1 if is_broken else 0)


if __name__ == "__main__":
    main()
