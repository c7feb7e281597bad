"""Kills a writer again and again, at random moments, and looks each time at what it left behind.

    python -m tests.storage.crash_loop URL ROUNDS SEED

Writer and onlooker are forked: each begins in a fresh process, and costs no interpreter's start. The writer tells
through a pipe what has been acknowledged; it is killed with SIGKILL wherever it is: opening, appending, trimming, or
closing a segment. The first thing that is wrong ends this with status 1.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import trio

from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy, Storage, open_storage, read_range
from dafka.storage.tools.verify import verify_storage

PARTITIONS = [Partition("orders", f"{number}" * 32) for number in range(3)] + [Partition("\udcff/..", "Z")]

KEPT = 500
"""Retention leaves at least so many records of a partition."""

LIFE_S_MAX = 0.06
"""A writer that has opened its storage lives for so long at the most."""

OPENING_S_MAX = 0.02
"""Every fifth writer is killed before that, while it opens what the last one left."""

Tell: TypeAlias = Callable[[dict[str, Any]], None]


def make_batch(partition: Partition, first: int, count: int) -> RecordBatch:
    """Contents tell their sequences, and are of many sizes."""
    sequences = range(first, first + count)
    return RecordBatch(partition, first, [b"%d:" % each + b"x" * (each * 7919 % 300) for each in sequences])


async def write(url: str, seed: int, tell: Tell) -> None:
    """Goes on where the one before was killed, for ever."""
    choose = random.Random(seed)
    async with open_storage(url) as storage:
        ends = {partition: info.end_sequence for partition, info in (await storage.partitions()).items()}
        tell({"ends": [ends.get(partition, 0) for partition in PARTITIONS]})
        while True:
            batches = []
            for partition in choose.sample(PARTITIONS, choose.randint(1, len(PARTITIONS))):
                batches.append(make_batch(partition, ends.get(partition, 0), choose.choice((1, 1, 5, 20, 100))))
                ends[partition] = batches[-1].end_sequence
            await storage.append(batches)
            tell({"ends": [ends.get(partition, 0) for partition in PARTITIONS]})
            await tidy(storage, choose, ends, tell)


async def tidy(storage: Storage, choose: random.Random, ends: dict[Partition, int], tell: Tell) -> None:
    """Every so often something else than appending is done, and the storage kept small."""
    partition = choose.choice([*ends])
    action = choose.random()
    if action < 0.05:
        earliest = max(ends[partition] - choose.randint(0, 2 * KEPT), 0)
        tell({"trimmed": PARTITIONS.index(partition), "earliest": earliest})
        await storage.trim(partition, earliest)
    elif action < 0.15:
        await storage.apply_retention(RetentionPolicy(records_max=KEPT))
    elif action < 0.2:
        await storage.save_positions("reader", {partition: ends[partition]})


@attrs.define
class Expected:
    """By partition: what has been acknowledged must be there, but for what may have been trimmed."""

    ends: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))
    trimmed: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))

    def learn(self, said: dict[str, Any]) -> None:
        """Takes what a writer told."""
        if "ends" in said:
            self.ends = [max(pair) for pair in zip(self.ends, said["ends"], strict=True)]
        else:
            self.trimmed[said["trimmed"]] = max(self.trimmed[said["trimmed"]], said["earliest"])

    async def check(self, url: str, tell: Tell) -> None:
        """Raises `AssertionError` where something is not as it should be."""
        async with open_storage(url) as storage:
            found = await storage.partitions()
            for partition, end, trimmed in zip(PARTITIONS, self.ends, self.trimmed, strict=True):
                assert partition in found or end == 0, f"{partition} is lost, with {end} acknowledged records"
                if partition in found:
                    info = found[partition]
                    assert info.end_sequence >= end, f"{partition}: acknowledged to {end}, there to {info}"
                    assert info.earliest_sequence <= max(trimmed, info.end_sequence - KEPT), f"{partition}: {info}"
                    await check_contents(storage, partition, info.earliest_sequence, info.end_sequence)
            damages = (await verify_storage(storage)).damages
            assert not damages, f"verify finds {damages}"
            tell({"repairs": len(storage.repairs)})


async def check_contents(storage: Storage, partition: Partition, sequence: int, end_sequence: int) -> None:
    """Reads them all."""
    async for run in read_range(storage, partition, sequence, end_sequence):
        assert run.first_sequence == sequence, f"{partition}: {run.first_sequence} follows {sequence - 1}"
        assert list(run.contents) == make_batch(partition, sequence, len(run)).contents, f"{partition}: {run}"
        sequence = run.end_sequence
    assert sequence == end_sequence, f"{partition}: reading ends at {sequence}, expected {end_sequence}"


class Child:
    """A forked process that runs something, and tells things."""

    def __init__(self, run: Callable[[Tell], None]) -> None:
        self._reading, writing = os.pipe()
        self._process = os.fork()
        if self._process:
            os.close(writing)
            return
        os.close(self._reading)  # so that it cannot outlive whoever reads
        try:
            run(lambda said: _write_line(writing, said))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def wait_told(self) -> bytes:
        """The first thing it tells, once it does."""
        line = b""
        while not line.endswith(b"\n") and (octet := os.read(self._reading, 1)):
            line += octet
        return line

    def kill(self) -> None:
        """Wherever it is."""
        os.kill(self._process, signal.SIGKILL)

    def wait(self, begun: bytes = b"") -> tuple[int, list[dict[str, Any]]]:
        """How it ended, and what it told in whole lines, after what had been read of it."""
        with os.fdopen(self._reading, "rb") as pipe:
            data = begun + pipe.read()
        _, status = os.waitpid(self._process, 0)
        return status, [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def _write_line(fd: int, said: dict[str, Any]) -> None:
    os.write(fd, json.dumps(said).encode() + b"\n")


def play_round(url: str, number: int, seed: int, expected: Expected) -> int:
    """Kills a writer, looks at what it left, and gives how much had to be cut away."""
    choose = random.Random(seed + number)
    writer = Child(lambda tell: trio.run(write, url, seed + number, tell))
    is_hasty = number % 5 == 4
    begun = b"" if is_hasty else writer.wait_told()
    time.sleep(choose.random() * (OPENING_S_MAX if is_hasty else LIFE_S_MAX))
    writer.kill()
    status, told = writer.wait(begun)
    assert os.WIFSIGNALED(status), "the writer ended by itself, see above"
    for said in told:
        expected.learn(said)
    _, told = Child(lambda tell: trio.run(expected.check, url, tell)).wait()
    assert told, "see above"
    repairs: int = told[0]["repairs"]
    return repairs


def main(url: str, rounds: int, seed: int) -> None:
    """Plays the rounds."""
    open_storage(url)  # imports the plugin, once for all
    expected = Expected()
    repairs = 0
    for number in range(rounds):
        try:
            repairs += play_round(url, number, seed, expected)
        except AssertionError as error:
            sys.exit(f"round {number} of seed {seed}: {error}")
    print(f"{rounds} rounds, {repairs} repairs, acknowledged {expected.ends}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
