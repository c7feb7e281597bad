"""Writes checkpoints of the stored logs, so that a broker does not read their whole indexes when it starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

import attrs
import trio

from dafka.broker.core.partition_address import INDEX_TOPIC, parse_address
from dafka.broker.core.replication.checkpoints import (
    CHECKPOINTS_TOPIC,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from dafka.broker.core.replication.replicated_logs import ReplicatedLogs
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.errors import StorageFormatError
from dafka.records import SEQUENCE_MAX, Partition
from dafka.storage import PartitionInfo

_LOGGER = logging.getLogger("dafka.broker")

WRITE_S = 5.0
"""Seconds between two writes of checkpoints."""


@attrs.define(eq=False, slots=False)
class Checkpoints:
    """The checkpoints of a broker."""

    _storage: BrokerStorage
    _logs: ReplicatedLogs
    _loaded: dict[Partition, Checkpoint] = attrs.field(init=False, factory=dict)

    def load(
        self, values: Mapping[bytes, bytes], stored: Mapping[Partition, PartitionInfo], name_of: Callable[[str], str]
    ) -> str:
        """Load the checkpoints that were written before the broker was started, by the address of the index.

        Return a sentence about records that the storage had then, and has forgotten; empty if there are none. `name_of`
        returns the name of the topic with an id. Checkpoints of partitions that are not stored are removed.
        """
        ends = {partition: info.end_sequence for partition, info in stored.items()}
        stale, forgotten = [], ""
        for key, value in values.items():
            partition = Partition(INDEX_TOPIC, key.decode(errors="replace"))
            try:
                if partition not in stored:
                    stale.append(key)
                    continue
                checkpoint = decode_checkpoint(value)
            except StorageFormatError as error:
                _LOGGER.warning("a checkpoint is ignored, and the index is read: %s", error)
                continue
            address = parse_address(partition.address)
            topic = "" if address is None else name_of(address.topic_id)
            unmet = list(checkpoint.find_unmet(topic, lambda each: ends.get(each, SEQUENCE_MAX)))
            if checkpoint.index_end > ends[partition]:
                unmet.append((partition, checkpoint.index_end))
            else:
                self._loaded[partition] = checkpoint
            for each, end in unmet:
                forgotten = f"{each} ends at {ends[each]}, and had {end} records when its last checkpoint was written"
        if stale:
            self._storage.write_state(CHECKPOINTS_TOPIC, [(key, None) for key in stale])
        return forgotten

    def take(self, topic: str, indexes: Iterable[Partition]) -> dict[Partition, Checkpoint]:
        """Remove and return the checkpoints of a log that match the storage, by the partition of their index."""
        loaded = ((partition, self._loaded.pop(partition, None)) for partition in indexes)
        return {
            partition: checkpoint
            for partition, checkpoint in loaded
            if checkpoint is not None and not any(checkpoint.find_unmet(topic, self._storage.durable_end))
        }

    async def run(self) -> None:
        """Write checkpoints until cancelled."""
        while True:
            await trio.sleep(WRITE_S)
            changes: list[tuple[bytes, bytes | None]] = [
                (log.index_partition(epoch).address.encode(), encode_checkpoint(checkpoint))
                for log in self._logs
                for epoch, checkpoint in log.local_log.take_checkpoints(log.replica.latest.leader_epoch)
            ]
            if changes:
                self._storage.write_state(CHECKPOINTS_TOPIC, changes)
