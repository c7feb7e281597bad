"""Several brokers with their coordinators, on a virtual network and a clock that jumps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from dafka.broker.broker import Broker
from dafka.broker.connections.security import ServerSecurity
from dafka.broker.core.coordination.state_records import COORDINATORS_TOPIC, SHARDS, shard_of
from dafka.config import Config
from tests.broker.replication.virtual_cluster import VirtualCluster, open_virtual_cluster, wait_for


class Brokers:
    """Brokers of one cluster; the running ones by their names."""

    def __init__(self, cluster: VirtualCluster, nursery: trio.Nursery) -> None:
        self.running: dict[str, Broker] = {}
        self._cluster = cluster
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}

    async def start(self, *names: str, are_cut: bool = False) -> None:
        await self._cluster.start(*names, are_cut=are_cut)
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self._nursery.start, self._run, name)

    async def stop(self, broker: Broker) -> None:
        (name,) = (name for name, each in self.running.items() if each is broker)
        del self.running[name]
        self._scopes.pop(name).cancel()
        await self._cluster.stop(name)

    async def wait_committed(self) -> None:
        """Wait until each slot has one coordinator among the running brokers, which all of them know."""
        await wait_for(self._is_settled)

    def coordinator_of(self, name: str) -> Broker:
        return next(each for each in self.running.values() if shard_of(name) in served(each))

    def have_joined(self) -> bool:
        """Return whether all brokers count for majorities of all slots, as far as each of them knows."""
        logs = [log for each in self.running.values() for log in each.node.log_table.logs(COORDINATORS_TOPIC)]
        wanted = SHARDS * len(self.running)
        return len(logs) == wanted and all(len(log.leadership.voters) == len(self.running) for log in logs)

    def _is_settled(self) -> bool:
        found = [number for each in self.running.values() for number in served(each)]
        running = {each.node.address for each in self.running.values()}
        logs = [each.node.log_table.find_log(COORDINATORS_TOPIC, n) for each in self.running.values() for n in found]
        return sorted(found) == [*range(SHARDS)] and all(log and log.leadership.leader in running for log in logs)

    async def _run(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        config = Config()
        broker = Broker(self._cluster.brokers[name], config, ServerSecurity(config.clients))
        with trio.CancelScope() as self._scopes[name]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(broker.run)
                await broker.has_started.wait()
                self.running[name] = broker
                task_status.started()


def served(broker: Broker) -> list[int]:
    """Return the numbers of the slots that a broker serves."""
    return [slot.log.number for slot in broker._coordinators.served()]


@asynccontextmanager
async def open_brokers(*names: str) -> AsyncIterator[Brokers]:
    """Run brokers that can be stopped."""
    async with open_virtual_cluster() as cluster, trio.open_nursery() as nursery:
        brokers = Brokers(cluster, nursery)
        await brokers.start(*names)
        await wait_for(brokers.have_joined)  # two replicas need each other
        await brokers.wait_committed()
        yield brokers
        nursery.cancel_scope.cancel()
