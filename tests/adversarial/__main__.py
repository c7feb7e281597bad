"""`python -m tests.adversarial --target store`: attacks a role, and tells how it fared."""

from __future__ import annotations

import sys

import click

from tests.adversarial.families import BEACON_FAMILIES, FAMILIES
from tests.adversarial.running import attack, describe


@click.command()
@click.option("--target", required=True, type=click.Choice(["store", "producer", "consumer", "tower"]))
@click.option("--frames", default=1_000_000, show_default=True, help="Messages to send, of each family.")
@click.option("--seconds", default=200.0, show_default=True, help="Stop after so long, of each family.")
@click.option("--family", multiple=True, help="One of --list, or mixed; may be given several times.")
@click.option("--seed", default=0, show_default=True, help="Decides every message.")
@click.option("--attackers", default=1, show_default=True, help="How many attack at the same time.")
@click.option("--list", "is_list", is_flag=True, help="Print the families of this target, and nothing else.")
def main(
    target: str, frames: int, seconds: float, family: tuple[str, ...], seed: int, attackers: int, is_list: bool
) -> None:
    """Attack a role that runs as a process; exit status 1 where it did not keep its bounds."""
    known = [*(BEACON_FAMILIES if target == "tower" else FAMILIES), "subscriptions", "mixed"]
    if is_list:
        click.echo("\n".join(known))
        return
    for name in family:
        if name not in known:
            raise click.BadParameter(f"expected one of {', '.join(known)}, not {name!r}", param_hint="--family")
    is_broken = False
    for name in family or ("mixed",):
        outcome = attack(target, name, frames, seconds, seed, attackers)
        click.echo(describe(outcome))
        is_broken = is_broken or bool(outcome.broken())
    sys.exit(1 if is_broken else 0)


if __name__ == "__main__":
    main()
