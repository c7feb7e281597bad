"""Compares `dafka.blocking` and `dafka.asyncio` with the API for Trio: publishing and receiving in batches.

A tower and a store with its records in memory run in a process of their own, and each measurement in a new process. In
each round every style publishes its records to a topic of its own, in lists of one length, and waits until they are
stored; then it reads them all with `batches()`, from the first batch on. The ratios compare the medians of one run, and
the best rounds, which suffer least from other processes. The processor time is that of the measured process. Run on a
quiet machine:

    python benchmarks/styles.py [RECORDS] [ROUNDS] [RECORDS_IN_A_LIST]
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time

import trio

import dafka
import dafka.asyncio
import dafka.blocking
from dafka.testing import open_cluster

CONTENT_BYTES = 100
STYLES = ("trio", "blocking", "asyncio")


Seconds = tuple[float, float]
"""The time that passed, and the processor time of all threads of the process."""


class Stopwatch:
    def __init__(self) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def read(self) -> Seconds:
        return time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]


async def serve() -> None:
    async with open_cluster() as cluster:
        print(cluster.tower.sub_endpoint, cluster.tower.pub_endpoint, flush=True)
        await trio.sleep_forever()


def make_lists(records: int, length: int) -> list[list[bytes]]:
    values = [b"%0*d" % (CONTENT_BYTES, number) for number in range(records)]
    return [values[start : start + length] for start in range(0, records, length)]


async def produce_trio(topic: str, config: dafka.Config, lists: list[list[bytes]]) -> Seconds:
    async with dafka.open_producer(topic, config) as producer:
        await producer.wait_settled()
        begun = Stopwatch()
        for values in lists:
            await producer.send_many(values)
        await producer.wait_stored()
        return begun.read()


async def produce_asyncio(topic: str, config: dafka.Config, lists: list[list[bytes]]) -> Seconds:
    async with dafka.asyncio.open_producer(topic, config) as producer:
        await producer.wait_settled()
        begun = Stopwatch()
        for values in lists:
            await producer.send_many(values)
        await producer.wait_stored()
        return begun.read()


def produce_blocking(topic: str, config: dafka.Config, lists: list[list[bytes]]) -> Seconds:
    with dafka.blocking.open_producer(topic, config) as producer:
        producer.wait_settled()
        begun = Stopwatch()
        for values in lists:
            producer.send_many(values)
        producer.wait_stored()
        return begun.read()


async def consume_trio(topic: str, config: dafka.Config, records: int) -> Seconds:
    async with dafka.open_consumer([topic], config) as consumer:
        records -= len(await consumer.next_batch())
        begun = Stopwatch()
        async for batch in consumer.batches():
            records -= len(batch)
            if not records:
                break
        return begun.read()


async def consume_asyncio(topic: str, config: dafka.Config, records: int) -> Seconds:
    async with dafka.asyncio.open_consumer([topic], config) as consumer:
        records -= len(await consumer.next_batch())
        begun = Stopwatch()
        async for batch in consumer.batches():
            records -= len(batch)
            if not records:
                break
        return begun.read()


def consume_blocking(topic: str, config: dafka.Config, records: int) -> Seconds:
    with dafka.blocking.open_consumer([topic], config) as consumer:
        records -= len(consumer.next_batch())
        begun = Stopwatch()
        for batch in consumer.batches():
            records -= len(batch)
            if not records:
                break
        return begun.read()


def measure(style: str, task: str, topic: str, sub: str, pub: str, count: str, length: str) -> Seconds:
    """Return the seconds that one style takes for one task."""
    records = int(count)
    config = dafka.Config().with_beacon(tower_sub=(sub,), tower_pub=(pub,)).with_node(bind="tcp://127.0.0.1:*")
    config = config.with_consumer(offset_reset="earliest")
    if task == "produce":
        lists = make_lists(records, int(length))
        if style == "trio":
            return trio.run(produce_trio, topic, config, lists)
        if style == "asyncio":
            return asyncio.run(produce_asyncio(topic, config, lists))
        return produce_blocking(topic, config, lists)
    if style == "trio":
        return trio.run(consume_trio, topic, config, records)
    if style == "asyncio":
        return asyncio.run(consume_asyncio(topic, config, records))
    return consume_blocking(topic, config, records)


def run_measurement(*arguments: object) -> Seconds:
    command = [sys.executable, __file__, "measure", *map(str, arguments)]
    passed, used = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return float(passed), float(used)


def main(records: int = 300_000, rounds: int = 5, length: int = 1000) -> None:
    with subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True) as cluster:
        assert cluster.stdout is not None
        sub, pub = cluster.stdout.readline().split()
        rates: dict[tuple[str, str], list[float]] = {}
        costs: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds):
            for style in STYLES[number % 3 :] + STYLES[: number % 3]:
                for task in ("produce", "consume"):
                    passed, used = run_measurement(style, task, f"{style}-{number}", sub, pub, records, length)
                    rates.setdefault((task, style), []).append(records / passed)
                    costs.setdefault((task, style), []).append(1e9 * used / records)
        cluster.terminate()
    for task in ("produce", "consume"):
        medians = {style: statistics.median(rates[task, style]) for style in STYLES}
        best = {style: max(rates[task, style]) for style in STYLES}
        for style, median in medians.items():
            ratios = f"{median / medians['trio']:.2f} of trio, best {best[style] / best['trio']:.2f}"
            cost = statistics.median(costs[task, style])
            print(f"{task} {style}: {median:,.0f} records/s ({ratios}), {cost:.0f} ns of processor time a record")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        trio.run(serve)
    elif sys.argv[1:2] == ["measure"]:
        print(*measure(*sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))
