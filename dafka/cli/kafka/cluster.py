"""`dafka cluster`: the state of a cluster, its changes, its feature level, and draining and forgetting brokers."""

from __future__ import annotations

import json
import sys
import time
from typing import Any
from urllib.parse import urlencode

import click
from rich.filesize import decimal

from dafka.cli.kafka.client import BrokerUnreachable
from dafka.cli.kafka.cluster_backup import restore, snapshot
from dafka.cli.kafka.cluster_recovery import recover
from dafka.cli.kafka.cluster_verify import verify
from dafka.cli.kafka.http_client import HttpClient
from dafka.cli.kafka.options import http_options, json_option, watch_option
from dafka.cli.options import DURATION
from dafka.cli.terminal import confirm, join_numbers, print_json_lines, print_table, yes_option
from dafka.config.settings import BROKER_NUMBER_MAX
from dafka.text import counted, format_time

_POLL_S = 1.0
_number = click.argument("number", type=click.IntRange(0, BROKER_NUMBER_MAX))


@click.group()
def cluster() -> None:
    """Show the state of a cluster, and drain and forget brokers.

    These commands ask any broker over HTTP. `dafka topic` shows and moves the logs of topics, and `dafka status` shows
    all nodes.
    """


@cluster.command()
@watch_option
@json_option
@http_options
def brokers(as_json: bool, client: HttpClient) -> None:
    """List the brokers: their addresses, free space, and how many logs they lead and keep."""
    found = client.ask("GET", "/brokers")["brokers"]
    if as_json:
        print_json_lines(found)
    else:
        _print_brokers(found)


def _print_brokers(found: list[dict[str, Any]]) -> None:
    rows = [
        (
            each["number"],
            _state(each),
            each["rack"] or "-",
            each["kafka_listener"] or "-",
            each["http_url"] or "-",
            decimal(each["free_bytes"]) if each["free_bytes"] else "-",
            each["logs_led"],
            each["replicas"],
        )
        for each in found
    ]
    print_table(("broker", "state", "rack", "kafka", "http"), ("free", "logs led", "replicas"), rows)


@cluster.command()
@watch_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@http_options
def status(as_json: bool, client: HttpClient) -> None:
    """Show the state of the cluster: controller, voters, brokers, and the logs that need attention.

    Exits with 1 if the cluster is not open, a broker or a voter is not heard, there is no controller, a log has no
    leader or too few replicas in sync, or a broker has damaged records. `dafka topic moves` lists all logs that move.
    """
    found = client.ask("GET", "/cluster")
    if as_json:
        click.echo(json.dumps(found))
    else:
        _print_status(found)
    if _has_problems(found):
        sys.exit(1)


def _has_problems(found: dict[str, Any]) -> bool:
    return (
        not found["is_open"]
        or found["controller"] is None
        or not all(each["is_heard"] for each in found["voters"])
        or not all(each["is_alive"] and each["under_replicated_logs"] is not None for each in found["brokers"])
        or bool(found["leaderless_logs"] or found["under_replicated_logs"])
        or any(each["damaged_logs"] for each in found["brokers"])
    )


