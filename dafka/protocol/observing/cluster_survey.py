"""What one look at a cluster has found: its towers, nodes, topics and partitions, and what is wrong with them.

Values alone, made by `dafka.protocol.SurveyMachine`. Times are seconds on the clock of whoever took the census, or,
after `at`, since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import attrs

from dafka.records import Partition


class NodeState(Enum):
    """Whether a node is there."""

    UP = "up"
    """Beacons are heard, and it has connected to who takes the census."""
    UNCONNECTED = "unconnected"
    """Beacons are heard, but it has not connected: nothing is known of it, and nothing can be asked."""
    SILENT = "silent"
    """Its beacons have ceased. The protocol has no word for leaving: it may have ended, or be dead."""


@attrs.frozen
class Sighting:
    """One tower's word on a node: where it says the node is, and when it first and last said so."""

    tower: str
    endpoint: str
    first_seen: float
    last_seen: float


@attrs.frozen
class TowerView:
    """A tower: where it tells nodes of each other, whether it was heard, and the nodes that it has told of.

    `refusal` says why it does not let this node in; empty where it does.
    """

    endpoint: str
    is_heard: bool
    nodes: int
    refusal: str = ""


@attrs.frozen
class NodeView:
    """A node. `roles` are inferred from what it subscribes to, and from its HEADs: `store`, `producer`, `consumer`,
    `store writer` (the writing half of a libdafka store), `observer`; none where it has shown none.

    `has_answered`, of a store: it has told its heads in this round; None where it cannot say that it has (libdafka's).
    """

    address: str
    endpoint: str
    roles: tuple[str, ...]
    state: NodeState
    first_seen: float
    last_seen: float
    sightings: tuple[Sighting, ...]
    has_answered: bool | None = None

    def fault(self, now: float) -> str:
        """What is not well with it; empty where nothing is known to be."""
        if self.state is NodeState.SILENT:
            return f"went silent {now - self.last_seen:.0f} s ago"
        if self.state is NodeState.UNCONNECTED:
            return "has not connected, though its beacons are heard: nothing is known of it"
        return "has not told its heads" if self.has_answered is False else ""


@attrs.frozen
class HolderView:
    """What a store holds of a partition: the records before `end_sequence`, which is `lag` fewer than there are.

    Both are None where it has not told.
    """

    store: str
    end_sequence: int | None
    lag: int | None


@attrs.frozen
class PartitionView:
    """A partition. `end_sequence` is the sequence after its last known record; None where nobody has told any."""

    partition: Partition
    has_producer: bool
    end_sequence: int | None
    holders: tuple[HolderView, ...]

    @property
    def lag(self) -> int | None:
        """The largest lag of a store, as far as it is known."""
        return max((holder.lag for holder in self.holders if holder.lag is not None), default=None)


@attrs.frozen
class TopicView:
    """A topic. `is_wanted`: a consumer has subscribed to it. It may have no partitions yet, or none that are known."""

    name: str
    partitions: int
    is_wanted: bool


@attrs.frozen
class ClusterSurvey:
    """A cluster at one moment.

    Attributes:
        time: when it was taken.
        limits: a sentence for each limit that was reached: there is more than what is shown.
    """

    time: float
    towers: tuple[TowerView, ...]
    nodes: tuple[NodeView, ...]
    topics: tuple[TopicView, ...]
    partitions: tuple[PartitionView, ...]
    limits: tuple[str, ...]

    @property
    def stores(self) -> tuple[NodeView, ...]:
        """The stores that are there."""
        return tuple(node for node in self.nodes if "store" in node.roles and node.state is not NodeState.SILENT)

    def at(self, time: float) -> ClusterSurvey:
        """The same, its clock set so that it was taken at this time."""
        by = time - self.time

        def sighting(each: Sighting) -> Sighting:
            return attrs.evolve(each, first_seen=each.first_seen + by, last_seen=each.last_seen + by)

        nodes = tuple(
            attrs.evolve(
                node,
                first_seen=node.first_seen + by,
                last_seen=node.last_seen + by,
                sightings=tuple(map(sighting, node.sightings)),
            )
            for node in self.nodes
        )
        return attrs.evolve(self, time=time, nodes=nodes)

    def faults(self, lag_max: int) -> Iterator[str]:
        """A sentence for everything that is not well, where a store may lag by as many records as `lag_max`."""
        for tower in self.towers:
            if not tower.is_heard:
                yield tower.refusal or f"no word from the tower at {tower.endpoint}"
        for node in self.nodes:
            fault = node.fault(self.time)
            if fault:
                yield f"{' and '.join(node.roles) or 'node'} {node.address} at {node.endpoint} {fault}"
        if self.partitions and not self.stores:
            yield "no store was found"
        for partition in self.partitions:
            for holder in partition.holders:
                if holder.lag is not None and holder.lag > lag_max:
                    yield f"store {holder.store} is {holder.lag} records behind {partition.partition}"
        yield from self.limits
