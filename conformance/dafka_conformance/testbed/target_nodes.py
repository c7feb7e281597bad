"""Discovery of the target's nodes by their beacons, and the connection that receives everything they publish."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

import attrs
import trio

from dafka_conformance.grammar import FrameError, Grammar, describe_address_fault
from dafka_conformance.model import Dialect, Kind, Role
from dafka_conformance.targets.base import Target, TargetError
from dafka_conformance.testbed.discovery import INTERVAL_S, Discovery, ScriptedTower, TowerClient
from dafka_conformance.testbed.expectations import Expectations
from dafka_conformance.testbed.known_records import KnownRecords
from dafka_conformance.testbed.message_checks import MessageChecks
from dafka_conformance.testbed.network import Loopback, Sockets, is_suite_address, track_handshakes
from dafka_conformance.testbed.trace import Trace

UUID_BYTES = 16

SETTLE_S = 0.15
"""The wait after a ZeroMQ handshake until the peer has certainly processed our subscriptions."""


@attrs.frozen
class TestbedConfig:
    """The configuration of a testbed.

    Attributes:
        target: The implementation under test.
        role: The role of the node under test.
        dialect: The dialect of all messages.
        grammar: The grammar that all messages are checked against.
        topic: The topic of the target, or of the nodes around it.
        patience: The factor for every time limit.
        is_usual_topic: Whether any node should take the topic. A node may end because of an unusual one.
    """

    __test__ = False  # pytest would otherwise collect classes of this name

    target: Target
    role: Role
    dialect: Dialect
    grammar: Grammar
    topic: bytes
    patience: float = 1.0
    is_usual_topic: bool = True


@attrs.define
class TargetNode:
    """A node of the target, as its beacons describe it."""

    address: bytes
    endpoint: str
    beacons: list[float] = attrs.field(factory=list)


class TargetListener:
    """A connection that subscribes to everything the target publishes, so that messages to wrong topics arrive too.

    Attributes:
        connected: The endpoints that it is connected to.

    Args:
        sockets: Opens its sockets.
        changed: Called when it has connected to an endpoint.
    """

    def __init__(self, sockets: Sockets, changed: Callable[[], None]) -> None:
        self.connected: set[str] = set()
        self._changed = changed
        self._socket = sockets.target_subscriber()
        self._monitor = sockets.monitor(self._socket)
        self._socket.subscribe(b"")

    def connect(self, endpoint: str) -> None:
        """Connect to an endpoint of the target."""
        self._socket.connect(endpoint)

    def disconnect(self, endpoint: str) -> None:
        """Disconnect from an endpoint."""
        self._socket.disconnect(endpoint)
        self.connected.discard(endpoint)

    async def receive_many(self) -> list[list[bytes]]:
        """Wait for messages and return them."""
        return await self._socket.receive_many()

    async def watch_connections(self) -> None:
        """Keep `connected` up to date until cancelled."""
        await track_handshakes(self._monitor, self.connected, self._changed)


class TargetNodes(Expectations):
    """The part of a testbed that discovers the target's nodes and checks their beacons.

    Attributes:
        target: The implementation under test.
        role: The role of the node under test.
        dialect: The dialect of all messages.
        grammar: The grammar that all messages are checked against.
        topic: The topic of the target, or of the nodes around it.
        label: The target's label in traces: its role's letter.
        known_records: The records and FETCHes that were sent to the target.
        message_checks: The checks that apply to every message.
        nodes: The target's nodes, by address.
        live_endpoints: The endpoints of those that have not ended.
        loopback: Gives the endpoints of the suite's nodes.
        discovery: The suite's tower, or the connection to another one.

    Args:
        config: The target, its role and the other settings of the testbed.
        nursery: Runs the background tasks.
        stack: Closes the sockets.
    """

    def __init__(self, config: TestbedConfig, nursery: trio.Nursery, stack: AsyncExitStack) -> None:
        super().__init__(Trace(trio.current_time), config.patience)
        self.target, self.role, self.dialect = config.target, config.role, config.dialect
        self.grammar, self.topic = config.grammar, config.topic
        self.label = self.role.value
        self.known_records = KnownRecords(self._carries)
        self.message_checks = MessageChecks(
            self.grammar, self.role, self.dialect, self.known_records, self.trace, self._report_and_notify
        )
        self.nodes: dict[bytes, TargetNode] = {}
        self.live_endpoints: set[str] = set()
        self._nursery = nursery
        self._stack = stack
        self._is_new = config.is_usual_topic
        self._unexpected_addresses: set[bytes] = set()
        # Entered first, so its sockets are closed last, after the tasks that read them.
        self._listener = TargetListener(stack.enter_context(Sockets()), self.notify)
        self.loopback = Loopback(is_shared=config.target.attachment(config.role) is not None)
        self.discovery = self._open_discovery()

    def _carries(self, value: bytes) -> bool:
        """Return whether the suite reads a value as it is if the target, a consumer, delivers it."""
        return self.role is not Role.CONSUMER or self.target.carries(Role.CONSUMER, value)

    @abc.abstractmethod
    def connect_peers(self, endpoint: str) -> None:
        """Connect the suite's nodes to a node of the target."""

    @abc.abstractmethod
    def disconnect_peers(self, endpoint: str) -> None:
        """Disconnect the suite's nodes from a node of the target."""

    @property
    def address(self) -> bytes:
        """The target's address, or that of its first node if it has several. Empty if none is known."""
        return next(iter(self.nodes), b"")

    async def restart_tower(self, pause_s: float) -> None:
        """Stop the suite's tower, wait `pause_s` seconds, and start it again without state at the same endpoints."""
        tower = self.discovery
        assert isinstance(tower, ScriptedTower)
        self.trace.add_note("the tower stops")
        await tower.restart(pause_s)
        self.trace.add_note("the tower is running again")

    def _open_discovery(self) -> Discovery:
        attachment = self.target.attachment(self.role)
        if self.role is Role.TOWER and attachment is not None:
            return self._open_client(attachment.sub_endpoint, attachment.pub_endpoint, "N")
        if attachment is not None:
            self.message_checks.is_alone = False
            if attachment.topic is not None:
                self.topic = attachment.topic
            client = TowerClient(
                self.grammar, self.trace, attachment.sub_endpoint, attachment.pub_endpoint, self._receive_tower_beacon
            )
            self._stack.callback(client.close)
            return client
        if self.role is Role.TOWER:
            sub, pub = (self._stack.enter_context(self.loopback.reserve()) for _ in range(2))
            return self._open_client(sub, pub, "N")
        tower = ScriptedTower(self.grammar, self.trace, self.loopback, self._receive_node_beacon)
        self._stack.callback(tower.close)
        return tower

    def tower_client(self, label: str) -> TowerClient:
        """Open another node's connections to the target, which is a tower. Several nodes may share them."""
        client = self._open_client(self.discovery.sub_endpoint, self.discovery.pub_endpoint, label)
        self._nursery.start_soon(client.run)
        return client

    def _open_client(self, sub_endpoint: str, pub_endpoint: str, label: str) -> TowerClient:
        def received(frames: Sequence[bytes], parts: Mapping[str, bytes], fault: str) -> None:
            if fault:
                index = self.trace.add_frames(self.label, label, "beacon", frames)
                self.report_fault(
                    "grammar.tower-beacon", f"the tower published frames that are no tower beacon: {fault}", index
                )
            elif parts:
                self.trace.add_event(
                    Kind.BEACON, self.label, label, "beacon", uuid=parts["uuid"], endpoint=parts["endpoint"]
                )
            self.notify()

        client = TowerClient(self.grammar, self.trace, sub_endpoint, pub_endpoint, received, label)
        self._stack.callback(client.close)
        return client

    def _receive_node_beacon(self, parts: Mapping[str, bytes], endpoint: str, fault: FrameError | None) -> None:
        """Handle a beacon at the suite's tower. Only the target sends beacons to it."""
        if parts:
            self._add_address(parts["uuid"])
        index = self.trace.add_event(
            Kind.BEACON, self.label, "tower", "beacon", **{name: value for name, value in parts.items() if value}
        )
        if fault is not None and not parts:
            self.report_fault("grammar.node-beacon", str(fault), index, fault.field)
        elif text := describe_address_fault(parts["uuid"]):
            reading = "binary" if len(parts["uuid"]) == UUID_BYTES else ""
            self.report_fault("address.uuid", text, index, "uuid", reading)
        if parts:
            self._add_node(parts["uuid"], endpoint)

    def _receive_tower_beacon(self, frames: Sequence[bytes], parts: Mapping[str, bytes], fault: str) -> None:
        """Handle a beacon from a tower that is not the suite's."""
        if not parts or is_suite_address(parts["uuid"]):
            return
        attachment = self.target.attachment(self.role)
        wanted = attachment.address if attachment is not None else None
        if wanted is None and self.nodes and parts["uuid"] not in self.nodes:
            self._unexpected_addresses.add(parts["uuid"])
        elif wanted in {None, parts["uuid"]}:
            self._add_node(parts["uuid"], parts["endpoint"].decode("ascii"))

    def _add_node(self, address: bytes, endpoint: str) -> None:
        node = self.nodes.get(address)
        if node is None:
            node = self.nodes[address] = TargetNode(address, endpoint)
            self._add_address(address)
            self.live_endpoints.add(endpoint)
            self._listener.connect(endpoint)
            self.connect_peers(endpoint)
        node.beacons.append(trio.current_time())
        self.notify()

    def _add_address(self, address: bytes) -> None:
        self.trace.name_node(address, self.label)
        self.message_checks.addresses.add(address)

    async def _find_nodes(self) -> None:
        expected = self.target.node_counts.get(self.role, 1)
        is_found = await self.wait(lambda: len(self.nodes) >= expected)
        if self._is_new and not self.nodes and self.exit_message():
            raise TargetError(self.exit_message(" before its first beacon"))
        self._is_new = False
        problem = self.exit_message() or f"no beacon of the {self.role.title} arrived within {self.seconds():g} s"
        self.require_clause("beacon.interval", is_found, problem)
        is_heard = await self.wait(lambda: self._node_endpoints() <= self._listener.connected)
        silent = ", ".join(sorted(self._node_endpoints() - self._listener.connected))
        problem = self.exit_message() or f"cannot connect to the endpoint in the beacon: {silent}"
        self.require_clause("publisher.bound", is_heard, problem)
        await trio.sleep(SETTLE_S)
        if isinstance(self.discovery, TowerClient):
            await self._check_single_node(self.discovery.pub_endpoint)

    async def _check_single_node(self, pub_endpoint: str) -> None:
        """Raise `TargetError` if several nodes of the cluster that the suite has joined could be the target."""
        await trio.sleep(INTERVAL_S)
        if self._unexpected_addresses:
            which = f"name the {self.role.title} with the key address in its attach table"
            raise TargetError(f"several nodes send beacons to the tower at {pub_endpoint}: {which}")

    def _node_endpoints(self) -> set[str]:
        return {node.endpoint for node in self.nodes.values()}

    def _remove_nodes(self) -> None:
        self.disconnect(self._node_endpoints())
        self.nodes.clear()

    def disconnect(self, endpoints: Iterable[str]) -> None:
        """Close the suite's connections to nodes of the target that have ended."""
        for endpoint in self.live_endpoints.intersection(endpoints):
            self._listener.disconnect(endpoint)
            self.disconnect_peers(endpoint)
            self.live_endpoints.discard(endpoint)

    def _report_and_notify(self, clause: str, message: str, event: int, field: str = "", reading: str = "") -> None:
        self.report_fault(clause, message, event, field, reading)
        self.notify()
