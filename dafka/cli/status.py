"""`dafka status`: the cluster as its towers see it, and how far each store is behind each producer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click
import trio

from dafka.cli.options import DURATION, node_options
from dafka.cli.runner import run, tower_required
from dafka.cli.storage.common import counted, print_table
from dafka.config import Config
from dafka.operations.lines import printable
from dafka.protocol import ClusterSurvey, NodeView, PartitionView
from dafka.roles import open_observer

UNKNOWN = "?"
"""Instead of a number that nobody has told."""

ROLES = ("store", "store writer", "producer", "consumer", "observer")

NONE = "-"
"""Instead of the head of what has no records."""


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a look, in a line.")
@click.option(
    "--watch", type=DURATION, metavar="DURATION", help="Look again each time after this long, until interrupted."
)
@click.option(
    "--timeout",
    type=DURATION,
    metavar="DURATION",
    help="How long to look for a tower, and then wait for answers.  [default: 10s]",
)
@click.option(
    "--max-lag",
    type=click.IntRange(min=0),
    metavar="N",
    help="End with exit status 1 where a store lags by more records, or a node or tower is silent.",
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
    """Show a running cluster: nodes, topics, each store's lag.

    Topics that only stores know of have to be named: nobody can be asked for a list. Where TOPICs are named, these
    alone are shown.
    """
    if timeout is not None:
        config = config.with_node(tower_timeout_ms=timeout)
    last_status = 0

    async def program() -> int:
        nonlocal last_status
        async with open_observer(topics, config) as observer, tower_required(observer.events, config, observer):
            await observer.wait_settled()
            while True:
                survey = await observer.survey(config.node.tower_timeout_ms / 1000)
                faults = None if max_lag is None else list(survey.faults(max_lag))
                last_status = 1 if faults else 0
                if as_json:
                    click.echo(json.dumps(_to_json(survey, faults)))
                else:
                    _print(survey, faults)
                if watch is None:
                    return last_status
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
            {"topic": topic.name, "partitions": topic.partitions, "wanted": topic.is_wanted} for topic in survey.topics
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
        print_table(("topics of which no partition is known",), (), [(name,) for name in without])
    click.echo(f"\n{_summary(survey)}")
    for sentence in survey.limits if faults is None else faults:
        click.echo(f"{'note' if faults is None else 'fault'}: {printable(sentence)}")


def _rank(node: NodeView) -> tuple[int, str]:
    """Stores first."""
    role = node.roles[0] if node.roles else ""
    return (ROLES.index(role) if role in ROLES else len(ROLES), node.address)


def _node_row(node: NodeView, now: float) -> tuple[str, ...]:
    endpoints = dict.fromkeys([node.endpoint, *(sighting.endpoint for sighting in node.sightings)])
    state = node.state.value + (", no answer" if node.has_answered is False else "")
    roles = ", ".join(node.roles) or UNKNOWN
    seen = (f"{max(now - time, 0):.1f} s ago" for time in (node.first_seen, node.last_seen))
    return (node.address, roles, state, ", ".join(endpoints), str(len(node.sightings)), *seen)


def _partition_rows(partition: PartitionView) -> list[tuple[str, ...]]:
    """A row a store."""
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
    """The last record's sequence; None where there is none, or nobody has told."""
    return end_sequence - 1 if end_sequence else None


def _milliseconds(time: float) -> int:
    return round(time * 1000)
