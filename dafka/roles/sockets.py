"""The sockets and the discovery of one node: they feed a `dafka.protocol.Node`, and run its requests.

One task owns each socket. Messages are drained, decoded and given to the node as one batch.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager

import attrs
import trio

from dafka import wire
from dafka.batches import Compression
from dafka.config import BATCH_BYTES_MAX, Config, NodeConfig
from dafka.discovery import Advertisement, Discovery, DiscoveryEvent, open_discovery
from dafka.endpoints import PeerEndpoint, is_address, is_ipv6_endpoint, is_local, split_tcp_endpoint
from dafka.errors import TransportError
from dafka.protocol import (
    DialectAdopted,
    DialectChoice,
    EndpointIdentity,
    EndpointsExposed,
    ForeignDialect,
    HeadListeners,
    KeyIdentity,
    LoopbackOnly,
    Node,
    PeerIdentity,
    PeerJoined,
    PeerLeft,
    TowerHostUnresolved,
)
from dafka.records import BATCH_OVERHEAD_BYTES, RecordBatch
from dafka.roles.events import EventFeed
from dafka.roles.linger import Linger
from dafka.roles.logging_events import Started, Stopped
from dafka.transport import Mesh, Security, find_resolution_problem, open_mesh, open_security
from dafka.transport.publisher import NumberedMessage
from dafka.transport.subscribers import Messages

_REQUESTS = (wire.Fetch, wire.GetHeads, wire.ConsumerHello)
"""The messages that crash a store of libdafka if they are in the dialect of RFC 46 (erratum 30)."""

COMPRESSED_ASIDE_BYTES = 2**15
"""The size, in bytes, from which records are compressed in a thread. In the event loop, it would block everything
else."""

RESOLVE_S = 60.0
"""Seconds until the host name of a tower that cannot be resolved is looked up again."""


class NodeSockets:
    """The sockets of one node, bound and not yet served; implements `dafka.protocol.NodeIO`."""

    def __init__(
        self,
        address: str,
        role: wire.Role,
        mesh: Mesh,
        config: Config,
        events: EventFeed,
        identity: PeerIdentity,
        decoder: wire.BatchDecoder,
    ) -> None:
        """Take over the sockets of a node from its mesh."""
        self.address = address
        self._role = role
        self.endpoint = mesh.endpoint
        self.events = events
        self._mesh = mesh
        self._config = config
        self._identity = identity
        self._head_listeners = HeadListeners(mesh.publisher.accepted.__contains__)
        self._dialect = DialectChoice(config.node, is_closed=bool(config.security.key_file))
        self._decoder = decoder
        self._has_batches = config.node.record_batches == "on"
        self._encoder = wire.BatchEncoder(
            self._dialect.dialect,
            self._dialect.named_ack_takers,
            is_wanted=mesh.publisher.is_wanted if self._has_batches else None,
            compression=Compression[config.producer.compression.upper()],
            batch_bytes_max=config.node.message_bytes_max // 2,
        )
        linger_ms = config.producer.linger_ms if role is wire.Role.PRODUCER else 0
        self._linger = Linger(linger_ms / 1000, self._send)
        self._early_subscriptions: list[wire.Subscription] = []
        self._early_arrived = trio.Event()
        self._discovery: Discovery | None = None
        self._timer = trio.CancelScope()
        self._is_dialect_reported = False
        self._hostile = 0

    def discarded(self) -> Counter[str]:
        """Return the messages discarded so far, by reason."""
        found: Counter[str] = Counter()
        for each in (self._decoder, self._encoder, self._identity, self._mesh.publisher, self._mesh.subscriber):
            found.update(each.discarded)
        found.update(getattr(self._discovery, "discarded", ()))  # a plugin need not count
        return found

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        """Send messages in this node's dialect, after applying waiting subscriptions, which may change it."""
        if self._dialect.may_change and any(isinstance(message, _REQUESTS) for message in messages):
            while found := self._mesh.publisher.receive_nowait():
                self._early_subscriptions += self._record_subscriptions(found)
                self._early_arrived.set()
        self._linger.publish(messages)

    def _send(self, messages: Sequence[wire.BatchedMessage]) -> None:
        self._mesh.publisher.send_many(self._encoder.encode(messages))

    async def compress(self, batch: RecordBatch) -> RecordBatch:
        """Return records with their record batches. A thread makes them if they are compressed and large."""
        if not self.compresses_aside(batch):
            return batch
        return await trio.to_thread.run_sync(self._encoder.compress, batch)

    def compresses_aside(self, batch: RecordBatch) -> bool:
        """Return whether `compress` uses a thread."""
        return batch.content_bytes >= COMPRESSED_ASIDE_BYTES and self._encoder.compresses(batch.partition.topic)

    def subscribe(self, prefix: bytes) -> None:
        """Receive messages that begin with this prefix; records also by the batch."""
        for each in self._prefixes(prefix):
            self._mesh.subscriber.subscribe(each)

    def unsubscribe(self, prefix: bytes) -> None:
        """Undo one `subscribe`."""
        for each in self._prefixes(prefix):
            self._mesh.subscriber.unsubscribe(each)

    def _prefixes(self, prefix: bytes) -> tuple[bytes, ...]:
        return wire.with_batches(prefix) if self._has_batches else (prefix,)

    def connect(self, endpoint: PeerEndpoint) -> bool:
        """Connect to a publisher. Return False if it is not a valid endpoint."""
        try:
            self._mesh.subscriber.connect_peer(endpoint)
        except TransportError:
            return False
        return True

    def disconnect(self, endpoint: PeerEndpoint) -> None:
        """Undo `connect`."""
        self._mesh.subscriber.disconnect_peer(endpoint)

    def set_timer(self, deadline: float) -> None:
        """Call `Node.tick` at this time."""
        self._timer.deadline = deadline

    def need_regular_heads(self) -> bool:
        """Return whether a peer that takes HEADs is not known to be a node of this project."""
        return self._head_listeners.need_regular_heads()

    async def run(self, node: Node, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve a node until cancelled. It is started when it listens and advertises itself.

        Raise `DiscoveryError` or `TransportError` if discovery cannot be set up.
        """
        discovery = open_discovery(self._config)
        self._discovery = discovery
        node.start(trio.current_time())

        def discovered(report: DiscoveryEvent) -> None:
            if not isinstance(report, (PeerJoined, PeerLeft)) or self._identity.accept_change(report):
                node.discovered(report, trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive_messages, node, self._mesh.subscriber.receive)
            nursery.start_soon(self._receive_messages, node, self._mesh.subscriber.receive_restricted)
            nursery.start_soon(self._receive_subscriptions, node)
            nursery.start_soon(self._pass_early_subscriptions, node)
            nursery.start_soon(self._keep_time, node)
            nursery.start_soon(self._watch_connections, node)
            nursery.start_soon(self._linger.run)
            nursery.start_soon(self._mesh.publisher.watch)
            nursery.start_soon(self._mesh.subscriber.watch)
            if self._config.node.discovery == "tower":
                for host in tower_hosts(self._config):
                    nursery.start_soon(self._resolve_tower, host)
            await nursery.start(discovery.run, self._advertisement(), discovered)
            self.events.log.write(Started((self.endpoint,)))
            task_status.started()

    def _advertisement(self) -> Advertisement:
        host = self._config.beacon.advertise
        bound_host = self._config.node.bind.partition("://")[2].rpartition(":")[0]
        if not host and bound_host not in ("*", "0.0.0.0", "[::]"):
            host = bound_host
        return Advertisement(self.address, host, self._mesh.port, self._role)

    async def _receive_messages(
        self, node: Node, receive: Callable[[], Awaitable[tuple[Messages, PeerEndpoint]]]
    ) -> None:
        while True:
            items, source = await receive()
            for part in self._decoder.decode_in_parts(items):
                messages = self._identity.verify_messages(part, source)
                if self._decoder.dialects - {self._encoder.dialect}:
                    self._record_other_dialect()
                # The node drops records beyond its memory limit before more are unpacked.
                node.receive(messages, trio.current_time())
                del part, messages  # else they would be kept while more is unpacked
            # No correct node sends the messages that these counters count.
            counted = self._decoder.discarded.total() + self._identity.discarded.total() + node.hostile_count()
            before, self._hostile = self._hostile, counted
            self._mesh.subscriber.report_discards(source, self._hostile - before)

    def _record_other_dialect(self) -> None:
        """Adopt the dialect that peers use, or report it once."""
        self._dialect.record_heard(self._decoder.dialects)
        self._use_dialect()
        if self._dialect.is_fixed and not self._is_dialect_reported:
            self._is_dialect_reported = True
            (other,) = self._decoder.dialects - {self._encoder.dialect}
            self.events.put(ForeignDialect(self._encoder.dialect.value, other.value))

    def _use_dialect(self) -> None:
        if self._encoder.dialect is not self._dialect.dialect:
            self._encoder.dialect = self._dialect.dialect
            self.events.put(DialectAdopted(self._dialect.dialect.value))

    async def _receive_subscriptions(self, node: Node) -> None:
        while True:
            subscriptions = self._record_subscriptions(await self._mesh.publisher.receive_numbered())
            early, self._early_subscriptions = self._early_subscriptions, []
            node.receive_subscriptions(early + subscriptions, trio.current_time())

    async def _pass_early_subscriptions(self, node: Node) -> None:
        """Give the node the subscriptions that `publish` has received."""
        while True:
            await self._early_arrived.wait()
            self._early_arrived = trio.Event()
            early, self._early_subscriptions = self._early_subscriptions, []
            if early:
                node.receive_subscriptions(early, trio.current_time())

    def _record_subscriptions(self, messages: Sequence[NumberedMessage]) -> list[wire.Subscription]:
        """Decode subscriptions, and use the dialect that they make necessary."""
        for number, frames in messages:
            self._head_listeners.record_subscription(number, frames[0])
        decoded = [(number, wire.decode_subscription(frames[0])) for number, frames in messages]
        found = [(number, each) for number, each in decoded if each is not None]
        if not self._dialect.is_fixed:
            self._dialect.record_subscriptions(found)
            self._use_dialect()
        return [each for _, each in found]

    async def _keep_time(self, node: Node) -> None:
        while True:
            with trio.CancelScope(deadline=node.deadline()) as self._timer:
                await trio.sleep_forever()
            node.tick(trio.current_time())
            await trio.lowlevel.checkpoint()

    async def _resolve_tower(self, host: str) -> None:
        """Report a tower's host name that cannot be resolved. libzmq retries silently."""
        while reason := await find_resolution_problem(host):
            self.events.put(TowerHostUnresolved(host, reason))
            await trio.sleep(RESOLVE_S)

    async def _watch_connections(self, node: Node) -> None:
        while True:
            node.connections_changed(await self._mesh.subscriber.receive_connections(), trio.current_time())


@asynccontextmanager
async def open_sockets(
    address: str,
    config: Config,
    role: wire.Role,
    high_watermark: int,
    events: EventFeed | None = None,
    *,
    keeps_record_batches: bool = False,
) -> AsyncIterator[NodeSockets]:
    """Open the sockets of a node, and close them when the block is left.

    Beyond the high watermark, messages that wait for one peer are dropped. The events are given if the node had another
    address before. Raise `AddressInUseError` if the endpoint cannot be bound, `ConfigError` if the keys are invalid.
    """
    logger = logging.getLogger(f"dafka.{role.name.lower()}")
    if events is None:
        events = EventFeed(logger, address)
    else:
        events.rename(logger, address)
    security = open_security(config)
    with ExitStack() as closed:
        async with open_mesh(_choose_family(config), high_watermark, security, events.put) as mesh:
            closed.callback(events.log.write, Stopped())
            for warning in node_warnings(config, mesh.endpoint):
                events.put(warning)
            identity = _identity(address, security, events)
            decoder = wire.BatchDecoder(batch_bytes_max(config.node), keeps_encoded=keeps_record_batches)
            yield NodeSockets(address, role, mesh, config, events, identity, decoder)


def node_warnings(config: Config, endpoint: str) -> list[EndpointsExposed | LoopbackOnly]:
    """Return the warnings for a node that listens at this endpoint."""
    if not is_local(endpoint):
        return exposure_warnings(config, [endpoint])
    remote_towers = [tower for tower in config.beacon.tower_sub if not is_local(tower)]
    if config.node.discovery == "tower" and endpoint.startswith("tcp://") and remote_towers:
        return [LoopbackOnly(endpoint, remote_towers[0])]
    return []


def exposure_warnings(config: Config, endpoints: Iterable[str]) -> list[EndpointsExposed | LoopbackOnly]:
    """Return a warning if there are no keys and other machines can reach any of these endpoints."""
    exposed = tuple(endpoint for endpoint in endpoints if not is_local(endpoint))
    return [EndpointsExposed(exposed)] if exposed and not config.security.key_file else []


def batch_bytes_max(node: NodeConfig) -> int:
    """Return the size of the largest record batch that a node decodes, after decompression, in bytes."""
    return max(node.message_bytes_max + BATCH_OVERHEAD_BYTES, BATCH_BYTES_MAX)


def tower_hosts(config: Config) -> list[str]:
    """Return the hosts of the configured towers that are names, not addresses."""
    endpoints = (*config.beacon.tower_sub, *config.beacon.tower_pub)
    hosts = dict.fromkeys(parts[0] for endpoint in endpoints if (parts := split_tcp_endpoint(endpoint)))
    return [host for host in hosts if not is_address(host)]


def _choose_family(config: Config) -> NodeConfig:
    """Return the node's settings; `*` includes IPv6 if a tower has an IPv6 address, since peers then use IPv6."""
    node = config.node
    if node.discovery == "tower" and any(map(is_ipv6_endpoint, config.beacon.tower_sub)):
        return attrs.evolve(node, bind=re.sub(r"^tcp://\*(?=:)", "tcp://[::]", node.bind))
    return node


def _identity(own_address: str, security: Security | None, events: EventFeed) -> PeerIdentity:
    if security is None:
        return EndpointIdentity()
    identity = KeyIdentity(security.authorized.__contains__, events.put)
    identity.add_node(own_address, security.pair.public)
    return identity
