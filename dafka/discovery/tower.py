"""Discovery through towers: beacons out, beacons in (RFC 46, "Node Discovery and Presence").

When to send them and what they mean is the business of `dafka.protocol.Beacons`; here are its sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio
import zmq

from dafka.config import Config
from dafka.discovery.base import Advertisement, Discovery
from dafka.errors import DiscoveryError
from dafka.protocol import Beacons, Report, SendBeacon
from dafka.transport import Socket, open_context
from dafka.wire import BEACON, WELCOME, NodeBeacon


class TowerDiscovery:
    """The beacon client of one node."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[Report], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Discovery.run`. Raises `TransportError` where a tower's endpoint is none."""
        beacon_config = self._config.beacon
        async with open_context(0) as context:
            publisher = Socket(context.socket(zmq.SocketType.XPUB))
            subscriber = Socket(context.socket(zmq.SocketType.SUB))
            try:
                for endpoint in beacon_config.sub_addresses:
                    publisher.connect(endpoint)
                subscriber.subscribe(WELCOME)
                subscriber.subscribe(BEACON)
                for endpoint in beacon_config.pub_addresses:
                    subscriber.connect(endpoint)
                client = _BeaconClient(advertisement, self._config, publisher, report)
                client.start()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.beacon_on_connection)
                    nursery.start_soon(client.keep_time)
                    nursery.start_soon(client.listen, subscriber)
                    task_status.started()
            finally:
                publisher.close(0)
                subscriber.close(0)


class _BeaconClient:
    def __init__(
        self, advertisement: Advertisement, config: Config, publisher: Socket, report: Callable[[Report], None]
    ) -> None:
        self._frames = NodeBeacon(advertisement.address, advertisement.host, advertisement.port).encode()
        self._beacons = Beacons(advertisement.address, config)
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

    def _act(self, actions: Iterable[Report | SendBeacon]) -> None:
        for action in actions:
            if isinstance(action, SendBeacon):
                self._publisher.send_many([self._frames])
            else:
                self._report(action)
        self._timer.deadline = self._beacons.deadline()


def open_tower_discovery(argument: str, config: Config) -> Discovery:
    """Opens `tower`; where the towers are stands in `[beacon]`. Raises `DiscoveryError` for an argument."""
    if argument:
        raise DiscoveryError(f"discovery 'tower' takes no argument ({argument!r}); [beacon] says where towers are")
    return TowerDiscovery(config)
