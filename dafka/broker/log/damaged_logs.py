"""The logs of which this broker has found damaged records: another broker leads them, and this one copies them anew."""

from __future__ import annotations

import logging

import attrs

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.partition_address import name_log, parse_address
from dafka.errors import StorageCorruptError
from dafka.records import Partition

_LOGGER = logging.getLogger("dafka.broker")


@attrs.define
class _Damage:
    """The damage of one log: its damaged partitions, and the end of the log when it was found."""

    partitions: dict[Partition, None] = attrs.field(factory=dict)
    end_offset: int | None = None
    has_grown: bool = False
    is_unreadable: bool = False


@attrs.define(eq=False)
class DamagedLogs:
    """The logs of which a broker has found damaged records since its start, until it has deleted its copy.

    They are named as by `name_log`.
    """

    _state: ClusterState
    _found: dict[str, _Damage] = attrs.field(init=False, factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the logs."""
        return tuple(sorted(self._found))

    @property
    def to_copy(self) -> tuple[str, ...]:
        """The names of the logs that this broker can copy anew.

        They have grown since the damage was found. A broker can delete its copy of a log only when something is
        appended after the log has other replicas, so an idle one would have too few of them for long.
        """
        return tuple(name for name in self.names if self._found[name].has_grown)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The names of the logs that this broker cannot load, so that it takes no part in them."""
        return tuple(name for name in self.names if self._found[name].is_unreadable)

    def partitions(self, name: str) -> list[Partition]:
        """Return the damaged partitions of a log that are known."""
        return list(self._found[name].partitions) if name in self._found else []

    def record(self, partition: Partition, error: StorageCorruptError) -> None:
        """Record that records of a partition are damaged. That of a producer belongs to all logs of its topic."""
        address = parse_address(partition.address)
        if address is not None:
            topic, names = self._state.find_id(address.topic_id), [address.log_name]
        else:
            topic = self._state.topics.get(partition.topic)
            names = [] if topic is None else [name_log(topic.topic_id, number) for number in range(topic.log_count)]
        for name in names:
            partitions = self._found.setdefault(name, _Damage()).partitions
            if partition not in partitions:
                partitions[partition] = None
                _LOGGER.warning(
                    "records of log %s of %s are damaged in the storage of this broker, and are given to nobody: %s",
                    name.rpartition("/")[2],
                    partition.topic if topic is None else topic.name,
                    error,
                )

    def record_end(self, name: str, end_offset: int | None) -> None:
        """Record how far a damaged log reaches; None if this broker cannot load it."""
        damage = self._found[name]
        is_mendable = all(parse_address(each.address) is not None for each in damage.partitions)
        damage.is_unreadable = end_offset is None
        damage.end_offset = end_offset if damage.end_offset is None else damage.end_offset
        damage.has_grown = is_mendable and (end_offset is None or end_offset > (damage.end_offset or 0))

    def forget(self, name: str) -> None:
        """Forget a log whose copy is deleted."""
        self._found.pop(name, None)
