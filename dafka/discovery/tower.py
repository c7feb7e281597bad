"""Discovery through towers (RFC 46, "Node Discovery and Presence").

`dafka.protocol.BeaconMachine` decides when to send beacons, and interprets those of other nodes. This module owns the
sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import trio
import zmq

from dafka.config import Config
from dafka.discovery.base import Advertisement, Discovery
from dafka.errors import DiscoveryError
from dafka.protocol import BeaconMachine, DiscoveryEvent, SendBeacon
from dafka.transport import Connector, Socket, is_other_machine, open_context, open_security
from dafka.wire import BEACON, WELCOME, NodeBeacon

TOWER_BYTES_MAX = 4 * 2**20
"""The largest frame that is accepted from a tower, in bytes. A beacon is far smaller."""


class TowerDiscovery:
    """A discovery that sends and receives beacons through towers."""

    def __init__(self, config: Config) -> None:
        """Create the discovery.

        Args:
            config: `[beacon]` names the towers, `[security]` the keys.

        Raises:
            ConfigError: The keys of a closed cluster are missing or invalid.
        """
        beacon = config.beacon
        self._config = config
        self._security = open_security(config)
        self._sub_keys = self._tower_keys(beacon.tower_sub)
        self._client: _BeaconClient | None = None
        self._pub_keys = self._tower_keys(beacon.tower_pub)

    @property
    def discarded(self) -> Counter[str]:
        """Beacons discarded, by reason."""
        return Counter() if self._client is None else self._client.discarded

    def _tower_keys(self, endpoints: Sequence[str]) -> dict[str, str]:
        """Return the key to expect at each endpoint; empty in a plain cluster."""
        if self._security is None:
            return dict.fromkeys(endpoints, "")
        return {endpoint: self._security.tower_key(index, len(endpoints)) for index, endpoint in enumerate(endpoints)}

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[DiscoveryEvent], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Discovery.run`. Raises `TransportError` if the endpoint of a tower is invalid."""
        async with open_context(0) as context:
            publisher = Socket(context.socket(zmq.SocketType.XPUB))
            subscriber = Socket(context.socket(zmq.SocketType.SUB))
            subscriber.set_options(maxmsgsize=TOWER_BYTES_MAX)
            connectors = [
                Connector(socket, self._security, lambda _: None, report) for socket in (publisher, subscriber)
            ]
            try:
                for endpoint, key in self._sub_keys.items():
                    connectors[0].connect(endpoint, key)
                subscriber.subscribe(WELCOME)
                subscriber.subscribe(BEACON)
                for endpoint, key in self._pub_keys.items():
                    connectors[1].connect(endpoint, key)
                client = self._client = _BeaconClient(advertisement, self._config, publisher, report)
                client.start()
                async with trio.open_nursery() as nursery:
                    for connector in connectors:
                        nursery.start_soon(connector.watch)
                    nursery.start_soon(client.beacon_on_connection)
                    nursery.start_soon(client.keep_time)
                    nursery.start_soon(client.listen, subscriber)
                    task_status.started()
            finally:
                publisher.close(0)
                subscriber.close(0)
                for connector in connectors:
                    connector.close()


class _BeaconClient:
    def __init__(
        self, advertisement: Advertisement, config: Config, publisher: Socket, report: Callable[[DiscoveryEvent], None]
    ) -> None:
        self._frames = NodeBeacon(advertisement.address, advertisement.host, advertisement.port).encode()
        self._beacons = BeaconMachine(advertisement.address, config, lru_cache(maxsize=64)(is_other_machine))
        self.discarded = self._beacons.discarded
        self._publisher = publisher
        self._report = report
        self._timer = trio.CancelScope()

    async def beacon_on_connection(self) -> None:
        while True:
            await self._publisher.receive_many()
            self._act(self._beacons.connected(trio.current_time()))

    def start(self) -> None:
        self._act(self._beacons.start(trio.current_time()))

    async def keep_time(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._beacons.deadline()) as self._timer:
                await trio.sleep_forever()
            self._act(self._beacons.tick(trio.current_time()))
            await trio.lowlevel.checkpoint()

    async def listen(self, subscriber: Socket) -> None:
        while True:
            self._act(self._beacons.heard(await subscriber.receive_many(), trio.current_time()))

    def _act(self, actions: Iterable[DiscoveryEvent | SendBeacon]) -> None:
        for action in actions:
            if isinstance(action, SendBeacon):
                self._publisher.send_many([self._frames])
            else:
                self._report(action)
        self._timer.deadline = self._beacons.deadline()


def open_tower_discovery(argument: str, config: Config) -> Discovery:
    """Open the discovery `tower`. `[beacon]` names the towers.

    Args:
        argument: Must be empty.
        config: The configuration.

    Returns:
        The discovery.

    Raises:
        ConfigError: The keys of a closed cluster are missing or invalid.
        DiscoveryError: There is an argument.
    """
    if argument:
        raise DiscoveryError(
            f"discovery 'tower': expected no argument, not {argument!r}; "
            "name the towers in [beacon] tower_sub and tower_pub"
        )
    return TowerDiscovery(config)
