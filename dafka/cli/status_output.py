"""The output of `dafka status`: a summary and tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import click

from dafka.cli.terminal import output_has_colour, print_table
from dafka.protocol import ClusterSurvey, NodeView, PartitionView
from dafka.protocol.observer.cluster_survey import NodeState, TopicView
from dafka.text import counted, escape_unprintable, format_time

UNKNOWN = "?"
"""Printed in place of a number that no node has reported."""

NONE = "-"
"""Printed in place of a number of records that do not exist."""

ROWS_MAX = 20
"""Rows of a table, unless all were asked for. Rows with a problem come first."""

ROLES = ("store", "store writer", "producer", "consumer", "observer")

WRONG, LATE, FINE = "red", "yellow", ""
"""The colour of a row, from the worst to the best. Only a terminal shows it, and not if NO_COLOR is set."""

_SEVERITY = (WRONG, LATE, FINE)


@attrs.frozen
class Shown:
    """The choice of what a survey shows: all rows, and each partition."""

    is_all: bool = False
    has_partitions: bool = False


@attrs.frozen(kw_only=True)
class BrokerView:
    """A broker, as `dafka status` shows it.

    `under_replicated_logs` counts the logs that it leads and that fewer brokers have whole than should.
    """

    number: int
    address: str
    is_alive: bool
    is_draining: bool
    under_replicated_logs: int


@attrs.frozen
class _Row:
    colour: str
    rank: tuple[Any, ...]
    cells: tuple[str, ...]


def print_survey(
    survey: ClusterSurvey, faults: Sequence[str] | None, shown: Shown, brokers: Sequence[BrokerView] = ()
) -> None:
    """Print a survey: a summary, the problems, and the tables."""
    click.echo(_summary(survey))
    sentences = [*survey.limits] if faults is None else [*faults]
    word = "note" if faults is None else "fault"
    for sentence in sentences if shown.is_all else sentences[:ROWS_MAX]:
        line = f"{word}: {escape_unprintable(sentence)}"
        click.secho(line, fg=WRONG if output_has_colour() else None)
    _print_left_out(len(sentences), f"{word}s", shown)
    if survey.topics:
        _print_rows(("topic", "state"), ("partitions", "records", "lag"), _topic_rows(survey), "topics", shown)
    if shown.has_partitions and survey.partitions:
        rows = [_partition_row(partition) for partition in survey.partitions]
        names, numbers = ("topic", "partition", "producer"), ("head", "stores", "lag")
        _print_rows(names, numbers, rows, "partitions", Shown(is_all=True))
    if survey.nodes:
        nodes = [_node_row(node, survey.time) for node in survey.nodes]
        _print_rows(("role", "node", "endpoint", "state"), (), nodes, "nodes", shown)
    if brokers:
        _print_rows(
            ("broker", "node", "state"), ("under-replicated logs",), map(_broker_row, brokers), "brokers", shown
        )
    towers = []
    for tower in survey.towers:
        state, colour = ("heard", FINE) if tower.is_heard else ("not heard", WRONG)
        towers.append(_Row(colour, (), (tower.endpoint, state, str(tower.nodes))))
    _print_rows(("tower", "state"), ("nodes",), towers, "towers", shown)


def _print_rows(
    names: tuple[str, ...], numbers: tuple[str, ...], rows: Iterable[_Row], what: str, shown: Shown
) -> None:
    """Print a table, problems first; only the first rows, unless all are wanted."""
    ordered = sorted(rows, key=lambda row: (_SEVERITY.index(row.colour), row.rank))
    kept = ordered if shown.is_all else ordered[:ROWS_MAX]
    click.echo()
    print_table(names, numbers, [row.cells for row in kept], [row.colour for row in kept])
    _print_left_out(len(ordered), what, shown)


def _print_left_out(count: int, what: str, shown: Shown) -> None:
    if count > ROWS_MAX and not shown.is_all:
        click.echo(f"... and {count - ROWS_MAX:,} more {what}: --all shows them")


def _summary(survey: ClusterSurvey) -> str:
    lags = [partition.lag for partition in survey.partitions if partition.lag is not None]
    counts = (
        counted(len(survey.nodes), "node"),
        counted(len(survey.stores), "store"),
        counted(len(survey.topics), "topic"),
        counted(len(survey.partitions), "partition"),
    )
    time = format_time(int(survey.time * 1000), "seconds")
    largest = f"{max(lags):,}" if lags else NONE if _is_empty(survey) else UNKNOWN
    return f"{time}: {', '.join(counts)}; largest lag {largest}"


def _is_empty(survey: ClusterSurvey) -> bool:
    """Return whether all that could be asked say that there are no records."""
    is_certain = all(node.lists_topics is not False and node.has_answered is not False for node in survey.stores)
    return is_certain and not survey.partitions


def _topic_rows(survey: ClusterSurvey) -> Iterable[_Row]:
    by_topic: dict[str, list[PartitionView]] = {}
    for partition in survey.partitions:
        by_topic.setdefault(partition.partition.topic, []).append(partition)
    for topic in survey.topics:
        yield _topic_row(topic, by_topic.get(topic.name, []))


def _topic_row(topic: TopicView, partitions: list[PartitionView]) -> _Row:
    records = sum(partition.end_sequence or 0 for partition in partitions)
    lag = max((partition.lag or 0 for partition in partitions), default=0)
    is_known = all(_is_lag_known(partition) for partition in partitions)
    if not partitions:
        state, colour = ("stored, not reported", WRONG) if topic.is_stored else ("no records", FINE)
        shown_lag = UNKNOWN if topic.is_stored else NONE
        return _Row(colour, (0, topic.name), (topic.name, state, "0", shown_lag, shown_lag))
    if not is_known:
        state, colour, shown_lag = "lag unknown", WRONG, UNKNOWN
    elif lag:
        state, colour, shown_lag = "stores behind", LATE, f"{lag:,}"
    else:
        state, colour, shown_lag = "stored", FINE, "0"
    return _Row(colour, (-lag, topic.name), (topic.name, state, f"{len(partitions):,}", f"{records:,}", shown_lag))


def _is_lag_known(partition: PartitionView) -> bool:
    return bool(partition.holders) and all(holder.lag is not None for holder in partition.holders)


def _partition_row(partition: PartitionView) -> _Row:
    name = partition.partition
    lag = partition.lag or 0
    is_known = _is_lag_known(partition)
    complete = sum(holder.lag == 0 for holder in partition.holders)
    cells = (
        name.topic,
        name.address,
        "up" if partition.has_producer else "gone",
        UNKNOWN if partition.end_sequence is None else f"{partition.end_sequence - 1}",
        f"{complete} of {len(partition.holders)}",
        f"{lag:,}" if is_known else UNKNOWN,
    )
    return _Row(WRONG if not is_known else LATE if lag else FINE, (-lag, name), cells)


def _node_row(node: NodeView, now: float) -> _Row:
    endpoints = dict.fromkeys([node.endpoint, *(sighting.endpoint for sighting in node.sightings)])
    role = node.roles[0] if node.roles else ""
    rank = ROLES.index(role) if role in ROLES else len(ROLES)
    state, colour = node.state.value, FINE
    if node.state is NodeState.SILENT:
        state, colour = f"silent for {max(now - node.last_seen, 0):.0f} s", WRONG
    elif node.state is NodeState.UNCONNECTED:
        colour = LATE
    elif node.has_answered is False:
        state, colour = f"{state}, no answer", WRONG
    shown = ", ".join(endpoint.removeprefix("tcp://") for endpoint in endpoints)
    return _Row(colour, (rank, node.address), (", ".join(node.roles) or UNKNOWN, node.address, shown, state))


def _broker_row(broker: BrokerView) -> _Row:
    count = broker.under_replicated_logs
    colour = WRONG if not broker.is_alive else LATE if count else FINE
    state = "dead" if not broker.is_alive else "draining" if broker.is_draining else "alive"
    shown_count = f"{count:,}" if broker.is_alive else UNKNOWN
    return _Row(colour, (broker.number, broker.address), (str(broker.number), broker.address, state, shown_count))


def survey_to_json(
    survey: ClusterSurvey, faults: Sequence[str] | None, brokers: Sequence[BrokerView] = ()
) -> dict[str, Any]:
    """Return a survey as a JSON object. Fields keep their names and meanings; new ones may be added."""
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
            {
                "topic": topic.name,
                "partitions": topic.partitions,
                "wanted": topic.is_subscribed,
                "stored": topic.is_stored,
            }
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
        "brokers": [
            {
                "broker": broker.number,
                "node": broker.address,
                "alive": broker.is_alive,
                "draining": broker.is_draining,
                "under_replicated_logs": broker.under_replicated_logs if broker.is_alive else None,
            }
            for broker in brokers
        ],
        "limits": list(survey.limits),
        "faults": None if faults is None else list(faults),
    }


def _node_to_json(node: NodeView) -> dict[str, Any]:
    return {
        "node": node.address,
        "endpoint": node.endpoint,
        "roles": list(node.roles),
        "state": node.state.value,
        "answered": node.has_answered,
        "lists_topics": node.lists_topics,
        "topics": node.topics_held,
        "partitions": node.partitions_held,
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


def _head(end_sequence: int | None) -> int | None:
    """Return the sequence of the last record; None if there is none, or no node has reported it."""
    return end_sequence - 1 if end_sequence else None


def _milliseconds(time: float) -> int:
    return round(time * 1000)
