"""Nodes connect to the nodes that their role needs, and to no others (docs/reference/beacons.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import attrs
import trio

from dafka import Config, Consumer, Producer, Store, Tower, open_consumer, open_producer, serve_tower
from dafka.protocol import PeerJoined, PeerLeft
from tests.roles.helpers import DEADLINE_S, open_store
from tests.waiting import wait_until

FREE = "tcp://127.0.0.1:*"
AnyNode: TypeAlias = Producer | Consumer | Store

KNOWN = {
    "producer": ("store", "consumer"),
    "consumer": ("producer", "store"),
    "store": ("producer", "store", "consumer"),
}
"""The connections of a node of each role."""


@attrs.define(eq=False)
class Member:
    """A node, and the nodes that it has found and lost since its start."""

    role: str
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
    """The nodes of one cluster, each with its role."""

    def __init__(self, config: Config, nursery: trio.Nursery) -> None:
        self.config = config
        self.members: list[Member] = []
        self._nursery = nursery

    async def add(self, role: str, count: int = 1) -> None:
        """Add nodes of a role."""
        for _ in range(count):
            node = await self._nursery.start(_run_node, role, self.config)
            member = Member(role, node)
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
                if other is not member and other.role in KNOWN[member.role]
            }
            for member in self.members
        }
        last = {member.node.address for member in self.members[-2:]}
        try:
            await wait_until(lambda: all(set(found) & last <= set(m.joined) for m, found in expected.items()))
            await wait_until(lambda: all(m.joined.total() >= len(found) for m, found in expected.items()))
        finally:
            for member, found in expected.items():
                assert (member.role, member.joined) == (member.role, found)
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
async def open_mesh(*towers: Tower) -> AsyncIterator[Mesh]:
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
        yield Mesh(config, nursery)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_tower(config: Config | None = None, sub: str = FREE, pub: str = FREE) -> AsyncIterator[Tower]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_tower, (config or Config()).with_tower(sub=sub, pub=pub))
        nursery.cancel_scope.cancel()


async def test_nodes_connect_to_those_that_they_need() -> None:
    async with open_tower() as tower, open_mesh(tower) as mesh:
        await mesh.add("store", 2)
        await mesh.add("consumer", 2)
        await mesh.add("producer", 6)
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
