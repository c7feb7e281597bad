"""The faults: each is applied to the cluster, lasts for its time, and is healed."""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import attrs
import trio

from dafka.events import StorageFailed, StorageLost
from tests.chaos.cluster import Cluster, StoreNode
from tests.chaos.processes import Node
from tests.chaos.proxy import GOOD, Conditions
from tests.chaos.timeline import Timeline

POLL_S = 0.5

NOTICED_S = 60.0
"""Seconds within which a ready store must notice that its storage was taken away."""

FAILED = str(StorageFailed("")).rstrip(": ")
LOST = str(StorageLost("")).rstrip(": ")

COPY_AGE_S = 3
"""The age of an older copy, as a multiple of the fault's duration."""


class Faults:
    """Applies faults to a cluster.

    Attributes:
        counts: The faults so far, by kind.
    """

    def __init__(self, cluster: Cluster, timeline: Timeline, caught_up_s: float) -> None:
        """Create it. A store that has lost records must have them again after `caught_up_s` seconds."""
        self.counts: dict[str, int] = {}
        self._caught_up_s = caught_up_s
        self._cluster = cluster
        self._timeline = timeline
        self._is_losing = False

    async def run(self, faults: Sequence[Fault]) -> None:
        """Apply faults in order, each not before its time."""
        for fault in faults:
            await trio.sleep(max(fault.at_s - self._timeline.now, 0))
            await self.do(fault)

    async def do(self, fault: Fault) -> None:
        action, _, role = fault.kind.partition("-")
        if fault.kind in _NETWORK:
            await self._disturb(fault)
        elif action == "kill":
            await self._kill(self._choose(role, fault), fault)
        elif action == "stop":
            await self._stop(self._choose(role, fault)[0], fault)
        else:
            stores = self._cluster.stores
            done = {"disk-full": self._fill_disk, "delete-storage": self._delete, "older-copy": self._restore}
            await done[fault.kind](stores[fault.choice % len(stores)], fault)
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1

    def _choose(self, role: str, fault: Fault) -> list[Node]:
        """Return the node to disturb, or all stores."""
        cluster = self._cluster
        if role == "stores":
            return [store.node for store in cluster.stores]
        nodes = {
            "tower": [cluster.tower],
            "store": [store.node for store in cluster.stores],
            "producer": [producer.node for producer in cluster.producers],
            "consumer": [consumer.node for consumer in cluster.consumers],
        }[role]
        return [nodes[fault.choice % len(nodes)]]

    async def _kill(self, nodes: Sequence[Node], fault: Fault) -> None:
        """Kill all of these nodes at the same moment."""
        names = ", ".join(node.name for node in nodes)
        async with AsyncExitStack() as stack:
            for node in nodes:
                await stack.enter_async_context(node.lock)
            self._timeline.fault(f"killed, and started again after {fault.duration_s:.1f} s: {names}")
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(node.kill)
            await trio.sleep(fault.duration_s)
            if len(nodes) == len(self._cluster.stores) and nodes[0] is self._cluster.stores[0].node:
                await self._check_durable()
            for node in nodes:
                node.start()
        self._timeline.healed(f"started again: {names}")

    async def _check_durable(self) -> None:
        """Check, while all stores are dead, that enough disks hold each acknowledged record.

        One disk less is enough while a store lacks what it lost.
        """
        wanted = self._acknowledged()
        held = [await store.partitions() or {} for store in self._cluster.stores]
        stores_min = self._cluster.min_stores - self._is_losing
        for address, end in wanted.items():
            ends = [partitions[address].end_sequence if address in partitions else 0 for partitions in held]
            if sum(each >= end for each in ends) < stores_min:
                self._timeline.problem(f"{end} records of {address} were acknowledged, and on disks are {ends}")

    async def _stop(self, node: Node, fault: Fault) -> None:
        async with node.lock:
            self._timeline.fault(f"{node.name} is stopped for {fault.duration_s:.1f} s")
            node.signal(signal.SIGSTOP)
            try:
                await trio.sleep(fault.duration_s)
            finally:
                node.signal(signal.SIGCONT)
        self._timeline.healed(f"{node.name} goes on")

    async def _disturb(self, fault: Fault) -> None:
        """Disturb all connections to one node. The two links of a tower get the same conditions."""
        names = list(self._cluster.links)
        name = names[fault.choice % len(names)]
        links = self._cluster.links[name]
        conditions = _NETWORK[fault.kind](fault.severity)
        self._timeline.fault(f"connections to {name}: {fault.kind} for {fault.duration_s:.1f} s, {conditions}")
        for link in links:
            link.set(conditions)
            if fault.kind in ("reset", "cut"):
                link.reset()
        await trio.sleep(fault.duration_s)
        for link in links:
            link.set(GOOD)
        self._timeline.healed(f"connections to {name} are good again")

    async def _fill_disk(self, store: StoreNode, fault: Fault) -> None:
        """Let every write to a file fail until the store has noticed."""
        node = store.node
        async with node.lock:
            await self._wait_ready(node)
            process = node.process_id
            self._timeline.fault(f"the disk of {node.name} is full for {fault.duration_s:.1f} s")
            _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
            node.listen_for(FAILED)
            resource.prlimit(process, resource.RLIMIT_FSIZE, (1, hard))
            try:
                await trio.sleep(fault.duration_s)
                await self._wait_noticed(node, FAILED)
            finally:
                with suppress(ProcessLookupError):
                    resource.prlimit(process, resource.RLIMIT_FSIZE, (hard, hard))
        self._timeline.healed(f"the disk of {node.name} has room again")

    async def _delete(self, store: StoreNode, fault: Fault) -> None:
        """Delete the storage of a running store, which must notice and start anew."""
        if not await self._wait_caught_up(f"before the storage of {store.node.name} is deleted"):
            return
        with_log = bool(fault.choice & 2**20)
        async with store.node.lock:
            await self._wait_ready(store.node)
            self._timeline.fault(f"the storage of {store.node.name} is deleted beneath it")
            self._is_losing = True
            store.node.listen_for(LOST)
            await trio.to_thread.run_sync(_delete_storage, store.path, with_log)
            await self._wait_noticed(store.node, LOST)
        self._is_losing = not await self._wait_caught_up(f"after the storage of {store.node.name} was deleted")

    async def _restore(self, store: StoreNode, fault: Fault) -> None:
        """Kill a store, copy its storage, and later kill it again and give it the copy."""
        node = store.node
        age_s = fault.duration_s * COPY_AGE_S
        if not await self._wait_caught_up(f"before {node.name} is given an older copy of its storage"):
            return
        copy = store.path.with_name(f"{store.path.name}.copy")
        async with node.lock:
            self._timeline.fault(f"{node.name} is killed, and given a copy of its storage {age_s:.1f} s later")
            await node.kill()
            await trio.to_thread.run_sync(_copy_storage, store.path, copy)
            node.start()
        await trio.sleep(age_s)
        async with node.lock:
            await node.kill()
            self._is_losing = True
            await trio.to_thread.run_sync(_put_back, copy, store.path)
            node.start()
            self._timeline.note(f"{node.name} is started with its older copy")
        self._is_losing = not await self._wait_caught_up(f"after {node.name} was given an older copy of its storage")

    async def _wait_caught_up(self, when: str) -> bool:
        """Wait until every store has what is acknowledged now. Report a problem if that takes too long."""
        wanted = self._acknowledged()
        begun = self._timeline.now
        with trio.move_on_after(self._caught_up_s):
            while not await self._has_all(wanted):  # noqa: ASYNC110 (other processes' files)
                await trio.sleep(POLL_S)
            self._timeline.healed(f"every store has all records ({when}; {self._timeline.now - begun:.1f} s)")
            return True
        self._timeline.problem(f"a store lacks acknowledged records for {self._caught_up_s:.0f} s, {when}")
        return False

    async def _wait_ready(self, node: Node) -> None:
        with trio.move_on_after(NOTICED_S) as scope:
            await node.wait_ready()
        if scope.cancelled_caught:
            self._timeline.problem(f"{node.name} is not ready within {NOTICED_S:.0f} s")

    async def _wait_noticed(self, node: Node, text: str) -> None:
        with trio.move_on_after(NOTICED_S) as scope:
            await node.wait_said(text)
        if scope.cancelled_caught:
            self._timeline.problem(f"{node.name} has not said {text!r} within {NOTICED_S:.0f} s")

    def _acknowledged(self) -> dict[str, int]:
        self._cluster.poll()
        return {
            address: published.acknowledged
            for producer in self._cluster.producers
            for address, published in producer.ledger.partitions.items()
        }

    async def _has_all(self, wanted: dict[str, int]) -> bool:
        for store in self._cluster.stores:
            held = await store.partitions()
            if held is None:
                return False
            if any(
                end and (address not in held or held[address].end_sequence < end) for address, end in wanted.items()
            ):
                return False
        return True


