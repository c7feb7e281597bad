"""Discovery through towers (RFC 46, "Node Discovery and Presence").

`dafka.protocol.BeaconMachine` decides when to send beacons, and interprets those of other nodes. This module owns the
sockets.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import trio
import zmq

from dafka.config import Config
from dafka.discovery.base import Advertisement, Discovery
from dafka.errors import DiscoveryError
from dafka.protocol import (
    BeaconAction,
    BeaconMachine,
    DiscoveryEvent,
    RefusedByPeer,
    SendToTower,
    SubscribeAtTower,
    UnsubscribeAtTower,
)
from dafka.transport import Connector, Security, Socket, is_other_machine, open_context, open_security
from dafka.transport.mesh import CONNECTING
from dafka.wire import NodeBeacon

TOWER_BYTES_MAX = 4 * 2**20
"""The largest frame that is accepted from a tower, in bytes. A beacon is far smaller."""


class TowerDiscovery:
    """A discovery through towers: `[beacon]` names the towers, `[security]` their keys."""

    def __init__(self, config: Config) -> None:
        """Read the keys. Raise `ConfigError` if the keys of a closed cluster are missing or invalid."""
        beacon = config.beacon
        self._config = config
        self._security = open_security(config)
        self._client: _BeaconClient | None = None
        self._subs = self._tower_keys(beacon.tower_sub)
        self._pubs = self._tower_keys(beacon.tower_pub)
        # Endpoints of the same position belong to one tower. If their numbers differ, nothing distinguishes them.
        self._count = len(self._subs) if len(self._subs) == len(self._pubs) else 1

    @property
    def discarded(self) -> Counter[str]:
        """Beacons discarded, by reason."""
        return Counter() if self._client is None else self._client.discarded

    def _tower_keys(self, endpoints: Sequence[str]) -> list[tuple[str, str]]:
        """Return the endpoints, each with the key to expect there; empty in a plain cluster."""
        if self._security is None:
            return [(endpoint, "") for endpoint in endpoints]
        count = len(endpoints)
        return [(endpoint, self._security.tower_key(index, count)) for index, endpoint in enumerate(endpoints)]

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[DiscoveryEvent], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Discovery.run`. Raises `TransportError` if the endpoint of a tower is invalid."""
        async with open_context(0) as context:
            links = [_TowerLink(context, self._security, report) for _ in range(self._count)]
            try:
                for index, (endpoint, key) in enumerate(self._subs):
                    links[index % self._count].publishing.connect(endpoint, key)
                client = self._client = _BeaconClient(advertisement, self._config, links, report)
                client.start()
                for index, (endpoint, key) in enumerate(self._pubs):
                    links[index % self._count].subscribing.connect(endpoint, key)
                async with trio.open_nursery() as nursery:
                    for number, link in enumerate(links):
                        nursery.start_soon(link.publishing.watch)
                        nursery.start_soon(link.subscribing.watch)
                        nursery.start_soon(client.hear_subscriptions, number)
                        nursery.start_soon(client.listen, number)
                    nursery.start_soon(client.keep_time)
                    task_status.started()
            finally:
                for link in links:
                    link.close()


class _TowerLink:
    """The two sockets for one tower: one sends to it, the other receives from it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        security: Security | None,
        report: Callable[[RefusedByPeer], None],
    ) -> None:
        self.publisher = Socket(context.socket(zmq.SocketType.XPUB))
        self.subscriber = Socket(context.socket(zmq.SocketType.SUB))
        self.publisher.set_options(xpub_verbose=1, **CONNECTING)
        self.subscriber.set_options(maxmsgsize=TOWER_BYTES_MAX, **CONNECTING)
        self.publishing = Connector(self.publisher, security, lambda _: None, report)
        self.subscribing = Connector(self.subscriber, security, lambda _: None, report)

    def close(self) -> None:
        self.publisher.close(0)
        self.subscriber.close(0)
        self.publishing.close()
        self.subscribing.close()


class _BeaconClient:
    def __init__(
        self,
        advertisement: Advertisement,
        config: Config,
        links: Sequence[_TowerLink],
        report: Callable[[DiscoveryEvent], None],
    ) -> None:
        beacon = NodeBeacon(advertisement.address, advertisement.host, advertisement.port)
        self._beacons = BeaconMachine(
            beacon,
            config,
            role=advertisement.role,
            towers=len(links),
            draw=random.random,
            is_other_machine=lru_cache(maxsize=64)(is_other_machine),
        )
        self.discarded = self._beacons.discarded
        self._links = links
        self._report = report
        self._timer = trio.CancelScope()

    def start(self) -> None:
        self._act(self._beacons.start(trio.current_time()))

    async def hear_subscriptions(self, number: int) -> None:
        while True:
            frames = [message[0] for message in await self._links[number].publisher.receive_many()]
            self._act(self._beacons.tower_subscribed(number, frames, trio.current_time()))

    async def keep_time(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._beacons.deadline()) as self._timer:
                await trio.sleep_forever()
            self._act(self._beacons.tick(trio.current_time()))
            await trio.lowlevel.checkpoint()

    async def listen(self, number: int) -> None:
        while True:
            messages = await self._links[number].subscriber.receive_many()
            self._act(self._beacons.heard(number, messages, trio.current_time()))

    def _act(self, actions: Iterable[BeaconAction]) -> None:
        for action in actions:
            if isinstance(action, SendToTower):
                self._links[action.tower].publisher.send_many([action.frames])
            elif isinstance(action, SubscribeAtTower):
                self._links[action.tower].subscriber.subscribe(action.prefix)
            elif isinstance(action, UnsubscribeAtTower):
                self._links[action.tower].subscriber.unsubscribe(action.prefix)
            else:
                self._report(action)
        self._timer.deadline = self._beacons.deadline()


def open_tower_discovery(argument: str, config: Config) -> Discovery:
    """Open the discovery `tower`. Raise `DiscoveryError` if there is an argument; see `TowerDiscovery`."""
    if argument:
        raise DiscoveryError(
            f"discovery 'tower': expected no argument, not {argument!r}; "
            "name the towers in [beacon] tower_sub and tower_pub"
        )
    return TowerDiscovery(config)
