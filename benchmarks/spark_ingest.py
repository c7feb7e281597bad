"""Lets Spark read a store while it is written to, as a stream and as a table, and checks everything that is read.

    python benchmarks/spark_ingest.py [--rate 50000] [--seconds 60] [--storage sqlite|filelog] [--producers 2]

Tower and store are the `dafka` commands, each in a process of its own; the store syncs before it acknowledges. The
producers, in this process, send at a steady rate. Spark, in another process, follows the store and repeatedly reads all
of it. A problem is: an exception or a message about a lock on either side; a micro-batch that does not begin where the
last one of its partition ended, or skips or repeats an offset or has a wrong content; a batch read that misses a record
that was acknowledged before; or an acknowledged record that Spark never read.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import trio

import dafka
from dafka_bench.processes import open_processes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"
SLICE_S = 0.02
CONTENT = b"%0100d"
FREE = "tcp://127.0.0.1:*"


def read_in_spark(store: str) -> None:
    """Run Spark: print a line of JSON for each micro-batch and each read, until standard input ends."""
    from pyspark.sql import functions  # noqa: PLC0415

    from dafka.spark.session import make_session  # noqa: PLC0415
    from spark_routes import SETTINGS  # noqa: PLC0415

    spark: SparkSession = make_session("ingest", f"local[{os.cpu_count()}]", SETTINGS)
    over = threading.Event()

    def look(frame: DataFrame) -> list[list[Any]]:
        wrong = functions.expr("if(cast(cast(value AS string) AS bigint) = offset, 0, 1)")
        found = frame.groupBy("partition").agg(
            functions.min("offset"),
            functions.max("offset"),
            functions.count("*"),
            functions.sum("offset"),
            functions.sum(wrong),
            functions.min(functions.unix_millis("stored_at")),
        )
        return [list(row) for row in found.collect()]

    def tell(**said: Any) -> None:
        print(json.dumps(said), flush=True)

    def take(frame: DataFrame, number: int) -> None:
        tell(event="micro-batch", number=number, partitions=look(frame), at=time.time())

    stream = spark.readStream.format("dafka").option("startingOffsets", "earliest").load(store)
    query = stream.writeStream.foreachBatch(take).start()

    def wait_over() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_over, daemon=True).start()
    tell(event="ready")
    while not over.is_set():
        started = time.time()
        tell(event="read", began=started, partitions=look(spark.read.format("dafka").load(store)), at=time.time())
    query.processAllAvailable()
    durations = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
    query.stop()
    tell(event="done", durations=durations, failure=str(query.exception() or ""))


class Check:
    """Checks what Spark reports, and collects problems."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.history: list[tuple[float, dict[str, int]]] = []
        self.ends: dict[str, int] = {}
        self.ages: list[float] = []
        self.reads = 0
        self.problems: list[str] = []

    def take(self, said: dict[str, Any]) -> None:
        is_stream = said["event"] == "micro-batch"
        found = {row[0]: row[1:] for row in said["partitions"]}
        for address, (first, last, count, total, wrong, oldest) in found.items():
            start = self.ends.get(address, 0) if is_stream else 0
            whole = (last - first + 1, (first + last) * (last - first + 1) // 2)
            if first != start or (count, total) != whole or wrong:
                self.problems.append(f"{said['event']}: {address}: {first} to {last}, {count} records, {wrong} wrong")
            if is_stream:
                self.ends[address] = last + 1
                self.ages.append(said["at"] - oldest / 1000)
        if not is_stream:
            self.reads += 1
            before = next((ends for at, ends in reversed(self.history) if at < said["began"]), {})
            for address, end in before.items():
                if address not in found or found[address][1] + 1 < end:
                    self.problems.append(f"read: {address}: {end} were acknowledged before, found {found.get(address)}")


async def produce(config: dafka.Config, rate: float, seconds: float, check: Check, sent: list[int]) -> None:
    """Send at a steady rate; `sent` counts the records of each second."""
    async with dafka.open_producer(TOPIC, config) as producer:
        started, count = trio.current_time(), 0

        async def note() -> None:
            while True:
                so_far = count
                await producer.wait_stored()
                check.acknowledged[producer.partition.address] = so_far
                check.history.append((time.time(), dict(check.acknowledged)))
                await trio.sleep(0.2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note)
            while (elapsed := trio.current_time() - started) < seconds:
                due = int(elapsed * rate)
                await producer.send_many([CONTENT % each for each in range(count, due)])
                sent[min(int(elapsed), len(sent) - 1)] += due - count
                count = due
                await trio.sleep(SLICE_S)
            nursery.cancel_scope.cancel()
        await producer.wait_stored()
        check.acknowledged[producer.partition.address] = count


async def run(folder: Path, storage: str, rate: int, seconds: int, producers: int) -> None:
    check, sent, done = Check(), [0] * seconds, {}
    store = str(folder / ("store.db" if storage == "sqlite" else "log"))
    dafka_command = [sys.executable, "-m", "dafka"]
    async with open_processes(folder, {}) as processes:
        tower = await processes.serve("tower", [*dafka_command, "tower", "--sub", FREE, "--pub", FREE])
        words = (await tower.read_line()).split()
        sub, pub = words[4], words[-1]
        options = ["--storage", f"{storage}:{store}", "--tower-sub", sub, "--tower-pub", pub]
        keeper = await processes.serve("store", [*dafka_command, "store", *options, "--advertise", "127.0.0.1"])
        await keeper.read_line()
        config = dafka.Config().with_beacon(tower_sub=(sub,), tower_pub=(pub,))
        config = config.with_node(bind=FREE)
        async with dafka.open_producer(TOPIC, config) as first:  # the store exists before Spark reads it
            await first.send_many([CONTENT % each for each in range(10)])
        with (folder / "spark-errors").open("wb") as errors:
            process = await trio.lowlevel.open_process(
                [sys.executable, __file__, "--follow", store],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        ready = trio.Event()

        async def listen() -> None:
            rest = b""
            async for data in process.stdout:  # type: ignore[union-attr]
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    if said["event"] == "ready":
                        ready.set()
                    elif said["event"] == "done":
                        done.update(said)
                    else:
                        check.take(said)
            ready.set()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                await ready.wait()
                async with trio.open_nursery() as producing:
                    for _ in range(producers):
                        producing.start_soon(produce, config, rate / producers, seconds, check, sent)
                await process.stdin.aclose()
        finally:
            process.terminate() if process.returncode is None and not done else None
            with trio.CancelScope(shield=True):
                await process.wait()
    said = "".join(path.read_text(errors="replace") for path in folder.glob("*errors*"))  # noqa: ASYNC240
    check.problems += [line for line in said.splitlines() if "lock" in line.lower() and "block" not in line.lower()]
    check.problems += [f"Spark ended with {process.returncode}: {said[-2000:]}"] if not done else []
    check.problems += [done["failure"]] if done.get("failure") else []
    for address, end in check.acknowledged.items():
        if check.ends.get(address) != end:
            check.problems.append(f"{address}: {end} acknowledged, the stream ended at {check.ends.get(address)}")
    show(check, sent, done.get("durations") or [0])


def show(check: Check, sent: list[int], durations: list[int]) -> None:
    ages = check.ages or [0.0]
    print(f"sent: {sum(sent) / len(sent):,.0f} records/s, worst second {min(sent):,}")
    print(f"micro-batches: {len(durations)}, ms: median {statistics.median(durations):.0f}, longest {max(durations)}")
    print(f"oldest record of a micro-batch when it is done, s: median {statistics.median(ages):.2f}, {max(ages):.2f}")
    print(f"reads of the whole store while writing: {check.reads}")
    print(f"problems: {len(check.problems)}")
    for problem in check.problems[:10]:
        print(f"  {problem}")
    sys.exit(1 if check.problems else 0)


@click.command()
@click.option("--rate", default=50_000, show_default=True, help="Records per second.")
@click.option("--seconds", default=60, show_default=True)
@click.option("--storage", type=click.Choice(["sqlite", "filelog"]), default="sqlite", show_default=True)
@click.option("--producers", default=2, show_default=True)
@click.option("--follow", hidden=True)
def main(rate: int, seconds: int, storage: str, producers: int, follow: str | None) -> None:
    """Measure, and print the results."""
    if follow:
        read_in_spark(follow)
        return
    with tempfile.TemporaryDirectory(prefix="dafka-ingest-") as place:
        trio.run(run, Path(place), storage, rate, seconds, producers)


if __name__ == "__main__":
    main()
