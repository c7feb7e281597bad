"""The processes of a group under chaos, each of which runs until SIGTERM. Settings come from the environment.

    python -m tests.groups.chaos_processes member NAME LEDGER
    python -m tests.groups.chaos_processes producers COUNT RECORDS_PER_S FILE

A member writes what it handles to a ledger. The lines are in the file before the next thing happens, so they survive a
kill. Their times are those of the machine's steady clock, which all processes share. Producers publish their sequences.
At the end they write, as one JSON object, how many records each of them has published, by address.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from contextlib import AsyncExitStack
from functools import partial

import trio

import dafka

TOPIC, GROUP = "orders", "billing"


async def handle(name: str, ledger: int, consumer: dafka.Consumer) -> None:
    """Handle records, and save how far this has come."""

    def write(kind: str, partition: str, first: int, end: int) -> None:
        line = [kind, f"{name}/{os.getpid()}", time.monotonic(), partition, first, end]
        os.write(ledger, json.dumps(line).encode() + b"\n")

    async for batch in consumer.batches():
        place = batch.partition.address, batch.first_sequence, batch.end_sequence
        write("begin", *place)
        assert list(batch.values) == [b"%d" % sequence for sequence in range(*place[1:])]
        await trio.sleep(random.uniform(0.0, 0.004))
        write("end", *place)
        await consumer.save_positions()
        if place[0] in {each.address for each in consumer.positions()}:
            write("saved", *place)


async def publish(producer: dafka.Producer, records_per_s: float) -> None:
    """Publish a few records again and again."""
    sequence = 0
    while True:
        count = random.randint(1, 3)
        await producer.send_many([b"%d" % each for each in range(sequence, sequence + count)])
        sequence += count
        await trio.sleep(random.expovariate(records_per_s / 2))


async def main(kind: str, count_or_name: str, *arguments: str) -> None:
    config = dafka.Config.load()
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with AsyncExitStack() as stack:
            count = int(count_or_name) if kind == "producers" else 0
            openings = [dafka.open_producer(TOPIC, config) for _ in range(count)]
            producers = [await stack.enter_async_context(each) for each in openings]
            tasks = [partial(publish, each, float(arguments[0])) for each in producers]
            if kind == "member":
                ledger = os.open(arguments[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                consumer = await stack.enter_async_context(dafka.open_consumer([TOPIC], config, group=GROUP))
                tasks = [partial(handle, count_or_name, ledger, consumer)]
            async with trio.open_nursery() as nursery:
                for task in tasks:
                    nursery.start_soon(task)
                print("ready", flush=True)
                async for _ in signals:
                    break
                nursery.cancel_scope.cancel()
            for producer in producers:
                await producer.wait_stored()
            if producers:
                ends = {each.address: each.statistics().next_sequence for each in producers}
                await trio.Path(arguments[1]).write_text(json.dumps(ends))


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
