"""What a broker keeps in its storage beside records: which of it is internal, how long it stays, and how it goes."""

from __future__ import annotations

import shutil
from pathlib import Path

from dafka.protocol.logs import (
    INDEX_TOPIC,
    MESSAGES_AGE_MS,
    MESSAGES_TOPIC,
    TOPICS_TOPIC,
    Topic,
    is_internal_topic,
)
from dafka.protocol.replication import BRANCHES_TOPIC, BROKERS_TOPIC
from dafka.protocol.replication.checkpoints import CHECKPOINTS_TOPIC
from dafka.records import Partition
from dafka.storage import RetentionPolicy

STATE_TOPICS = (
    TOPICS_TOPIC,
    BROKERS_TOPIC,
    BRANCHES_TOPIC,
    CHECKPOINTS_TOPIC,
    "$groups",
    "$offsets",
    "$transactions",
)
"""The topics of a broker's state."""

_INTERNAL_TOPICS = frozenset((INDEX_TOPIC, *STATE_TOPICS))


def is_internal(partition: Partition, identity: str) -> bool:
    """Return whether a partition has a broker's indexes or state. The broker has this identity."""
    return partition.topic in _INTERNAL_TOPICS and partition.address.partition("/")[0] == identity


def retention_of(
    name: str, topic: Topic | None, default: RetentionPolicy, *, is_compacted: bool = False
) -> RetentionPolicy:
    """Return the limits of what a topic's partitions keep.

    Args:
        name: The name of the topic.
        topic: The topic, whose own settings count most; None if it has no logs. Internal topics have no limits.
        default: The limits of topics without settings of their own.
        is_compacted: Whether the configuration says that the topic is compacted.

    Returns:
        The limits.
    """
    if name == MESSAGES_TOPIC:
        return RetentionPolicy(age_ms=MESSAGES_AGE_MS)
    if topic is None:
        return default
    cleanup = topic.settings.get("cleanup.policy", "compact" if is_compacted else "delete")
    if is_internal_topic(name) or "delete" not in cleanup:
        return RetentionPolicy()

    def choose(setting: str, otherwise: int | None) -> int | None:
        text = topic.settings.get(setting)
        return otherwise if text is None else (int(text) if int(text) >= 0 else None)

    return RetentionPolicy(
        age_ms=choose("retention.ms", default.age_ms),
        bytes_max=choose("retention.bytes", default.bytes_max),
        records_max=default.records_max,
    )


def free_bytes(url: str) -> int:
    """Return the free space of the file system that a storage is on, in bytes."""
    path = Path(url.partition(":")[2].partition("?")[0])
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
