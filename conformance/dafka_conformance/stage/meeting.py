"""Who is there: the target's nodes, as their beacons tell of them, and the tower by which all find each other."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import attrs
import trio

from dafka_conformance.grammar import Grammar
from dafka_conformance.model import Dialect, Kind, Role
from dafka_conformance.stage.addresses import is_played
from dafka_conformance.stage.ear import Ear
from dafka_conformance.stage.hearing import Hearing
from dafka_conformance.stage.ledger import Ledger
from dafka_conformance.stage.network import Sockets, free_endpoint
from dafka_conformance.stage.towers import INTERVAL_S, Introductions, PlayedTower, TowerLink
from dafka_conformance.stage.trace import Trace
from dafka_conformance.stage.watch import Watch
from dafka_conformance.targets.base import Target, TargetError

SETTLE_S = 0.15
"""Between a ZeroMQ handshake and the moment that the other side has surely taken our subscriptions from it."""


@attrs.frozen
class Setting:
    """What a stage is for.

    Attributes:
        target: what is tested.
        role: in which role.
        dialect: the dialect that all speak.
        grammar: what is said is held against it.
        topic: the topic that the target, or who talks to it, publishes or consumes.
        patience: a factor for every time that the target is given.
    """

    target: Target
    role: Role
    dialect: Dialect
    grammar: Grammar
    topic: bytes
    patience: float = 1.0


@attrs.define
class TargetNode:
    """A node of the target, as its beacons tell of it."""

    address: bytes
    endpoint: str
    beacons: list[float] = attrs.field(factory=list)


class Meeting(Hearing):
    """Attributes:
    target, role, dialect, grammar, topic: the setting's.
    label: the target's name in the scenario, its role's letter.
    ledger: what was published to the target.
    watch: what holds for every message.
    nodes: the target's nodes, by address.
    introductions: the tower, or the connection to one.
    """

    def __init__(self, setting: Setting, nursery: trio.Nursery, stack: AsyncExitStack) -> None:
        super().__init__(Trace(trio.current_time), setting.patience)
        self.target, self.role, self.dialect = setting.target, setting.role, setting.dialect
        self.grammar, self.topic = setting.grammar, setting.topic
        self.label = self.role.value
        self.ledger = Ledger()
        self.watch = Watch(self.grammar, self.role, self.dialect, self.ledger, self.trace, self._find_fault)
        self.nodes: dict[bytes, TargetNode] = {}
        self._nursery = nursery
        self._stack = stack
        self._strangers: set[bytes] = set()
        # Its sockets are closed once nobody listens any more.
        self._ear = Ear(stack.enter_context(Sockets()), self.tell)
        self.introductions = self._open_introductions()

    @abc.abstractmethod
    def connect_peers(self, endpoint: str) -> None:
        """A node of the target listens there: the suite's own connect to it."""

    @property
    def address(self) -> bytes:
        """The target's address; of several nodes, the first's."""
        return next(iter(self.nodes), b"")

    async def restart_tower(self, pause_s: float) -> None:
        """The suite's tower is gone for a while, and comes back at the same endpoints, knowing nobody."""
        tower = self.introductions
        assert isinstance(tower, PlayedTower)
        self.trace.note("the tower is gone")
        await tower.restart(pause_s)
        self.trace.note("the tower is back")

    def _open_introductions(self) -> Introductions:
        attachment = self.target.attachment(self.role)
        if self.role is Role.TOWER and attachment is not None:
            return self._open_link(attachment.sub_endpoint, attachment.pub_endpoint, "N")
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
                self.report("grammar.tower-beacon", f"the tower published what is no tower beacon: {fault}", place)
            elif parts:
                self.trace.add(Kind.BEACON, self.label, label, "beacon", uuid=parts["uuid"], endpoint=parts["endpoint"])
            self.tell()

        link = TowerLink(self.grammar, self.trace, sub_endpoint, pub_endpoint, heard, label)
        self._stack.callback(link.close)
        return link

    def _node_said(self, frames: Sequence[bytes], parts: Mapping[str, bytes], endpoint: str, fault: str) -> None:
        """A beacon reached the suite's tower; only the target sends any."""
        if parts:
            self._know(parts["uuid"])
        place = self.trace.add(
            Kind.BEACON, self.label, "tower", "beacon", **{name: value for name, value in parts.items() if value}
        )
        if fault:
            self.report("grammar.node-beacon", fault, place)
            if len(frames) == 4 and len(frames[1]) == 16:
                text = "the beacon's address is of 16 octets, not of 32 hexadecimal digits"
                self.report("address.uuid", text, place, "uuid", "octets")
        if parts:
            self._add_node(parts["uuid"], endpoint)

    def _tower_said(self, frames: Sequence[bytes], parts: Mapping[str, bytes], fault: str) -> None:
        """A tower that is not the suite's told of a node."""
        if not parts or is_played(parts["uuid"]):
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
            self.connect_peers(endpoint)
        node.beacons.append(trio.current_time())
        self.tell()

    def _know(self, address: bytes) -> None:
        self.trace.name(address, self.label)
        self.watch.addresses.add(address)

    async def _find_nodes(self) -> None:
        expected = self.target.node_counts.get(self.role, 1)
        is_found = await self.wait(lambda: len(self.nodes) >= expected)
        problem = self.died() or f"no beacon of the {self.role.title} came within {self.seconds():g} s"
        self.require("beacon.interval", is_found, problem)
        is_heard = await self.wait(lambda: self._endpoints() <= self._ear.connected)
        silent = ", ".join(sorted(self._endpoints() - self._ear.connected))
        problem = self.died() or f"nobody answers at the endpoint that the beacon tells: {silent}"
        self.require("publisher.bound", is_heard, problem)
        await trio.sleep(SETTLE_S)
        if isinstance(self.introductions, TowerLink):
            await self._check_alone(self.introductions.pub_endpoint)

    async def _check_alone(self, pub_endpoint: str) -> None:
        """Where the suite joins a cluster, only one node can be the target. Raises `TargetError`."""
        await trio.sleep(INTERVAL_S)
        if self._strangers:
            which = f"say which one is the {self.role.title}, by the key address in its attach table"
            raise TargetError(f"several nodes beacon at {pub_endpoint}: {which}")

    def _endpoints(self) -> set[str]:
        return {node.endpoint for node in self.nodes.values()}

    def _forget_nodes(self) -> None:
        for node in self.nodes.values():
            self._ear.disconnect(node.endpoint)
        self.nodes.clear()

    def _find_fault(self, clause: str, message: str, event: int, field: str, reading: str) -> None:
        self.report(clause, message, event, field, reading)
        self.tell()