_NETWORK: dict[str, Callable[[float], Conditions]] = {
    "delay": lambda severity: Conditions(delay_s=0.005 + 0.25 * severity),
    "throttle": lambda severity: Conditions(bytes_per_s=100_000 + 3_000_000 * severity),
    "loss": lambda severity: Conditions(delay_s=0.02, loss=0.01 + 0.1 * severity),
    "stall": lambda severity: Conditions(is_stalled=True),
    "reset": lambda severity: Conditions(),
    "refuse": lambda severity: Conditions(is_refusing=True),
    "cut": lambda severity: Conditions(is_refusing=True),
}


def _files(path: Path) -> list[Path]:
    """Return a SQLite file and the files that SQLite keeps next to it."""
    return [each for suffix in ("", "-wal", "-shm") if (each := path.with_name(path.name + suffix)).exists()]


def _delete_storage(path: Path, with_log: bool) -> None:
    """Delete a file log, or a database with or without its log. A folder is renamed first, as a trash bin does."""
    if path.is_dir():
        gone = path.with_name(f"{path.name}.deleted")
        path.rename(gone)
        shutil.rmtree(gone)
        return
    for file in _files(path) if with_log else [path]:
        file.unlink()


def _copy_storage(path: Path, copy: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, copy)
        return
    for file in _files(path):
        shutil.copyfile(file, copy.with_name(copy.name + file.name.removeprefix(path.name)))


