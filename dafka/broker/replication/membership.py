"""The membership of a broker in its cluster: what it publishes about itself, its heartbeats, and whom it sees."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import attrs
import trio

from dafka import wire
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, encode_broker
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.config.settings import BrokerConfig
from dafka.records import Partition
from dafka.roles.role import NodeRole

_LOGGER = logging.getLogger("dafka.broker")

SETTLE_S = 2.0
"""The longest time that a starting broker waits for others, in seconds."""


class Membership:
    """The membership of one broker. The node finds the others."""

    def __init__(
        self, tables: BrokerTables, storage: BrokerStorage, mesh: BrokerMesh, node: NodeRole, config: BrokerConfig
    ) -> None:
        self._brokers = tables.brokers
        self._state = tables.state
        self._logs = tables.logs
        self._storage = storage
        self._mesh = mesh
        self._node = node
        self._heartbeat_s = config.heartbeat_ms / 1000
        self._is_running = False
        self._heartbeat_sent_at = float("-inf")
        self._seen: dict[str, BrokerRegistration] = {}
        self._other_clusters: set[str] = set()
        self._subscribed_leaders: set[str] = set()

    def start(self) -> None:
        """Publish the registration of this broker."""
        self._is_running = True
        self.update_registration()

    def update_registration(self, **changes: Any) -> None:
        """Update the registration of this broker, and publish it."""
        before = self._brokers.own
        own = self._brokers.own = attrs.evolve(before, **changes)
        if own.number != before.number:
            self._logs.renumber(own.number)
        if self._is_running:
            self._storage.write_state(BROKERS_TOPIC, [(own.address.encode(), encode_broker(own))])

    def learn(self, broker: BrokerRegistration) -> None:
        """Process what another broker publishes about itself."""
        if broker.address != self._brokers.own.address:
            self._seen[broker.address] = broker
            self._record(broker)

    def apply_state(self) -> None:
        """Apply which brokers the cluster has."""
        for address in self._state.forgotten_ids:
            self._brokers.forget(address)
        for each in self._state.brokers.values():
            if each.store_id != self._brokers.own.address:
                self._record(self._seen.get(each.store_id, BrokerRegistration(address=each.store_id)))
            elif (each.number, each.is_draining) != (self._brokers.own.number, self._brokers.own.is_draining):
                self.update_registration(number=each.number, is_draining=each.is_draining)

    def _record(self, broker: BrokerRegistration) -> None:
        """Record another broker if it belongs to the cluster. Its number and whether it is drained are agreed."""
        registered = self._state.brokers.get(broker.address)
        if registered is None:
            return
        is_new = self._brokers.find(broker.address) is None
        self._brokers.record_registration(
            attrs.evolve(broker, number=registered.number, is_draining=registered.is_draining)
        )
        if is_new and not self._is_running:
            self._brokers.expect(broker.address, trio.current_time())
        if self._brokers.own.rack:
            self.subscribe_acknowledgements(broker.address)

    @property
    def has_peers(self) -> bool:
        """Whether this node is connected to others, which can be brokers."""
        return bool(self._node.peers)

    def seen(self) -> list[BrokerRegistration]:
        """Return all other living brokers, whether they belong to this cluster, to another one, or to none."""
        now = trio.current_time()
        return [each for each in self._seen.values() if self._brokers.is_heard(each.address, now)]

    def subscribe_acknowledgements(self, leader: str) -> None:
        """Subscribe to the acknowledgements of other replicas for the logs that a broker leads."""
        if leader not in self._subscribed_leaders:
            self._subscribed_leaders.add(leader)
            self._mesh.subscribe_acknowledgements(leader)

    # Heartbeats

    def record_heartbeats(self, brokers: Iterable[str]) -> None:
        """Warn once of each other cluster whose brokers are heard: an administrator can have formed it by mistake."""
        own, found = self._brokers.own.cluster_id, (self._seen.get(each) for each in brokers)
        seen = {each.cluster_id for each in found if each is not None}
        for other in sorted(seen.difference(("", own), self._other_clusters) if own else ()):
            self._other_clusters.add(other)
            _LOGGER.warning(
                "there are brokers of another cluster, %s; this broker stays in %s: to change a broker to another "
                "cluster, start it with an empty storage",
                other,
                own,
            )

    def make_heartbeat(self) -> list[wire.Head]:
        """Return a heartbeat that is sent now: a HEAD of this broker's registration, once that is durable."""
        self._heartbeat_sent_at = trio.current_time()
        own = Partition(BROKERS_TOPIC, self._mesh.address)
        end = self._storage.durable_end(own)
        return [wire.Head(own.address, own.topic, end - 1)] if end > 0 else []

    def send_heartbeat_if_due(self) -> None:
        """Send a heartbeat if one is due. Call this between the steps of long work on thousands of logs."""
        if trio.current_time() - self._heartbeat_sent_at >= self._heartbeat_s:
            self._mesh.publish(self.make_heartbeat())

    async def wait_others(self) -> None:
        """Wait a while until other brokers are known, if there are any nodes that can be brokers."""
        with trio.move_on_after(SETTLE_S):
            await self._node.wait_settled()
            if self._node.peers:
                await trio.sleep(2 * self._heartbeat_s)
