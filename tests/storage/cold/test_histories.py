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
from dafka.storage.cold import manifest, object_store, offloader, parquet
from dafka.storage.cold.object_store import ObjectStoreError, RetryingObjectStore
from dafka.storage.cold.segments import partition_folder
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.opening import delete_partitions
from tests.storage.quick import quickly
from tests.storage.test_histories import PARTITIONS, URLS, Clock, History

SEEDS = 6
STEPS_EACH = 30
AFTER_REPLACE, BEFORE_TRIM = "after replace", "before trim"
MOMENTS = [*range(12), *[AFTER_REPLACE] * 6, *[BEFORE_TRIM] * 3]
"""The moments at which a step of a history can be disturbed: 0 is before its first request, 1 after it, and so on."""


class Requests:
    """Stands between a storage and its object store: `disturb` runs once, at one of `MOMENTS`.

    Dropping what was moved from the hot storage counts as a request that never fails.
    """

    def __init__(self) -> None:
        self.end()

    def end(self) -> None:
        """Let all requests succeed."""
        self._passed = 0
        self._moment: int | str = 0
        self._disturb: Callable[[], Awaitable[None]] | None = None
        self._is_down = False

    def set(self, number: int, disturb: Callable[[], Awaitable[None]] | None = None) -> None:
        """Choose a moment by any number. Requests fail from then on, if nothing else is to be done."""
        self.end()
        self._moment, self._disturb = MOMENTS[number % len(MOMENTS)], disturb or self._fail

    async def _fail(self) -> None:
        self._is_down = True

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place of the requests of all object stores."""
        for name in ("read", "read_range", "write", "replace", "delete", "list"):
            patch.setattr(RetryingObjectStore, name, self.disturbed(getattr(RetryingObjectStore, name)))

    def disturbed(self, request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a request that can be disturbed."""
        name = request.__name__

        async def ask(*arguments: Any) -> Any:
            await self._pass(f"before {name}")
            try:
                return await request(*arguments)
            finally:
                await self._pass(f"after {name}")

        return ask

    async def _pass(self, moment: str) -> None:
        if self._disturb is not None and self._moment in (self._passed, moment):
            disturb, self._disturb = self._disturb, None
            await disturb()
        self._passed += 1
        if self._is_down and not moment.endswith("trim"):
            raise ObjectStoreError("the object store is down")