def _print_status(found: dict[str, Any]) -> None:
    controller = "no controller" if found["controller"] is None else f"broker {found['controller']} is the controller"
    click.echo(f"cluster {found['cluster_id']}: {'open' if found['is_open'] else 'not open yet'}, {controller}")
    level, highest = found["feature_level"], found["feature_level_max"]
    possible = f" (all brokers support {highest}: `dafka cluster upgrade` raises it)" if level < highest else ""
    click.echo(f"feature level: {level}{possible}")
    voters = ", ".join(
        f"{'forgotten' if each['number'] is None else each['number']}{'' if each['is_heard'] else ' (not heard)'}"
        for each in found["voters"]
    )
    click.echo(f"voters on metadata: {voters}; changes need {found['voters_needed']} of {len(found['voters'])}")
    dead = [each["number"] for each in found["brokers"] if not each["is_alive"]]
    click.echo(
        f"{counted(len(found['brokers']), 'broker')}, {len(dead)} dead{f' ({_join(dead)})' if dead else ''}; "
        f"{counted(found['log_count'], 'log')}, {found['leaderless_logs']} without a leader, "
        f"{found['under_replicated_logs']} under-replicated, {found['move_count']} moving\n"
    )
    _print_brokers(found["brokers"])
    for each in found["brokers"]:
        if each["damaged_logs"]:
            click.echo(f"\nbroker {each['number']} has damaged records of {counted(each['damaged_logs'], 'log')}")
    if found["leaderless"]:
        click.echo("\nlogs without a leader:")
        leaderless = [(each["topic"], each["log"], each["reason"]) for each in found["leaderless"]]
        print_table(("topic", "log", "reason"), (), leaderless)
    if found["under_replicated"]:
        click.echo("\nunder-replicated logs:")
        print_table(
            ("topic", "log", "leader", "replicas", "in sync", "reason"),
            (),
            [
                (
                    each["topic"],
                    each["log"],
                    each["leader"],
                    _join(each["replicas"]),
                    _join(each["in_sync"]),
                    each["reason"],
                )
                for each in found["under_replicated"]
            ],
        )
    if found["moves"]:
        click.echo("\nlogs that move:")
        rows = [
            (each["topic"], each["log"], _join(each["replicas"]), _join(each["ordered"]), each["reason"])
            for each in found["moves"]
        ]
        print_table(("topic", "log", "replicas", "ordered", "reason"), (), rows)


def _join(numbers: list[int] | None) -> str:
    return join_numbers(numbers or ()) or "-"


def _state(broker: dict[str, Any]) -> str:
    if not broker["is_alive"]:
        return "dead"
    if broker["is_drained"]:
        return "drained"
    return "draining" if broker["is_draining"] else "alive"


def _print_logs(client: HttpClient, number: int) -> None:
    """Print the logs that a broker stores, and whether they have a quorum without it."""
    rows = [
        (
            each["topic"],
            each["log"],
            "leads" if each["is_led"] else "stores",
            ", ".join(map(str, each["others"])) or "none",
            "has a quorum" if each["has_quorum"] else "has no quorum: records can be lost",
        )
        for each in client.ask("GET", f"/brokers/{number}/logs")["logs"]
    ]
    print_table(("topic", "log", f"broker {number}", "others alive", "without it"), (), rows)


@cluster.command()
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many offsets to show.")
@click.option("--before", type=click.IntRange(min=0), metavar="OFFSET", help="Show the changes before this offset.")
@json_option
@http_options
def log(limit: int, before: int | None, as_json: bool, client: HttpClient) -> None:
    """Show the last changes of the cluster: who ordered them, and when.

    Topics, their settings and replicas, and brokers are in the log of metadata. It keeps the last 9,000 changes at
    least.
    """
    given = {"limit": limit} if before is None else {"limit": limit, "before": before}
    found = client.ask("GET", f"/cluster/log?{urlencode(given)}")["changes"]
    if as_json:
        print_json_lines(found)
        return
    rows = [
        (
            each["offset"],
            format_time(each["ordered_at"]),
            each["ordered_by"],
            each["description"] if each["is_done"] else f"refused: {each['description']}: {each['reason']}",
        )
        for each in found
    ]
    print_table(("offset", "time", "ordered by", "change"), (), rows)


@cluster.command()
@_number
@click.option("--wait", is_flag=True, help="Wait until the broker can be taken away.")
@click.option(
    "--timeout", type=DURATION, metavar="DURATION", help="How long to wait; then exit with 1.  [default: no limit]"
)
@click.option("--dry-run", is_flag=True, help="Only list the logs that others would take over.")
@http_options
def drain(number: int, wait: bool, timeout: int | None, dry_run: bool, client: HttpClient) -> None:
    """Have broker NUMBER hand its logs to others, so that it can be taken away.

    It serves clients meanwhile. `dafka cluster undrain` takes it back.
    """
    if dry_run:
        _print_logs(client, number)
        return
    found = client.ask("POST", f"/brokers/{number}/drain")
    click.echo(f"broker {number} is being drained", err=True)
    if found["is_needed_voter"]:
        click.echo(
            f"broker {number} votes on metadata, and too few of the other voters stay: it is drained when another "
            "broker has become a voter in its place",
            err=True,
        )
    deadline = None if timeout is None else time.monotonic() + timeout / 1000
    while wait and not found["is_drained"]:
        if deadline is not None and time.monotonic() > deadline:
            needed = ", and is needed to vote on metadata" if found["is_needed_voter"] else ""
            kept = f"it leads {found['logs_led']} and keeps {found['replicas']} logs"
            raise BrokerUnreachable(f"broker {number} is not drained yet: {kept}{needed}")
        time.sleep(_POLL_S)
        found = next(each for each in client.ask("GET", "/brokers")["brokers"] if each["number"] == number)
    if wait:
        click.echo(f"broker {number} is drained: it can be taken away", err=True)


