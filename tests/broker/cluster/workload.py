"""All clients that work on a cluster while faults are applied, and what must be true of it in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import attrs
import trio

from tests.broker.cluster import topics, transactions
from tests.broker.cluster.brokers import READY_S, ProcessCluster, find_replicas, list_topics
from tests.broker.cluster.consumers import Group, Member, Reader
from tests.broker.cluster.replicas import compare_stopped, verify_running
from tests.broker.cluster.topics import Topics
from tests.broker.cluster.traffic import (
    IDEMPOTENT,
    REPEATING,
    TOPIC,
    Client,
    Records,
    Traffic,
    find_problems,
    read_settled,
)
from tests.broker.cluster.transactions import Transactions

REPEATED, PAID = "visits", "payments"
"""The topics of the producer without an id, and of the producers of transactions."""

MEMBERS = 3
PAYERS = 2
PAUSES = 12
FEW_LOGS = 3


@attrs.define(eq=False)
class Workload:
    """The clients of a cluster.

    Attributes:
        senders: Those that send records without an end. The first one's topic is that of the group.
    """

    senders: list[Traffic]
    payers: list[Transactions] = attrs.field(factory=list)
    readers: list[Reader] = attrs.field(factory=list)
    group: Group | None = None
    members: list[Member] = attrs.field(factory=list)
    topics: Topics | None = None
    _described: dict[str, Any] = attrs.field(factory=dict)

    @classmethod
    async def create(cls, cluster: ProcessCluster, logs: int, draw: Random) -> Workload:
        """Create all kinds of clients, and their topics."""
        servers = cluster.servers
        for topic, count in ((TOPIC, logs), (REPEATED, FEW_LOGS), (PAID, FEW_LOGS)):
            await cluster.create_topic(topic, count)
        group = Group(servers, TOPIC, logs)
        return cls(
            [Traffic(servers, logs, IDEMPOTENT), Traffic(servers, FEW_LOGS, REPEATING, REPEATED)],
            [Transactions(servers, f"payer-{number}", PAID, FEW_LOGS) for number in range(PAYERS)],
            [Reader(servers, TOPIC, logs), Reader(servers, PAID, FEW_LOGS)],
            group,
            [Member(group, servers, Random(draw.random())) for _ in range(MEMBERS)],
            Topics(servers, [each.url for each in cluster.brokers.values()]),
            await trio.to_thread.run_sync(topics.describe, servers, [TOPIC, REPEATED, PAID]),
        )

    def __iter__(self) -> Iterator[Client]:
        yield from (*self.senders, *self.payers, *self.readers, *self.members)
        yield from (each for each in (self.group, self.topics) if each is not None)

    @asynccontextmanager
    async def run(self, cluster: ProcessCluster) -> AsyncIterator[None]:
        """Run the clients during the block, and until the cluster is whole again."""
        limit = trio.CapacityLimiter(len(list(self)))
        async with trio.open_nursery() as nursery:
            try:
                for each in self:
                    nursery.start_soon(partial(trio.to_thread.run_sync, each.run, limiter=limit))
                await self.wait_more(cluster, "the start")
                yield
                await self.wait_more(cluster, "all faults")
                await cluster.wait_whole()
            finally:
                for each in self:
                    each.is_stopped.set()

    async def wait_more(self, cluster: ProcessCluster, after: str) -> None:
        """Wait until records of all logs are acknowledged that were sent after something, and transactions made."""
        sent = [list(each.sent) for each in self.senders]
        paid = [each.committed for each in self.payers]
        turns = 0 if self.topics is None else self.topics.turns

        def waiting() -> list[str]:
            """Return what has not gone on yet."""
            senders = zip(self.senders, sent, strict=True)
            payers = zip(self.payers, paid, strict=True)
            return [
                *(f"records of {each.topic}" for each, before in senders if not each.is_more_acknowledged(before)),
                *(
                    f"transactions of {each.name} ({each.waits_for})"
                    for each, before in payers
                    if each.committed <= before
                ),
                *(
                    f"changes of topics ({each.waits_for})"
                    for each in (self.topics,)
                    if each is not None and each.turns <= turns
                ),
            ]

        try:
            await cluster.wait_until(lambda: not waiting(), f"not every client goes on after {after}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {', '.join(waiting())}") from None

    async def find_problems(self, cluster: ProcessCluster) -> list[str]:
        """Return what is wrong with the cluster, which is stopped for it."""
        problems, logs = [], dict[str, list[Records]]()
        for sender in self.senders:
            logs[sender.topic] = await self._read(cluster, sender.topic, len(sender.sent))
            problems += find_problems(sender, logs[sender.topic])
            for pause, ended in sorted(sender.pauses, reverse=True)[:PAUSES]:
                faults = "; ".join(cluster.timeline.faults_between(ended - pause, ended))
                cluster.timeline.note(f"a log of {sender.topic} paused for {pause:.1f} s: {faults}")
            cluster.timeline.note(f"acknowledged of {sender.topic}: {sum(map(len, sender.offsets))}")
        if self.payers:
            for payer in self.payers:
                await trio.to_thread.run_sync(payer.open)
            logs[PAID] = await self._read(cluster, PAID, FEW_LOGS)
            problems += transactions.find_problems(self.payers, logs[PAID])
            cluster.timeline.note(f"transactions: {sum(len(each.outcomes) for each in self.payers)}")
        for reader in self.readers:
            problems += reader.find_problems(logs[reader.topic])
        if self.group is not None:
            await trio.to_thread.run_sync(self.members[0].finish)
            problems += [problem for member in self.members for problem in member.problems]
            problems += self.group.find_problems(logs[self.group.topic])
            problems += await trio.to_thread.run_sync(self._find_position_problems, logs[self.group.topic])
        if self.topics is not None:
            problems += await trio.to_thread.run_sync(self._find_topic_problems, cluster, self.topics)
        problems += await self._compare_replicas(cluster, logs)
        return [*problems, *cluster.timeline.problems]

    async def _read(self, cluster: ProcessCluster, topic: str, logs: int) -> list[Records]:
        return await trio.to_thread.run_sync(read_settled, cluster.servers, topic, logs)

    def _find_position_problems(self, logs: list[Records]) -> list[str]:
        assert self.group is not None
        found = self.group.ask_positions(self.group.open())
        ends = {log: records[-1][0] + 1 for log, records in enumerate(logs)}
        return [] if found == ends else [f"the group has the positions {found}, and the logs end at {ends}"]

    def _find_topic_problems(self, cluster: ProcessCluster, client: Topics) -> list[str]:
        problems = []
        for broker in cluster.brokers.values():
            problems += client.find_problems(list_topics(broker.servers))
            if (described := topics.describe(broker.servers, list(self._described))) != self._described:
                problems.append(f"{broker.name} has other topics than at first: {described}, not {self._described}")
        return problems

    async def _compare_replicas(self, cluster: ProcessCluster, logs: dict[str, list[Records]]) -> list[str]:
        brokers = list(cluster.brokers.values())
        problems = await trio.to_thread.run_sync(verify_running, brokers[0])
        replicas = {topic: find_replicas(brokers[0].servers, topic) for topic in logs}
        async with trio.open_nursery() as nursery:
            for broker in brokers:
                nursery.start_soon(broker.node.terminate, READY_S)
        return problems + await trio.to_thread.run_sync(compare_stopped, brokers, replicas, logs)
