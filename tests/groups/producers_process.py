"""Producers in a process of their own, each of which publishes its sequences until SIGTERM.

    python -m tests.groups.producers_process COUNT RECORDS_PER_S FILE

At the end it writes, as one JSON object, how many records each of them has published, by address.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from contextlib import AsyncExitStack

import trio

import dafka
from tests.groups.ledger import TOPIC


async def publish(producer: dafka.Producer, records_per_s: float) -> None:
    sequence = 0
    while True:
        count = random.randint(1, 3)
        await producer.send_many([b"%d" % each for each in range(sequence, sequence + count)])
        sequence += count
        await trio.sleep(random.expovariate(records_per_s / 2))


async def main(count: int, records_per_s: float, path: str) -> None:
    config = dafka.Config.load()
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with AsyncExitStack() as stack:
            producers = [await stack.enter_async_context(dafka.open_producer(TOPIC, config)) for _ in range(count)]
            print("ready", flush=True)
            async with trio.open_nursery() as nursery:
                for producer in producers:
                    nursery.start_soon(publish, producer, records_per_s)
                async for _ in signals:
                    break
                nursery.cancel_scope.cancel()
            for producer in producers:
                await producer.wait_stored()
            ends = {each.address: each.statistics().next_sequence for each in producers}
            await trio.Path(path).write_text(json.dumps(ends))


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
