"""The testbed of a scenario: the target, the scripted peers around it, and all messages between them.

One connection subscribes to everything that the target publishes, so that messages to unrequested topics arrive too.
The scripted peers connect as real nodes do, with the subscriptions of their roles, and a tower announces them.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio

from dafka_conformance.grammar import Value
from dafka_conformance.model import Kind, Role
from dafka_conformance.targets.base import Node, Request, Reset, Target
from dafka_conformance.testbed.batch_reader import BatchReader
from dafka_conformance.testbed.known_records import UncarriedError
from dafka_conformance.testbed.network import LAST_MESSAGES_S, Sockets, wait_free
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.target_nodes import TargetNodes, TestbedConfig


class _TargetRunner:
    """Runs the target in its own task, so that a scenario can start, kill and restart it at any point.

    Attributes:
        node: The running target; None while there is none.

    Args:
        target: The implementation under test.
        nursery: Runs the target's task.
    """

    def __init__(self, target: Target, nursery: trio.Nursery) -> None:
        self.node: Node | None = None
        self._target = target
        self._nursery = nursery
        self._stop, self._stopped = trio.Event(), trio.Event()
        self._stopped.set()

    async def start(self, request: Request) -> Node:
        """Start the target. Raise `TargetError` if it cannot be started."""
        node: Node = await self._nursery.start(self._hold, request)
        self.node = node
        return node

    async def end(self) -> None:
        """Stop the target if it is running."""
        self._stop.set()
        await self._stopped.wait()
        self.node = None

    async def _hold(self, request: Request, *, task_status: trio.TaskStatus[Node]) -> None:
        self._stop, self._stopped = trio.Event(), trio.Event()
        try:
            async with self._target.start(request) as node:
                task_status.started(node)
                await self._stop.wait()
        finally:
            self._stopped.set()


class Testbed(TargetNodes):
    """One scenario's target and scripted peers, with everything that a scenario does and checks.

    The base classes add the target's nodes (`TargetNodes`), waiting for messages (`Expectations`) and recording checks
    (`CheckLog`).

    Attributes:
        folder: The folder for the target's files.
        reset: The position at which a consumer starts.
        peers: The scripted peers, by label.

    Args:
        config: The target, its role and the other settings of the testbed.
        folder: The folder for the target's files.
        nursery: Runs the background tasks.
        stack: Closes the sockets.
    """

    __test__ = False  # pytest would otherwise collect classes of this name

    def __init__(self, config: TestbedConfig, folder: Path, nursery: trio.Nursery, stack: AsyncExitStack) -> None:
        super().__init__(config, nursery, stack)
        self.folder = folder
        self.reset = Reset.EARLIEST
        self.peers: dict[str, ScriptedPeer] = {}
        self._target_runner = _TargetRunner(config.target, nursery)

    @property
    def node(self) -> Node | None:
        """The running target; None while there is none."""
        return self._target_runner.node

    def begin_scenario(self) -> None:
        """Prepare for another scenario: remove the peers, the trace and everything received so far."""
        self.checks, self.received, self.delivered = [], [], []
        for label in list(self.peers):
            self.remove_peer(label)
        self.trace.reset()
        self.message_checks.begin_scenario()
        for address in self.nodes:
            self._add_address(address)

    # The target

    async def start(self, *, reset: Reset = Reset.EARLIEST, topic: bytes | None = None) -> None:
        """Start the target and wait until its nodes are discovered and connected.

        Args:
            reset: The position at which a consumer starts.
            topic: The topic; the testbed's by default.

        Raises:
            TargetError: The target cannot be started, or ends at once.
            UnmetError: It sends no beacon, or its endpoint cannot be connected to.
        """
        self.topic = topic if topic is not None else self.topic
        self.message_checks.consumed_topic = self.topic if self.role is Role.CONSUMER else b""
        self.reset = reset
        request = Request(
            self.role,
            self.dialect,
            self.discovery.sub_endpoint,
            self.discovery.pub_endpoint,
            self.topic,
            self.folder,
            reset,
        )
        self.trace.add_note(f"the {self.role.title} starts")
        node = await self._target_runner.start(request)
        self._nursery.start_soon(self._collect, node)
        self._nursery.start_soon(self._disconnect_ended, node)
        if self.role is not Role.TOWER:
            await self._find_nodes()

    async def kill(self) -> None:
        """Kill the target as `kill -9` does."""
        assert self.node is not None
        self.trace.add_note(f"the {self.role.title} is killed")
        await self.node.kill()
        await self._target_runner.end()
        self._remove_nodes()

    async def restart(self) -> None:
        """Start the target again with the same storage."""
        await self._target_runner.end()
        self._remove_nodes()
        await self.start(reset=self.reset)

    def exit_message(self, after: str = "") -> str:
        """Return how the target ended by itself, and after (or before) what; an empty string while it runs."""
        if self.node is not None and self.node.ended.is_set():
            return f"the {self.role.title} ended by itself{after}: {self.node.exit_reason or 'no reason given'}"
        return ""

    def check_running(self, clause: str) -> None:
        """Check that the target is still running. Raise `UnmetError` if it is not."""
        self.require_clause(clause, not self.exit_message(), self.exit_message())

    async def feed(self, contents: Sequence[bytes]) -> None:
        """Give the target records to publish. Raise `UncarriedError` if its input cannot carry one."""
        assert self.node is not None
        for content in contents:
            if not self.target.carries(Role.PRODUCER, content):
                raise UncarriedError(f"the target's input cannot carry the value {content[:80]!r}: feed another one")
        first = contents[0] if contents else b""
        self.trace.add_event(Kind.LINE, "input", self.label, "line", first=first, count=f"{len(contents):,}")
        await self.node.feed(contents)

    async def _collect(self, node: Node) -> None:
        async for deliveries in node.deliveries:
            self.delivered += deliveries
            self.trace.add_event(
                Kind.LINE, self.label, "output", "line", first=deliveries[0].content, count=f"{len(deliveries):,}"
            )
            self.notify()

    async def _disconnect_ended(self, node: Node) -> None:
        await node.ended.wait()
        await trio.sleep(LAST_MESSAGES_S)
        if node is self.node:
            self.disconnect(list(self.live_endpoints))

    # The scripted peers

    async def add_peer(
        self, label: str, topic: bytes | None = None, returning: ScriptedPeer | None = None
    ) -> ScriptedPeer:
        """Add a scripted peer, announce it, and wait until the target has connected to it.

        Args:
            label: The peer's name in traces. Its first letter is its role.
            topic: The topic that it publishes or consumes; the target's by default.
            returning: A removed peer, if it returns with the same address, endpoint and records.

        Returns:
            The peer.

        Raises:
            UnmetError: The target does not connect to the peer or does not subscribe to anything.
        """
        if returning is not None:
            await wait_free(returning.endpoint)
        peer = ScriptedPeer(
            label,
            Role(label[0]),
            self.topic if topic is None else topic,
            loopback=self.loopback,
            grammar=self.grammar,
            dialect=self.dialect,
            trace=self.trace,
            message_checks=self.message_checks,
            known_records=self.known_records,
            changed=self.notify,
            target_label=self.label,
            returning=returning,
        )
        self.peers[label] = peer
        self.trace.name_node(peer.address, label)
        self.message_checks.peers[peer.address] = peer.role
        for endpoint in self.live_endpoints:
            peer.connect(endpoint)
        self._nursery.start_soon(peer.run)
        self.discovery.announce(peer.address, peer.endpoint)
        is_connected = await self.wait(lambda: bool(+peer.subscriptions) and self._node_endpoints() <= peer.connected)
        if not is_connected:
            missing = "does not subscribe to anything there" if peer.connected else "does not accept its connection"
            text = self.exit_message() or f"{label} was announced to the {self.role.title}, which {missing}"
            self.require_clause("subscriber.connects", False, text)
        self.check_clause("subscriber.connects", True)
        return peer

    def connect_peers(self, endpoint: str) -> None:
        """Connect the scripted peers to a node of the target."""
        for peer in self.peers.values():
            peer.connect(endpoint)

    def disconnect_peers(self, endpoint: str) -> None:
        """Disconnect the scripted peers from a node of the target that has ended."""
        for peer in self.peers.values():
            peer.disconnect(endpoint)

    async def add_reader(self, *subscriptions: tuple[str, bytes]) -> BatchReader:
        """Connect to the target as a node that reads record batches.

        Args:
            *subscriptions: The name and topic of each message that it subscribes to, in this order.

        Returns:
            The connection, whose subscriptions the target may not have processed.
        """
        sockets = self._stack.enter_context(Sockets())
        reader = BatchReader(sockets, self.grammar, self.trace, self.label, self.report_fault, self.notify)
        for endpoint in self.live_endpoints:
            reader.connect(endpoint)
        self._nursery.start_soon(reader.run)
        await self.wait(lambda: self.live_endpoints <= reader.connected)
        for name, topic in subscriptions:
            reader.subscribe(name, topic)
        return reader

    def remove_peer(self, label: str) -> None:
        """Remove a scripted peer without notice: close its sockets and stop its beacons."""
        peer = self.peers.pop(label)
        self.discovery.withdraw(peer.address)
        peer.close()
        self.trace.add_note(f"{label} disappears")

    async def wait_subscribed(self, peer: ScriptedPeer, name: str, topic: bytes, clause: str = "") -> None:
        """Wait until the target subscribes to this message at the peer. Raise `UnmetError` if it does not."""
        if not await self.wait(lambda: peer.is_subscribed(name, topic)):
            shown = self.trace.show(topic)
            text = (
                self.exit_message() or f"the {self.role.title} has no subscription at {peer.label} for {name} ({shown})"
            )
            self.require_clause(clause or _subscription_clause(self.role, name), False, text)

    async def send(self, peer: ScriptedPeer, name: str, topic: bytes, **values: Value) -> None:
        """Send one message from a peer, once the target subscribes to it. Raise `UnmetError` if it does not."""
        await self.wait_subscribed(peer, name, topic)
        peer.send(name, topic, values)

    async def publish(self, peer: ScriptedPeer, first: int, last: int) -> None:
        """Publish the records `first` to `last` of a scripted producer."""
        await self.wait_subscribed(peer, "RECORD", peer.topic)
        await peer.send_records(range(first, last + 1))

    async def _listen(self) -> None:
        while True:
            for frames in await self._listener.receive_many():
                if self.message_checks.record_position(frames):
                    continue
                received = self.message_checks.check_message(frames, self.label)
                if received is None:
                    continue
                self.received.append(received)
                if received.message.name in {"FETCH", "GET-HEADS"}:
                    for peer in [peer for peer in self.peers.values() if peer.answers_requests]:
                        peer.start_answer(received.message)
            self.notify()

    # Running and closing

    async def run(self) -> None:
        """Receive and check the target's messages until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.discovery.run)
            nursery.start_soon(self._listen)
            nursery.start_soon(self._listener.watch_connections)

    async def aclose(self) -> None:
        """Remove all peers and stop the target."""
        for label in list(self.peers):
            self.remove_peer(label)
        await self._target_runner.end()


def _subscription_clause(role: Role, name: str) -> str:
    if (role, name) == (Role.PRODUCER, "GET-HEADS"):
        return "direct-head.producer"  # the RFC demands the answer, but does not list the subscription
    return f"subscription.{role.title}.{name.lower()}"


@asynccontextmanager
async def open_testbed(config: TestbedConfig) -> AsyncIterator[Testbed]:
    """Open a testbed whose target is not started. Everything on it is stopped at the end of the block."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dafka-conformance-")))
        testbed = Testbed(config, folder, nursery, stack)
        try:
            nursery.start_soon(testbed.run)
            yield testbed
        finally:
            with trio.CancelScope(shield=True):
                await testbed.aclose()
            nursery.cancel_scope.cancel()
