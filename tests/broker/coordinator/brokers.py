"""Several brokers with their coordinators in the test's own event loop, which can be stopped and started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from dafka import Config
from dafka.broker.broker import Broker, open_broker
from dafka.broker.connections.security import ServerSecurity
from dafka.broker.core.coordination.state_records import SHARDS, shard_of
from dafka.testing.cluster import open_cluster
from tests.waiting import wait_until

DEADLINE_S = 60

HEARTBEAT_MS = 100
"""Brokers that start wait for two heartbeats of others."""

LEADER_TIMEOUT_MS = 3000
"""Long enough that no broker counts as dead because this machine has other things to do."""


class Brokers:
    """Brokers of one cluster.

    Attributes:
        running: The running brokers by name.
    """

    def __init__(self, config: Config, folder: Path, nursery: trio.Nursery) -> None:
        self.running: dict[str, Broker] = {}
        self._config = attrs.evolve(
            config, broker=attrs.evolve(config.broker, heartbeat_ms=HEARTBEAT_MS, leader_timeout_ms=LEADER_TIMEOUT_MS)
        )
        self._folder = folder
        self._nursery = nursery
        self._scopes: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    async def start(self, *names: str) -> list[Broker]:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self._nursery.start, self._run, name)
        return [self.running[name] for name in names]

    async def stop(self, name: str) -> None:
        scope, stopped = self._scopes.pop(name)
        scope.cancel()
        await stopped.wait()

    async def wait_committed(self) -> None:
        """Wait until each slot has one coordinator among the running brokers, which all of them know."""
        await wait_until(self._is_settled, "not every slot has one coordinator")

    def coordinator_of(self, name: str) -> Broker:
        return next(each for each in self.running.values() if shard_of(name) in served(each))

    def name_of(self, broker: Broker) -> str:
        return next(name for name, each in self.running.items() if each is broker)

    def have_joined(self) -> bool:
        """Return whether all brokers count for majorities of all slots, as far as each of them knows."""
        logs = [log for each in self.running.values() for log in each.node.log_table.logs("$coordinators")]
        wanted = SHARDS * len(self.running)
        return len(logs) == wanted and all(len(log.leadership.voters) == len(self.running) for log in logs)

    def _is_settled(self) -> bool:
        found = [number for each in self.running.values() for number in served(each)]
        if sorted(found) != list(range(SHARDS)):
            return False
        running = {each.node.address for each in self.running.values()}
        for broker in self.running.values():
            for number in range(SHARDS):
                log = broker.node.log_table.find_log("$coordinators", number)
                if log is None or log.leadership.leader not in running:
                    return False
        return True

    async def _run(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        stopped = trio.Event()
        with trio.CancelScope() as scope:
            settings = self._config.with_store(storage=f"sqlite:{self._folder}/{name}.db")
            async with open_broker(settings, ServerSecurity(settings.clients)) as broker:
                self.running[name] = broker
                self._scopes[name] = scope, stopped
                task_status.started()
                await trio.sleep_forever()
        del self.running[name]
        stopped.set()


def served(broker: Broker) -> list[int]:
    """Return the numbers of the slots that a broker serves."""
    return [slot.log.number for slot in broker._coordinators.served()]


@asynccontextmanager
async def open_brokers(folder: Path, *names: str) -> AsyncIterator[Brokers]:
    """Run a tower, and brokers that can be stopped."""
    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        brokers = Brokers(cluster.config, folder, nursery)
        await brokers.start(*names)
        await wait_until(brokers.have_joined, "brokers still join logs")  # two replicas need each other
        await brokers.wait_committed()
        yield brokers
        nursery.cancel_scope.cancel()
