"""One scenario's cluster: the target, the nodes that the suite plays around it, and all that they say to each other.

The suite hears the target through one connection of its own that subscribes to everything, so that it also hears what
was sent to a topic that nobody asked for. The nodes it plays connect as real ones do, each with its role's
subscriptions, and are introduced by a tower.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio

from dafka_conformance.grammar import Value
from dafka_conformance.model import Kind, Role
from dafka_conformance.stage.keeper import Keeper
from dafka_conformance.stage.meeting import Meeting, Setting
from dafka_conformance.stage.peer import Peer
from dafka_conformance.targets.base import Node, Request, Reset


class Stage(Meeting):
    """See the module. Who is there is `Meeting`'s, what is heard `Hearing`'s, what is found out `Findings`'.

    Attributes:
        folder: where the target keeps what it stores.
        reset: where a consumer begins.
        peers: the suite's nodes, by label.
    """

    def __init__(self, setting: Setting, folder: Path, nursery: trio.Nursery, stack: AsyncExitStack) -> None:
        super().__init__(setting, nursery, stack)
        self.folder = folder
        self.reset = Reset.EARLIEST
        self.peers: dict[str, Peer] = {}
        self._keeper = Keeper(setting.target, nursery)

    @property
    def node(self) -> Node | None:
        """The running target; None while there is none."""
        return self._keeper.node

    def begin(self) -> None:
        """A new scenario begins on this stage: what was said so far is over, and who said it is gone."""
        self.checks, self.heard, self.delivered = [], [], []
        for label in list(self.peers):
            self.leave(label)
        self.trace.restart()
        self.watch.begin()
        for address in self.nodes:
            self._know(address)

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
        self._nursery.start_soon(self._collect, await self._keeper.start(request))
        if self.role is not Role.TOWER:
            await self._find_nodes()

    async def kill(self) -> None:
        """Kills the target as `kill -9` does."""
        assert self.node is not None
        self.trace.note(f"the {self.role.title} is killed")
        await self.node.kill()
        await self._keeper.end()
        self._forget_nodes()

    async def restart(self) -> None:
        """Starts it again, with the storage that it had."""
        await self._keeper.end()
        self._forget_nodes()
        await self.start(reset=self.reset)

    def died(self, after: str = "") -> str:
        """How the target ended by itself, and after what; empty while it runs."""
        if self.node is not None and self.node.ended.is_set():
            return f"the {self.role.title} ended by itself{after}: {self.node.last_words or 'without a word'}"
        return ""

    def check_alive(self, clause: str) -> None:
        """Records that the target is still running."""
        self.require(clause, not self.died(), self.died())

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
            self.tell()

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
            changed=self.tell,
            target_label=self.label,
        )
        self.peers[label] = peer
        self.trace.name(peer.address, label)
        self.watch.peers[peer.address] = peer.role
        for node in self.nodes.values():
            peer.connect(node.endpoint)
        self._nursery.start_soon(peer.run)
        self.introductions.announce(peer.address, peer.endpoint)
        is_connected = await self.wait(lambda: bool(+peer.subscriptions) and self._endpoints() <= peer.connected)
        if not is_connected:
            missing = "does not subscribe to anything there" if peer.connected else "cannot be connected to"
            text = self.died() or f"the {self.role.title} was told of {label}, but {missing}"
            self.require("subscriber.connects", False, text)
        self.check("subscriber.connects", True)
        return peer

    def connect_peers(self, endpoint: str) -> None:
        """A node of the target listens there: the suite's own connect to it."""
        for peer in self.peers.values():
            peer.connect(endpoint)

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
            text = self.died() or f"the {self.role.title} has no subscription at {peer.label} for {name} ({shown})"
            self.require(clause or _subscription_clause(self.role, name), False, text)

    async def say(self, peer: Peer, name: str, topic: bytes, **values: Value) -> None:
        """Says one message, once the target's subscriptions let it through. Raises `UnmetError` where they never do."""
        await self.reach(peer, name, topic)
        peer.say(name, topic, values)

    async def publish(self, peer: Peer, first: int, last: int) -> None:
        """A played producer publishes its records `first` to `last`."""
        await self.reach(peer, "RECORD", peer.topic)
        await peer.say_records(range(first, last + 1))

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
            self.tell()

    # The block

    async def run(self) -> None:
        """Works until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.introductions.run)
            nursery.start_soon(self._listen)
            nursery.start_soon(self._ear.watch_connections)

    async def aclose(self) -> None:
        """Stops the target; its own nodes leave."""
        for label in list(self.peers):
            self.leave(label)
        await self._keeper.end()


def _subscription_clause(role: Role, name: str) -> str:
    if (role, name) == (Role.PRODUCER, "GET-HEADS"):
        return "direct-head.producer"  # the RFC forgets the subscription, and demands the answer
    return f"subscription.{role.title}.{name.lower()}"


@asynccontextmanager
async def open_stage(setting: Setting) -> AsyncIterator[Stage]:
    """A stage on which nothing has begun; all that happens on it has ended when the block is left."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dafka-conformance-")))
        stage = Stage(setting, folder, nursery, stack)
        try:
            nursery.start_soon(stage.run)
            yield stage
        finally:
            with trio.CancelScope(shield=True):
                await stage.aclose()
            nursery.cancel_scope.cancel()
