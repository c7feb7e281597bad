"""Any history of a tiered storage, with requests that fail and changes between two requests, against lists."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from dafka.storage import RetentionPolicy
from dafka.storage.cold import manifest
from dafka.storage.cold.object_store import ObjectStoreError, RetryingObjectStore
from dafka.storage.cold.segments import partition_folder
from dafka.storage.cold.tiered import TieredStorage
from tests.storage.quick import quickly
from tests.storage.test_histories import PARTITIONS, URLS, Clock, History

SEEDS = 6
STEPS_EACH = 30
MOMENTS = 12
"""The number of moments, before and after requests, at which one step of a history can be disturbed."""


class Requests:
    """Stands between a storage and its object store: `disturb` runs once, before or after a request.

    Dropping what was moved from the hot storage counts as a request that never fails.
    """

    def __init__(self) -> None:
        self._left = 0
        self._disturb: Callable[[], Awaitable[None]] | None = None
        self.is_down = False

    def set(self, moment: int, disturb: Callable[[], Awaitable[None]] | None) -> None:
        """Let `disturb` run at a moment: 0 is before the next request, 1 after it, and so on; None ends all faults.

        From `MOMENTS` on, it is after the manifest was replaced.
        """
        self._left, self._disturb, self.is_down = moment, disturb, False

    async def fail(self) -> None:
        """Fail from now on."""
        self.is_down = True

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place of the requests of all object stores."""
        for name in ("read", "read_range", "write", "replace", "delete", "list"):
            patch.setattr(RetryingObjectStore, name, self.disturbed(getattr(RetryingObjectStore, name)))

    def disturbed(
        self, request: Callable[..., Awaitable[Any]], *, can_fail: bool = True
    ) -> Callable[..., Awaitable[Any]]:
        async def ask(*arguments: Any) -> Any:
            await self._pass(can_fail)
            try:
                return await request(*arguments)
            finally:
                await self._pass(can_fail, is_replaced=request.__name__ == "replace")

        return ask

    async def _pass(self, can_fail: bool, *, is_replaced: bool = False) -> None:
        if self._disturb is not None and (is_replaced if self._left >= MOMENTS else self._left == 0):
            disturb, self._disturb = self._disturb, None
            await disturb()
        if self._left < MOMENTS:
            self._left -= 1
        if self.is_down and can_fail:
            raise ObjectStoreError("the object store is down")


