"""Reads the state of the cluster from the storage of a broker."""

from __future__ import annotations

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.store_record import CLUSTER_TOPIC
from dafka.broker.local_state import LocalStatePartition
from dafka.storage.base import Storage


async def read_state(storage: Storage) -> ClusterState | None:
    """Return the state of the cluster that a broker has stored; None if no broker has used the storage.

    Raise `StorageError`.
    """
    found = sorted(await storage.partitions(CLUSTER_TOPIC), key=lambda each: each.address)
    if not found:
        return None
    stored = LocalStatePartition(found[0])  # a broker has only its own
    await stored.load(storage)
    state = ClusterState()
    state.restore(stored.values)
    return state
