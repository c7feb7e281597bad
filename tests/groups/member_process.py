"""A member of a group in a process of its own, which writes what it handles to a ledger, until SIGTERM.

    python -m tests.groups.member_process NAME LEDGER

Settings come from the environment. Lines of the ledger are in the file before the next thing happens, so they survive a
kill. Their times are those of the machine's steady clock, which all processes share.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

import trio

import dafka
from tests.groups.ledger import GROUP, TOPIC


class Member:
    def __init__(self, name: str, ledger: int, consumer: dafka.Consumer) -> None:
        self._name = f"{name}/{os.getpid()}"
        self._ledger = ledger
        self._consumer = consumer

    def _write(self, kind: str, partition: str, first: int, end: int) -> None:
        line = [kind, self._name, time.monotonic(), partition, first, end]
        os.write(self._ledger, json.dumps(line).encode() + b"\n")

    async def handle(self) -> None:
        async for batch in self._consumer.batches():
            partition, first, end = batch.partition.address, batch.first_sequence, batch.end_sequence
            self._write("begin", partition, first, end)
            assert list(batch.values) == [b"%d" % sequence for sequence in range(first, end)]
            await trio.sleep(random.uniform(0.0, 0.004))
            self._write("end", partition, first, end)
            await self._consumer.save_positions()
            if partition in {each.address for each in self._consumer.positions()}:
                self._write("saved", partition, first, end)


async def main(name: str, ledger: str) -> None:
    descriptor = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        opening = dafka.open_consumer([TOPIC], dafka.Config.load(), group=GROUP)
        async with opening as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(Member(name, descriptor, consumer).handle)
            print("ready", flush=True)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
