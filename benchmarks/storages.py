"""Storages beside each other, and beside a bare file: writing, reading, opening, listing, dropping, and memory.

    python benchmarks/storages.py [--records 10000000] [--partitions 10000] [--rounds 5] [--folder /tmp]

Two shapes: all records of 100 octets in one partition, appended 10,000 at a time; and many partitions with 100 records
each. Each measurement is a process of its own, so that its peak of resident memory is its own; the storages and the
bare file take turns, round by round. Printed are medians, and ratios to the bare file where there is one: the same
octets written with one `write` and one `fdatasync` an append, and read again in one pass.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import click
import trio
from rich.console import Console
from rich.table import Table

from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy, Storage, open_storage, read_range

CONTENT = b"%0100d"
APPEND_RECORDS = 10_000
OF_EACH = 100
TOPIC = "orders"
ONE = Partition(TOPIC, "0" * 32)
STORAGES = {"sqlite": "sqlite:{folder}/store.db", "filelog": "filelog:{folder}/log"}
BARE = "bare file"

Found: TypeAlias = dict[tuple[str, str], list[tuple[float, int]]]
"""By measurement and storage: seconds, and octets of memory, round by round."""


def contents(first: int, count: int) -> list[bytes]:
    return [CONTENT % sequence for sequence in range(first, first + count)]


def of_many(partitions: int) -> list[Partition]:
    return [Partition(TOPIC, f"{number:032X}") for number in range(partitions)]


async def fill_one(storage: Storage, number: int) -> None:
    for first in range(0, number, APPEND_RECORDS):
        await storage.append([RecordBatch(ONE, first, contents(first, min(APPEND_RECORDS, number - first)))])


async def fill_many(storage: Storage, number: int) -> None:
    partitions = of_many(number)
    for start in range(0, number, APPEND_RECORDS // OF_EACH):
        chunk = partitions[start : start + APPEND_RECORDS // OF_EACH]
        await storage.append([RecordBatch(partition, 0, contents(0, OF_EACH)) for partition in chunk])


async def open_again(storage: Storage, number: int) -> None:
    """What is measured is the opening."""


async def list_heads(storage: Storage, number: int) -> None:
    await storage.partitions(TOPIC)


async def read_all(storage: Storage, number: int) -> None:
    async for _ in read_range(storage, ONE, 0, number):
        pass


async def drop_half(storage: Storage, number: int) -> None:
    await storage.apply_retention(RetentionPolicy(records_max=number // 2))


MEASUREMENTS: dict[str, tuple[Callable[[Storage, int], Awaitable[None]], str]] = {
    "append": (fill_one, "one"),
    "open": (open_again, "one"),
    "read": (read_all, "one"),
    "drop half": (drop_half, "one"),
    "append ": (fill_many, "many"),
    "open ": (open_again, "many"),
    "heads of a topic ": (list_heads, "many"),
}
"""In this order, on what the ones before left."""


async def measure(url: str, name: str, number: int) -> float:
    """Seconds; for `open`, of entering the storage's block."""
    run, _ = MEASUREMENTS[name]
    context = open_storage(url)  # imports the plugin
    started = time.perf_counter()
    async with context as storage:
        opened = time.perf_counter()
        await run(storage, number)
        return opened - started if run is open_again else time.perf_counter() - opened


def measure_bare(path: Path, name: str, number: int) -> float:
    """Seconds for the same with a file; nothing for what a file has not."""
    joined = [b"".join(contents(first, APPEND_RECORDS)) for first in range(0, min(number, 100_000), APPEND_RECORDS)]
    started = time.perf_counter()
    if name == "append":
        with path.open("wb", buffering=0) as file:
            for index in range(0, number, APPEND_RECORDS):
                file.write(joined[index // APPEND_RECORDS % len(joined)])
                os.fdatasync(file.fileno())
    elif name == "read":
        with path.open("rb", buffering=0) as file:
            while file.read(2**20):
                pass
    return time.perf_counter() - started


def measured_here(storage: str, folder: Path, name: str, number: int) -> tuple[float, int]:
    """Seconds, and the peak of this process's resident memory in octets."""
    if storage == BARE:
        seconds = measure_bare(folder / "bare", name, number)
    else:
        seconds = trio.run(measure, STORAGES[storage].format(folder=folder), name, number)
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return seconds, int(peak) * 1024


@click.command()
@click.option("--records", default=10_000_000, show_default=True, help="In the one partition.")
@click.option("--partitions", default=10_000, show_default=True, help=f"Each with {OF_EACH} records.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="On the disk to measure.")
def main(records: int, partitions: int, rounds: int, folder: Path | None) -> None:
    """Measure, and print a table."""
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="dafka-storages-", dir=folder) as place:
        for _ in range(rounds):
            for storage in (BARE, *STORAGES):
                play(storage, Path(place), records, partitions, found)
    report(found, records, partitions)


def play(storage: str, place: Path, records: int, partitions: int, found: Found) -> None:
    """All measurements of one storage, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    for name, (_, shape) in MEASUREMENTS.items():
        if storage == BARE and name not in {"append", "read"}:
            continue
        folder = place / shape
        folder.mkdir(exist_ok=True)
        with context.Pool(1) as pool:
            measured = pool.apply(measured_here, (storage, folder, name, records if shape == "one" else partitions))
        found.setdefault((name, storage), []).append(measured)
    for shape in ("one", "many"):
        shutil.rmtree(place / shape, ignore_errors=True)


def report(found: Found, records: int, partitions: int) -> None:
    """Prints medians."""
    table = Table("", "storage", "seconds", "range", "records/s", "of bare file", "peak memory, MiB")
    for (name, storage), measured in sorted(found.items(), key=lambda item: list(MEASUREMENTS).index(item[0][0])):
        _, shape = MEASUREMENTS[name]
        what = f"{records:,} records in one partition" if shape == "one" else f"{partitions:,} partitions"
        seconds = [each for each, _ in measured]
        number = (records if shape == "one" else partitions * OF_EACH) if name.strip() in {"append", "read"} else 0
        bare = found.get((name, BARE))
        ratio = statistics.median(b / s for (s, _), (b, _) in zip(measured, bare, strict=True)) if bare else None
        table.add_row(
            f"{name.strip()}, {what}",
            storage,
            f"{statistics.median(seconds):.3f}",
            f"{min(seconds):.3f} - {max(seconds):.3f}",
            f"{number / statistics.median(seconds):,.0f}" if number else "",
            f"{ratio:.2f}" if ratio else "",
            f"{statistics.median(memory for _, memory in measured) / 2**20:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
