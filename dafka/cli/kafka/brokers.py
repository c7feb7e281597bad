"""Finding the broker that answers: the leader of a log, or the coordinator of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dafka.cli.kafka.client import KafkaClient, check_error
from dafka.kafka.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from dafka.kafka.protocol.messages.membership import FindCoordinatorRequest

_GROUP = 0


def find_metadata(client: KafkaClient, topics: Sequence[str] | None) -> Any:
    """Return the brokers, and topics with their logs.

    Args:
        client: The connection.
        topics: The topics; None for all.

    Returns:
        The response.
    """
    asked = None if topics is None else [MetadataRequestTopic(name=name) for name in dict.fromkeys(topics)]
    return client.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False))


def connect_all(client: KafkaClient) -> list[KafkaClient]:
    """Return a connection to each broker of the cluster."""
    brokers = find_metadata(client, []).brokers
    return [client] if len(brokers) < 2 else [client.connect(each.host, each.port) for each in brokers]


def connect_coordinator(client: KafkaClient, group: str) -> KafkaClient:
    """Return a connection to the broker that coordinates a group.

    Args:
        client: A connection to any broker.
        group: The group.

    Returns:
        The connection.

    Raises:
        UsageMistake: No broker coordinates the group at present, or the user may not use it.
    """
    if len(find_metadata(client, []).brokers) < 2:
        return client
    answer = client.ask(FindCoordinatorRequest(key=group, key_type=_GROUP, coordinator_keys=[group]))
    found = answer.coordinators[0] if answer.coordinators else answer
    check_error(found.error_code, f"group {group!r}", found.error_message)
    return client.connect(found.host, found.port)


def connect_leaders(client: KafkaClient, logs: Sequence[tuple[str, int]]) -> dict[tuple[str, int], KafkaClient]:
    """Return a connection to the leader of each log.

    Args:
        client: A connection to any broker.
        logs: The logs, by topic and number.

    Returns:
        The connections. A log without a leader has the given one, over which its broker says so.
    """
    response = find_metadata(client, [topic for topic, _ in logs])
    brokers = {each.node_id: each for each in response.brokers}
    leaders = {
        (topic.name, part.partition_index): part.leader_id for topic in response.topics for part in topic.partitions
    }
    found = {}
    for log in logs:
        leader = brokers.get(leaders.get(log, -1))
        found[log] = client if leader is None or len(brokers) < 2 else client.connect(leader.host, leader.port)
    return found
