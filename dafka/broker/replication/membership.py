"""The membership of a broker in its cluster: its registration, its number and its heartbeats."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import trio

from dafka import wire
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, encode_broker
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.config.settings import BrokerConfig
from dafka.errors import ConfigError
from dafka.records import Partition
from dafka.roles.role import NodeRole

_LOGGER = logging.getLogger("dafka.broker")

LEAVING_S = 1.0
"""Seconds that others have to learn that a broker leaves because another one has its number."""

SETTLE_S = 2.0
"""The longest time that a starting broker waits for others, in seconds."""


class Membership:
    """The membership of one broker. The node finds the others."""

    def __init__(
        self, tables: BrokerTables, storage: BrokerStorage, mesh: BrokerMesh, node: NodeRole, config: BrokerConfig
    ) -> None:
        self._brokers = tables.brokers
        self._logs = tables.logs
        self._storage = storage
        self._mesh = mesh
        self._node = node
        self._has_set_number = config.number >= 0
        self._timeout_s = config.leader_timeout_ms / 1000
        self._heartbeat_s = config.heartbeat_ms / 1000
        self._is_running = False
        self._heartbeat_sent_at = float("-inf")
        self._rivals: set[str] = set()
        self._subscribed_leaders: set[str] = set()
        self._settled_number = trio.Event()

    def start(self) -> None:
        """Register this broker."""
        self._is_running = True
        self.update_registration()

    def update_registration(self, **changes: Any) -> None:
        """Update the registration of this broker."""
        before = self._brokers.own
        own = self._brokers.own = attrs.evolve(before, **changes)
        if own.number != before.number:
            self._logs.renumber(own.number)
        if self._is_running:
            self._storage.write_state(BROKERS_TOPIC, [(own.address.encode(), encode_broker(own))])

    def learn(self, broker: BrokerRegistration) -> None:
        """Process the registration of another broker, or the last one of this broker before it was started."""
        own = self._brokers.own
        if broker.address == own.address:
            if not self._is_running:
                number = own.number if self._has_set_number else broker.number
                self._brokers.own = attrs.evolve(
                    own, number=number, is_draining=broker.is_draining, awaits_share=broker.awaits_share
                )
            return
        self._brokers.record_registration(broker)
        if not self._is_running and broker.number != own.number:  # the broker that had that number before has left
            self._brokers.expect(broker.address, trio.current_time())
        if own.rack:
            self.subscribe_acknowledgements(broker.address)
        if not own.has_set_number and not broker.has_left and own.yields_number(broker):
            taken = {each.number for each in self._brokers.all() if each.address != own.address}
            self.update_registration(number=next(each for each in range(len(taken) + 1) if each not in taken))

    def subscribe_acknowledgements(self, leader: str) -> None:
        """Subscribe to the acknowledgements of other replicas for the logs that a broker leads."""
        if leader not in self._subscribed_leaders:
            self._subscribed_leaders.add(leader)
            self._mesh.subscribe_acknowledgements(leader)

    # Heartbeats

    def send_heartbeat(self) -> None:
        """Send a heartbeat. It is a HEAD of this broker's registration."""
        self._heartbeat_sent_at = trio.current_time()
        own = Partition(BROKERS_TOPIC, self._mesh.address)
        end = self._storage.durable_end(own)
        if end > 0:
            self._mesh.publish([wire.Head(own.address, own.topic, end - 1)])

    def send_heartbeat_if_due(self) -> None:
        """Send a heartbeat if one is due. Call this between the steps of long work on thousands of logs."""
        if trio.current_time() - self._heartbeat_sent_at >= self._heartbeat_s:
            self.send_heartbeat()

    async def wait_others(self) -> None:
        """Wait a while until other brokers are known, if there are any nodes that can be brokers."""
        with trio.move_on_after(SETTLE_S):
            await self._node.wait_settled()
            if self._node.peers:
                await trio.sleep(2 * self._heartbeat_s)

    # The number

    async def settle_number(self) -> None:
        """Wait until a heartbeat of another broker with the same number would have arrived."""
        await self._node.wait_settled()
        await trio.sleep(self._timeout_s)
        await self.check_number()
        self.update_registration(is_starting=False)
        self._settled_number.set()

    async def wait_number(self) -> None:
        """Wait until no earlier broker can have the number of this broker.

        It does not wait for a tower that does not answer, as there can be none. If another broker has the number, this
        one ends with an error instead.
        """
        with trio.move_on_after(SETTLE_S):
            await self._settled_number.wait()
        while not self._settled_number.is_set() and (  # noqa: ASYNC110 (no event is set when a tower is heard)
            self._brokers.rivals() or not self._node.unheard_towers()
        ):
            await trio.sleep(self._heartbeat_s)

    async def check_number(self) -> None:
        """Look for other brokers with the number of this one.

        Raise `ConfigError` if the number is a setting, and the other broker had it before.
        """
        own = self._brokers.own
        for rival in self._brokers.rivals():
            where = rival.kafka_listener or rival.http_url
            found = f"the broker {rival.address}{' at ' * bool(where)}{where} has the number {own.number}, too"
            if own.is_starting and own.has_set_number and own.yields_number(rival):
                self.update_registration(has_left=True)
                await self._storage.wait_durable()
                await trio.sleep(LEAVING_S)
                raise ConfigError(f"{found}; start this broker with another one")
            if not rival.is_starting and rival.address not in self._rivals:
                self._rivals.add(rival.address)
                _LOGGER.error("%s; start one of the two with another one", found)
