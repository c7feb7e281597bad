"""`dafka cluster recover`: a cluster that has lost most of its voters goes on from the storage of one broker."""

from __future__ import annotations

from collections.abc import Mapping

import click

from dafka.broker.metadata import recovery
from dafka.cli.runner import run
from dafka.cli.terminal import confirm, print_table, yes_option
from dafka.storage import open_storage


@click.command()
@click.argument("url")
@click.argument("others", nargs=-1, metavar="[OTHER_URL]...")
@click.option("--dry-run", is_flag=True, help="Only show how far each storage got.")
@yes_option
def recover(url: str, others: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Recover a cluster that has lost most of its voters on metadata, from the storage URL of a stopped broker.

    Name the storages of all brokers that are left, the one with most of the log of metadata first. When its broker is
    started again, it becomes the only voter, unless it hears enough of the others. Changes of the cluster that it does
    not have are lost. Brokers that have such changes end with an error from then on; the others join again.
    """

    async def program() -> int:
        found = {}
        for each in (url, *others):
            async with open_storage(each, read_only=True) as storage:
                found[each] = await recovery.read_metadata(storage)
        _print_survivors(found)
        first, *rest = found.values()
        recovery.check_survivor(first, dict(zip(others, rest, strict=True)))
        if dry_run:
            return 0
        confirm(f"Make broker {first.number} the only voter on metadata?", yes=yes, declined="nothing was changed")
        async with open_storage(url) as storage:
            await recovery.recover(storage, first)
        click.echo(f"start broker {first.number}: it becomes the only voter on metadata", err=True)
        return 0

    run(program)


def _print_survivors(found: Mapping[str, recovery.StoredMetadata]) -> None:
    rows = [
        (
            url,
            each.number,
            each.log_end.leader_epoch.epoch,
            each.log_end.end_offset,
            each.record.applied,
            ", ".join("forgotten" if voter < 0 else str(voter) for voter in each.voter_numbers),
        )
        for url, each in found.items()
    ]
    print_table(("storage",), ("broker", "epoch", "commands", "applied", "voters"), rows)
