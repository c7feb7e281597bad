"""`dafka group`: lists, describes and resets groups of consumers, of the cluster or of Kafka's clients of a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.group_settings import DEAD_LETTER_TOPIC
from dafka.cli.groups import Target, describe_cluster_group, list_cluster_groups, parse_target, reset_cluster_group
from dafka.cli.kafka.client import KafkaClient, check_error, report_deletions
from dafka.cli.kafka.options import client_options, client_or_node_options, json_option, watch_option
from dafka.cli.kafka.topic import LogDescription, describe_logs, find_offsets
from dafka.cli.options import parsed_type
from dafka.cli.terminal import UsageMistake, confirm, print_json_lines, print_table, yes_option
from dafka.kafka.protocol.constants import GROUP, ApiKey
from dafka.kafka.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from dafka.kafka.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from dafka.kafka.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from dafka.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from dafka.kafka.protocol.messages.share_groups import DescribedShareMember, ShareGroupDescribeRequest
from dafka.kafka.protocol.messages.share_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterSharePartition,
    AlterShareTopic,
    DescribeShareGroupOffsetsRequest,
    ShareOffsetsGroup,
)
from dafka.kafka.protocol.tables import Request
from dafka.text import escape_unprintable

_EMPTY, _DEAD = "Empty", "Dead"


@click.group()
def group() -> None:
    """List, describe and reset groups of consumers, and delete those of a broker.

    The groups are those of `dafka consume --group` and `open_consumer(group=...)`. With --kafka, they are those of
    Kafka's clients of a broker.
    """


@group.command("list")
@watch_option
@json_option
@client_or_node_options(list_cluster_groups)
def list_groups(as_json: bool, client: KafkaClient) -> None:
    """List the groups."""
    groups: dict[str, Any] = {}
    for broker in client.connect_all():
        response = broker.ask(ListGroupsRequest())
        check_error(response.error_code, "groups")
        groups |= {each.group_id: each for each in response.groups}
    found = [groups[name] for name in sorted(groups)]
    if as_json:
        print_json_lines(
            {
                "group": each.group_id,
                "state": each.group_state,
                "type": each.group_type,
                "protocol": each.protocol_type,
            }
            for each in found
        )
    else:
        rows = [(each.group_id, each.group_state, each.group_type, each.protocol_type) for each in found]
        print_table(("group", "state", "type", "protocol"), (), rows)


@group.command()
@watch_option
@click.argument("name")
@json_option
@client_or_node_options(describe_cluster_group)
def describe(name: str, as_json: bool, client: KafkaClient) -> None:
    """Show the members of a group, how far it has come, and its lag.

    The offset of a share group is that of the first record that it has not finished, and its lag has no records that
    it has finished after it. If it has a topic for dead letters, that is shown, too.
    """
    coordinator = client.connect_coordinator(name)
    found = _find(coordinator, name)
    positions = _positions(coordinator, name, is_share=found.is_share)
    letters = _find_letters(coordinator, name) if found.is_share else ""
    topics = tuple(dict.fromkeys(topic for topic, _ in sorted(positions)))
    logs = describe_logs(client, topics) if topics else {}
    rows = [
        (*log, each.offset, logs[log].end_offset, each.lag_to(logs[log].end_offset))
        for log, each in sorted(positions.items())
        if log in logs
    ]
    if as_json:
        shown: dict[str, Any] = {
            "group": name,
            "state": found.state,
            "members": [dict(zip(found.columns, each, strict=True)) for each in found.members],
            "offsets": [dict(zip(("topic", "log", "offset", "end_offset", "lag"), row, strict=True)) for row in rows],
        }
        print_json_lines([shown | ({"dead_letters": letters} if letters else {})])
        return
    click.echo(f"group {name}: {found.state}")
    if letters:
        click.echo(f"dead letters go to {letters}")
    if found.members:
        print_table(found.columns, (), found.members)
    if rows:
        print_table(("topic",), ("log", "offset", "end offset", "lag"), rows)


@group.command()
@click.argument("name")
@click.option(
    "--to",
    "target",
    metavar="earliest|latest|OFFSET|TIME",
    required=True,
    type=parsed_type(parse_target),
    help="Where to begin again: TIME is such as 2026-11-23T07:00Z, and UTC if it names no offset.",
)
@click.option("--topic", "topics", metavar="NAME", multiple=True, help="A topic.  [default: those with positions]")
@click.option("--dry-run", is_flag=True, help="Show the new positions, and save nothing.")
@json_option
@client_or_node_options(reset_cluster_group)
def reset(
    name: str, target: Target, topics: tuple[str, ...], dry_run: bool, as_json: bool, client: KafkaClient
) -> None:
    """Have a group continue at other records. It must have no members.

    An offset that a log does not have becomes the nearest one that it has. If no record is as late as the time, the
    offset is the end of the log.
    """
    coordinator = client.connect_coordinator(name)
    found = _look_up(coordinator, name)
    if found is not None and found.state != _EMPTY:
        raise UsageMistake(f"group {name!r}: it has members (it is {found.state}): stop them first")
    is_share = found is not None and found.is_share
    committed = _positions(coordinator, name, is_share=is_share)
    wanted = topics or tuple(dict.fromkeys(topic for topic, _ in committed))
    if not wanted:
        raise UsageMistake(f"group {name!r}: it has no committed offsets: name topics with --topic")
    logs = describe_logs(client, wanted)
    offsets = _target_offsets(client, logs, target)
    if not dry_run:
        (_move if is_share else _commit)(coordinator, name, offsets)
    if as_json:
        for (topic, number), offset in offsets.items():
            former = {"former_offset": committed[topic, number].offset if (topic, number) in committed else None}
            click.echo(json.dumps({"group": name, "topic": topic, "log": number, **former, "offset": offset}))
    else:
        rows = [(*log, committed[log].offset if log in committed else "", offset) for log, offset in offsets.items()]
        print_table(("topic",), ("log", "former offset", "offset"), rows)
    if dry_run:
        click.echo("nothing was committed: this was a dry run", err=True)


@group.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
@client_options
def delete(names: tuple[str, ...], yes: bool, client: KafkaClient) -> None:
    """Delete groups of a broker with their committed offsets. They must have no members."""
    shown = ", ".join(map(escape_unprintable, names))
    confirm(f"Delete {shown} with all committed offsets?", yes=yes, declined="nothing was deleted")

    def delete_each() -> Iterator[tuple[str, int, None]]:
        for name in names:
            (found,) = client.connect_coordinator(name).ask(DeleteGroupsRequest(groups_names=[name])).results
            yield name, found.error_code, None

    report_deletions("group", delete_each())


class _Description(NamedTuple):
    """The state of a group, its members with what `columns` name, and whether it is a share group.

    These are the id, the client and the host of a member, and the logs that a member of a share group reads.
    """

    state: str
    members: list[tuple[str, ...]]
    is_share: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of what is known of each member."""
        return ("member", "client", "host", "logs") if self.is_share else ("member", "client", "host")


