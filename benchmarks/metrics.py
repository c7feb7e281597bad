"""Measures what metrics cost: the records per second that a store acknowledges, with and without metrics.

The command `dafka up` runs as an operator would run it. With metrics, it is scraped once a second, far more often than
Prometheus does. A producer runs in this process. The cases take turns. Run on a quiet machine:

    python benchmarks/metrics.py [RECORDS] [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

import trio

from dafka import Config, open_producer

CONTENT = bytes(range(100))
RUN = 1000
FREE = "tcp://127.0.0.1:*"
SCRAPE_S = 1.0


@asynccontextmanager
async def open_server(folder: str, *, is_watched: bool) -> AsyncIterator[tuple[Config, int]]:
    """Run a tower and a store on disk."""
    command = [sys.executable, "-m", "dafka", "up", "--sub", FREE, "--pub", FREE, "--storage", f"sqlite:{folder}/s.db"]
    watched = ["--metrics-listen", "0", "--log-level", "info", "--log-format", "json"] if is_watched else []
    process = await trio.lowlevel.open_process([*command, *watched], stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    try:
        text = b""
        while text.count(b"\n") < (3 if is_watched else 2):
            text += await process.stdout.receive_some()
        words = text.decode().split()
        async with trio.open_nursery() as nursery:
            if is_watched:
                nursery.start_soon(scrape, words[-1])
            yield Config().with_beacon(tower_sub=(words[4],), tower_pub=(words[10],)), process.pid
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()


async def scrape(url: str) -> None:
    while True:
        await trio.to_thread.run_sync(lambda: urllib.request.urlopen(url, timeout=10).read(), abandon_on_cancel=True)
        await trio.sleep(SCRAPE_S)


def processor_s(process: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(records: int, *, is_watched: bool) -> tuple[float, float]:
    """Return the records per second, and the processor time per record of the tower and the store, in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_server(folder, is_watched=is_watched) as (config, process),
            open_producer("t", config) as producer,
        ):
            await producer.send(CONTENT)
            await producer.wait_stored()
            began, used = trio.current_time(), processor_s(process)
            for _ in range(records // RUN):
                await producer.send_many([CONTENT] * RUN)
            await producer.wait_stored()
            rate = records / (trio.current_time() - began)
            return rate, (processor_s(process) - used) / records * 1e6


async def main(records: int, rounds: int) -> None:
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(rounds):
        for is_watched in (False, True) if number % 2 else (True, False):
            found[is_watched].append(await measure(records, is_watched=is_watched))
    for is_watched, measured in found.items():
        rates, costs = zip(*measured, strict=True)
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        print(
            f"{'watched' if is_watched else 'alone':8} {statistics.median(rates):>9,.0f}/s   ({spread})   "
            f"{statistics.median(costs):.2f} us of the processor a record ({min(costs):.2f} to {max(costs):.2f})"
        )


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    records, rounds = (*given, *(1_000_000, 7)[len(given) :])
    trio.run(main, records, rounds)
