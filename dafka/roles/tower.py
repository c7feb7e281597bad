"""The tower: introduces nodes to each other and carries no records (RFC 46, "Node Discovery and Presence").

`dafka.protocol.TowerMachine` holds its rules. This module owns the sockets.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack

import attrs
import trio
import zmq

from dafka.config import Config, TowerConfig
from dafka.endpoints import MessageSource, is_local
from dafka.errors import ConfigError
from dafka.exceptions import unwrap_group
from dafka.protocol import Event, KeyIdentity, TowerMachine
from dafka.roles.events import NodeLog, log_discards
from dafka.roles.logging_events import Started, Stopped
from dafka.roles.sockets import exposure_warnings
from dafka.roles.statistics import Health, TowerStatistics
from dafka.roles.trio_context import bind_to_process, check_in_trio
from dafka.transport import (
    AcceptedConnection,
    AcceptedConnections,
    PublisherSocket,
    Socket,
    open_context,
    open_security,
    open_zap_handler,
)
from dafka.transport.connections import MANY_CONNECTIONS
from dafka.transport.mesh import HANDSHAKE_MS, KEEPALIVE
from dafka.wire import BEACON, REGISTRATION, TOWER_ID_BYTES, WELCOME

BEACON_BYTES_MAX = 1024
"""The largest frame that a tower accepts, in bytes."""

DRAIN_MAX = 200
"""The maximum number of beacons received at once, so that one batch takes a few milliseconds."""

NO_CONNECTION = -1
"""The number of the connection of a message whose connection has ended."""

ALL_INTERFACES = ("tcp://*", "tcp://0.0.0.0", "tcp://[::]")
"""Hosts that mean all addresses of this machine."""

QUEUE_MAX = 10_000
"""The maximum number of beacons queued for one slow node; more are dropped."""


class Tower:
    """A running tower. `serve_tower` creates it.

    Attributes:
        sub_endpoint: The endpoint that nodes send their beacons to.
        pub_endpoint: The endpoint that publishes the beacons of all nodes.
    """

    def __init__(
        self,
        machine: TowerMachine,
        accepted: AcceptedConnections,
        subscriber: Socket,
        publisher: PublisherSocket,
        warn: Callable[[Event], None],
    ) -> None:
        """Combine a machine with its bound sockets."""
        bind_to_process(self)
        self.sub_endpoint = subscriber.endpoint
        self.pub_endpoint = publisher.endpoint
        self._machine = machine
        self._accepted = accepted
        self._subscriber = subscriber
        self._publisher = publisher
        self._warn = warn
        self._timer = trio.CancelScope()

    def statistics(self) -> TowerStatistics:
        """Return the counters so far."""
        discarded = sum(self.discarded().values())
        return TowerStatistics(self._machine.beacons, discarded, len(self._machine.registry))

    def health(self) -> Health:
        """Return the tower's health. A tower depends on no other node, so it is always healthy."""
        return Health()

    def discarded(self) -> dict[str, int]:
        """Return the number of discarded beacons and subscriptions and of ended connections, by reason."""
        ended = Counter({MANY_CONNECTIONS: self._accepted.ended_count})
        return dict(self._machine.discarded + ended + self._publisher.discarded)

    async def run(self) -> None:
        """Pass beacons on, and enforce the limits on connections, until cancelled."""
        self._accepted.on_first_message(self._record_own_host)
        self._accepted.on_ended(self._forget_connection)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forward_beacons)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._receive_subscriptions)
            nursery.start_soon(self._publisher.watch)
            nursery.start_soon(self._accepted.watch)

    async def _forward_beacons(self) -> None:
        while True:
            messages = await self._subscriber.receive_with_sources(DRAIN_MAX)
            self._accepted.update()
            identified = [(frames, self._identify(source)) for frames, source in messages]
            self._publish(self._machine.receive(identified, trio.current_time()))

    def _identify(self, source: MessageSource) -> MessageSource:
        """Replace the descriptor of a source by the number of its connection. Descriptors are reused."""
        connection = self._accepted.find(source.connection)
        return attrs.evolve(source, connection=NO_CONNECTION if connection is None else connection.number)

    def _record_own_host(self, connection: AcceptedConnection) -> None:
        """Learn from a node's connection the address at which other machines reach this one."""
        ends = self._accepted.identify(connection)
        ambiguous = None if ends is None else self._machine.reached_at(ends.own_host)
        if ambiguous is not None:
            self._warn(ambiguous)

    async def _keep_time(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._machine.deadline()) as self._timer:
                await trio.sleep_forever()
            self._publish(self._machine.tick(trio.current_time()))
            await trio.lowlevel.checkpoint()

    async def _receive_subscriptions(self) -> None:
        while True:
            frames = [message[0] for message in await self._publisher.receive_many()]
            self._publish(self._machine.receive_subscriptions(frames, trio.current_time()))

    def _forget_connection(self, number: int) -> None:
        self._machine.connection_ended(number, trio.current_time())
        self._timer.deadline = self._machine.deadline()

    def _publish(self, messages: list[list[bytes]]) -> None:
        self._publisher.send_many(messages)
        self._timer.deadline = self._machine.deadline()


