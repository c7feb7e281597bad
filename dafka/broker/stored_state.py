"""Reads the state of the cluster from the storage of a broker."""

from __future__ import annotations

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.store_record import CLUSTER_TOPIC
from dafka.broker.local_state import LocalStatePartition
from dafka.records import Partition
from dafka.storage.base import Storage


async def read_state(storage: Storage) -> ClusterState | None:
    """Return the state of the cluster that a broker has stored; None if no broker has used the storage.

    Raise `StorageError`.
    """
    stored = LocalStatePartition(Partition(CLUSTER_TOPIC, storage.identity))
    await stored.load(storage)
    if not stored.values:
        return None
    state = ClusterState()
    state.restore(stored.values)
    return state
