"""Faults of disks: a storage that has forgotten what it had, or that exists twice, and a broker that has lost its one.

Each begins while the cluster is whole. So one disk forgets at a time, and brokers that remember more are alive.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from tests.broker.cluster.brokers import BrokerNode, ProcessCluster, ask

DISK_FAULTS = ("old-disk", "old-disk-first", "cut-disk", "cut-disk-first", "clone", "replace")

LIFE_S = 8.0
"""How long a clone runs, and how long a broker writes after its storage was copied, at most."""


class DiskFaults:
    """Applies faults to the disk of one broker, which is down at first."""

    def __init__(self, cluster: ProcessCluster, draw: Random) -> None:
        self._cluster = cluster
        self._draw = draw

    @asynccontextmanager
    async def apply(self, kind: str, broker: BrokerNode) -> AsyncIterator[None]:
        # A topic that was made while a disk was full has two replicas at first: it can lose neither.
        await self._cluster.wait_whole(with_short=True)
        await broker.node.kill()
        if kind == "clone":
            await self._clone(broker)
        elif kind == "replace":
            await self._replace(broker)
        elif kind.startswith("cut-disk"):
            cut_files(broker.folder, self._draw)
        else:
            await self._put_back_older_copy(broker)
        others = list(self._cluster.running()) if kind.endswith("-first") else []
        for each in others:
            await each.node.kill()
        broker.node.start()
        if others:
            await trio.sleep(self._draw.uniform(0, LIFE_S / 2))
        await self._cluster.start(*others, broker)
        yield

    async def _put_back_older_copy(self, broker: BrokerNode) -> None:
        copy = await trio.to_thread.run_sync(copy_folder, broker.folder, broker.folder.with_suffix(".copy"))
        await self._cluster.start(broker)
        await trio.sleep(self._draw.uniform(1, LIFE_S))
        await broker.node.kill()
        shutil.rmtree(broker.folder)
        copy.rename(broker.folder)

    async def _clone(self, broker: BrokerNode) -> None:
        """Run a copy beside the original for a while."""
        clone = await self._cluster.add(is_numbered=False)
        await trio.to_thread.run_sync(copy_folder, broker.folder, clone.folder)
        await self._cluster.start(broker)
        await self._cluster.start(clone)
        await trio.sleep(self._draw.uniform(1, LIFE_S))
        await self.remove(clone)

    async def remove(self, clone: BrokerNode) -> None:
        """Remove a clone, as an administrator would."""
        number = await self._find_number(clone)
        await self._cluster.order(f"/brokers/{number}/drain")
        await self._cluster.wait_until(lambda: is_drained(clone, number), f"the clone {number} is not drained")
        await clone.node.kill()
        await self._cluster.forget(number)

    async def _find_number(self, clone: BrokerNode) -> int:
        found: list[int] = []

        def look() -> bool:
            try:
                listed = ask(f"{clone.url}/brokers")["brokers"]
            except OSError:
                return False
            found[:] = [each["number"] for each in listed if each["is_self"] and each["http_url"] == clone.url]
            return bool(found) and found[0] not in {each.number for each in self._cluster.brokers.values()}

        await self._cluster.wait_until(look, "the clone gets no number of its own")
        return found[0]

    async def _replace(self, broker: BrokerNode) -> None:
        shutil.rmtree(broker.folder)
        broker.folder.mkdir()
        await self._cluster.forget(broker.number)


def is_drained(asked: BrokerNode, number: int) -> bool:
    try:
        listed = ask(f"{asked.url}/brokers")["brokers"]
    except OSError:
        return False
    return all(each["is_drained"] for each in listed if each["number"] == number)


def copy_folder(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return shutil.copytree(source, target)


def cut_files(folder: Path, draw: Random) -> None:
    """Cut the files to which records are appended short, as a disk does that loses its last writes."""
    left = draw.uniform(0.3, 0.95)
    for path in [*folder.rglob("*.log"), *folder.rglob("*.db-wal")]:
        with path.open("r+b") as file:
            file.truncate(int(path.stat().st_size * left))
