"""Many nodes that start at once: counts the connections and messages of the cluster, and its time until all is stored.

    python -m tests.simulation.crowd --nodes 1000

The nodes are those of the simulation, without faults: producers that publish one record each, two stores, three
consumers and a tower. All nodes share the cores of one machine. A node handles a message in `MESSAGE_S`, and waits for
a core if all are busy. So a storm of messages takes virtual time, as on a real machine.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import deque
from collections.abc import Iterator

import attrs

from dafka.config import Config
from tests.simulation.cluster import Cluster
from tests.simulation.nodes import SimulatedNode
from tests.simulation.plan import Member, Plan

TOPIC = "orders"
STORES, CONSUMERS, CORES = 2, 3, 2
MESSAGE_S = 20e-6
"""Seconds of a core in which a node handles a message."""
STEP_S = 0.05
"""Virtual seconds between two looks at whether everything is stored."""
SETTLE_S_MAX = 120.0
"""Virtual seconds after which the crowd is given up."""
REST_S = 10.0
"""Virtual seconds between joining and counting the messages of an idle cluster, until joining has no more effects."""
IDLE_S = 10.0
"""Virtual seconds in which the messages of an idle cluster are counted."""
CONNECTIONS_MAX = 2.5 * (STORES + CONSUMERS)
"""Connections for each producer: to and from each store and consumer, and a few of stores and consumers themselves."""
JOINING_MAX = {"producer": 100.0, "store": 20.0, "consumer": 20.0, "tower": 10.0}
"""Messages of the busiest node of a role until everything is stored; those of a store, a consumer and the tower are for
each node."""
IDLE_MAX = {"producer": 10.0, "store": 5.0, "consumer": 5.0, "tower": 2.0}
"""The same, per second of an idle cluster."""


@attrs.frozen
class CrowdReport:
    """The cost of a crowd.

    Attributes:
        nodes: The number of producers.
        stored_s: Virtual seconds until every first record was stored in all stores; None if that took too long.
        stored: The number of records stored by then.
        connections: The number of connections between nodes.
        joining: By role, the messages of the busiest node until everything was stored, in the units of `JOINING_MAX`.
        idle: The same, per second of the idle cluster.
        run_s: The processor time of the simulation, in seconds.
    """

    nodes: int
    stored_s: float | None
    stored: int
    connections: int
    joining: dict[str, float]
    idle: dict[str, float]
    run_s: float

    def excesses(self) -> Iterator[str]:
        """Yield a sentence about each figure that grows faster than the crowd, even for a single node."""
        if self.stored_s is None:
            yield f"{self.stored:,} of {self.nodes:,} stored after {SETTLE_S_MAX:.0f} s"
        if (each := self.connections / self.nodes) > CONNECTIONS_MAX:
            yield f"{each:,.1f} connections for each producer, at most {CONNECTIONS_MAX} expected"
        for title, found, limits in (("joining", self.joining, JOINING_MAX), ("idle", self.idle, IDLE_MAX)):
            for role, limit in limits.items():
                if found[role] > limit:
                    yield f"{title}: {role}: {found[role]:,.1f} messages of the busiest, at most {limit} expected"


class Crowd(Cluster):
    """A cluster of many producers that start at once."""

    def __init__(self, producers: int, cores: int = CORES, message_s: float = MESSAGE_S) -> None:
        # Names of one length, as UUIDs have: a producer that is named as the beginning of others would hear their ACKs.
        width = len(str(producers))
        members = [
            Member("T1", "tower"),
            *(Member(f"S{number}", "store") for number in range(1, STORES + 1)),
            *(Member(f"C{number}", "consumer", topics=(TOPIC,)) for number in range(1, CONSUMERS + 1)),
            *(Member(f"P{number:0{width}}", "producer", topics=(TOPIC,)) for number in range(1, producers + 1)),
        ]
        super().__init__(Plan(1, Config(), tuple(members), (), chunk_records_max=1000, disk_s=0.002))
        self._first_form_only = frozenset()
        self._reversed_share = 0.0  # libzmq sends subscriptions in the order of their bytes
        self._size = producers
        self._message_s = message_s
        self._idle_cores = cores
        self._queue: deque[SimulatedNode] = deque()
        self._beacons = 0

    def wake(self, node: SimulatedNode, delay: float) -> None:
        self.clock.after(delay, self._wait_for_core, node)

    def _wait_for_core(self, node: SimulatedNode) -> None:
        self._queue.append(node)
        self._use_cores()

    def _use_cores(self, released: int = 0) -> None:
        """Let nodes handle everything that has arrived for them, as long as cores are idle."""
        self._idle_cores += released
        while self._idle_cores and self._queue:
            node = self._queue.popleft()
            seconds = node.waiting * self._message_s
            self._idle_cores -= 1
            node.look()
            self.clock.after(seconds, self._use_cores, 1)

    def send_to_tower(self, node: SimulatedNode, tower: int, frames: list[bytes]) -> None:
        self._beacons += 1
        super().send_to_tower(node, tower, frames)

    def measure(self) -> CrowdReport:
        """Start all nodes at once, wait until everything is stored, and count the messages."""
        began = time.process_time()
        for member in self.plan.members:
            self._start(member)
        for producer in self.producers.values():
            producer.publish_records(1)
        stored_s = None
        while stored_s is None and self.clock.now < SETTLE_S_MAX:
            self.clock.run(self.clock.now + STEP_S)
            if self._stored() == self._size:
                stored_s = self.clock.now
        stored = self._stored()
        joining = self._messages(0, {})
        self.clock.run(self.clock.now + REST_S)
        connections = sum(len(node.outgoing) for node in self.nodes())
        before = self._beacons, {node.name: node.handled for node in self.nodes()}
        self.clock.run(self.clock.now + IDLE_S)
        idle = {role: found / IDLE_S for role, found in self._messages(*before).items()}
        return CrowdReport(self._size, stored_s, stored, connections, joining, idle, time.process_time() - began)

    def _stored(self) -> int:
        """Return the number of producers whose record is stored in every store, and acknowledged."""
        return sum(
            producer.machine.acknowledged_end == 1
            and all(store.disk.end(producer.partition) == 1 for store in self.stores.values())
            for producer in self.producers.values()
        )

    def _messages(self, beacons: int, handled: dict[str, int]) -> dict[str, float]:
        """Return the messages since these counts, in the units of `JOINING_MAX`."""
        found = {"tower": (self._beacons - beacons) / len(self.nodes())}
        roles = (
            ("producer", self.producers, 1),
            ("store", self.stores, self._size),
            ("consumer", self.consumers, self._size),
        )
        for role, nodes, share in roles:
            found[role] = max(node.handled - handled.get(name, 0) for name, node in nodes.items()) / share
        return found


def main() -> None:
    """Simulate crowds of several sizes, and print their costs."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.crowd", description=main.__doc__)
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[10, 100, 300], metavar="N", help="numbers of producers"
    )
    parser.add_argument("--cores", type=int, default=CORES, help="cores that all nodes share (default: %(default)s)")
    arguments = parser.parse_args()
    # The objects of a crowd refer to each other all the time: looking for garbage among them costs a third of the time.
    gc.disable()
    for nodes in arguments.nodes:
        report = Crowd(nodes, arguments.cores).measure()
        print("\n".join(f"{name}: {value}" for name, value in attrs.asdict(report).items()), flush=True)
        for excess in report.excesses():
            print(f"  too much: {excess}")


if __name__ == "__main__":
    main()
