"""`dafka cluster`: the brokers of a cluster, and draining them."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click
from rich.filesize import decimal

from dafka.cli.kafka.client import BrokerUnreachable
from dafka.cli.kafka.http_client import HttpClient
from dafka.cli.kafka.options import http_options, json_option
from dafka.cli.options import DURATION
from dafka.cli.terminal import print_json_lines, print_table

_POLL_S = 1.0
_number = click.argument("number", type=click.IntRange(0, 1023))


@click.group()
def cluster() -> None:
    """List the brokers of a cluster, and drain them before they are taken away.

    These commands ask any broker over HTTP. `dafka topic` shows and moves the logs of topics, and `dafka status` shows
    all nodes.
    """


@cluster.command()
@json_option
@http_options
def brokers(as_json: bool, client: HttpClient) -> None:
    """List the brokers: their addresses, free space, and how many logs they lead and keep."""
    found = client.ask("GET", "/brokers")["brokers"]
    if as_json:
        print_json_lines(found)
        return
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
@json_option
@http_options
def status(as_json: bool, client: HttpClient) -> None:
    """Check that all brokers are alive, and that each log has a leader and all its replicas.

    Exits with 1 if not.
    """
    found = client.ask("GET", "/brokers")
    all_brokers = found["brokers"]
    dead = [each["number"] for each in all_brokers if not each["is_alive"]]
    alive = [each for each in all_brokers if each["is_alive"]]
    under_replicated = sum(each["under_replicated_logs"] or 0 for each in alive)
    summary = {
        "brokers": len(all_brokers),
        "dead": dead,
        "draining": [each["number"] for each in all_brokers if each["is_draining"]],
        "logs": found["log_count"],
        "leaderless_logs": found["leaderless_logs"],
        "under_replicated_logs": under_replicated,
        "silent": [each["number"] for each in alive if each["under_replicated_logs"] is None],
    }
    if as_json:
        click.echo(json.dumps(summary))
    else:
        numbers = f" ({', '.join(map(str, dead))})" if dead else ""
        click.echo(
            f"{len(all_brokers)} brokers, {len(dead)} dead{numbers}; {found['log_count']} logs, "
            f"{found['leaderless_logs']} without a leader, {under_replicated} under-replicated"
        )
    if dead or found["leaderless_logs"] or under_replicated or summary["silent"]:
        sys.exit(1)


def _state(broker: dict[str, Any]) -> str:
    if not broker["is_alive"]:
        return "dead"
    if broker["is_drained"]:
        return "drained"
    return "draining" if broker["is_draining"] else "alive"


@cluster.command()
@_number
@click.option("--wait", is_flag=True, help="Wait until the broker can be taken away.")
@click.option(
    "--timeout", type=DURATION, metavar="DURATION", help="How long to wait; then exit with 1.  [default: no limit]"
)
@http_options
def drain(number: int, wait: bool, timeout: int | None, client: HttpClient) -> None:
    """Have broker NUMBER hand its logs to others, so that it can be taken away.

    It serves clients meanwhile. `dafka cluster undrain` takes it back.
    """
    found = client.ask("POST", f"/brokers/{number}/drain")
    click.echo(f"broker {number} is being drained", err=True)
    deadline = None if timeout is None else time.monotonic() + timeout / 1000
    while wait and not found["is_drained"]:
        if deadline is not None and time.monotonic() > deadline:
            raise BrokerUnreachable(
                f"broker {number} is not drained yet: it leads {found['logs_led']} logs and keeps {found['replicas']}"
            )
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
