"""Discovery through towers: beacons out, beacons in (RFC 46, "Node Discovery and Presence").

A node sends its beacon to every tower when it starts, when it hears a new peer, and each interval. A tower answers
nobody in particular: a node knows that it is heard when its own beacon comes back, and until then it sends ten times
as often, so that a beacon lost while connections are being made costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio
import zmq

from dafka.config import BeaconConfig, Config
from dafka.discovery.base import Advertisement, Discovery, Report, Settled
from dafka.errors import DiscoveryError, WireError
from dafka.protocol import Peers, TowersHeard, TowersSilent
from dafka.transport import Caller, Socket, open_context, open_security
from dafka.wire import BEACON, WELCOME, NodeBeacon, TowerBeacon

SETTLE_PERIODS_MAX = 10
"""A cluster in which nodes come and go without a pause counts as found after so many times the settling time."""


class TowerDiscovery:
    """The beacon client of one node."""

    def __init__(self, config: Config) -> None:
        """Raises `ConfigError` where the keys of a closed cluster are not what they should be."""
        beacon = config.beacon
        self._config = config
        self._security = open_security(config)
        self._sub_keys = self._tower_keys(beacon.sub_addresses)
        self._pub_keys = self._tower_keys(beacon.pub_addresses)

    def _tower_keys(self, endpoints: Sequence[str]) -> dict[str, str]:
        """The key to expect at each endpoint; empty in a plain cluster."""
        if self._security is None:
            return dict.fromkeys(endpoints, "")
        return {endpoint: self._security.tower_key(index, len(endpoints)) for index, endpoint in enumerate(endpoints)}

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
            callers = [Caller(socket, self._security, lambda _: None, report) for socket in (publisher, subscriber)]
            try:
                for endpoint, key in self._sub_keys.items():
                    callers[0].connect(endpoint, key)
                subscriber.subscribe(WELCOME)
                subscriber.subscribe(BEACON)
                for endpoint, key in self._pub_keys.items():
                    callers[1].connect(endpoint, key)
                peers = Peers(advertisement.address, beacon_config.timeout_ms / 1000, self._config.node.peers_max)
                has_keys = self._security is not None
                client = _BeaconClient(advertisement, beacon_config, publisher, peers, report, has_keys)
                async with trio.open_nursery() as nursery:
                    for caller in callers:
                        nursery.start_soon(caller.watch)
                    nursery.start_soon(client.beacon_on_connection)
                    nursery.start_soon(client.beacon_each_interval)
                    nursery.start_soon(client.listen, subscriber)
                    nursery.start_soon(client.watch, self._config.node.tower_timeout_ms / 1000)
                    task_status.started()
            finally:
                publisher.close(0)
                subscriber.close(0)
                for caller in callers:
                    caller.close()


class _BeaconClient:
    def __init__(
        self,
        advertisement: Advertisement,
        config: BeaconConfig,
        publisher: Socket,
        peers: Peers,
        report: Callable[[Report], None],
        has_keys: bool,
    ) -> None:
        self._has_keys = has_keys
        self._frames = NodeBeacon(advertisement.address, advertisement.host, advertisement.port).encode()
        self._own_address = advertisement.address
        self._config = config
        self._publisher = publisher
        self._peers = peers
        self._report = report
        self._heard_at = trio.current_time()
        self._news_at = self._heard_at
        self._is_silent: bool | None = None
        self._echoed = trio.Event()

    def beacon(self) -> None:
        self._publisher.send_many([self._frames])

    async def beacon_on_connection(self) -> None:
        """A tower's subscription shows that it is connected: the first moment at which a beacon can reach it."""
        while True:
            await self._publisher.receive_many()
            self.beacon()

    async def beacon_each_interval(self) -> None:
        interval = self._config.interval_ms / 1000
        while True:
            self.beacon()
            with trio.move_on_after(interval / 10):
                await self._echoed.wait()
            if self._echoed.is_set():
                await trio.sleep(interval)

    async def listen(self, subscriber: Socket) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._settle)
            while True:
                messages = await subscriber.receive_many()
                # One beacon answers all newcomers of a batch: many nodes that start at once do not multiply.
                newcomers = [frames for frames in messages if self._hear(frames)]
                if newcomers:
                    self.beacon()

    async def watch(self, tower_timeout: float) -> None:
        """Expires silent peers, and notices silent towers."""
        while True:
            await trio.sleep(min(self._config.interval_ms, self._config.timeout_ms / 4) / 1000)
            now = trio.current_time()
            for change in self._peers.expire(now):
                self._report(change)
            silence = now - self._heard_at
            if silence >= tower_timeout and not self._is_silent:
                self._is_silent = True
                self._report(TowersSilent(silence))

    def _hear(self, frames: list[bytes]) -> bool:
        """Takes what a tower sent. True where somebody may not know of this node yet: a tower or a newcomer."""
        self._heard_at = trio.current_time()
        if self._is_silent is not False:
            self._is_silent = False
            self._report(TowersHeard())
        if frames == [WELCOME]:
            return True
        try:
            beacon = TowerBeacon.decode(frames, has_key=self._has_keys)
        except WireError:
            return False
        if beacon.address == self._own_address:
            self._echoed.set()
            return False
        changes = self._peers.heard(beacon, self._heard_at)
        for change in changes:
            self._news_at = self._heard_at
            self._report(change)
        return bool(changes)

    async def _settle(self) -> None:
        await self._echoed.wait()
        settle = self._config.settle_ms / 1000
        self._news_at = trio.current_time()
        for _ in range(SETTLE_PERIODS_MAX):
            quiet_until = self._news_at + settle
            if quiet_until <= trio.current_time():
                break
            await trio.sleep_until(quiet_until)
        self._report(Settled())


def open_tower_discovery(argument: str, config: Config) -> Discovery:
    """Opens `tower`; where the towers are stands in `[beacon]`. Raises `DiscoveryError` for an argument, `ConfigError`
    for keys that are not what they should be.
    """
    if argument:
        raise DiscoveryError(f"discovery 'tower' takes no argument ({argument!r}); [beacon] says where towers are")
    return TowerDiscovery(config)
