"""Measures how much compaction slows down appends: the same appends with and without it, in turns, in records/s.

The appends of all rounds go to one partition, as fast as the storage takes them. In every second round, compaction
runs, one pass after the other; in the others, it pauses. At the end, a last pass runs, and the last record of each key
is checked. Run on a quiet machine:

    python benchmarks/compaction.py [URL] [RECORDS] [KEYS] [ROUNDS] [RATE]

The arguments are the storage, by default a file log with segments of 8 MiB in a temporary folder; the records of a
round (500,000); the number of keys (100,000); the number of rounds of each kind (5); `compaction_rate_bytes` (16 MiB; 0
for no limit, which is no setting for a busy store).
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence

import attrs
import trio

from dafka.config.settings import StoreConfig
from dafka.protocol import Event, StorageFailed
from dafka.records import Partition, RecordBatch
from dafka.roles.compactor import Compactor
from dafka.storage import Storage, open_storage, read_range

PARTITION = Partition("prices", "A" * 32)
BATCH = 1000
VALUE = bytes(range(92))


def make_batches(first: int, count: int, keys: int, choose: random.Random) -> list[RecordBatch]:
    """Return records of 100 bytes and their keys, whose values begin with their sequences."""
    batches = []
    for start in range(first, first + count, BATCH):
        values: Sequence[bytes] = [each.to_bytes(8, "big") + VALUE for each in range(start, start + BATCH)]
        batches.append(RecordBatch(PARTITION, start, values, keys=[b"%d" % choose.randrange(keys) for _ in values]))
    return batches


def report(event: Event) -> None:
    if isinstance(event, StorageFailed):
        raise SystemExit(str(event))


class PausingCompactor(Compactor):
    """Compacts only while it may."""

    may_run = trio.Event()
    bytes_read = 0

    async def throttle(self, count: int) -> None:
        self.bytes_read += count
        await super().throttle(count)
        await self.may_run.wait()
        self._resumed_at = trio.current_time()


async def compact_forever(compactor: PausingCompactor) -> None:
    while True:
        await compactor.may_run.wait()
        await compactor.compact(PARTITION)


async def append_all(storage: Storage, batches: list[RecordBatch]) -> float:
    """Return the rate in records a second."""
    begun = time.perf_counter()
    for batch in batches:
        await storage.append([batch])
    return sum(map(len, batches)) / (time.perf_counter() - begun)


async def check(storage: Storage, expected: dict[bytes | None, int], end: int) -> int:
    """Check that the last record of each key exists, and return the number of records held."""
    found: dict[bytes | None, int] = {}
    held = 0
    async for batch in read_range(storage, PARTITION, 0, end):
        for record in batch:
            assert record.value is not None
            held += 1
            found[record.key] = int.from_bytes(record.value[:8], "big")
    assert found == expected, "the last record of a key is not there"
    return held


async def measure(url: str, records: int, keys: int, rounds: int, rate: int) -> None:
    choose = random.Random(1)
    config = StoreConfig(compaction_rate_bytes=rate, compaction_dirty_percent=0)
    expected: dict[bytes | None, int] = {}
    rates: tuple[list[float], list[float]] = ([], [])
    end = 0
    async with open_storage(url) as storage:
        compactor = PausingCompactor(storage, config, report)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact_forever, compactor)
            for number in range(2 * rounds + 1):  # the first round warms up
                batches = make_batches(end, records, keys, choose)
                for batch in batches:
                    expected.update(zip(batch.keys or (), range(batch.first_sequence, batch.end_sequence), strict=True))
                end += records
                if number % 2:
                    compactor.may_run.set()
                else:
                    compactor.may_run = trio.Event()
                found = await append_all(storage, batches)
                if number:
                    rates[number % 2].append(found)
                    print(f"{'with' if number % 2 else 'without'} compaction: {found:,.0f} records/s", flush=True)
            nursery.cancel_scope.cancel()
        removed = compactor.records_removed
        begun = time.perf_counter()
        last = Compactor(storage, attrs.evolve(config, compaction_rate_bytes=0), report)
        await last.compact(PARTITION)
        elapsed = time.perf_counter() - begun
        held = await check(storage, expected, end)
        size = (await storage.statistics()).stored_bytes
    without, with_compaction = map(statistics.median, rates)
    print(f"ratio of the medians: {with_compaction / without:.2f}")
    size_read = compactor.bytes_read / 2**20
    print(f"compaction read {size_read:,.0f} MiB meanwhile, and removed {removed:,} records in whole passes")
    print(f"{end:,} records of {len(expected):,} keys; the last pass took {elapsed:.1f} s")
    print(f"{held:,} held in {size / 2**20:,.1f} MiB; the last record of each key is there")


def main(url: str = "", records: str = "500000", keys: str = "100000", rounds: str = "5", rate: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = url or f"filelog:{folder}/log?segment_bytes={8 * 2**20}"
        numbers = int(records) // BATCH * BATCH, int(keys), int(rounds)
        trio.run(measure, url, *numbers, int(rate) if rate else StoreConfig().compaction_rate_bytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
