"""`dafka status` and `dafka health`: the state of a cluster, and of one running command."""

from __future__ import annotations

import http.client
import json
import sys
from datetime import UTC, datetime
from typing import Any

import click
import trio

from dafka.cli.options import DURATION, node_options
from dafka.cli.runner import require_tower, run
from dafka.cli.terminal import counted, print_table
from dafka.config import Config, MetricsConfig
from dafka.errors import ConfigError
from dafka.protocol import ClusterSurvey, NodeView, PartitionView
from dafka.roles import open_observer
from dafka.text import escape_unprintable

UNKNOWN = "?"
"""Printed in place of a number that no node has reported."""

ROLES = ("store", "store writer", "producer", "consumer", "observer")

NONE = "-"
"""Printed in place of the head of a partition without records."""

HEALTH_BYTES_MAX = 4096
"""The maximum size of an answer to `dafka health`, in bytes."""


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--json", "as_json", is_flag=True, help="Print each survey as one JSON object in a line.")
@click.option(
    "--watch", type=DURATION, metavar="DURATION", help="Repeat the survey after this long, until interrupted."
)
@click.option(
    "--timeout",
    type=DURATION,
    metavar="DURATION",
    help="How long to look for a tower, and then to wait for answers.  [default: 10s]",
)
@click.option(
    "--max-lag",
    type=click.IntRange(min=0),
    metavar="N",
    help="Exit with 1 if a store lags by more records, or a node or tower is silent.",
)
@node_options
def status(
    config: Config,
    topics: tuple[str, ...],
    as_json: bool,
    watch: int | None,
    timeout: int | None,
    max_lag: int | None,
) -> None:
    """Show a running cluster: nodes, topics, and each store's lag.

    With TOPICs, only these are shown. Name a topic that no producer or consumer uses: stores cannot be asked for a list
    of their topics.
    """
    if timeout is not None:
        config = config.with_node(tower_timeout_ms=timeout)
    last_status: int | None = None

    async def program() -> int:
        nonlocal last_status
        async with open_observer(topics, config) as observer, require_tower(observer.events, config, observer):
            await observer.wait_settled()
            while True:
                survey = await observer.survey(config.node.tower_timeout_ms / 1000)
                faults = None if max_lag is None else list(survey.faults(max_lag))
                found = 1 if faults else 0
                if as_json:
                    click.echo(json.dumps(_to_json(survey, faults)))
                else:
                    _print(survey, faults)
                if watch is None:
                    return found
                last_status = found
                await trio.sleep(watch / 1000)
                if not as_json:
                    click.echo()
                    click.clear()

    run(program, interrupted=lambda: last_status)


def _to_json(survey: ClusterSurvey, faults: list[str] | None) -> dict[str, Any]:
    return {
        "time": _milliseconds(survey.time),
        "towers": [
            {
                "endpoint": tower.endpoint,
                "heard": tower.is_heard,
                "nodes": tower.nodes,
                "refusal": tower.refusal or None,
            }
            for tower in survey.towers
        ],
        "nodes": [_node_to_json(node) for node in survey.nodes],
        "topics": [
            {"topic": topic.name, "partitions": topic.partitions, "wanted": topic.is_subscribed}
            for topic in survey.topics
        ],
        "partitions": [
            {
                "topic": partition.partition.topic,
                "partition": partition.partition.address,
                "producer": partition.has_producer,
                "head": _head(partition.end_sequence),
                "lag": partition.lag,
                "stores": [
                    {"store": holder.store, "head": _head(holder.end_sequence), "lag": holder.lag}
                    for holder in partition.holders
                ],
            }
            for partition in survey.partitions
        ],
        "limits": list(survey.limits),
        "faults": faults,
    }


def _node_to_json(node: NodeView) -> dict[str, Any]:
    return {
        "node": node.address,
        "endpoint": node.endpoint,
        "roles": list(node.roles),
        "state": node.state.value,
        "answered": node.has_answered,
        "first_seen": _milliseconds(node.first_seen),
        "last_seen": _milliseconds(node.last_seen),
        "towers": [
            {
                "tower": sighting.tower,
                "endpoint": sighting.endpoint,
                "first_seen": _milliseconds(sighting.first_seen),
                "last_seen": _milliseconds(sighting.last_seen),
            }
            for sighting in node.sightings
        ],
    }


