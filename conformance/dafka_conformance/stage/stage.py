"""One scenario's cluster: the target, the nodes that the suite plays around it, and all that they say to each other.

The suite hears the target through one connection of its own that subscribes to everything, so that it also hears what
was sent to a topic that nobody asked for. The nodes it plays connect as real ones do, each with its role's
subscriptions, and are introduced by a tower.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

from dafka.transport.socket import Socket
from dafka_conformance.grammar import Grammar, Message, Value
from dafka_conformance.model import Check, Dialect, Kind, Role
from dafka_conformance.stage.ledger import Ledger
from dafka_conformance.stage.network import Sockets, free_endpoint, handshakes
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.towers import INTERVAL_S, Introductions, PlayedTower, TowerLink
from dafka_conformance.stage.trace import Heard, Trace
from dafka_conformance.stage.watch import Watch
from dafka_conformance.targets.base import Delivery, Node, Request, Reset, Target, TargetError

PATIENCE_S = 8.0
"""How long the target may take for what it must do at once: far longer than it needs on a busy machine."""

SETTLE_S = 0.15
"""Between a ZeroMQ handshake and the moment that the other side has surely taken our subscriptions from it."""


FINDINGS_MAX = 10
"""Findings of one scenario about one clause: further ones would tell nothing new."""


class UnmetError(Exception):
    """Something that the scenario cannot go on without did not happen; its check has been recorded."""


@attrs.define
class TargetNode:
    """A node of the target, as its beacons tell of it."""

    address: bytes
    endpoint: str
    beacons: list[float] = attrs.field(factory=list)


class Stage:
    """See the module.

    Attributes:
        target, role, dialect, grammar: what is tested.
        label: the target's name in the scenario, its role's letter.
        topic: the topic that the target, or who talks to it, publishes or consumes.
        trace: everything that was said.
        ledger: what was published to the target.
        watch: what holds for every message.
        node: the running target; None before `start`.
        nodes: the target's nodes, by address.
        peers: the suite's nodes, by label.
        heard: the target's messages, in order.
        delivered: the records that the target handed on, in order.
        checks: what was checked so far.
        patience: a factor for every time that the target is given.
    """

    def __init__(
        self,
        target: Target,
        role: Role,
        dialect: Dialect,
        grammar: Grammar,
        *,
        topic: bytes,
        folder: Path,
        nursery: trio.Nursery,
        stack: AsyncExitStack,
        patience: float = 1.0,
    ) -> None:
        self.target, self.role, self.dialect, self.grammar = target, role, dialect, grammar
        self.label = role.value
        self.topic = topic
        self.patience = patience
        self.folder = folder
        self.trace = Trace(trio.current_time)
        self.ledger = Ledger()
        self.watch = Watch(grammar, role, dialect, self.ledger, self.trace, self._report)
        self.node: Node | None = None
        self.nodes: dict[bytes, TargetNode] = {}
        self.peers: dict[str, Peer] = {}
        self.delivered: list[Delivery] = []
        self.reset = Reset.EARLIEST
        self._nursery = nursery
        self._stack = stack
        self._stop, self._stopped = trio.Event(), trio.Event()
        self._stopped.set()
        self._played: set[bytes] = set()
        self._strangers: set[bytes] = set()
        self._changed = trio.Event()
        self._sockets = stack.enter_context(Sockets())  # closed once nobody listens any more
        self._ear: Socket = self._sockets.subscriber()
        self._ear_monitor = self._sockets.monitor(self._ear)
        self._ear.subscribe(b"")
        self._ear_connected: set[str] = set()
        self.begin()
        self.introductions = self._open_introductions()

    # The scenario's record

    def begin(self) -> None:
        """A new scenario begins on this stage: what was said so far is over, and who said it is gone."""
        self.checks: list[Check] = []
        self.heard: list[Heard] = []
        self.delivered = []
        for label in list(self.peers):
            self.leave(label)
        self.trace.restart()
        self.watch.begin()
        for address in self.nodes:
            self._know(address)

    def check(self, clause: str, holds: bool, message: str = "", event: int | None = None, reading: str = "") -> bool:
        """Records whether a clause holds; where not, `message` says what is wrong. Gives `holds`."""
        self.checks.append(Check(clause, holds, "" if holds else message, event, reading))
        if not holds and event is not None:
            self.trace.mark(event, message)
        return holds

    def require(self, clause: str, holds: bool, message: str, event: int | None = None) -> None:
        """As `check`; raises `UnmetError` where it does not hold."""
        if not self.check(clause, holds, message, event):
            raise UnmetError(message)

    def _report(self, clause: str, message: str, event: int, field: str = "", reading: str = "") -> None:
        alike = [check for check in self.checks if check.clause == clause and not check.holds]
        if len(alike) < FINDINGS_MAX and all(check.message != message for check in alike):
            self.checks.append(Check(clause, False, message, event, reading))
        self.trace.mark(event, message, field)
        self._tell()

    # The target

    async def start(self, *, reset: Reset = Reset.EARLIEST, topic: bytes | None = None) -> None:
        """Starts the target, and waits until it is known where it is. Raises `TargetError`, or `UnmetError`."""
        self.topic = topic if topic is not None else self.topic
        self.reset = reset
        request = Request(
            self.role,
            self.dialect,
            self.introductions.sub_endpoint,
            self.introductions.pub_endpoint,
            self.topic,
            self.folder,
            reset,
        )
        self.trace.note(f"the {self.role.title} is started")
        self.node = await self._nursery.start(self._hold, request)
        assert self.node is not None
        self._nursery.start_soon(self._collect, self.node)
        if self.role is not Role.TOWER:
            await self._find_nodes()
            if isinstance(self.introductions, TowerLink):
                await self._check_alone(self.introductions.pub_endpoint)

    async def _check_alone(self, pub_endpoint: str) -> None:
        """Where the suite joins a cluster, only one node can be the target. Raises `TargetError`."""
        await trio.sleep(INTERVAL_S)
        if self._strangers:
            which = f"say which one is the {self.role.title}, by the key address in its attach table"
            raise TargetError(f"several nodes beacon at {pub_endpoint}: {which}")

    async def _hold(self, request: Request, *, task_status: trio.TaskStatus[Node]) -> None:
        """Keeps the target running, in a task of its own, until it is to stop."""
        self._stop, self._stopped = trio.Event(), trio.Event()
        try:
            async with self.target.start(request) as node:
                task_status.started(node)
                await self._stop.wait()
        finally:
            self._stopped.set()

    async def _end(self) -> None:
        self._stop.set()
        await self._stopped.wait()

    async def _find_nodes(self) -> None:
        expected = self.target.node_counts.get(self.role, 1)
        is_found = await self.wait(lambda: len(self.nodes) >= expected)
        problem = self._died() or f"no beacon of the {self.role.title} came within {self._seconds(None):g} s"
        self.require("beacon.interval", is_found, problem)
        is_heard = await self.wait(lambda: {node.endpoint for node in self.nodes.values()} <= self._ear_connected)
        problem = "nobody answers at the endpoint that the beacon tells: " + ", ".join(
            node.endpoint for node in self.nodes.values() if node.endpoint not in self._ear_connected
        )
        self.require("publisher.bound", is_heard, problem)
        await trio.sleep(SETTLE_S)

    async def kill(self) -> None:
        """Kills the target as `kill -9` does."""
        assert self.node is not None
        self.trace.note(f"the {self.role.title} is killed")
        await self.node.kill()
        await self._end()
        self._forget_nodes()

    async def restart(self) -> None:
        """Starts it again, with the storage that it had."""
        await self._end()
        self._forget_nodes()
        await self.start(reset=self.reset)

    async def restart_tower(self, pause_s: float) -> None:
        """The suite's tower is gone for a while, and comes back at the same endpoints, knowing nobody."""
        tower = self.introductions
        assert isinstance(tower, PlayedTower)
        self.trace.note("the tower is gone")
        await tower.restart(pause_s)
        self.trace.note("the tower is back")

    def _forget_nodes(self) -> None:
        for node in self.nodes.values():
            self._ear.disconnect(node.endpoint)
            self._ear_connected.discard(node.endpoint)
        self.nodes.clear()
        self.node = None

    def _died(self) -> str:
        if self.node is not None and self.node.ended.is_set():
            return f"the {self.role.title} ended by itself: {self.node.last_words or 'without a word'}"
        return ""

    def check_alive(self, clause: str) -> None:
        """Records that the target is still running."""
        self.require(clause, not self._died(), self._died())

    @property
    def address(self) -> bytes:
        """The target's address; of several nodes, the first's."""
        return next(iter(self.nodes), b"")

    async def feed(self, contents: Sequence[bytes]) -> None:
        """Gives the target records to publish."""
        assert self.node is not None
        first = contents[0] if contents else b""
        self.trace.add(Kind.LINE, "input", self.label, "line", first=first, count=f"{len(contents):,}")
        await self.node.feed(contents)

    async def _collect(self, node: Node) -> None:
        async for deliveries in node.deliveries:
            self.delivered += deliveries
            self.trace.add(
                Kind.LINE, self.label, "output", "line", first=deliveries[0].content, count=f"{len(deliveries):,}"
            )
            self._tell()

    # The suite's own nodes

    async def join(self, label: str, topic: bytes | None = None) -> Peer:
        """A node of the role that its label begins with, introduced and connected to the target.

        Raises `UnmetError` where the target does not connect to it.
        """
        peer = Peer(
            label,
            Role(label[0]),
            self.topic if topic is None else topic,
            grammar=self.grammar,
            dialect=self.dialect,
            trace=self.trace,
            watch=self.watch,
            ledger=self.ledger,
            changed=self._tell,
            target_label=self.label,
        )
        self.peers[label] = peer
        self._played.add(peer.address)
        self.trace.name(peer.address, label)
        self.watch.peers[peer.address] = peer.role
        for node in self.nodes.values():
            peer.connect(node.endpoint)
        self._nursery.start_soon(peer.run)
        self.introductions.announce(peer.address, peer.endpoint)
        is_connected = await self.wait(
            lambda: bool(+peer.subscriptions) and {node.endpoint for node in self.nodes.values()} <= peer.connected
        )
        if not is_connected:
            missing = "does not subscribe to anything there" if peer.connected else "cannot be connected to"
            text = self._died() or f"the {self.role.title} was told of {label}, but {missing}"
            self.require("subscriber.connects", False, text)
        self.check("subscriber.connects", True)
        return peer

    def leave(self, label: str) -> None:
        """The node is gone: its sockets are closed, and the tower is silent about it."""
        peer = self.peers.pop(label)
        self.introductions.withdraw(peer.address)
        peer.close()
        self.trace.note(f"{label} is gone")

    async def reach(self, peer: Peer, name: str, topic: bytes, clause: str = "") -> None:
        """Waits until the target's subscriptions let this message through. Raises `UnmetError`."""
        if not await self.wait(lambda: peer.hears(name, topic)):
            shown = self.trace.show(topic)
            text = self._died() or f"the {self.role.title} has no subscription at {peer.label} for {name} ({shown})"
            self.require(clause or _subscription_clause(self.role, name), False, text)

    async def say(self, peer: Peer, name: str, topic: bytes, **values: Value) -> None:
        """Says one message, once the target's subscriptions let it through. Raises `UnmetError` where they never do."""
        await self.reach(peer, name, topic)
        peer.say(name, topic, values)

    async def publish(self, peer: Peer, first: int, last: int) -> None:
        """A played producer publishes its records `first` to `last`."""
        await self.reach(peer, "RECORD", peer.topic)
        await peer.say_records(range(first, last + 1))

    # Waiting and hearing

    async def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until a condition holds of what was heard, seen or delivered; tells whether it does."""
        with trio.move_on_after(self._seconds(seconds)):
            while not condition():
                if self._died() and not condition():
                    await trio.lowlevel.checkpoint()
                    break
                await self._changed.wait()
        return condition()

    async def expect(
        self,
        name: str,
        clause: str,
        matches: Callable[[Message], bool] = lambda _: True,
        *,
        since: int = 0,
        seconds: float | None = None,
        what: str = "",
    ) -> Heard:
        """The first message `name` of the target that matches, among those heard from place `since` on.

        Raises `UnmetError`, the clause being violated, where none comes in time.
        """
        found = await self.hear(name, matches, since=since, seconds=seconds)
        if found is None:
            others = [heard for heard in self.heard[since:] if heard.message.name == name]
            text = self._died() or f"no {what or name} came within {self._seconds(seconds):g} s"
            if others and not self._died():
                text += f"; the {name} that did come says {self.describe(others[-1].message)}"
            self.require(clause, False, text, others[-1].event if others else None)
        assert found is not None
        self.check(clause, True)
        return found

    async def hear(
        self,
        name: str,
        matches: Callable[[Message], bool] = lambda _: True,
        *,
        since: int = 0,
        seconds: float | None = None,
    ) -> Heard | None:
        """As `expect`, without a check: None where it does not come in time."""
        found: list[Heard] = []
        place = since

        def look() -> bool:
            nonlocal place
            while not found and place < len(self.heard):
                heard = self.heard[place]
                place += 1
                if heard.message.name == name and matches(heard.message):
                    found.append(heard)
            return bool(found)

        await self.wait(look, seconds)
        return found[0] if found else None

    async def expect_delivered(self, contents: Sequence[bytes], *, seconds: float | None = None) -> None:
        """The target hands on exactly these records, in this order; others may come between. Raises `UnmetError`."""
        wanted = set(contents)
        remaining = set(contents)
        found: list[bytes] = []
        place = 0

        def look() -> bool:
            nonlocal place
            found.extend(each.content for each in self.delivered[place:] if each.content in wanted)
            remaining.difference_update(each.content for each in self.delivered[place:])
            place = len(self.delivered)
            return not remaining

        await self.wait(look, seconds)
        missing = wanted - set(found)
        first = next((content for content in contents if content in missing), b"")
        text = (
            f"{len(missing):,} of {len(contents):,} records were not handed on, the first is {self.trace.show(first)}"
        )
        self.require("delivery.complete", not missing, self._died() or text)
        text = f"{len(found) - len(wanted):,} records were handed on more than once"
        self.require("delivery.once", len(found) <= len(wanted), text)
        wrong = next((pair for pair in zip(found, contents, strict=False) if pair[0] != pair[1]), (b"", b""))
        text = f"{self.trace.show(wrong[0])} was handed on where {self.trace.show(wrong[1])} was due"
        self.require("delivery.in-order", wrong == (b"", b""), text)

    def all_heard(self, name: str, since: int = 0) -> list[Message]:
        """The target's messages of one name so far."""
        return [heard.message for heard in self.heard[since:] if heard.message.name == name]

    def describe(self, message: Message) -> str:
        """A message's fields, for a finding."""
        parts = [f"topic={self.trace.show(message.topic)}"]
        for field, value in message.values.items():
            parts.append(f"{field}={self.trace.show(value) if isinstance(value, bytes) else value}")
        return " ".join(parts)

    def _seconds(self, seconds: float | None) -> float:
        return (PATIENCE_S if seconds is None else seconds) * self.patience

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _listen(self) -> None:
        while True:
            for frames in await self._ear.receive_many():
                heard = self.watch.heard(frames, self.label)
                if heard is None:
                    continue
                self.heard.append(heard)
                if heard.message.name in {"FETCH", "GET-HEADS"}:
                    for peer in [peer for peer in self.peers.values() if peer.answers]:
                        peer.start_answer(heard.message)
            self._tell()

    # Introductions

    def _open_introductions(self) -> Introductions:
        attachment = self.target.attachment(self.role)
        if attachment is not None:
            self.watch.is_alone = False
            if attachment.topic is not None:
                self.topic = attachment.topic
            link = TowerLink(
                self.grammar, self.trace, attachment.sub_endpoint, attachment.pub_endpoint, self._tower_said
            )
            self._stack.callback(link.close)
            return link
        if self.role is Role.TOWER:
            sub, pub = (self._stack.enter_context(free_endpoint()) for _ in range(2))
            return self._open_link(sub, pub, "N")
        tower = PlayedTower(self.grammar, self.trace, self._node_said)
        self._stack.callback(tower.close)
        return tower

    def tower_link(self, label: str) -> TowerLink:
        """A further node's connections to the target, which is a tower; more than one node may use them."""
        link = self._open_link(self.introductions.sub_endpoint, self.introductions.pub_endpoint, label)
        self._nursery.start_soon(link.run)
        return link

    def _open_link(self, sub_endpoint: str, pub_endpoint: str, label: str) -> TowerLink:
        def heard(frames: Sequence[bytes], parts: Mapping[str, bytes], fault: str) -> None:
            if fault:
                place = self.trace.frames(self.label, label, "beacon", frames)
                self._report("grammar.tower-beacon", f"the tower published what is no tower beacon: {fault}", place)
            elif parts:
                self.trace.add(Kind.BEACON, self.label, label, "beacon", uuid=parts["uuid"], endpoint=parts["endpoint"])
            self._tell()

        link = TowerLink(self.grammar, self.trace, sub_endpoint, pub_endpoint, heard, label)
        self._stack.callback(link.close)
        return link

    def _node_said(self, frames: Sequence[bytes], parts: Mapping[str, bytes], endpoint: str, fault: str) -> None:
        """A beacon reached the suite's tower; only the target sends any."""
        place = self.trace.add(
            Kind.BEACON, self.label, "tower", "beacon", **{name: value for name, value in parts.items() if value}
        )
        if fault:
            self._report("grammar.node-beacon", fault, place)
            if len(frames) == 4 and len(frames[1]) == 16:
                text = "the beacon's address is of 16 octets, not of 32 hexadecimal digits"
                self._report("address.uuid", text, place, "uuid", "octets")
            return
        self._add_node(parts["uuid"], endpoint)

    def _tower_said(self, frames: Sequence[bytes], parts: Mapping[str, bytes], fault: str) -> None:
        """A tower that is not the suite's told of a node."""
        if not parts or parts["uuid"] in self._played:
            return
        attachment = self.target.attachment(self.role)
        wanted = attachment.address if attachment is not None else None
        if wanted is None and self.nodes and parts["uuid"] not in self.nodes:
            self._strangers.add(parts["uuid"])
        elif wanted in {None, parts["uuid"]}:
            self._add_node(parts["uuid"], parts["endpoint"].decode("ascii"))

    def _add_node(self, address: bytes, endpoint: str) -> None:
        node = self.nodes.get(address)
        if node is None:
            node = self.nodes[address] = TargetNode(address, endpoint)
            self._know(address)
            self._ear.connect(endpoint)
            for peer in self.peers.values():
                peer.connect(endpoint)
        node.beacons.append(trio.current_time())
        self._tell()

    def _know(self, address: bytes) -> None:
        self.trace.name(address, self.label)
        self.watch.addresses.add(address)

    # The block

    async def run(self) -> None:
        """Works until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.introductions.run)
            nursery.start_soon(self._listen)
            nursery.start_soon(handshakes, self._ear_monitor, self._ear_connected, self._tell)

    async def aclose(self) -> None:
        """Stops the target; its own nodes leave."""
        for label in list(self.peers):
            self.leave(label)
        await self._end()


def _subscription_clause(role: Role, name: str) -> str:
    if (role, name) == (Role.PRODUCER, "GET-HEADS"):
        return "direct-head.producer"  # the RFC forgets the subscription, and demands the answer
    return f"subscription.{role.title}.{name.lower()}"


@asynccontextmanager
async def open_stage(
    target: Target, role: Role, dialect: Dialect, grammar: Grammar, *, topic: bytes, patience: float = 1.0
) -> AsyncIterator[Stage]:
    """A stage on which nothing has begun; all that happens on it has ended when the block is left."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dafka-conformance-")))
        stage = Stage(
            target,
            role,
            dialect,
            grammar,
            topic=topic,
            folder=folder,
            nursery=nursery,
            stack=stack,
            patience=patience,
        )
        try:
            nursery.start_soon(stage.run)
            yield stage
        finally:
            with trio.CancelScope(shield=True):
                await stage.aclose()
            nursery.cancel_scope.cancel()
