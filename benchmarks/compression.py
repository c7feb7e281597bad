"""Measures the costs and savings of compressing record batches, on the lines of 336,776 flights.

A tower and a store with a file log run as `dafka up`; a producer runs in this process. The cases take turns. Run on a
quiet machine, with the package of `dafka demo`:

    python benchmarks/compression.py [ROUNDS]

For each compression: the records per second until all are acknowledged, the bytes of the segments on disk, and those
that the loopback interface has carried. Ratios are to no compression.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Literal, TypeAlias, get_args

import attrs
import trio

from dafka import Config, open_producer
from dafka.cli.demo import load_flights

Compression: TypeAlias = Literal["none", "zstd", "lz4", "snappy", "gzip"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
RUN = 10_000
FREE = "tcp://127.0.0.1:*"
REPEATED = 4
"""How often the lines are sent, so that a measurement takes a second."""


@attrs.frozen
class Measured:
    """What was measured.

    Attributes:
        rate: Records per second.
        disk: Bytes of the segments.
        wire: Bytes on the loopback interface.
    """

    rate: float
    disk: float
    wire: float


@asynccontextmanager
async def open_server(folder: str) -> AsyncIterator[Config]:
    """Run a tower and a store with a file log."""
    command = [sys.executable, "-m", "dafka", "up", "--sub", FREE, "--pub", FREE, "--storage", f"filelog:{folder}/log"]
    process = await trio.lowlevel.open_process(command, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    try:
        text = b""
        while text.count(b"\n") < 2:
            text += await process.stdout.receive_some()
        words = text.decode().split()
        yield Config().with_beacon(tower_sub=(words[4],), tower_pub=(words[10],))
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()


def carried_bytes() -> int:
    """Return the bytes that the loopback interface has carried."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def segment_bytes(folder: str) -> int:
    """Return the size of the segments of a file log."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*.log"))


async def measure(compression: Compression, runs: list[list[bytes]]) -> Measured:
    """Send the runs, and wait until all records are stored."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_server(folder) as config:
            async with open_producer("flights", config.with_producer(compression=compression)) as producer:
                await producer.send(b"first")
                await producer.wait_stored()
                carried, began = carried_bytes(), trio.current_time()
                for run in runs:
                    await producer.send_many(run)
                await producer.wait_stored()
                seconds, carried = trio.current_time() - began, carried_bytes() - carried
            return Measured(sum(map(len, runs)) / seconds, segment_bytes(folder), carried)


async def main(rounds: int) -> None:
    lines = load_flights().splitlines() * REPEATED
    runs = [lines[start : start + RUN] for start in range(0, len(lines), RUN)]
    found: dict[Compression, list[Measured]] = {compression: [] for compression in COMPRESSIONS}
    for _ in range(rounds):
        for compression, measured in found.items():
            measured.append(await measure(compression, runs))
    median = {
        compression: Measured(
            statistics.median(each.rate for each in measured),
            statistics.median(each.disk for each in measured),
            statistics.median(each.wire for each in measured),
        )
        for compression, measured in found.items()
    }
    for compression, each in median.items():
        plain = median["none"]
        print(
            f"{compression:6} {each.rate:>9,.0f} records/s ({each.rate / plain.rate:.2f})  "
            f"disk {each.disk / 1e6:>6.1f} MB ({each.disk / plain.disk:.2f})  "
            f"wire {each.wire / 1e6:>6.1f} MB ({each.wire / plain.wire:.2f})"
        )


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 5)
