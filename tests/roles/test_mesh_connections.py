"""Nodes connect to the nodes that their role needs, and to no others (docs/reference/beacons.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import attrs
import trio
import zmq

from dafka import Config, Consumer, Producer, Store, Tower, open_consumer, open_producer, serve_tower
from dafka.protocol import PeerJoined, PeerLeft
from dafka.transport import Socket, open_context
from dafka.wire import BEACON
from tests.roles.closed_cluster import Keys
from tests.roles.helpers import DEADLINE_S, open_store
from tests.waiting import wait_until

FREE = "tcp://127.0.0.1:*"
FIRST_FORM = "first form"

AnyNode: TypeAlias = Producer | Consumer | Store

KNOWN = {
    "producer": ("store", "consumer", FIRST_FORM),
    "consumer": ("producer", "store", FIRST_FORM),
    "store": ("producer", "store", "consumer", FIRST_FORM),
    FIRST_FORM: ("producer", "store", "consumer", FIRST_FORM),
}
"""The connections of a node of each kind. A node that uses the first form of beacons cannot say which role it has."""


@attrs.define(eq=False)
class Member:
    """A node, and the nodes that it has found and lost since its start."""

    kind: str
    node: AnyNode
    joined: Counter[str] = attrs.field(factory=Counter)
    left: Counter[str] = attrs.field(factory=Counter)

    async def watch(self) -> None:
        async for event in self.node.events:
            if isinstance(event, PeerJoined):
                self.joined[event.address] += 1
            elif isinstance(event, PeerLeft):
                self.left[event.address] += 1


class Mesh:
    """The nodes of one cluster, each with its kind."""

    def __init__(self, config: Config, keys: Keys | None, nursery: trio.Nursery) -> None:
        self.config = config
        self.members: list[Member] = []
        self._keys = keys
        self._nursery = nursery

    async def add(self, role: str, count: int = 1, *, first_form_sub: tuple[str, ...] = ()) -> None:
        """Add nodes that use the first form only if `first_form_sub` names relays, otherwise the second one."""
        config = self.config if self._keys is None else self._keys.config(role, self.config)
        if first_form_sub:
            config = config.with_beacon(tower_sub=first_form_sub, tower_pub=config.beacon.tower_pub)
        for _ in range(count):
            node = await self._nursery.start(_run_node, role, config)
            member = Member(FIRST_FORM if first_form_sub else role, node)
            self._nursery.start_soon(member.watch)
            self.members.append(member)

    async def publish(self) -> None:
        """Publish one record of each producer, and wait until two stores have acknowledged it."""
        with trio.fail_after(DEADLINE_S):
            for member in self.members:
                await member.node.wait_settled()
            producers = [member.node for member in self.members if isinstance(member.node, Producer)]
            for producer in producers:
                await producer.send(b"0")
            for producer in producers:
                await producer.wait_stored()

    async def check(self) -> None:
        """Check that each node has found each node that it needs once, no other one, and has lost none.

        One more consumer and one more store come last. A tower introduces nodes in order, so a node that has found both
        has found all that this tower tells it of.
        """
        await self.add("consumer")
        await self.add("store")
        expected = {
            member: {
                other.node.address: 1
                for other in self.members
                if other is not member and other.kind in KNOWN[member.kind]
            }
            for member in self.members
        }
        last = {member.node.address for member in self.members[-2:]}
        try:
            await wait_until(lambda: all(set(found) & last <= set(m.joined) for m, found in expected.items()))
            await wait_until(lambda: all(m.joined.total() >= len(found) for m, found in expected.items()))
        finally:
            for member, found in expected.items():
                assert (member.kind, member.joined) == (member.kind, found)
        for member in self.members:
            assert not member.left
            assert member.node.statistics().peers == len(expected[member])


async def _run_node(role: str, config: Config, *, task_status: trio.TaskStatus[AnyNode]) -> None:
    opened: AbstractAsyncContextManager[AnyNode]
    if role == "producer":
        opened = open_producer("t", config)
    else:
        opened = open_consumer(["t"], config) if role == "consumer" else open_store(config)
    async with opened as node:
        task_status.started(node)
        await trio.sleep_forever()


@asynccontextmanager
async def open_mesh(*towers: Tower, keys: Keys | None = None) -> AsyncIterator[Mesh]:
    config = (
        Config()
        .with_beacon(
            tower_sub=tuple(tower.sub_endpoint for tower in towers),
            tower_pub=tuple(tower.pub_endpoint for tower in towers),
        )
        .with_node(bind=FREE)
        .with_producer(min_stores=2)
    )
    async with trio.open_nursery() as nursery:
        yield Mesh(config, keys, nursery)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_tower(config: Config | None = None, sub: str = FREE, pub: str = FREE) -> AsyncIterator[Tower]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_tower, (config or Config()).with_tower(sub=sub, pub=pub))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_first_form_relay(tower: Tower) -> AsyncIterator[str]:
    """Pass beacons of the first form on to a tower. Nodes take the relay for a tower that knows only this form."""
    async with open_context(0) as context, trio.open_nursery() as nursery:
        nodes, onward = Socket(context.socket(zmq.SocketType.SUB)), Socket(context.socket(zmq.SocketType.XPUB))
        try:
            endpoint = nodes.bind(FREE)
            nodes.subscribe(BEACON)
            onward.connect(tower.sub_endpoint)
            with trio.fail_after(DEADLINE_S):
                await onward.receive_many()

            async def pass_on() -> None:
                while True:
                    onward.send_many(await nodes.receive_many())

            nursery.start_soon(pass_on)
            yield endpoint
            nursery.cancel_scope.cancel()
        finally:
            nodes.close(0)
            onward.close(0)


async def test_nodes_connect_to_those_that_they_need() -> None:
    async with open_tower() as tower, open_mesh(tower) as mesh:
        await mesh.add("store", 2)
        await mesh.add("consumer", 2)
        await mesh.add("producer", 20)
        await mesh.publish()
        await mesh.check()


async def test_nodes_of_the_first_form_are_known_to_all_and_know_all() -> None:
    async with open_tower() as tower, open_first_form_relay(tower) as relay, open_mesh(tower) as mesh:
        await mesh.add("store")
        await mesh.add("producer", first_form_sub=(relay,))
        await mesh.add("store", first_form_sub=(relay,))
        await mesh.add("consumer")
        await mesh.add("producer", 3)
        await mesh.add("consumer", first_form_sub=(relay,))
        await mesh.publish()
        await mesh.check()


async def test_two_towers_introduce_each_node_once() -> None:
    async with open_tower() as one, open_tower() as other, open_mesh(one, other) as mesh:
        await mesh.add("store", 2)
        await mesh.add("consumer", 2)
        await mesh.add("producer", 4)
        await mesh.publish()
        await mesh.check()


async def test_a_restarted_tower_ends_no_connection() -> None:
    async with open_tower() as tower:
        pass
    async with open_mesh(tower) as mesh:
        async with open_tower(sub=tower.sub_endpoint, pub=tower.pub_endpoint):
            await mesh.add("store", 2)
            await mesh.add("consumer", 2)
            await mesh.add("producer", 4)
            await mesh.publish()
        async with open_tower(sub=tower.sub_endpoint, pub=tower.pub_endpoint) as restarted:
            await wait_until(lambda: restarted.statistics().nodes == len(mesh.members))
            await mesh.publish()
            await mesh.check()


async def test_nodes_of_a_closed_cluster_connect_to_those_that_they_need(tmp_path: Path) -> None:
    keys = Keys(tmp_path, "store", "consumer", "producer")
    async with open_tower(keys.config("tower")) as tower, open_mesh(tower, keys=keys) as mesh:
        await mesh.add("store", 2)
        await mesh.add("consumer", 2)
        await mesh.add("producer", 4)
        await mesh.publish()
        await mesh.check()
