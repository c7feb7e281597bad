"""Kills a writer repeatedly at random moments, and checks each time what it left behind.

    python -m tests.storage.crash_loop URL ROUNDS SEED

The writer and the checker are forked, so that each has a fresh process without the start of an interpreter. The writer
reports through a pipe what has been acknowledged. It is killed with SIGKILL at any point: while it opens the storage,
appends, trims, or closes a segment. The first error ends the program with status 1.
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

KEPT_RECORDS = 500
"""The minimum number of records that retention leaves in a partition."""

LIFE_S_MAX = 0.06
"""The maximum life of a writer after it has opened its storage."""

OPENING_S_MAX = 0.02
"""Every fifth writer is killed within this time, while it opens the storage of the one before."""

Report: TypeAlias = Callable[[dict[str, Any]], None]


def make_batch(partition: Partition, first: int, count: int) -> RecordBatch:
    """Return contents of various sizes that contain their sequence."""
    sequences = range(first, first + count)
    return RecordBatch(partition, first, [b"%d:" % each + b"x" * (each * 7919 % 300) for each in sequences])


async def write(url: str, seed: int, report: Report) -> None:
    """Continue where the previous writer was killed, without end."""
    choose = random.Random(seed)
    async with open_storage(url) as storage:
        ends = {partition: info.end_sequence for partition, info in (await storage.partitions()).items()}
        report({"ends": [ends.get(partition, 0) for partition in PARTITIONS]})
        while True:
            batches = []
            for partition in choose.sample(PARTITIONS, choose.randint(1, len(PARTITIONS))):
                batches.append(make_batch(partition, ends.get(partition, 0), choose.choice((1, 1, 5, 20, 100))))
                ends[partition] = batches[-1].end_sequence
            await storage.append(batches)
            report({"ends": [ends.get(partition, 0) for partition in PARTITIONS]})
            await drop_some(storage, choose, ends, report)


async def drop_some(storage: Storage, choose: random.Random, ends: dict[Partition, int], report: Report) -> None:
    """Occasionally do something other than appending, which also keeps the storage small."""
    partition = choose.choice([*ends])
    action = choose.random()
    if action < 0.05:
        earliest = max(ends[partition] - choose.randint(0, 2 * KEPT_RECORDS), 0)
        report({"trimmed": PARTITIONS.index(partition), "earliest": earliest})
        await storage.trim(partition, earliest)
    elif action < 0.15:
        await storage.apply_retention(RetentionPolicy(records_max=KEPT_RECORDS))
    elif action < 0.2:
        await storage.save_positions("reader", {partition: ends[partition]})


@attrs.define
class Expected:
    """The records that must be held: all acknowledged ones, except those that may have been trimmed."""

    ends: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))
    trimmed: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))

    def add(self, message: dict[str, Any]) -> None:
        """Take a report of a writer."""
        if "ends" in message:
            self.ends = [max(pair) for pair in zip(self.ends, message["ends"], strict=True)]
        else:
            self.trimmed[message["trimmed"]] = max(self.trimmed[message["trimmed"]], message["earliest"])

    async def check_storage(self, url: str, report: Report) -> None:
        """Raise `AssertionError` if the storage does not hold what it must."""
        async with open_storage(url) as storage:
            found = await storage.partitions()
            for partition, end, trimmed in zip(PARTITIONS, self.ends, self.trimmed, strict=True):
                assert partition in found or end == 0, f"{partition} is lost, with {end} acknowledged records"
                if partition in found:
                    info = found[partition]
                    assert info.end_sequence >= end, f"{partition}: acknowledged up to {end}, held {info}"
                    assert info.earliest_sequence <= max(trimmed, info.end_sequence - KEPT_RECORDS), (
                        f"{partition}: {info}"
                    )
                    await check_contents(storage, partition, info.earliest_sequence, info.end_sequence)
            damages = (await verify_storage(storage)).damages
            assert not damages, f"verify finds {damages}"
            report({"repairs": len(storage.repairs)})


async def check_contents(storage: Storage, partition: Partition, sequence: int, end_sequence: int) -> None:
    """Read every record of a partition."""
    async for run in read_range(storage, partition, sequence, end_sequence):
        assert run.first_sequence == sequence, f"{partition}: {run.first_sequence} follows {sequence - 1}"
        assert list(run.values) == make_batch(partition, sequence, len(run)).values, f"{partition}: {run}"
        sequence = run.end_sequence
    assert sequence == end_sequence, f"{partition}: reading ends at {sequence}, expected {end_sequence}"


class Child:
    """A forked process that runs a function and reports through a pipe."""

    def __init__(self, run: Callable[[Report], None]) -> None:
        self._reading, writing = os.pipe()
        self._process = os.fork()
        if self._process:
            os.close(writing)
            return
        os.close(self._reading)  # so that it ends when the reading process does
        try:
            run(lambda message: _write_line(writing, message))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def wait_report(self) -> bytes:
        """Return its first report."""
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(self._reading, 1)):
            line += byte
        return line

    def read_until(self, is_reached: Callable[[dict[str, Any]], bool]) -> bytes:
        """Return its reports up to the first one for which a function is true, or up to its end."""
        reports = b""
        while line := self.wait_report():
            reports += line
            if is_reached(json.loads(line)):
                break
        return reports

    def kill(self) -> None:
        """Kill the process."""
        os.kill(self._process, signal.SIGKILL)

    def wait(self, reports: bytes = b"") -> tuple[int, list[dict[str, Any]]]:
        """Return its exit status, and these reports with the complete lines that it reported since the last read."""
        with os.fdopen(self._reading, "rb") as pipe:
            data = reports + pipe.read()
        _, status = os.waitpid(self._process, 0)
        return status, [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def _write_line(fd: int, message: dict[str, Any]) -> None:
    os.write(fd, json.dumps(message).encode() + b"\n")


def run_round(url: str, number: int, seed: int, expected: Expected) -> int:
    """Kill a writer, check what it left, and return the number of repairs."""
    choose = random.Random(seed + number)
    writer = Child(lambda report: trio.run(write, url, seed + number, report))
    is_killed_early = number % 5 == 4
    first_report = b"" if is_killed_early else writer.wait_report()
    time.sleep(choose.random() * (OPENING_S_MAX if is_killed_early else LIFE_S_MAX))
    writer.kill()
    status, messages = writer.wait(first_report)
    assert os.WIFSIGNALED(status), "the writer ended by itself, see above"
    for message in messages:
        expected.add(message)
    _, messages = Child(lambda report: trio.run(expected.check_storage, url, report)).wait()
    assert messages, "see above"
    repairs: int = messages[0]["repairs"]
    return repairs


def main(url: str, rounds: int, seed: int) -> None:
    """Run the rounds."""
    open_storage(url)  # imports the plugin before forking
    if url.startswith("tiered:"):
        import dafka.storage.cold.tiered  # noqa: F401
    expected = Expected()
    repairs = 0
    for number in range(rounds):
        try:
            repairs += run_round(url, number, seed, expected)
        except AssertionError as error:
            sys.exit(f"round {number} of seed {seed}: {error}")
    print(f"{rounds} rounds, {repairs} repairs, acknowledged {expected.ends}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