class _Position(NamedTuple):
    """Where a group continues in a log, and its lag; -1 if the broker does not say it."""

    offset: int
    lag: int = -1

    def lag_to(self, end_offset: int) -> int:
        """Return the lag of a log that ends at an offset."""
        return max(end_offset - self.offset, 0) if self.lag < 0 else self.lag


def _find(client: KafkaClient, name: str) -> _Description:
    found = _look_up(client, name)
    if found is None:
        raise UsageMistake(f"group {name!r}: there is no such group")
    return found


def _look_up(client: KafkaClient, name: str) -> _Description | None:
    """Return the description of a group of any type; None if there is no such group."""
    requests: list[Request] = [DescribeGroupsRequest(groups=[name])]
    if client.serves(ApiKey.CONSUMER_GROUP_DESCRIBE):
        requests.append(ConsumerGroupDescribeRequest(group_ids=[name], include_authorized_operations=False))
    if client.serves(ApiKey.SHARE_GROUP_DESCRIBE):
        requests.append(ShareGroupDescribeRequest(group_ids=[name], include_authorized_operations=False))
    for request in requests:
        (found,) = client.ask(request).groups
        if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND and found.group_state != _DEAD:
            check_error(found.error_code, f"group {name!r}")
            is_share = isinstance(request, ShareGroupDescribeRequest)
            members = [
                (each.member_id, each.client_id, each.client_host, *([_list_logs(each)] if is_share else []))
                for each in found.members
            ]
            return _Description(found.group_state, members, is_share)
    return None