def _print(survey: ClusterSurvey, faults: list[str] | None) -> None:
    heard = {True: "heard", False: "not heard"}
    print_table(("tower", "state"), ("nodes",), [(t.endpoint, heard[t.is_heard], str(t.nodes)) for t in survey.towers])
    if survey.nodes:
        click.echo()
        print_table(
            ("node", "role", "state", "endpoint"),
            ("towers", "first seen", "last seen"),
            [_node_row(node, survey.time) for node in sorted(survey.nodes, key=_rank)],
        )
    if survey.partitions:
        click.echo()
        print_table(
            ("topic", "partition", "producer", "store"),
            ("head", "stored", "lag"),
            [row for partition in survey.partitions for row in _partition_rows(partition)],
        )
    without = [topic.name for topic in survey.topics if not topic.partitions]
    if without:
        click.echo()
        print_table(("topics without a known partition",), (), [(name,) for name in without])
    click.echo(f"\n{_summary(survey)}")
    for sentence in survey.limits if faults is None else faults:
        click.echo(f"{'note' if faults is None else 'fault'}: {escape_unprintable(sentence)}")


def _rank(node: NodeView) -> tuple[int, str]:
    """Return the sort key of a node: stores come first."""
    role = node.roles[0] if node.roles else ""
    return (ROLES.index(role) if role in ROLES else len(ROLES), node.address)


def _node_row(node: NodeView, now: float) -> tuple[str, ...]:
    endpoints = dict.fromkeys([node.endpoint, *(sighting.endpoint for sighting in node.sightings)])
    state = node.state.value + (", no answer" if node.has_answered is False else "")
    roles = ", ".join(node.roles) or UNKNOWN
    seen = (f"{max(now - time, 0):.1f} s ago" for time in (node.first_seen, node.last_seen))
    return (node.address, roles, state, ", ".join(endpoints), str(len(node.sightings)), *seen)


def _partition_rows(partition: PartitionView) -> list[tuple[str, ...]]:
    """Return one row for each store that holds the partition."""
    producer = "up" if partition.has_producer else "gone"
    names = (partition.partition.topic, partition.partition.address, producer)
    head = UNKNOWN if partition.end_sequence is None else str(partition.end_sequence - 1)
    rows: list[tuple[str, ...]] = []
    for holder in partition.holders:
        stored = NONE if holder.end_sequence == 0 else UNKNOWN
        if holder.end_sequence:
            stored = str(holder.end_sequence - 1)
        rows.append((*names, holder.store, head, stored, UNKNOWN if holder.lag is None else str(holder.lag)))
    return rows or [(*names, NONE, head, NONE, UNKNOWN)]


def _summary(survey: ClusterSurvey) -> str:
    lags = [partition.lag for partition in survey.partitions if partition.lag is not None]
    counts = (
        counted(len(survey.nodes), "node"),
        counted(len(survey.stores), "store"),
        counted(len(survey.topics), "topic"),
        counted(len(survey.partitions), "partition"),
    )
    time = datetime.fromtimestamp(survey.time, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{time}: {', '.join(counts)}; largest lag {max(lags) if lags else UNKNOWN}"


def _head(end_sequence: int | None) -> int | None:
    """Return the sequence of the last record; None if there is none, or no node has reported it."""
    return end_sequence - 1 if end_sequence else None


def _milliseconds(time: float) -> int:
    return round(time * 1000)


def _parse_address(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, int]:
    try:
        return MetricsConfig(listen=value).address
    except ConfigError as error:
        raise click.BadParameter(str(error).removeprefix("listen: ")) from None


@click.command()
@click.argument("address", metavar="[ADDRESS:]PORT", callback=_parse_address)
@click.option("--live", is_flag=True, help="Ask only whether the command must be restarted, not whether it is ready.")
@click.option(
    "--timeout",
    type=DURATION,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the answer.",
)
def health(address: tuple[str, int], live: bool, timeout: int) -> None:
    """Ask a running command whether it is healthy.

    The command must run with --metrics-listen [ADDRESS:]PORT. Exits with 0 if it is ready to work, otherwise with 1,
    and prints the reason in one sentence. Use it as the health check of a container.
    """
    status, sentence = _ask(*address, "/livez" if live else "/readyz", timeout / 1000)
    click.echo(sentence)
    sys.exit(0 if status == 200 else 1)


def _ask(host: str, port: int, path: str, timeout_s: float) -> tuple[int, str]:
    """Return the HTTP status, or 0 without an answer, and a sentence."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(HEALTH_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return 0, f"no answer from {host} port {port}: {reason}"
    finally:
        connection.close()
    return response.status, " ".join(body.split()) or f"status {response.status}"
