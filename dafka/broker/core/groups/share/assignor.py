"""The assignor of share groups: which member reads which logs."""

from __future__ import annotations

from collections.abc import Mapping

from dafka.broker.core.groups.consumer.group import KnownTopic
from dafka.broker.core.groups.consumer.members import Assignment
from dafka.broker.core.metadata.log_replicas import LogKey


def share_logs(subscriptions: Mapping[str, frozenset[str]], topics: Mapping[str, KnownTopic]) -> dict[str, Assignment]:
    """Return the logs of each member, given the names of the topics that it reads.

    Each log has a member, if there is one that reads its topic, and each member has a log of each of its topics. If
    there are more members than logs, several members read the same log.
    """
    found: dict[str, set[LogKey]] = {member_id: set() for member_id in sorted(subscriptions)}
    turn = 0
    for name, topic in sorted(topics.items()):
        readers = [each for each in found if name in subscriptions[each]]
        for number in range(max(len(readers), topic.log_count) if readers else 0):
            reader = readers[(turn + number) % len(readers)]
            found[reader].add(LogKey(topic.topic_id, number % topic.log_count))
        turn += topic.log_count
    return {member_id: frozenset(logs) for member_id, logs in found.items()}