def _list_logs(member: DescribedShareMember) -> str:
    """Return the logs that a member of a share group reads."""
    topics = member.assignment.topic_partitions
    return ", ".join(f"{each.topic_name} {number}" for each in topics for number in sorted(each.partitions))


def _find_letters(client: KafkaClient, name: str) -> str:
    """Return the topic for the dead letters of a share group; empty if there is none, or it may not be seen."""
    wanted = DescribeConfigsResource(resource_type=GROUP, resource_name=name, configuration_keys=[DEAD_LETTER_TOPIC])
    (found,) = client.ask(DescribeConfigsRequest(resources=[wanted])).results
    return next((each.value or "" for each in found.configs), "")


def _positions(client: KafkaClient, name: str, *, is_share: bool) -> dict[tuple[str, int], _Position]:
    """Return where a group continues, by topic and log."""
    if not is_share:
        return {log: _Position(offset) for log, offset in _committed(client, name).items()}
    asked = DescribeShareGroupOffsetsRequest(groups=[ShareOffsetsGroup(group_id=name, topics=None)])
    (answer,) = client.ask(asked).groups
    check_error(answer.error_code, f"group {name!r}")
    return {
        (topic.topic_name, part.partition_index): _Position(part.start_offset, part.lag)
        for topic in answer.topics
        for part in topic.partitions
        if part.start_offset >= 0
    }


def _committed(client: KafkaClient, name: str) -> dict[tuple[str, int], int]:
    """Return the committed offsets of a group, by topic and log."""
    asked = OffsetFetchRequestGroup(group_id=name, topics=None)
    response = client.ask(OffsetFetchRequest(group_id=name, topics=None, groups=[asked]))
    answers = response.groups or [response]
    found = {}
    for answer in answers:
        check_error(answer.error_code, f"group {name!r}")
        for topic in answer.topics:
            for part in topic.partitions:
                check_error(part.error_code, f"group {name!r}, topic {topic.name!r}")
                if part.committed_offset >= 0:
                    found[topic.name, part.partition_index] = part.committed_offset
    return found


def _target_offsets(
    client: KafkaClient, logs: dict[tuple[str, int], LogDescription], target: Target
) -> dict[tuple[str, int], int]:
    if target.time_ms is None:
        return {log: min(max(target.offset, each.start_offset), each.end_offset) for log, each in logs.items()}
    found = find_offsets(client, dict.fromkeys(logs, target.time_ms))
    return {log: logs[log].end_offset if offset < 0 else offset for log, offset in found.items()}


def _commit(client: KafkaClient, name: str, offsets: dict[tuple[str, int], int]) -> None:
    topics: dict[str, list[Any]] = {}
    for (topic, number), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(partition_index=number, committed_offset=offset, committed_metadata="")
        )
    request = OffsetCommitRequest(
        group_id=name,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=parts) for topic, parts in topics.items()],
    )
    for answer in client.ask(request).topics:
        for part in answer.partitions:
            check_error(part.error_code, f"group {name!r}, topic {answer.name!r}")


def _move(client: KafkaClient, name: str, offsets: dict[tuple[str, int], int]) -> None:
    """Have a share group continue at offsets."""
    topics: dict[str, list[AlterSharePartition]] = {}
    for (topic, number), offset in offsets.items():
        topics.setdefault(topic, []).append(AlterSharePartition(partition_index=number, start_offset=offset))
    request = AlterShareGroupOffsetsRequest(
        group_id=name,
        topics=[AlterShareTopic(topic_name=topic, partitions=parts) for topic, parts in topics.items()],
    )
    answer = client.ask(request)
    check_error(answer.error_code, f"group {name!r}")
    for each in answer.responses:
        for part in each.partitions:
            check_error(part.error_code, f"group {name!r}, topic {each.topic_name!r}")
