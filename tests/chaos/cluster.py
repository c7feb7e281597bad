"""The cluster under test: a tower, stores, producers and consumers, each a process behind a faulty link."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import trio

from dafka.errors import StorageError
from dafka.storage import PartitionInfo, open_storage
from tests.chaos.ledger import ConsumerLedger, LedgerReader, ProducerLedger
from tests.chaos.processes import Node
from tests.chaos.proxy import Link
from tests.chaos.timeline import Timeline
from tests.ports import free_ports

REAL_HOST = "127.0.0.1"
"""The host at which nodes listen."""

KNOWN_HOST = "127.0.0.2"
"""The host at which nodes reach each other. The links listen there, at the same ports."""

TOPICS = ("orders", "payments")

READY = "ready"
"""The line that our own scripts print when they handle signals."""


@attrs.frozen(kw_only=True)
class Size:
    """The size of a cluster. `rate` is that of all producers together, in records per second."""

    stores: int = 3
    producers: int = 4
    consumers: int = 2
    rate: float = 20_000
    beacon_ms: int = 1000

    @property
    def min_stores(self) -> int:
        """The number of stores that must acknowledge a record. With several stores, one may lose its file."""
        return min(self.stores, 2)


@attrs.frozen
class StoreNode:
    """A store and its storage."""

    node: Node
    url: str

    @property
    def path(self) -> Path:
        return Path(self.url.partition(":")[2])

    async def partitions(self) -> dict[str, PartitionInfo] | None:
        """Return what it holds, by address, as another process sees it; None if that cannot be read now."""
        try:
            async with open_storage(self.url, read_only=True) as storage:
                return {partition.address: info for partition, info in (await storage.partitions()).items()}
        except StorageError:
            return None


@attrs.frozen
class ProducerNode:
    node: Node
    ledger: ProducerLedger


@attrs.frozen
class ConsumerNode:
    node: Node
    ledger: ConsumerLedger


@attrs.frozen
class Cluster:
    """A cluster of processes, and the links between them.

    Attributes:
        min_stores: The number of stores that must acknowledge a record.
        links: The links to each node, by its name; a tower has two.
    """

    min_stores: int
    tower: Node
    stores: list[StoreNode]
    producers: list[ProducerNode]
    consumers: list[ConsumerNode]
    links: dict[str, list[Link]]

    @property
    def nodes(self) -> list[Node]:
        stores = [store.node for store in self.stores]
        producers = [producer.node for producer in self.producers]
        return [self.tower, *stores, *producers, *(consumer.node for consumer in self.consumers)]

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run links and processes until cancelled."""
        async with trio.open_nursery() as nursery:
            for links in self.links.values():
                for link in links:
                    await nursery.start(link.run)
            for node in self.nodes:
                nursery.start_soon(node.run)
            task_status.started()

    def poll(self) -> None:
        for producer in self.producers:
            producer.ledger.poll()
        for consumer in self.consumers:
            consumer.ledger.poll()


def make_cluster(size: Size, folder: Path, timeline: Timeline, seed: int) -> Cluster:
    """Return a cluster that is not started. Every second store is a file log; every second producer has a spool."""
    ports = iter(free_ports(2 + size.stores + size.producers + size.consumers, REAL_HOST, KNOWN_HOST))
    links: dict[str, list[Link]] = {}
    common = {
        "DAFKA_BEACON_ADVERTISE": KNOWN_HOST,
        "DAFKA_BEACON_INTERVAL_MS": str(size.beacon_ms),
        "DAFKA_BEACON_TIMEOUT_MS": str(4 * size.beacon_ms),
        "DAFKA_PRODUCER_MIN_STORES": str(size.min_stores),
        "DAFKA_PRODUCER_CLOSE_TIMEOUT_MS": "120000",
        "DAFKA_NODE_TOWER_TIMEOUT_MS": "120000",  # nodes are also started while the tower is away
        "DAFKA_STORE_RETRY_MS": "300",
    }

    def link(name: str) -> int:
        port = next(ports)
        links.setdefault(name, []).append(
            Link((KNOWN_HOST, port), (REAL_HOST, port), seed + sum(map(len, links.values())))
        )
        return port

    def node(name: str, *command: str, ready_line: str = READY, **environment: str) -> Node:
        bind = {"DAFKA_NODE_BIND": f"tcp://{REAL_HOST}:{link(name)}"} if name not in links else {}
        return Node(name, [sys.executable, *command], {**common, **bind, **environment}, folder, timeline, ready_line)

    sub, pub = link("tower"), link("tower")
    common["DAFKA_BEACON_TOWER_SUB"] = f"tcp://{KNOWN_HOST}:{sub}"
    common["DAFKA_BEACON_TOWER_PUB"] = f"tcp://{KNOWN_HOST}:{pub}"
    bound = ["--sub", f"tcp://{REAL_HOST}:{sub}", "--pub", f"tcp://{REAL_HOST}:{pub}"]
    tower = node("tower", "-m", "dafka", "tower", "-v", *bound, ready_line=" takes beacons ")

    stores = []
    for number in range(size.stores):
        url = f"sqlite:{folder}/store-{number}.db" if number % 2 == 0 else f"filelog:{folder}/store-{number}.log"
        name = f"store-{number}"
        stores.append(StoreNode(node(name, "-m", "dafka", "store", "-v", "--storage", url, ready_line=" keeps "), url))

    producers = []
    for number in range(size.producers):
        name = f"producer-{number}"
        ledger = folder / f"{name}.ledger"
        spool = {"DAFKA_PRODUCER_SPOOL": f"sqlite:{folder}/{name}.spool"} if number % 2 else {}
        arguments = [str(ledger), "produce", TOPICS[number % len(TOPICS)], str(size.rate / size.producers)]
        process = node(name, "-m", "tests.chaos.clients", *arguments, **spool)
        producers.append(ProducerNode(process, ProducerLedger(LedgerReader(ledger))))

    consumers = []
    for number in range(size.consumers):
        name = f"consumer-{number}"
        ledger = folder / f"{name}.ledger"
        positions = {
            "DAFKA_CONSUMER_OFFSET_RESET": "earliest",
            "DAFKA_CONSUMER_NAME": name,
            "DAFKA_CONSUMER_POSITIONS": f"sqlite:{folder}/{name}.positions",
        }
        process = node(name, "-m", "tests.chaos.clients", str(ledger), "consume", ",".join(TOPICS), **positions)
        consumers.append(ConsumerNode(process, ConsumerLedger(LedgerReader(ledger))))
    return Cluster(size.min_stores, tower, stores, producers, consumers, links)