async def serve_tower(
    config: Config | None = None, *, task_status: trio.TaskStatus[Tower] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a tower until cancelled.

    Args:
        config: The configuration. `[tower]`, `[node]`, `[beacon]` and `[security]` apply.
        task_status: Receives the `Tower` once it listens.

    Raises:
        AddressInUseError: It cannot listen at an endpoint of `[tower]`.
        ConfigError: The keys of `[security]` are missing or invalid, or both endpoints are the same.
    """
    check_in_trio("serve_tower")
    config = config or Config()
    _check_endpoints_differ(config.tower)
    security = open_security(config)
    log = NodeLog(logging.getLogger("dafka.tower"))

    def warn(event: Event) -> None:
        log.write(event, logging.WARNING)

    with unwrap_group(), ExitStack() as closed:
        async with open_context(0) as context, AsyncExitStack() as stack:
            subscriber = Socket(context.socket(zmq.SocketType.SUB))
            stack.callback(subscriber.close, 0)
            publisher = PublisherSocket(context.socket(zmq.SocketType.XPUB), config.node, sends_batches=False)
            stack.callback(publisher.close, 0)
            limits = {"maxmsgsize": BEACON_BYTES_MAX, "handshake_ivl": HANDSHAKE_MS, **KEEPALIVE}
            publisher.set_options(xpub_welcome_msg=WELCOME, xpub_verbose=1, sndhwm=QUEUE_MAX, **limits)
            subscriber.set_options(**limits)
            # This order shows a node that the tower knows registrations before the node considers sending beacons.
            subscriber.subscribe(REGISTRATION)
            subscriber.subscribe(BEACON)
            accepted = AcceptedConnections(subscriber, config.node.connections_max)
            stack.callback(accepted.close)
            bind: Callable[[AcceptedConnections, str], str] = _bind
            identity = None
            if security is not None:
                bind = (await stack.enter_async_context(open_zap_handler(context, security, warn))).bind
                identity = KeyIdentity(security.authorized.__contains__)
            bind(publisher.accepted, config.tower.pub)
            bind(accepted, config.tower.sub)
            own_host = _presume_own_host(subscriber.endpoint)
            tower_id = os.urandom(TOWER_ID_BYTES)
            machine = TowerMachine(config, own_host, accepted.is_open, identity, tower_id)
            tower = Tower(machine, accepted, subscriber, publisher, warn)
            endpoints = (tower.sub_endpoint, tower.pub_endpoint)
            for warning in exposure_warnings(config, endpoints):
                warn(warning)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tower.run)
                nursery.start_soon(log_discards, tower.discarded, log)
                log.write(Started(endpoints))
                closed.callback(log.write, Stopped())
                task_status.started(tower)


def _check_endpoints_differ(config: TowerConfig) -> None:
    """Raise `ConfigError` if both sockets of a tower would listen at the same endpoint."""
    hosts, ports = zip(*(endpoint.rpartition(":")[::2] for endpoint in (config.sub, config.pub)), strict=True)
    is_one_host = hosts[0] == hosts[1] or any(host in ALL_INTERFACES for host in hosts)
    if config.sub.startswith("tcp://") and ports[0] in ("*", "0"):
        return
    if config.sub == config.pub or (config.pub.startswith("tcp://") and is_one_host and ports[0] == ports[1]):
        raise ConfigError(
            f"[tower] sub and pub: expected two ports, not {config.sub} and {config.pub}; "
            f"the defaults are {TowerConfig().sub} and {TowerConfig().pub}"
        )


def _bind(accepted: AcceptedConnections, endpoint: str) -> str:
    return accepted.socket.bind(endpoint)


def _presume_own_host(sub_endpoint: str) -> str:
    """Return the host at which other machines presumably reach this one, for nodes that connect over loopback.

    It is the address that the tower listens on. If it listens on all addresses, the tower takes the one that faces the
    default route, and 127.0.0.1 without such a route, until a node on another machine connects to it.
    """
    host = sub_endpoint.partition("://")[2].rpartition(":")[0]
    if is_local(sub_endpoint):
        return "[::1]" if host == "[::1]" else "127.0.0.1"
    if host not in ("0.0.0.0", "[::]"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; the kernel chooses the interface that faces that network.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
