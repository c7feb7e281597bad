"""The topics of a cluster: their names, numbers of logs and settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

from dafka.broker.core.metadata.leader_and_isr import share_replicas

NAME_MAX = 249
"""The length of the longest name of a topic that Kafka's clients can use."""

LOGS_MAX = 10_000
"""The largest number of logs of a topic."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def _share_placement(placement: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(map(share_replicas, placement))


@attrs.frozen
class Topic:
    """A topic that has logs.

    Attributes:
        name: The name.
        topic_id: 32 hexadecimal digits. No other topic ever has the same, whatever its name.
        log_count: The number of its logs.
        settings: Its own settings, with Kafka's names, such as `retention.ms`.
        replica_count: The number of replicas of its logs; 0 for `[broker] replicas`.
        placement: The replicas of each log when it was created, the first leader first. They never change.
        created_at: When it was created, in ms since 1970.
        first_epoch: The leader epoch with which its logs begin, larger than those of a deleted topic of the same name.
            Clients know logs by topic name, and some ignore leaders of an earlier epoch.
    """

    name: str
    topic_id: str
    log_count: int = 1
    settings: Mapping[str, str] = attrs.field(factory=dict)
    replica_count: int = 0
    placement: tuple[tuple[str, ...], ...] = attrs.field(default=(), converter=_share_placement)
    created_at: int = 0
    first_epoch: int = 0


@attrs.frozen
class Deletion:
    """The deletion of a topic.

    `producer_ends` has the sequence after the last deleted record of each producer partition, by address. A producer
    continues its partition: later records belong to the next topic of the same name.
    """

    topic: Topic
    producer_ends: Mapping[str, int] = attrs.field(factory=dict)
    last_epoch: int = 0  # the largest known leader epoch of its logs


def find_name_problem(name: str) -> str:
    """Return why Kafka's clients cannot use a topic name; empty if they can."""
    if not name:
        return "the name of a topic is empty"
    if len(name) > NAME_MAX:
        return f"the name of a topic has {len(name)} characters, at most {NAME_MAX} are possible"
    if name in {".", ".."}:
        return f"a topic cannot have the name {name!r}"
    if not _NAME.fullmatch(name):
        return f"the name of a topic has only ASCII letters, digits, '.', '_' and '-', unlike {name!r}"
    return ""


def find_collision(name: str, topics: Iterable[str]) -> str:
    """Return a topic whose name differs only in '.' and '_'; empty if there is none.

    Kafka refuses such names, because the names of its metrics have '_' for '.'.
    """
    plain = _metric_name(name)
    return next((each for each in topics if each != name and _metric_name(each) == plain), "")


def find_collisions(names: Iterable[str]) -> dict[str, str]:
    """Return the names that differ only in '.' and '_' from an earlier one, each with the first such name."""
    firsts: dict[str, str] = {}
    found = {name: firsts.setdefault(_metric_name(name), name) for name in names}
    return {name: first for name, first in found.items() if first != name}


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")
