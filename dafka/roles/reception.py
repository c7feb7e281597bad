"""Who comes to a tower, by which connection, and whom each of them introduces (`dafka.protocol.BeaconRegistry`)."""

from __future__ import annotations

from collections import Counter

import trio

from dafka.config import Config
from dafka.protocol import BeaconRegistry
from dafka.transport import Connection, ConnectionLimiter, MessageSource, PublisherSocket, find_connection
from dafka.transport.connections import MANY_CONNECTIONS, SWEEP_S


class TowerConnections:
    """Of one tower, which hears beacons at `sub_endpoint` and passes them on at `publisher`."""

    def __init__(self, sub_endpoint: str, publisher: PublisherSocket, config: Config) -> None:
        self._publisher = publisher
        self._connections: dict[int, Connection] = {}
        self._introductions = BeaconRegistry(config.tower.nodes_max, config.beacon.timeout_ms / 1000, self._is_there)
        port = sub_endpoint.rpartition(":")[2] if sub_endpoint.startswith("tcp://") else "0"
        self._crowd = ConnectionLimiter(int(port), config.node.connections_max)

    @property
    def discarded(self) -> Counter[str]:
        """Beacons thrown away, and connections ended, by reason."""
        return self._introductions.discarded

    @property
    def subscriptions_discarded(self) -> Counter[str]:
        """The same of those who listen."""
        return self._publisher.discarded

    def __len__(self) -> int:
        """Nodes that are there."""
        return len(self._introductions)

    def admit(self, address: str, origin: MessageSource, now: float) -> bool:
        """Is this node to be introduced?"""
        if origin.source not in self._connections:
            connection = find_connection(origin.source)
            if connection is not None:
                self._connections[origin.source] = connection
        return self._introductions.admit(address, origin.source, now)

    async def watch(self) -> None:
        """Forgets nodes and connections that have gone, and ends what is too many. Runs until cancelled."""
        while True:
            await trio.sleep(SWEEP_S)
            now = trio.current_time()
            for source in list(self._connections):
                self._is_there(source)
            self._introductions.sweep(now)
            ended = self._crowd.sweep(self._connections, now)
            if ended:
                self._introductions.discarded[MANY_CONNECTIONS] += ended

    def _is_there(self, source: int) -> bool:
        connection = self._connections.get(source)
        if connection is None:
            return source < 0
        if find_connection(source) == connection:
            return True
        del self._connections[source]
        return False
