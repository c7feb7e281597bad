"""What a broker keeps in its storage beside records: which of it is internal, and the room that is left."""

from __future__ import annotations

import shutil
from pathlib import Path

from dafka.broker.core.metadata.brokers import BROKERS_TOPIC
from dafka.broker.core.metadata.topics import TOPICS_TOPIC
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.replication.checkpoints import CHECKPOINTS_TOPIC
from dafka.broker.core.replication.records import BRANCHES_TOPIC
from dafka.records import Partition

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


def free_bytes(url: str) -> int:
    """Return the free space of the file system that a storage is on, in bytes."""
    path = Path(url.partition(":")[2].partition("?")[0])
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
