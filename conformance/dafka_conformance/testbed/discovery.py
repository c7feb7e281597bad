"""Discovery in a scenario: the suite's own scripted tower, or a client of another tower."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import trio

from dafka.errors import TransportError
from dafka.transport.socket import Socket
from dafka_conformance.grammar import FrameError, Grammar
from dafka_conformance.model import Kind
from dafka_conformance.testbed.network import Loopback, Sockets, new_address
from dafka_conformance.testbed.trace import Trace

INTERVAL_S = 1.0
"""The interval of beacons."""
WELCOME = b"W"
TOWER = "tower"
"""The label of a tower in traces."""

PROMPTS_MAX = 10
"""The maximum number of invented peers that prompt a silent node for its first beacon."""
PROMPT_INTERVAL_S = 0.05

_UUID_FIELD = "uuid"
_REBIND_S = 0.05


class Discovery(abc.ABC):
    """Announces the scripted peers to the target, and the target's nodes to the suite.

    Attributes:
        sub_endpoint: The tower's endpoint that nodes send beacons to.
        pub_endpoint: The tower's endpoint that publishes beacons.
    """

    sub_endpoint: str
    pub_endpoint: str

    @abc.abstractmethod
    async def run(self) -> None:
        """Send and receive beacons until cancelled."""

    @abc.abstractmethod
    def announce(self, address: bytes, endpoint: str) -> None:
        """Announce a scripted peer now and at every interval."""

    @abc.abstractmethod
    def withdraw(self, address: bytes) -> None:
        """Stop announcing a peer."""


class ScriptedTower(Discovery):
    """The suite's own tower. It reports every beacon that it receives, with its fault if it has one.

    A node's first beacon may be lost while ZeroMQ connects, and the next one is due only after the interval. By then a
    consumer may have sent its GET-HEADS to no one. So the tower announces invented, silent peers to a node that has
    subscribed and sent nothing: a node answers a new peer with a beacon at once.

    Attributes:
        listeners: The number of subscriptions to beacons.

    Args:
        grammar: The grammar.
        trace: The trace that beacons are added to.
        loopback: Gives its endpoints.
        on_beacon: Called with the parts, endpoint and fault of each beacon; without parts, it has no four frames.
    """

    def __init__(
        self,
        grammar: Grammar,
        trace: Trace,
        loopback: Loopback,
        on_beacon: Callable[[dict[str, bytes], str, FrameError | None], None],
    ) -> None:
        self._grammar = grammar
        self._trace = trace
        self._loopback = loopback
        self._on_beacon = on_beacon
        self._nodes: dict[bytes, str] = {}
        self._scope = trio.CancelScope()
        self._closed, self._reopened = trio.Event(), trio.Event()
        self._open_sockets()
        self.sub_endpoint, self.pub_endpoint = loopback.bind(self._sub), loopback.bind(self._pub)

    def _open_sockets(self) -> None:
        self.listeners = 0
        self._has_beacons = False
        self._sockets = Sockets()
        self._sub, self._pub = self._sockets.subscriber(), self._sockets.publisher(xpub_welcome_msg=WELCOME)
        self._sub.subscribe(b"")

    def close(self) -> None:
        """Close the sockets, if `run` has not done so."""
        self._sockets.__exit__()

    async def restart(self, pause_s: float) -> None:
        """Close the sockets for `pause_s` seconds, and open them again at the same endpoints."""
        self._scope.cancel()
        await self._closed.wait()
        await trio.sleep(pause_s)
        while True:
            self._open_sockets()
            try:
                self._sub.bind(self.sub_endpoint)
                self._pub.bind(self.pub_endpoint)
                break
            except TransportError:  # the system has not released the port yet
                self.close()
                await trio.sleep(_REBIND_S)
        self._reopened.set()

    async def run(self) -> None:
        """Send and receive beacons until cancelled, and again after each restart."""
        while True:
            self._closed, self._reopened = trio.Event(), trio.Event()
            with self._sockets, trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._receive_beacons)
                    nursery.start_soon(self._receive_subscriptions, nursery)
                    nursery.start_soon(self._repeat)
            self._closed.set()
            await self._reopened.wait()

    def announce(self, address: bytes, endpoint: str) -> None:
        """Announce a node now and at every interval."""
        self._nodes[address] = endpoint
        self._publish(address, endpoint)

    def withdraw(self, address: bytes) -> None:
        """Stop announcing a node."""
        self._nodes.pop(address, None)

    def send(self, frames: Sequence[bytes], label: str = "beacon") -> None:
        """Send frames to every node. Nodes must discard frames that are not a tower beacon."""
        self._trace.add_event(Kind.BEACON, TOWER, "", label)
        self._pub.send_many([frames])

    def _publish(self, address: bytes, endpoint: str) -> None:
        self._pub.send_many([[b"B", address, endpoint.encode("ascii")]])

    async def _receive_beacons(self) -> None:
        while True:
            ((frames, source),) = await self._sub.receive_with_sources(1)
            self._has_beacons = True
            fault: FrameError | None = None
            try:
                parts = self._grammar.node_beacon.decode(frames)
            except FrameError as error:
                fault = error
                if error.field != _UUID_FIELD:
                    self._on_beacon({}, "", fault)
                    continue
                # A node with a wrong address is discovered anyway, so that the scenario can test the rest of it.
                parts = self._grammar.node_beacon.split(frames)
            host = parts["host"].decode("ascii") or source.host or "127.0.0.1"
            endpoint = f"tcp://{host}:{parts['port'].decode('ascii')}"
            self._on_beacon(parts, endpoint, fault)
            self._publish(parts[_UUID_FIELD], endpoint)

    async def _receive_subscriptions(self, nursery: trio.Nursery) -> None:
        while True:
            for frames in await self._pub.receive_many():
                if frames[0][:1] == b"\1" and b"B".startswith(frames[0][1:]):
                    self.listeners += 1
                    for address, endpoint in self._nodes.items():
                        self._publish(address, endpoint)
                    nursery.start_soon(self._prompt)

    async def _prompt(self) -> None:
        for _ in range(PROMPTS_MAX):
            await trio.sleep(PROMPT_INTERVAL_S)
            if self._has_beacons:
                return
            self._publish(new_address(), self._loopback.bind(self._sockets.publisher()))

    async def _repeat(self) -> None:
        while True:
            await trio.sleep(INTERVAL_S)
            for address, endpoint in self._nodes.items():
                self._publish(address, endpoint)


class TowerClient(Discovery):
    """A client of another tower: it sends beacons for any number of nodes and receives the tower's.

    Attributes:
        welcomes: The number of welcome messages.
        endpoints: The endpoints that the tower published for each node, in order.

    Args:
        grammar: The grammar.
        trace: The trace that beacons are added to.
        sub_endpoint: The tower's endpoint for node beacons.
        pub_endpoint: The tower's endpoint that publishes tower beacons.
        on_beacon: Called with the frames, parts and fault of each beacon.
        label: The client's label in the trace.
    """

    def __init__(
        self,
        grammar: Grammar,
        trace: Trace,
        sub_endpoint: str,
        pub_endpoint: str,
        on_beacon: Callable[[Sequence[bytes], dict[str, bytes], str], None],
        label: str = "node",
    ) -> None:
        self.sub_endpoint, self.pub_endpoint = sub_endpoint, pub_endpoint
        self.label = label
        self.welcomes = 0
        self.endpoints: dict[bytes, list[str]] = {}
        self._grammar = grammar
        self._trace = trace
        self._on_beacon = on_beacon
        self._nodes: dict[bytes, tuple[bytes, bytes]] = {}
        self._scope = trio.CancelScope()
        self._sockets = Sockets()
        self._pub: Socket = self._sockets.beacon_publisher()
        self._sub: Socket = self._sockets.subscriber()
        self._sub.subscribe(WELCOME)
        self._sub.subscribe(b"B")
        self._pub.connect(sub_endpoint)
        self._sub.connect(pub_endpoint)

    def close(self) -> None:
        """Close the sockets, if `run` has not done so."""
        self._sockets.__exit__()

    def vanish(self) -> None:
        """Close the sockets without notice."""
        self._scope.cancel()

    async def run(self) -> None:
        """Send and receive beacons until `vanish` or cancelled, then close the sockets."""
        with self._sockets, self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                nursery.start_soon(self._repeat)

    def announce(self, address: bytes, endpoint: str, host: bytes = b"") -> None:
        """Announce a node now and at every interval. If `host` is empty, the tower must find the address itself."""
        port = endpoint.rpartition(":")[2].encode("ascii")
        self._nodes[address] = (host, port)
        self._send(address)

    def withdraw(self, address: bytes) -> None:
        """Stop announcing a node."""
        self._nodes.pop(address, None)

    def send(self, frames: Sequence[bytes], label: str = "beacon", **fields: bytes) -> None:
        """Send frames to the tower."""
        self._trace.add_event(Kind.BEACON, self.label, TOWER, label, **fields)
        self._pub.send_many([frames])

    def _send(self, address: bytes) -> None:
        host, port = self._nodes[address]
        self.send([b"B", address, host, port], uuid=address, host=host, port=port)

    async def _listen(self) -> None:
        while True:
            for frames in await self._sub.receive_many():
                if frames == [WELCOME]:
                    self.welcomes += 1
                    self._trace.add_event(Kind.BEACON, TOWER, self.label, "welcome")
                    self._on_beacon(frames, {}, "")
                    continue
                try:
                    parts = self._grammar.tower_beacon.decode(frames)
                except FrameError as fault:
                    self._on_beacon(frames, {}, str(fault))
                else:
                    self.endpoints.setdefault(parts["uuid"], []).append(parts["endpoint"].decode("ascii"))
                    self._on_beacon(frames, parts, "")

    async def _repeat(self) -> None:
        while True:
            await trio.sleep(INTERVAL_S)
            for address in list(self._nodes):
                self._send(address)
