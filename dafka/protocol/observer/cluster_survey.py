"""A survey of a cluster: its towers, nodes, topics and partitions, and their faults.

These are values only. Times are seconds on the observer's clock, or since 1970 after `ClusterSurvey.with_time`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import attrs

from dafka.records import Partition


class NodeState(Enum):
    """Whether a node is present."""

    UP = "up"
    """Its beacons are heard, and it has connected to the observer."""
    UNCONNECTED = "unconnected"
    """Its beacons are heard, but it has not connected, so that nothing else is known about it."""
    SILENT = "silent"
    """Its beacons have stopped: it has ended, or has failed. RFC 46 has no message for leaving."""


@attrs.frozen
class Sighting:
    """One tower's report of a node.

    Attributes:
        tower: The endpoint of the tower.
        endpoint: The endpoint of the node, as this tower reports it.
        first_seen: The time at which this tower first passed on a beacon of the node.
        last_seen: The time at which it last did.
    """

    tower: str
    endpoint: str
    first_seen: float
    last_seen: float


@attrs.frozen
class TowerView:
    """A tower.

    Attributes:
        endpoint: The endpoint at which the tower publishes beacons.
        is_heard: Whether it was heard recently.
        nodes: The number of nodes that it has reported.
        refusal: Why it rejects the observer; empty if it does not.
    """

    endpoint: str
    is_heard: bool
    nodes: int
    refusal: str = ""


@attrs.frozen
class NodeView:
    """A node.

    Attributes:
        address: Its address.
        endpoint: The endpoint that other nodes connect to.
        roles: Its roles, inferred from its subscriptions and HEADs: `store`, `producer`, `consumer`, `store writer`
            (the writing half of a libdafka store), `observer`. Empty if it has not shown any.
        state: Whether it is present.
        first_seen: The time at which it was first seen.
        last_seen: The time at which it was last seen.
        sightings: The report of each tower that has seen it.
        has_answered: Whether a store has answered in this round; None for other nodes, and for libdafka's stores, which
            cannot report it.
        lists_topics: Whether a store has listed its topics, so that all of them are known; None for other nodes, and if
            the program has named the topics.
        topics_held: The number of topics that a store holds; None if it has not reported it.
        partitions_held: The number of partitions that a store holds; None if it has not reported it.
    """

    address: str
    endpoint: str
    roles: tuple[str, ...]
    state: NodeState
    first_seen: float
    last_seen: float
    sightings: tuple[Sighting, ...]
    has_answered: bool | None = None
    lists_topics: bool | None = None
    topics_held: int | None = None
    partitions_held: int | None = None

    def fault(self, now: float) -> str:
        """Describe what is wrong with the node at a time on the clock of the survey.

        Return the end of a sentence that begins with the node's name; empty if nothing is known to be wrong.
        """
        if self.state is NodeState.SILENT:
            return f"went silent {now - self.last_seen:.0f} s ago"
        if self.state is NodeState.UNCONNECTED:
            return "has not connected, although its beacons are heard: nothing else is known about it"
        if self.has_answered is False:
            return "has not answered how much it holds"
        if self.lists_topics is False:
            return "does not list its topics, so that some may be missing here: name the topics"
        return ""


@attrs.frozen
class HolderView:
    """One store's records of a partition.

    Attributes:
        store: The address of the store.
        end_sequence: The sequence after its last record; None if it has not answered.
        lag: The number of records that the store still misses; None if unknown.
    """

    store: str
    end_sequence: int | None
    lag: int | None


@attrs.frozen
class PartitionView:
    """A partition.

    Attributes:
        partition: The topic, and the address of the producer.
        has_producer: Whether its producer is present.
        end_sequence: The sequence after its last known record; None if none is known.
        holders: The part of it that each store holds.
    """

    partition: Partition
    has_producer: bool
    end_sequence: int | None
    holders: tuple[HolderView, ...]

    @property
    def lag(self) -> int | None:
        """The largest known lag of a store; None if none is known."""
        return max((holder.lag for holder in self.holders if holder.lag is not None), default=None)


@attrs.frozen
class TopicView:
    """A topic.

    Attributes:
        name: The name of the topic.
        partitions: The number of its known partitions.
        is_subscribed: Whether a consumer subscribes to it.
        is_stored: Whether a store has listed it.
    """

    name: str
    partitions: int
    is_subscribed: bool
    is_stored: bool = False


@attrs.frozen
class ClusterSurvey:
    """A cluster at one moment.

    Attributes:
        time: The time at which the survey was made.
        towers: The towers, in the order of the configuration.
        nodes: The nodes, ordered by address.
        topics: The topics, ordered by name.
        partitions: The partitions, ordered by topic and address.
        limits: A sentence for each limit that was reached, so that the survey is incomplete.
    """

    time: float
    towers: tuple[TowerView, ...]
    nodes: tuple[NodeView, ...]
    topics: tuple[TopicView, ...]
    partitions: tuple[PartitionView, ...]
    limits: tuple[str, ...]

    @property
    def stores(self) -> tuple[NodeView, ...]:
        """The stores that are present."""
        return tuple(node for node in self.nodes if "store" in node.roles and node.state is not NodeState.SILENT)

    def with_time(self, time: float) -> ClusterSurvey:
        """Return the same survey with all times shifted, so that it was made at this time."""
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
        """Yield a sentence for each fault. A store is reported if its lag, in records, is above the maximum."""
        for tower in self.towers:
            if not tower.is_heard:
                yield tower.refusal or f"no message from the tower at {tower.endpoint}"
        for node in self.nodes:
            fault = node.fault(self.time)
            if fault:
                yield f"{' and '.join(node.roles) or 'node'} {node.address} at {node.endpoint} {fault}"
        if self.partitions and not self.stores:
            yield "no store was found"
        yield from self._lag_faults(lag_max)
        for topic in self.topics:
            if topic.is_stored and not topic.partitions:
                yield f"topic {topic.name} is stored, but no store has said how much of it"
        yield from self.limits

    def _lag_faults(self, lag_max: int) -> Iterator[str]:
        for partition in self.partitions:
            for holder in partition.holders:
                if holder.lag is None:
                    yield f"it is not known how far store {holder.store} is behind {partition.partition}"
                elif holder.lag > lag_max:
                    yield f"store {holder.store} is {holder.lag} records behind {partition.partition}"
