"""Recovers the log of metadata from the storage of one stopped broker, when most of its voters are lost for good."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC, ClusterState
from dafka.broker.core.metadata.leader_and_isr import next_epoch
from dafka.broker.core.metadata.log_replicas import recovery_of
from dafka.broker.core.metadata.store_record import (
    CLUSTER_TOPIC,
    STORE_KEY,
    StoreRecord,
    decode_store_record,
    encode_store_record,
)
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.replication.records import EpochEnd
from dafka.broker.local_state import LocalStatePartition
from dafka.broker.replication.stored_logs import read_stored_logs
from dafka.errors import ConfigError
from dafka.records import Partition
from dafka.storage import Storage
from dafka.storage.plugin_helpers import now_ms


@attrs.frozen
class StoredMetadata:
    """What the storage of a stopped broker has of the log of metadata.

    Attributes:
        store_id: The id of the store.
        record: Its record.
        state: The state of the cluster, as far as the broker has applied commands.
        log_end: The end of its log of metadata.
        voters: The ids of the voters that it knows.
        recovery: The last recovery that it knows.
    """

    store_id: str
    record: StoreRecord
    state: ClusterState
    log_end: EpochEnd
    voters: tuple[str, ...]
    recovery: int

    @property
    def number(self) -> int:
        """The number of the broker; -1 if it is not registered."""
        return self._number_of(self.store_id)

    @property
    def voter_numbers(self) -> list[int]:
        """The numbers of the voters; -1 for a broker that it does not know."""
        return sorted(map(self._number_of, self.voters))

    def _number_of(self, store_id: str) -> int:
        known = self.state.brokers.get(store_id)
        return -1 if known is None else known.number


async def read_metadata(storage: Storage) -> StoredMetadata:
    """Return what the storage of a stopped broker has of the log of metadata.

    Raise `ConfigError` if it belongs to no cluster, and `StorageError` if it cannot be read.
    """
    values = (await _read_cluster(storage)).values
    if STORE_KEY not in values:
        raise ConfigError("this storage belongs to no cluster of brokers")
    record, state = decode_store_record(values[STORE_KEY]), ClusterState()
    state.restore(values)
    topic = Topic(METADATA_TOPIC, record.cluster_id, placement=(record.first_voters,))
    log = await (await read_stored_logs(storage)).load(topic, 0, record.first_voters)
    newest = log.replica.newest
    recovery = max(record.recovery, recovery_of(newest.generation))
    store_id = record.store_id or storage.identity
    return StoredMetadata(store_id, record, state, log.replica.local_epochs.log_end(), newest.voters, recovery)


async def _read_cluster(storage: Storage) -> LocalStatePartition:
    found = LocalStatePartition(Partition(CLUSTER_TOPIC, storage.identity))
    await found.load(storage)
    return found


def check_survivor(found: StoredMetadata, others: Mapping[str, StoredMetadata]) -> None:
    """Raise `ConfigError` if a cluster must not be recovered from a store, given other stores by their URL."""
    if found.store_id in found.state.forgotten_ids:
        raise ConfigError("the cluster has forgotten this store")
    for url, other in others.items():
        if other.record.cluster_id != found.record.cluster_id:
            raise ConfigError(f"{url} belongs to another cluster, {other.record.cluster_id}")
        if (other.recovery, other.log_end) > (found.recovery, found.log_end):
            raise ConfigError(f"{url} has more of the log of metadata: recover the cluster from that storage")
        if other.record.pending_recovery:
            raise ConfigError(f"the cluster is recovered from {url} already, when that broker is started")
    left = {found.store_id, *(each.store_id for each in others.values())}.intersection(found.voters)
    if 2 * len(left) > len(found.voters):
        raise ConfigError(
            f"{len(left)} of the {len(found.voters)} voters on metadata are left, which is enough: start their brokers"
        )


async def recover(storage: Storage, found: StoredMetadata) -> None:
    """Have a stopped broker become the only voter on metadata, when it is started and hears too few of the others.

    Two recoveries of different brokers never have the same number, so that the cluster continues one of them if both
    are made. Raise `StorageError`.
    """
    partition = await _read_cluster(storage)
    ordered = attrs.evolve(found.record, pending_recovery=next_epoch(found.recovery, max(found.number, 0)))
    partition.put([(STORE_KEY, encode_store_record(ordered))])
    batch = partition.begin_write(now_ms())
    assert batch is not None
    await storage.append([batch])
