"""`dafka topic`: creates, lists, describes, changes and deletes the topics of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import attrs
import click

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.topic_settings import EFFECTIVE_SETTING_NAMES, TOPIC_SETTING_NAMES
from dafka.cli.kafka.client import KafkaClient, check_error, report_deletions
from dafka.cli.kafka.http_client import HttpClient
from dafka.cli.kafka.options import client_options, http_options, json_option, watch_option
from dafka.cli.options import parsed_type
from dafka.cli.terminal import UsageMistake, confirm, join_numbers, print_json_lines, print_table, yes_option
from dafka.internal_topics import check_no_system_topic
from dafka.kafka.protocol.constants import DELETE, EARLIEST, FROM_TOPIC, LATEST, SET, TOPIC
from dafka.kafka.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from dafka.kafka.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from dafka.kafka.protocol.messages.reassignments import ElectableTopic, ElectLeadersRequest
from dafka.kafka.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from dafka.kafka.protocol.tables import NIL
from dafka.text import escape_unprintable

_TIMEOUT_MS = 30_000


@attrs.frozen
class LogDescription:
    """A log: its first offset, the one after its last record, and the numbers of the brokers that lead and keep it.

    The leader is None if there is none at present.
    """

    start_offset: int
    end_offset: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]


def _parse_setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"expected NAME=VALUE, such as retention.ms=60000, not {text!r}")
    return name, value


def _complete_name(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in TOPIC_SETTING_NAMES if name.startswith(incomplete)]


_set_option = click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    type=parsed_type(_parse_setting),
    help="A setting.",
    shell_complete=lambda *asked: [f"{name}=" for name in _complete_name(*asked)],
)


@click.group()
def topic() -> None:
    """Create, list, describe, change, move and delete the topics of brokers.

    These commands speak Kafka's protocol, except `epochs`, `move`, `moves` and `recover`, which use HTTP. `dafka
    topics` lists what a store on disk holds.
    """


@topic.command()
@click.argument("name")
@click.option("--logs", type=click.IntRange(min=1), help="How many logs (Kafka's partitions).  [default: the broker's]")
@click.option("--replicas", type=click.IntRange(min=1), help="How many brokers keep each log.  [default: the broker's]")
@click.option(
    "--availability",
    type=click.Choice(["majority", "branch"]),
    help="What a log does when brokers cannot reach each other: only the side with most replicas goes on, or each does "
    "for itself.  [default: majority]",
)
@_set_option
@client_options
def create(
    name: str,
    logs: int | None,
    replicas: int | None,
    availability: str | None,
    settings: Sequence[tuple[str, str]],
    client: KafkaClient,
) -> None:
    """Create a topic."""
    if availability is not None:
        settings = [*settings, ("availability", availability)]
    asked = CreatableTopic(
        name=name,
        num_partitions=-1 if logs is None else logs,
        replication_factor=-1 if replicas is None else replicas,
        assignments=[],
        configs=[CreatableTopicConfig(name=each, value=value) for each, value in settings],
    )
    (found,) = client.ask(CreateTopicsRequest(topics=[asked])).topics
    check_error(found.error_code, f"topic {name!r}", found.error_message)
    click.echo(f"created {name}", err=True)


@topic.command("list")
@watch_option
@json_option
@client_options
def list_topics(as_json: bool, client: KafkaClient) -> None:
    """List the topics."""
    found = sorted(client.find_metadata(None).topics, key=lambda each: each.name)
    if as_json:
        print_json_lines({"topic": each.name, "logs": len(each.partitions)} for each in found)
    else:
        print_table(("topic",), ("logs",), [(each.name, len(each.partitions)) for each in found])


@topic.command()
@watch_option
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@client_options
def describe(names: tuple[str, ...], as_json: bool, client: KafkaClient) -> None:
    """Show the logs of topics: offsets, leaders, replicas, and the settings that differ from the broker's."""
    logs = describe_logs(client, names)
    settings = {name: _find_settings(client, name) for name in names}
    if as_json:
        for name in names:
            described = [{"log": number, **attrs.asdict(log)} for (topic, number), log in logs.items() if topic == name]
            print_json_lines([{"topic": name, "logs": described, "settings": settings[name]}])
        return
    rows = [
        (
            *name_and_number,
            log.start_offset,
            log.end_offset,
            log.end_offset - log.start_offset,
            "none" if log.leader is None else log.leader,
            log.leader_epoch,
            join_numbers(log.replicas),
            join_numbers(log.in_sync),
        )
        for name_and_number, log in logs.items()
    ]
    numbers = ("log", "start offset", "end offset", "records", "leader", "epoch", "replicas", "in sync")
    print_table(("topic",), numbers, rows)
    for name, some in settings.items():
        for setting, value in some.items():
            mark = "" if setting in EFFECTIVE_SETTING_NAMES else " (no effect)"
            click.echo(f"{name}: {setting}={value}{mark}")


@topic.command()
@click.argument("name")
@click.option("--logs", type=click.IntRange(min=1), help="How many logs it gets; their number can only increase.")
@_set_option
@click.option(
    "--unset",
    metavar="NAME",
    multiple=True,
    help="A setting that becomes the broker's again.",
    shell_complete=_complete_name,
)
@client_options
def alter(
    name: str, logs: int | None, settings: Sequence[tuple[str, str]], unset: tuple[str, ...], client: KafkaClient
) -> None:
    """Change the settings of a topic, or give it further logs."""
    if logs is None and not settings and not unset:
        raise UsageMistake("nothing to change: give --logs, --set or --unset")
    if settings or unset:
        changes = [IncrementalAlterableConfig(name=each, config_operation=SET, value=value) for each, value in settings]
        changes += [IncrementalAlterableConfig(name=each, config_operation=DELETE, value=None) for each in unset]
        resource = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=changes)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        (found,) = client.ask(request).responses
        check_error(found.error_code, f"topic {name!r}", found.error_message)
    if logs is not None:
        wanted = CreatePartitionsTopic(name=name, count=logs, assignments=None)
        request_logs = CreatePartitionsRequest(topics=[wanted], timeout_ms=_TIMEOUT_MS, validate_only=False)
        (added,) = client.ask(request_logs).results
        check_error(added.error_code, f"topic {name!r}", added.error_message)
    click.echo(f"changed {name}", err=True)


def _parse_replicas(text: str) -> list[int]:
    if text == "any":
        return []
    numbers = text.split(",")
    if not all(each.isascii() and each.isdecimal() and len(each) < 5 for each in numbers):
        raise ValueError(f"expected the numbers of brokers, such as 1,2,4, not {text!r}")
    return [int(each) for each in numbers]


@topic.command()
@click.argument("name")
@json_option
@http_options
def epochs(name: str, as_json: bool, client: HttpClient) -> None:
    """Show the leader epochs of each log: which broker led it from which offset on, and after which other one."""
    found = client.ask("GET", f"/topics/{quote(name, safe='')}/epochs")["logs"]
    if as_json:
        print_json_lines({"topic": name, **each} for each in found)
        return
    rows = [
        (
            " ".join(each["flags"]) or "-",
            str(log["log"]),
            str(each["epoch"]),
            _shown_broker(each["parent_leader"], each["parent_leader_address"]) or "-",
            _shown_broker(each["leader"], each["leader_address"]),
            str(each["start_offset"]),
        )
        for log in found
        for each in log["epochs"]
    ]
    print_table(("flags",), ("log", "epoch", "parent leader", "leader", "start offset"), rows)


def _shown_broker(number: int | None, address: str) -> str:
    return address[:8] if number is None else str(number)


@topic.command()
@click.argument("name")
@click.option("--log", type=click.IntRange(min=0), required=True, help="The log.")
@click.option(
    "--replicas",
    type=parsed_type(_parse_replicas),
    metavar="N,N,...",
    required=True,
    help="The numbers of the brokers that keep it, the preferred leader first; `any` to let the cluster choose.",
)
@http_options
def move(name: str, log: int, replicas: list[int], client: HttpClient) -> None:
    """Move a log of a topic to other brokers.

    New ones copy the log; then those that are not named leave. They keep the log until others are named, or one
    of them is drained or dies for good. `dafka cluster brokers` lists the brokers.
    """
    client.ask("PUT", f"/topics/{quote(name, safe='')}/logs/{log}/replicas", {"replicas": replicas})
    where = f"moves to the brokers {', '.join(map(str, replicas))}" if replicas else "stays where the cluster chooses"
    click.echo(f"log {log} of {name} {where}", err=True)


@topic.command()
@click.argument("name")
@click.option("--log", type=click.IntRange(min=0), required=True, help="The log.")
@click.option("--from", "broker", type=click.IntRange(min=0), required=True, help="The broker that is left.")
@click.option("--dry-run", is_flag=True, help="Only print what can be lost.")
@yes_option
@http_options
def recover(name: str, log: int, broker: int, dry_run: bool, yes: bool, client: HttpClient) -> None:
    """Continue a log with what one broker has of it, because most of its brokers are lost for good.

    Records that only the others have are lost. The log gets further replicas again. If all brokers that had it are
    forgotten, it continues without records. The topic $coordinators has the positions of groups.
    """
    target = f"/topics/{quote(name, safe='')}/logs/{log}/recover"
    found = client.ask("POST", target, {"broker": broker, "dry_run": True})
    others = [each for each in found["replicas"] if each != broker]
    shown = f"the {'broker' if len(others) == 1 else 'brokers'} {join_numbers(others)}" if others else "lost brokers"
    click.echo(
        f"log {log} of {name} would continue from broker {broker}: records that only {shown} had would be lost",
        err=True,
    )
    if dry_run:
        return
    confirm("Accept this loss?", yes=yes, declined="nothing was changed")
    client.ask("POST", target, {"broker": broker})
    click.echo(f"log {log} of {name} is recovered", err=True)


@topic.command()
@watch_option
@json_option
@http_options
def moves(as_json: bool, client: HttpClient) -> None:
    """List the logs that are getting other replicas, each with the reason.

    No log moves without one: an operator has asked for it, a broker is drained, forgotten or has died for good, or a
    log has fewer replicas than it should.
    """
    found = client.ask("GET", "/moves")["moves"]
    if as_json:
        print_json_lines(found)
        return
    columns = ("replicas", "learners", "ordered")
    rows = [
        (each["topic"], each["log"], *(join_numbers(each[name]) for name in columns), each["reason"]) for each in found
    ]
    print_table(("topic", "log", "replicas", "learners", "ordered", "reason"), (), rows)


@topic.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@client_options
def elect(names: tuple[str, ...], client: KafkaClient) -> None:
    """Have the preferred brokers lead the logs of topics again; without NAMEs, of all topics.

    They also lead again `[broker] preferred_leader_after_ms` after they are in sync. `dafka topic describe` names the
    leaders.
    """
    topics = None
    if names:
        found = client.find_metadata(names).topics
        for each in found:
            check_error(each.error_code, f"topic {each.name!r}")
        topics = [
            ElectableTopic(topic=each.name or "", partitions=sorted(part.partition_index for part in each.partitions))
            for each in found
        ]
    answer = client.ask(ElectLeadersRequest(topic_partitions=topics, timeout_ms=_TIMEOUT_MS))
    check_error(answer.error_code, "all topics")
    results = [(topic.topic, part) for topic in answer.replica_election_results for part in topic.partition_result]
    for name, part in results:
        if not part.error_code:
            click.echo(f"log {part.partition_id} of {name} has its preferred leader", err=True)
    for name, part in results:
        if part.error_code != ErrorCode.ELECTION_NOT_NEEDED:
            check_error(part.error_code, f"log {part.partition_id} of the topic {name!r}")


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
@client_options
def delete(names: tuple[str, ...], yes: bool, client: KafkaClient) -> None:
    """Delete topics with their records."""
    for name in names:
        check_no_system_topic(name)
    shown = ", ".join(map(escape_unprintable, names))
    confirm(f"Delete {shown} with all records?", yes=yes, declined="nothing was deleted")
    request = DeleteTopicsRequest(
        topic_names=list(names),
        topics=[DeleteTopicState(name=name, topic_id=NIL) for name in names],
        timeout_ms=_TIMEOUT_MS,
    )
    responses = client.ask(request).responses
    report_deletions("topic", ((each.name, each.error_code, each.error_message) for each in responses))


def describe_logs(client: KafkaClient, names: Sequence[str]) -> dict[tuple[str, int], LogDescription]:
    """Return all logs of topics, by topic in the given order and then by number.

    Raise `UsageMistake` if a topic does not exist, or the user may not see it.
    """
    parts: dict[tuple[str, int], Any] = {}
    for each in client.find_metadata(names).topics:
        check_error(each.error_code, f"topic {each.name!r}")
        parts.update(((each.name, part.partition_index), part) for part in each.partitions)
    order = {name: index for index, name in enumerate(names)}
    logs = sorted(parts, key=lambda log: (order[log[0]], log[1]))
    starts, ends = (find_offsets(client, dict.fromkeys(logs, time)) for time in (EARLIEST, LATEST))
    return {
        log: LogDescription(
            starts[log],
            ends[log],
            parts[log].leader_id if parts[log].leader_id >= 0 else None,
            parts[log].leader_epoch,
            list(parts[log].replica_nodes),
            list(parts[log].isr_nodes),
        )
        for log in logs
    }


def find_offsets(client: KafkaClient, times: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Return the offset of the first record of each log from a time on; -1 where there is none.

    Each time is in milliseconds since 1970 UTC, or `EARLIEST` or `LATEST`. Raise `UsageMistake` if an offset cannot be
    found.
    """
    by_leader: dict[KafkaClient, dict[str, list[ListOffsetsPartition]]] = {}
    for log, leader in client.connect_leaders(list(times)).items():
        asked = ListOffsetsPartition(partition_index=log[1], timestamp=times[log])
        by_leader.setdefault(leader, {}).setdefault(log[0], []).append(asked)
    found = {}
    for leader, topics in by_leader.items():
        wanted = [ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()]
        for each in leader.ask(ListOffsetsRequest(replica_id=-1, topics=wanted)).topics:
            for part in each.partitions:
                check_error(part.error_code, f"topic {each.name!r}, log {part.partition_index}")
                found[each.name, part.partition_index] = part.offset
    return {log: found[log] for log in times}


def _find_settings(client: KafkaClient, name: str) -> dict[str, str]:
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
    (found,) = client.ask(DescribeConfigsRequest(resources=[resource])).results
    check_error(found.error_code, f"topic {name!r}", found.error_message)
    return {each.name: each.value for each in found.configs if each.config_source == FROM_TOPIC}
