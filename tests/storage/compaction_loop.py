"""Kills a writer that appends and compacts at random moments, and checks each time what it left behind.

    python -m tests.storage.compaction_loop URL ROUNDS RECORDS KEYS SEED

Every second writer is killed while it appends and compacts, and every other one while it only compacts. The rounds go
on until there are as many as asked for, and as many records. After each, every record that is held must be the one that
was appended, every sequence must be held or compacted, and of each key the last record must be there. A last pass,
which is not killed, must remove everything that is superseded. See `crash_loop`.
"""

from __future__ import annotations

import random
import sys
import time
from array import array
from math import inf

import attrs
import trio

from dafka.config.settings import StoreConfig
from dafka.records import Partition, RecordBatch
from dafka.roles.compactor import CLEAN_ENDS, Compactor
from dafka.storage import CompactsPartitions, Storage, open_storage, read_range
from dafka.storage.compaction import CompactionPolicy, compact_partition
from tests.storage.crash_loop import Child, Report

PARTITION = Partition("prices", "A" * 32)

BATCH_RECORDS = 1000

COMPACTING_S = 3.0
"""Within how many seconds after its last append a writer is killed."""

VALUE = b":" + b"x" * 80


def key_of(sequence: int, keys: int) -> int:
    """Return the number of a record's key. Numbers come in no order, and some more often than others."""
    mixed = (sequence * 2654435761 + (sequence >> 5) * 40503) & 0xFFFFFFFF
    return (mixed >> 4) % keys if mixed & 7 else (mixed >> 4) % max(keys // 100, 1)


def make_batch(first: int, count: int, keys: int) -> RecordBatch:
    """Return records whose values have their sequences."""
    sequences = range(first, first + count)
    return RecordBatch(
        PARTITION,
        first,
        [b"%d%b" % (each, VALUE) for each in sequences],
        keys=[b"key %d" % key_of(each, keys) for each in sequences],
    )


async def write(url: str, seed: int, keys: int, records: int, report: Report) -> None:
    """Append up to this many records, and compact until killed."""
    choose = random.Random(seed)
    async with open_storage(url) as storage, trio.open_nursery() as nursery:
        info = (await storage.partitions()).get(PARTITION)
        end = 0 if info is None else info.end_sequence
        report({"end": end})
        nursery.start_soon(compact, storage, choose, keys)
        stop = end + records
        while end < stop:
            count = choose.choice((1, 50, 200, BATCH_RECORDS))
            await storage.append([make_batch(end, count, keys)])
            end += count
            report({"end": end})
        report({"end": end, "is_done": True})


async def compact(storage: Storage, choose: random.Random, keys: int) -> None:
    """Compact again and again."""
    config = StoreConfig(
        compaction_rate_bytes=0,
        compaction_dirty_percent=choose.choice((0, 20, 50)),
        compaction_keys_max=choose.choice((keys // 3, 10 * keys)),
    )
    compactor = Compactor(storage, config, report_failure)
    while True:
        await compactor.compact(PARTITION)
        await trio.sleep(0.001)


def report_failure(event: object) -> None:
    """End the writer if compaction fails."""
    if type(event).__name__ == "StorageFailed":
        raise AssertionError(event)


@attrs.define
class Expected:
    """What must be held.

    Attributes:
        keys: The number of keys.
        end: The sequence after the last acknowledged record.
        last: The last sequence of each key before `known`; -1 for none.
        known: How far `last` goes.
    """

    keys: int
    end: int = 0
    last: array[int] = attrs.field(factory=lambda: array("q"))
    known: int = 0

    def find_last(self, end: int) -> array[int]:
        """Return the last sequence of each key before a sequence, which does not decrease."""
        if not self.last:
            self.last = array("q", [-1]) * self.keys
        for sequence in range(self.known, end):
            self.last[key_of(sequence, self.keys)] = sequence
        self.known = end
        return self.last

    async def check(self, url: str, report: Report) -> None:
        """Raise `AssertionError` if the storage does not hold what it must."""
        async with open_storage(url) as storage:
            info = (await storage.partitions()).get(PARTITION)
            end = 0 if info is None else info.end_sequence
            assert end >= self.end, f"acknowledged up to {self.end}, held up to {end}"
            last = self.find_last(end)
            found = await self.read_all(storage, end)
            for key, sequence in enumerate(last):
                assert sequence < 0 or sequence in found, f"the last record {sequence} of key {key} is lost"
            damages = await storage.find_damage()
            assert not damages, f"damage: {damages}"
            report({"end": end})

    async def compact_all(self, url: str, report: Report) -> None:
        """Compact without being killed, and report how many records are held that may be removed."""
        async with open_storage(url) as storage:
            assert isinstance(storage, CompactsPartitions)
            clean_end = (await storage.load_positions(CLEAN_ENDS)).get(PARTITION, 0)
            policy = CompactionPolicy(dirty_ratio=0, keys_max=10 * self.keys)
            done = await compact_partition(storage, PARTITION, clean_end, policy, 0, wait_nothing)
            clean_end = clean_end if done is None else done.clean_end
            found = sorted(await self.read_all(storage, (await storage.partitions())[PARTITION].end_sequence))
            clean = [key_of(sequence, self.keys) for sequence in found if sequence < clean_end]
            assert len(clean) == len(set(clean)), "superseded records are left"
            report({"held": len(found)})

    async def read_all(self, storage: Storage, end: int) -> set[int]:
        """Return the sequences of all records that are held."""
        found: set[int] = set()
        sequence = 0
        async for batch in read_range(storage, PARTITION, 0, end, with_times=True):
            assert batch.first_sequence == sequence, f"{batch.first_sequence} follows {sequence - 1}"
            sequence = batch.end_sequence
            for run in batch.held_runs():
                expected = make_batch(run.first_sequence, len(run), self.keys)
                assert list(run.values) == expected.values, f"wrong values from {run.first_sequence} on"
                assert list(run.keys or ()) == expected.keys, f"wrong keys from {run.first_sequence} on"
                found.update(range(run.first_sequence, run.end_sequence))
        assert sequence == end, f"reading ends at {sequence}, expected {end}"
        return found


async def wait_nothing(_count: int) -> None:
    """Compact as fast as possible."""
    await trio.lowlevel.checkpoint()


def run_writer(url: str, seed: int, keys: int, count: int) -> Child:
    """Run a writer in a process of its own."""
    return Child(lambda report: trio.run(write, url, seed, keys, count, report))


def main(url: str, rounds: int, records: int, keys: int, seed: int) -> None:
    """Run the rounds."""
    open_storage(url)  # imports the plugin before forking
    expected = Expected(keys)
    number = 0
    while number < rounds or expected.end < records:
        choose = random.Random(seed + number)
        count = choose.randint(0, 3 * max(records // rounds, BATCH_RECORDS))
        is_appending = number % 2 == 0
        killed_at = expected.end + choose.randint(0, count) if is_appending else inf
        writer = run_writer(url, seed + number, keys, count)
        reports = writer.read_until(lambda found, at=killed_at: found["end"] >= at or "is_done" in found)  # type: ignore[misc]
        if not is_appending:
            time.sleep(choose.uniform(0, COMPACTING_S))
        writer.kill()
        _, messages = writer.wait(reports)
        expected.end = max([expected.end, *(message["end"] for message in messages)])
        _, messages = Child(lambda report: trio.run(expected.check, url, report)).wait()
        if not messages:
            sys.exit(f"round {number} of seed {seed}: see above")
        expected.end = messages[0]["end"]
        expected.find_last(expected.end)
        number += 1
    _, messages = Child(lambda report: trio.run(expected.compact_all, url, report)).wait()
    if not messages:
        sys.exit("last pass: see above")
    held = messages[0]["held"]
    print(f"{number} rounds, {expected.end} records, {held} held")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
