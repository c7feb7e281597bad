"""Reads the state of the cluster from the storage of a broker."""

from __future__ import annotations

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.store_record import CLUSTER_TOPIC, STORE_KEY, decode_store_record
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


async def read_store_ids(storage: Storage) -> set[str]:
    """Return the ids of the stores that have written a storage, or of which it is a copy. Raise `StorageError`."""
    found = {storage.identity}
    for partition in await storage.partitions(CLUSTER_TOPIC):
        stored = LocalStatePartition(partition)
        await stored.load(storage)
        found.add(partition.address)
        if STORE_KEY in stored.values:
            record = decode_store_record(stored.values[STORE_KEY])
            found.update((record.store_id, record.replaces))
    return found