@cluster.command()
@_number
@http_options
def undrain(number: int, client: HttpClient) -> None:
    """Have broker NUMBER lead and store logs again."""
    client.ask("POST", f"/brokers/{number}/undrain")
    click.echo(f"broker {number} takes logs again", err=True)


@cluster.command()
@_number
@click.option("--accept-loss", is_flag=True, help="Forget it although logs have no quorum without it.")
@click.option("--dry-run", is_flag=True, help="Only list the logs that it stores, and which have no quorum without it.")
@yes_option
@http_options
def forget(number: int, accept_loss: bool, dry_run: bool, yes: bool, client: HttpClient) -> None:
    """Forget broker NUMBER, whose storage is lost.

    Its number is free then, and other brokers replace its replicas. Its storage can never come back to the cluster. A
    broker that is alive is not forgotten: drain and stop it first.
    """
    target, document = f"/brokers/{number}/forget", {"accept_loss": accept_loss}
    if dry_run:
        _print_logs(client, number)
        client.ask("POST", target, {**document, "dry_run": True})
        click.echo(f"broker {number} would be forgotten", err=True)
        return
    confirm(f"Forget broker {number} forever?", yes=yes, declined="nothing was changed")
    client.ask("POST", target, document)
    click.echo(f"broker {number} is forgotten", err=True)


@cluster.command()
@click.option("--to", "level", type=click.IntRange(min=1), help="The level.  [default: the highest possible one]")
@click.option("--dry-run", is_flag=True, help="Only show which levels the brokers support.")
@yes_option
@http_options
def upgrade(level: int | None, dry_run: bool, yes: bool, client: HttpClient) -> None:
    """Raise the feature level of the cluster, when all brokers run a later version of dafka.

    Until then, a cluster does not use what former versions do not know, so that brokers of both can run together. The
    level is never lowered: brokers of versions that do not support it can no longer start.
    """
    found = client.ask("GET", "/cluster")
    before = found["feature_level"]
    after = found["feature_level_max"] if level is None else level
    if dry_run:
        rows = [(each["number"], _state(each), _levels(each)) for each in found["brokers"]]
        print_table(("broker", "state"), ("feature levels",), rows)
    client.ask("POST", "/cluster/feature-level", {"level": after, "dry_run": True})
    if after == before:
        click.echo(f"the cluster has the feature level {before} already", err=True)
    elif dry_run:
        click.echo(f"the feature level would be raised from {before} to {after}", err=True)
    else:
        confirm(f"Raise the feature level from {before} to {after} forever?", yes=yes, declined="nothing was changed")
        client.ask("POST", "/cluster/feature-level", {"level": after})
        click.echo(f"the cluster has the feature level {after}", err=True)
    if level is None:
        _print_older_brokers(found["brokers"], after)


def _print_older_brokers(brokers: list[dict[str, Any]], level: int) -> None:
    """Print which brokers support only levels up to one, if others support more."""
    older = [each["number"] for each in brokers if each["feature_level_max"] <= level]
    if len(older) < len(brokers):
        where = f"{'broker' if len(older) == 1 else 'brokers'} {_join(older)}"
        click.echo(f"no higher level is supported by {where}: update dafka there first", err=True)


def _levels(broker: dict[str, Any]) -> str:
    lowest, highest = broker["feature_level_min"], broker["feature_level_max"]
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"


cluster.add_command(snapshot)
cluster.add_command(restore)
cluster.add_command(verify)
cluster.add_command(recover)