class ColdHistory(History):
    """A history of a tiered storage."""

    requests: Requests
    storage: TieredStorage

    async def open(self) -> None:
        await super().open()
        vars(self.storage.hot)["trim"] = self.requests.disturbed(self.storage.hot.trim)

    async def append_due(self, a: int, b: int, c: int) -> None:
        """Append records of which some are due."""
        await self.append(a, 8 * b + 6, 3 * c + 2)

    async def move_while_requests_fail(self, a: int, b: int, c: int) -> None:
        """Nothing is lost, and nothing is there twice, whichever request fails or whose answer is lost."""
        await self.append_due(a, b, c)
        self.requests.set(b)
        with suppress(ObjectStoreError):
            await self.storage.move_due()
        self.requests.end()
        if c % 2:
            await (self.trim, self.reset, self.delete, self.retain)[c // 2 % 4](a, b, c)

    async def change_while_requests_fail(self, a: int, b: int, c: int) -> None:
        """A change that fails has no effect, and can be repeated."""
        await self.append_due(a, b, c)
        await self.storage.move_due()
        partition = PARTITIONS[a % 3]
        end = self.end(partition)
        sequence = max(end - c % 60, 0) if b % 4 == 0 else end + c % 2

        async def change() -> None:
            if b % 4 == 0:
                await self.storage.trim(partition, sequence)
            elif b % 4 == 1:
                await self.storage.reset_to(partition, sequence)
            elif b % 4 == 2:
                await delete_partitions(self.storage, [partition])
            else:
                await self.storage.apply_retention(RetentionPolicy(records_max=0), partition.topic)

        self.requests.set(c // 60 % 6)
        try:
            await change()
        except ObjectStoreError:
            self.requests.end()
            await self.check(self.storage, b)
            await change()
        self.requests.end()
        if b % 4 == 0:
            self.model.logs[partition].drop_before(sequence)
        elif b % 4 == 1:
            self.model.logs[partition].reset(sequence)
        elif b % 4 == 2:
            del self.model.logs[partition]
        else:
            for log in self.model.of_topic(partition.topic).values():
                log.drop_before(log.end)

    async def read_while_dropped(self, a: int, b: int, c: int) -> None:
        """A reader of records that are dropped meanwhile gets them or none, but no error."""
        await self.append_due(a, b, c)
        await self.storage.move_due()
        partition = PARTITIONS[a % 3]
        log = self.model.logs[partition]
        expected = log.between(0, log.end)

        async def drop() -> None:
            await self.storage.trim(partition, log.end)

        self.storage.reader.forget()
        self.requests.set(c % 4, drop)
        found = await self.storage.read(partition, log.earliest, 1000, with_times=True)
        self.requests.end()
        assert found is None or [*found] == expected[: len(found)]
        await drop()
        log.drop_before(log.end)

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
        is_late = MOMENTS[c % len(MOMENTS)] == BEFORE_TRIM  # only appends do not wait then
        change = (self.append, self.trim, self.reset, self.delete)[0 if is_late else b % 4]
        await self.append_due(a, b, c)
        lock = self.storage._manifest_store.lock
        done = trio.Event()

        async def run() -> None:
            await change(a, 3 if is_late else c, b // 4)
            done.set()

        async def disturb() -> None:
            nursery.start_soon(run)
            while not done.is_set() and not lock.statistics().tasks_waiting:
                await trio.lowlevel.checkpoint()
            if done.is_set():
                await self.check(self.storage, c)

        async with trio.open_nursery() as nursery:
            self.requests.set(c, disturb)
            await self.storage.move_due()
            self.requests.end()

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
        if c % 2:
            await self.append_due(a, b, c)
        before = {each: self.storage.cold_end(each) for each in PARTITIONS}
        await self.storage.move_due()
        root, dropped = self.folder / "bucket" / self.storage.identity, self.storage._manifest_store.manifest.dropped
        assert [each for each in dropped if (root / each).exists()] == []
        urls = self.storage.object_urls()
        for partition in PARTITIONS:
            if self.storage.cold_end(partition) > before[partition]:
                folder = root / partition_folder(partition)
                objects = {f"file://{path}" for path in folder.iterdir()}
                assert objects == {url for url in urls if url.startswith(f"file://{folder}/")}


ColdHistory.steps = [
    *[History.append] * 8,
    *[History.trim, History.reset, History.delete, ColdHistory.retain, ColdHistory.retain, History.restart],
    *[ColdHistory.move_while_requests_fail] * 4,
    *[ColdHistory.change_while_requests_fail] * 2,
    *[ColdHistory.move_and_change] * 4,
    *[ColdHistory.read_meanwhile, ColdHistory.read_while_dropped, ColdHistory.move, ColdHistory.move],
]


async def play(url: str, folder: Path, clock: Clock, seed: int, requests: Requests) -> None:
    draw = random.Random(seed)
    async with AsyncExitStack() as stack:
        history = ColdHistory(url, folder, clock, stack)
        history.requests = requests
        await history.play([tuple(draw.randrange(9999) for _ in range(4)) for _ in range(STEPS_EACH)])


def in_any_order(draw: random.Random) -> Callable[..., Awaitable[Any]]:
    """Return what runs a function in this thread, sometimes after some other tasks have run functions."""

    async def run_sync(function: Callable[..., Any], *arguments: Any, **_options: Any) -> Any:
        for _ in range(draw.choice((1, 1, 1, 8))):
            await trio.lowlevel.checkpoint()
        return function(*arguments)

    return run_sync


@pytest.mark.parametrize("kind", ["tiered", "tiered file log"])
def test_nothing_is_lost_or_there_twice_whatever_happens_during_a_move(kind: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        clock, requests = Clock(), Requests()
        with quickly(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", clock.time_ns)
            patch.setattr(manifest, "CHUNK_SEGMENTS", 2)
            patch.setattr(offloader, "READ_BYTES", 40)
            patch.setattr(parquet, "GROUP_BYTES", 40)
            patch.setattr(object_store, "FIRST_PAUSE_S", 0)
            patch.setattr(trio.to_thread, "run_sync", in_any_order(random.Random(seed)))
            requests.patch(patch)
            folder = Path(tempfile.mkdtemp(dir=tmp_path, prefix=f"seed {seed} "))
            trio.run(play, URLS[kind], folder, clock, seed, requests)
