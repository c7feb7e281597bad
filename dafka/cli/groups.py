"""`dafka group` for the groups of the cluster, which need no broker."""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs
import click

from dafka.cli.runner import run
from dafka.cli.terminal import UsageMistake, print_json_lines, print_table
from dafka.config import Config
from dafka.kafka.protocol.constants import EARLIEST, LATEST
from dafka.records import Partition
from dafka.roles import GroupDescription, MemberDescription, describe_group, list_groups, open_reader, reset_group
from dafka.roles.arguments import ephemeral
from dafka.roles.group_tools import find_ends
from dafka.text import counted, parse_time

EARLIEST_S = 5.0
"""Seconds that stores have to say which records they still hold."""


@attrs.frozen
class Target:
    """Where a group is reset to: a time as ListOffsets takes it, or an offset."""

    time_ms: int | None = None
    offset: int = 0


def parse_target(text: str) -> Target:
    """Return where a group is reset to; raise `ValueError` with what was expected."""
    if text in {"earliest", "latest"}:
        return Target(time_ms=EARLIEST if text == "earliest" else LATEST)
    if text.isascii() and text.isdecimal():
        return Target(offset=int(text))
    try:
        return Target(time_ms=max(parse_time(text), 0))
    except ValueError:
        expected = "expected earliest, latest, an offset, or a time such as 2026-11-23T07:00Z"
        raise ValueError(f"{expected}, not {text!r}") from None


def list_cluster_groups(config: Config, *, as_json: bool) -> None:
    """Print the groups."""

    async def program() -> int:
        names = await list_groups(config)
        if as_json:
            print_json_lines({"group": name} for name in names)
        else:
            print_table(("group",), (), [(name,) for name in names])
        return 0

    run(program)


def describe_cluster_group(config: Config, *, name: str, as_json: bool) -> None:
    """Print the members and positions of a group."""

    async def program() -> int:
        found = await _describe(name, config)
        rows = sorted(found.positions, key=str)
        if as_json:
            _print_json(found, rows)
            return 0
        lag = counted(sum(map(found.lag, rows)), "record")
        click.echo(f"group {name}: {counted(len(found.members), 'member')}, lag {lag}")
        if found.members:
            members = [
                (each.address, _state(each), ", ".join(each.topics), len(each.partitions)) for each in found.members
            ]
            print_table(("member", "state", "topics"), ("partitions",), members)
        if rows:
            owners = {partition: each.address[:8] for each in found.members for partition in each.partitions}
            positions = [
                (
                    each.topic,
                    each.address,
                    owners.get(each, ""),
                    found.positions[each],
                    found.ends.get(each, ""),
                    found.lag(each),
                )
                for each in rows
            ]
            print_table(("topic", "partition", "member"), ("position", "end", "lag"), positions)
        return 0

    run(program)


def reset_cluster_group(
    config: Config, *, name: str, target: Target, topics: tuple[str, ...], dry_run: bool, as_json: bool
) -> None:
    """Have a group continue at other records."""

    async def program() -> int:
        found = await (describe_group(name, config) if topics else _describe(name, config))
        if any(not each.is_silent for each in found.members):
            raise UsageMistake(f"group {name!r}: it has members that are alive: stop them first")
        wanted = topics or tuple(sorted({each.topic for each in found.positions}))
        if not wanted:
            raise UsageMistake(f"group {name!r}: it has no positions: name topics with --topic")
        positions = await _target_positions(wanted, target, config)
        if not positions:
            raise UsageMistake(f"no store holds records of {', '.join(wanted)}")
        if not dry_run:
            await reset_group(found, positions, config)
        ordered = sorted(positions, key=str)
        if as_json:
            for each in ordered:
                former = {"former_position": found.positions.get(each)}
                line = {"group": name, "topic": each.topic, "partition": each.address, **former}
                click.echo(json.dumps({**line, "position": positions[each]}))
        else:
            rows = [(each.topic, each.address, found.positions.get(each, ""), positions[each]) for each in ordered]
            print_table(("topic", "partition"), ("former position", "position"), rows)
        if dry_run:
            click.echo("nothing was saved: this was a dry run", err=True)
        return 0

    run(program)


async def _describe(name: str, config: Config) -> GroupDescription:
    found = await describe_group(name, config)
    if not (found.members or found.positions):
        raise UsageMistake(
            f"group {name!r}: there is no such group in the cluster; --kafka HOST:PORT asks a broker about its groups"
        )
    return found


async def _target_positions(topics: Iterable[str], target: Target, config: Config) -> dict[Partition, int]:
    """Return where a group continues in each partition of topics."""
    if target.time_ms == LATEST:
        return await find_ends(topics, config)
    async with open_reader(topics, ephemeral(config)) as reader:
        await reader.wait_ready()
        ends = reader.ends()
        if target.time_ms is not None and target.time_ms != EARLIEST:
            return {**ends, **await reader.positions_at(target.time_ms)}
        held = {each: end for each, end in ends.items() if end}
        earliest = await reader.earliest(held, EARLIEST_S)
        first = {each: earliest.get(each, 0) for each in ends}
        if target.time_ms == EARLIEST:
            return first
        return {each: min(max(target.offset, first[each]), end) for each, end in ends.items()}


def _state(member: MemberDescription) -> str:
    return "silent" if member.is_silent else "alive"


def _print_json(found: GroupDescription, rows: Iterable[Partition]) -> None:
    members = [
        {"member": each.address, "state": _state(each), "topics": each.topics, "partitions": len(each.partitions)}
        for each in found.members
    ]
    positions = [
        {
            "topic": each.topic,
            "partition": each.address,
            "position": found.positions[each],
            "end": found.ends.get(each),
            "lag": found.lag(each),
        }
        for each in rows
    ]
    click.echo(json.dumps({"group": found.name, "members": members, "positions": positions}))
