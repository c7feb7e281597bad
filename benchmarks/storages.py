"""Compares the storages with each other and with a plain file: writing, reading, opening, listing, dropping, memory.

    python benchmarks/storages.py [--records 10000000] [--partitions 10000] [--rounds 5] [--folder /tmp]

There are two shapes: all records of 100 bytes in one partition, appended 10,000 at a time; and many partitions with 100
records each. Each measurement runs in a process of its own, so that its peak memory is its own. The storages and the
plain file take turns, round by round. The output has medians, and ratios to the plain file where they exist: the same
bytes written with one `write` and one `fdatasync` per append, and read in one pass.
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
RECORDS_EACH = 100
TOPIC = "orders"
ONE = Partition(TOPIC, "0" * 32)
STORAGES = {"sqlite": "sqlite:{folder}/store.db", "filelog": "filelog:{folder}/log"}
PLAIN = "plain file"

Found: TypeAlias = dict[tuple[str, str], list[tuple[float, int]]]
"""The seconds and the bytes of memory of each round, by measurement and storage."""


def contents(first: int, count: int) -> list[bytes]:
    return [CONTENT % sequence for sequence in range(first, first + count)]


def many_partitions(partitions: int) -> list[Partition]:
    return [Partition(TOPIC, f"{number:032X}") for number in range(partitions)]


async def fill_one(storage: Storage, number: int) -> None:
    for first in range(0, number, APPEND_RECORDS):
        await storage.append([RecordBatch(ONE, first, contents(first, min(APPEND_RECORDS, number - first)))])


async def fill_many(storage: Storage, number: int) -> None:
    partitions = many_partitions(number)
    for start in range(0, number, APPEND_RECORDS // RECORDS_EACH):
        chunk = partitions[start : start + APPEND_RECORDS // RECORDS_EACH]
        await storage.append([RecordBatch(partition, 0, contents(0, RECORDS_EACH)) for partition in chunk])


async def open_again(storage: Storage, number: int) -> None:
    """Do nothing: only opening is measured."""


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
"""The measurements, in order. Each works on the result of the ones before."""


async def measure(url: str, name: str, number: int) -> float:
    """Return the seconds that a measurement takes; for `open`, those of opening the storage."""
    run, _ = MEASUREMENTS[name]
    context = open_storage(url)  # imports the plugin
    started = time.perf_counter()
    async with context as storage:
        opened = time.perf_counter()
        await run(storage, number)
        return opened - started if run is open_again else time.perf_counter() - opened


def measure_plain(path: Path, name: str, number: int) -> float:
    """Return the seconds that the same takes with a plain file; about 0 for anything but `append` and `read`."""
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


def measure_here(storage: str, folder: Path, name: str, number: int) -> tuple[float, int]:
    """Return the seconds, and the peak resident memory of this process in bytes."""
    if storage == PLAIN:
        seconds = measure_plain(folder / "plain", name, number)
    else:
        seconds = trio.run(measure, STORAGES[storage].format(folder=folder), name, number)
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return seconds, int(peak) * 1024


@click.command()
@click.option("--records", default=10_000_000, show_default=True, help="Records in one partition.")
@click.option("--partitions", default=10_000, show_default=True, help=f"Partitions of {RECORDS_EACH} records.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="A folder on the disk to measure.")
def main(records: int, partitions: int, rounds: int, folder: Path | None) -> None:
    """Measure, and print a table."""
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="dafka-storages-", dir=folder) as path:
        for _ in range(rounds):
            for storage in (PLAIN, *STORAGES):
                run_measurements(storage, Path(path), records, partitions, found)
    report(found, records, partitions)


def run_measurements(storage: str, path: Path, records: int, partitions: int, found: Found) -> None:
    """Run all measurements of one storage, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    for name, (_, shape) in MEASUREMENTS.items():
        if storage == PLAIN and name not in {"append", "read"}:
            continue
        folder = path / shape
        folder.mkdir(exist_ok=True)
        with context.Pool(1) as pool:
            measured = pool.apply(measure_here, (storage, folder, name, records if shape == "one" else partitions))
        found.setdefault((name, storage), []).append(measured)
    for shape in ("one", "many"):
        shutil.rmtree(path / shape, ignore_errors=True)


def report(found: Found, records: int, partitions: int) -> None:
    """Print medians."""
    table = Table("", "storage", "seconds", "range", "records/s", "of plain file", "peak memory, MiB")
    for (name, storage), measured in sorted(found.items(), key=lambda item: list(MEASUREMENTS).index(item[0][0])):
        _, shape = MEASUREMENTS[name]
        what = f"{records:,} records in one partition" if shape == "one" else f"{partitions:,} partitions"
        seconds = [each for each, _ in measured]
        number = (records if shape == "one" else partitions * RECORDS_EACH) if name.strip() in {"append", "read"} else 0
        plain = found.get((name, PLAIN))
        ratio = statistics.median(b / s for (s, _), (b, _) in zip(measured, plain, strict=True)) if plain else None
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