def _put_back(copy: Path, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        copy.rename(path)
        return
    for file in _files(path):
        file.unlink()
    for file in _files(copy):
        file.rename(path.with_name(path.name + file.name.removeprefix(copy.name)))


PROCESS_FAULTS = (
    *("kill-store", "kill-stores", "kill-producer", "kill-consumer", "kill-tower"),
    *("stop-store", "stop-producer", "stop-consumer", "stop-tower", "disk-full"),
)
"""Faults of processes and their disks. One at a time."""

LOSSES = ("delete-storage", "older-copy")
"""Faults that take records away from a store. The next one waits until those records are back."""

NETWORK_FAULTS = ("delay", "throttle", "loss", "stall", "reset", "refuse", "cut")
"""Faults of the connections to one node. One at a time, at the same time as other faults."""

FAULTS = (*PROCESS_FAULTS, *LOSSES, *NETWORK_FAULTS)


@attrs.frozen
class Fault:
    """A fault, with its time in seconds after the start. It waits until the faults before it allow it.

    The remainder of `choice` chooses the node and other details. `severity` is between 0 and 1.
    """

    kind: str
    at_s: float
    duration_s: float
    choice: int
    severity: float


@attrs.frozen(kw_only=True)
class Pace:
    """How often faults come and how long they last: ranges in seconds.

    Storages are deleted only until `delete_until_s`, because a store fetches everything that it has lost.
    """

    calm_s: float = 8.0
    gap_s: tuple[float, float] = (6.0, 25.0)
    duration_s: tuple[float, float] = (0.5, 8.0)
    losses_every_s: float = 240.0
    delete_until_s: float = 600.0


Lanes = tuple[list[Fault], list[Fault], list[Fault]]
"""The faults of processes and disks, those that take records away, and those of the network.

Each lane has one fault at a time, independently of the others.
"""


def plan(seed: int, pace: Pace, length_s: float = 0.0, only: Sequence[str] = FAULTS) -> Lanes:
    """Return the faults of a run of this length: in each lane all kinds, and all again, each time in another order."""
    random = Random(seed)

    def lane(kinds: Sequence[str], gap_s: tuple[float, float]) -> list[Fault]:
        chosen, faults, at_s = [kind for kind in kinds if kind in only], list[Fault](), pace.calm_s
        while chosen and (not faults or at_s < length_s - pace.calm_s):
            for kind in random.sample(chosen, len(chosen)):
                duration_s = random.uniform(*pace.duration_s)
                faults.append(Fault(kind, at_s, duration_s, random.randrange(2**31), random.random()))
                at_s += duration_s + random.uniform(*gap_s)
            chosen = [kind for kind in chosen if kind != "delete-storage" or at_s <= pace.delete_until_s]
        return faults

    return lane(PROCESS_FAULTS, pace.gap_s), lane(LOSSES, (pace.losses_every_s,) * 2), lane(NETWORK_FAULTS, pace.gap_s)