class ColdHistory(History):
    """A history of a tiered storage."""

    requests: Requests
    storage: TieredStorage

    async def open(self) -> None:
        await super().open()
        vars(self.storage.hot)["trim"] = self.requests.disturbed(self.storage.hot.trim, can_fail=False)

    async def append_due(self, a: int, b: int, c: int) -> None:
        """Append records of which some are due."""
        await self.append(a, 8 * b + 6, 3 * c + 2)

    async def move_while_requests_fail(self, a: int, b: int, c: int) -> None:
        """Nothing is lost, and nothing is there twice, whichever request fails or whose answer is lost."""
        await self.append_due(a, b, c)
        self.requests.set(b % (2 * MOMENTS), self.requests.fail)
        with suppress(ObjectStoreError):
            await self.storage.move_due()
        self.requests.set(0, None)
        if c % 2:
            await (self.trim, self.reset, self.delete, self.retain)[c // 2 % 4](a, b, c)

    async def change_while_requests_fail(self, a: int, b: int, c: int) -> None:
        """A change that fails has no effect, and can be repeated."""
        change = (self.storage.trim, self.storage.reset_to)[b % 2]
        partition = PARTITIONS[a % 3]
        sequence = max(self.end(partition) - (c % 60 if b % 2 == 0 else 0), 0)
        self.requests.set(c % 5, self.requests.fail)
        try:
            if b % 3:
                await change(partition, sequence)
            else:
                await self.storage.delete_partitions([partition])
        except ObjectStoreError:
            self.requests.set(0, None)
            await self.check(self.storage, b)
        self.requests.set(0, None)
        if b % 3 == 0:
            await self.storage.delete_partitions([partition])
            self.model.logs.pop(partition, None)
        elif partition in self.model.logs:
            await change(partition, sequence)
            self.model.logs[partition].drop_before(sequence)
        else:
            await self.reset(a, 0, 0)

    async def retain(self, a: int, b: int, c: int) -> None:
        """Drop what a policy does not keep: everything, while it depends on objects whose commit was not answered."""
        if not self.storage.tier_statistics().is_stale:
            await super().retain(a, b, c)
            return
        await self.storage.apply_retention(RetentionPolicy(records_max=0))
        for log in self.model.logs.values():
            log.drop_before(log.end)

    async def move_and_change(self, a: int, b: int, c: int) -> None:
        """Change a partition at any moment of a move."""
        change = (self.append, self.trim, self.reset, self.delete)[b % 4]
        await self.append_due(a, b, c)
        lock = self.storage._manifest_store.lock
        done = trio.Event()

        async def run() -> None:
            await change(a, c, b // 4)
            done.set()

        async def disturb() -> None:
            nursery.start_soon(run)
            while not done.is_set() and not lock.statistics().tasks_waiting:
                await trio.lowlevel.checkpoint()
            if done.is_set():
                await self.check(self.storage, c)

        async with trio.open_nursery() as nursery:
            self.requests.set(c % (MOMENTS + 4), disturb)
            await self.storage.move_due()
            self.requests.set(0, None)

    async def read_meanwhile(self, a: int, b: int, c: int) -> None:
        """Readers of this and another process see the same records at every moment of a move."""
        await self.append_due(a, b, c)
        assert self.reader is not None
        is_over = False

        async def check(storage: Any, number: int) -> None:
            while not is_over:
                await self.check(storage, number)
                number += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(check, self.reader, b)
            nursery.start_soon(check, self.storage, c)
            await self.storage.move_due()
            is_over = True

    async def move(self, a: int, b: int, c: int) -> None:
        """Objects of moves and changes that failed are deleted before the next move of their partition."""
        await self.append_due(a, b, c)
        before = {each: self.storage.cold_end(each) for each in PARTITIONS}
        await self.storage.move_due()
        urls = self.storage.object_urls()
        for partition in PARTITIONS:
            if self.storage.cold_end(partition) > before[partition]:
                folder = self.folder / "bucket" / self.storage.identity / partition_folder(partition)
                objects = {f"file://{path}" for path in folder.iterdir()}
                assert objects == {url for url in urls if url.startswith(f"file://{folder}/")}


ColdHistory.steps = [
    *[History.append] * 8,
    *[History.trim, History.reset, History.delete, ColdHistory.retain, ColdHistory.retain, History.restart],
    *[ColdHistory.move_while_requests_fail] * 4,
    *[ColdHistory.change_while_requests_fail] * 2,
    *[ColdHistory.move_and_change] * 4,
    *[ColdHistory.read_meanwhile, ColdHistory.move, ColdHistory.move],
]


async def play(url: str, folder: Path, clock: Clock, seed: int, requests: Requests) -> None:
    draw = random.Random(seed)
    async with AsyncExitStack() as stack:
        history = ColdHistory(url, folder, clock, stack)
        history.requests = requests
        await history.play([tuple(draw.randrange(9999) for _ in range(4)) for _ in range(STEPS_EACH)])


@pytest.mark.parametrize("kind", ["tiered", "tiered file log"])
def test_nothing_is_lost_or_there_twice_whatever_happens_during_a_move(kind: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        clock, requests = Clock(), Requests()
        with pytest.MonkeyPatch.context() as patch, quickly():
            patch.setattr(time, "time_ns", clock.time_ns)
            patch.setattr(manifest, "CHUNK_SEGMENTS", 2)
            requests.patch(patch)
            folder = Path(tempfile.mkdtemp(dir=tmp_path, prefix=f"seed {seed} "))
            trio.run(play, URLS[kind], folder, clock, seed, requests)
