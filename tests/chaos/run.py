"""A run: start a cluster, publish steadily while faults come and go, and check what the cluster promised.

The checks at the end are made from the ledgers of producers and consumers, and from the storages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import trio

from dafka.exceptions import unwrap_group
from dafka.storage import PartitionInfo, Storage, open_storage, read_range
from tests.chaos.cluster import Size, make_cluster
from tests.chaos.faults import Fault, Faults
from tests.chaos.ledger import Published, find_wrong
from tests.chaos.timeline import Timeline

STARTED_S = 60.0
"""Seconds until the first records must be acknowledged."""

CONVERGED_S = 180.0
"""Seconds after the last fault and the last record until all stores and consumers must have everything."""

CAUGHT_UP_S = 900.0
"""Seconds until a store must have its lost records again. They may be those of an hour."""

END_S = 150.0
"""Seconds within which a process must end on request."""

MEMORY_BYTES_MAX = 600 * 2**20
"""The most memory that a node may take at any time, in bytes."""


class Run:
    """One run, in a folder of its own. `result` has figures for the summary."""

    def __init__(
        self,
        size: Size,
        lanes: Sequence[Sequence[Fault]],
        folder: Path,
        seed: int,
        *,
        echo: TextIO | None = None,
        caught_up_s: float = CAUGHT_UP_S,
    ) -> None:
        self.timeline = Timeline(folder / "timeline.txt", echo)
        self.result: dict[str, object] = {}
        self._lanes = lanes
        self._cluster = make_cluster(size, folder, self.timeline, seed)
        self._faults = Faults(self._cluster, self.timeline, caught_up_s)
        self._checked: dict[str, int] = {}

    async def run(self, length_s: float) -> list[str]:
        """Run for at least `length_s` seconds, or until the last fault is healed. Return the problems."""
        timeline, cluster = self.timeline, self._cluster
        try:
            with unwrap_group():
                async with trio.open_nursery() as nursery:
                    await nursery.start(cluster.run)
                    nursery.start_soon(self._watch)
                    await self._start()
                    await self._trouble(length_s)
                    holdings = await self._finish()
                    nursery.cancel_scope.cancel()
            await self._check(holdings)
        finally:
            self._sum_up()
            timeline.close()
        return timeline.problems

    async def _start(self) -> None:
        cluster = self._cluster
        for node in cluster.nodes:
            node.start()
        with trio.move_on_after(STARTED_S) as scope:
            while not all(producer.ledger.acknowledged for producer in cluster.producers):
                await trio.sleep(0.05)
                cluster.poll()
        if scope.cancelled_caught:
            self.timeline.problem(f"not every producer has had records acknowledged within {STARTED_S:.0f} s")
        self.timeline.note("every producer has records acknowledged")

    async def _trouble(self, length_s: float) -> None:
        """Apply the faults, and wait until the length is reached."""
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for lane in self._lanes:
                    nursery.start_soon(self._faults.run, lane)
            await trio.sleep(max(length_s - self.timeline.now, 0))
        assert not scope.cancelled_caught
        self.timeline.note("no more faults")

    async def _finish(self) -> dict[str, dict[str, PartitionInfo]]:
        """End the producers, wait until every node has everything, end the rest, and return what the stores held."""
        cluster, timeline = self._cluster, self.timeline
        faults_end = timeline.now
        async with trio.open_nursery() as nursery:
            for producer in cluster.producers:
                nursery.start_soon(producer.node.terminate, END_S)
        timeline.note("producers have ended")
        cluster.poll()
        holdings: dict[str, dict[str, PartitionInfo]] = {}
        with trio.move_on_after(CONVERGED_S):
            while True:
                holdings = await self._holdings()
                cluster.poll()
                if not self._find_missing(holdings):
                    break
                await trio.sleep(0.2)
        for problem in self._find_missing(holdings):
            timeline.problem(f"{problem}, {CONVERGED_S:.0f} s after the last fault")
        self.result["converged_s"] = round(timeline.now - faults_end, 1)
        timeline.note(f"every store and consumer has everything {timeline.now - faults_end:.1f} s after the last fault")
        async with trio.open_nursery() as nursery:
            for node in reversed(cluster.nodes):
                if node.is_running:
                    nursery.start_soon(node.terminate, END_S)
        cluster.poll()
        return holdings

    async def _holdings(self) -> dict[str, dict[str, PartitionInfo]]:
        return {store.node.name: await store.partitions() or {} for store in self._cluster.stores}

    def _published(self) -> dict[str, Published]:
        return {
            address: published
            for producer in self._cluster.producers
            for address, published in producer.ledger.partitions.items()
        }

    def _find_missing(self, holdings: dict[str, dict[str, PartitionInfo]]) -> list[str]:
        """Return the records that stores and consumers lack, and those that they have too many of."""
        published = {address: each for address, each in self._published().items() if each.sent}
        problems = [problem for name, held in holdings.items() for problem in find_lost(name, held, published)]
        problems += find_different(holdings)
        for consumer in self._cluster.consumers:
            problems += find_unconsumed(consumer.node.name, consumer.ledger.ends, holdings.values())
        return problems

    async def _check(self, holdings: dict[str, dict[str, PartitionInfo]]) -> None:
        """Check everything once more, now that nothing is written, and read all contents."""
        timeline, cluster = self.timeline, self._cluster
        if await self._holdings() != holdings:
            timeline.problem("when stores were stopped, they held other records than before")
        for store in cluster.stores:
            count, problems = await find_wrong_contents(store.node.name, store.url)
            self._checked[store.node.name] = count
            for problem in problems:
                timeline.problem(problem)
        self._check_ledgers()

    def _check_ledgers(self) -> None:
        """Check the problems that producers and consumers noticed, and whether their lives are consistent."""
        timeline, cluster = self.timeline, self._cluster
        for producer in cluster.producers:
            for problem in producer.ledger.problems:
                timeline.problem(f"{producer.node.name}: {problem}")
            for address, published in producer.ledger.partitions.items():
                if published.is_complete and published.acknowledged < published.sent:
                    timeline.problem(f"{producer.node.name} ended with records of {address} unacknowledged")
        for consumer in cluster.consumers:
            for problem in consumer.ledger.problems:
                timeline.problem(f"{consumer.node.name}: {problem}")
        for node in cluster.nodes:
            if node.memory_peak > MEMORY_BYTES_MAX:
                timeline.problem(f"{node.name} took {node.memory_peak / 2**20:.0f} MiB of memory")

    async def _watch(self) -> None:
        """Read the ledgers and measure memory every second."""
        while True:
            self._cluster.poll()
            for node in self._cluster.nodes:
                node.look()
            await trio.sleep(1.0)

    def _sum_up(self) -> None:
        cluster = self._cluster
        with suppress(OSError):
            cluster.poll()
        published = self._published()
        self.result |= {
            "seconds": round(self.timeline.now, 1),
            "partitions": len(published),
            "records_published": sum(each.sent for each in published.values()),
            "records_acknowledged": sum(each.acknowledged for each in published.values()),
            "records_read_back": self._checked,
            "records_consumed": {each.node.name: each.ledger.records for each in cluster.consumers},
            "records_given_again_to_later_lives": {each.node.name: each.ledger.repeated for each in cluster.consumers},
            "faults": dict(sorted(self._faults.counts.items())),
            "starts": {node.name: node.starts for node in cluster.nodes},
            "memory_mib_peak": {node.name: round(node.memory_peak / 2**20) for node in cluster.nodes},
            "problems": self.timeline.problems,
        }


PROBLEMS_MAX = 20
"""Problems of one kind that are reported for one storage. Further ones add nothing."""

Holdings = Mapping[str, PartitionInfo]
"""The partitions that a store holds, by address."""


def find_lost(store: str, held: Holdings, published: Mapping[str, Published]) -> list[str]:
    """Return the acknowledged records that a store lacks, and those that no producer can have published."""
    problems = []
    for address, ought in published.items():
        info = held.get(address, PartitionInfo())
        if info.earliest_sequence:
            problems.append(f"{store} lacks the records of {address} before {info.earliest_sequence}")
        if info.end_sequence < ought.acknowledged:
            problems.append(
                f"{store} holds {address} up to {info.end_sequence}, and {ought.acknowledged} records were acknowledged"
            )
        if ought.is_complete and info.end_sequence != ought.sent:
            problems.append(f"{store} holds {info.end_sequence} records of {address}, and {ought.sent} were published")
        if ought.is_spooled and info.end_sequence < ought.sent:
            problems.append(f"{store} lacks records of {address} from {info.end_sequence} on, which a spool holds")
    problems += [
        f"{store} holds {address}, which no producer published" for address in held if address not in published
    ]
    return problems


def find_different(stores: Mapping[str, Holdings]) -> list[str]:
    """Return the partitions whose ranges differ between two stores."""
    problems = []
    (first, model), *others = stores.items()
    for name, held in others:
        for address in sorted({*model, *held}):
            one, other = model.get(address, PartitionInfo()), held.get(address, PartitionInfo())
            if _range(one) != _range(other):
                problems.append(f"of {address}, {first} holds {_range(one)}, {name} holds {_range(other)}")
    return problems


def find_unconsumed(consumer: str, ends: Mapping[str, int], stores: Iterable[Holdings]) -> list[str]:
    """Return the records that stores hold and a consumer never got."""
    longest: dict[str, int] = {}
    for held in stores:
        for address, info in held.items():
            longest[address] = max(longest.get(address, 0), info.end_sequence)
    return [
        f"{consumer} was given {address} up to {ends.get(address, 0)}, and stores hold {end}"
        for address, end in longest.items()
        if ends.get(address, 0) < end
    ]


async def find_wrong_contents(name: str, url: str) -> tuple[int, list[str]]:
    """Read a whole storage. Return the number of records, and what is wrong with them."""
    async with open_storage(url, read_only=True) as storage:
        return await read_all(name, storage)


async def read_all(name: str, storage: Storage) -> tuple[int, list[str]]:
    """Read a whole open storage. Return the number of records, and what is wrong with them."""
    problems: list[str] = []
    count = 0
    for partition, info in (await storage.partitions()).items():
        expected = info.earliest_sequence
        async for batch in read_range(storage, partition, expected, info.end_sequence):
            count += len(batch)
            if batch.first_sequence != expected:
                problems.append(f"{name}: {batch.first_sequence} of {partition} was read where {expected} was due")
            expected = batch.end_sequence
            problem = find_wrong(batch)
            if problem:
                problems.append(f"{name}: {problem}")
            if len(problems) >= PROBLEMS_MAX:
                return count, problems
        if expected != info.end_sequence:
            problems.append(f"{name}: {partition} can be read up to {expected} only, and holds {info.end_sequence}")
    return count, problems


def _range(info: PartitionInfo) -> str:
    return f"{info.earliest_sequence}..{info.end_sequence}"
