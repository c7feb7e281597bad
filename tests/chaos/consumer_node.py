"""A consumer in a process of its own: checks every record, saves its positions, and keeps a ledger, until SIGTERM.

    python -m tests.chaos.consumer_node TOPICS LEDGER

Settings come from the environment. After a kill, it continues at the positions that it has saved.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import trio

import dafka
from tests.chaos.contents import Sequel
from tests.chaos.ledger import LedgerWriter

TICK_S = 0.1
"""Seconds between two lines of the ledger."""

SAVE_TICKS = 10
"""Ticks between two saves of the positions. Records delivered since the last save are delivered again after a kill."""


class Receiver:
    def __init__(self, consumer: dafka.Consumer, ledger: LedgerWriter) -> None:
        self._consumer = consumer
        self._ledger = ledger
        self._sequel = Sequel()
        self._written: dict[str, int] = {}

    async def receive(self) -> None:
        async for batch in self._consumer.batches():
            self._written.setdefault(batch.partition.address, batch.first_sequence)
            problem = self._sequel.take(batch)
            if problem:
                self._ledger.write(kind="problem", text=problem)

    def write(self) -> None:
        """Write what was delivered since the previous call."""
        for address, end in self._sequel.ends.items():
            first = self._written[address]
            if end > first:
                self._ledger.write(kind="run", address=address, first=first, end=end)
                self._written[address] = end

    async def save(self) -> None:
        """Save the positions, after writing the ledger: it must hold everything that is saved."""
        self.write()
        saved = {partition.address: position for partition, position in self._consumer.positions().items()}
        await self._consumer.save_positions()
        self._ledger.write(kind="saved", positions=saved)

    async def save_often(self) -> None:
        while True:
            for _ in range(SAVE_TICKS):
                await trio.sleep(TICK_S)
                self.write()
            with trio.CancelScope(shield=True):
                await self.save()


async def main(topics: list[str], ledger: LedgerWriter) -> None:
    ledger.write(kind="open")
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        print("ready", flush=True)
        async with dafka.open_consumer(topics, dafka.Config.load()) as consumer:
            receiver = Receiver(consumer, ledger)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receiver.receive)
                nursery.start_soon(receiver.save_often)
                async for _ in signals:
                    break
                nursery.cancel_scope.cancel()
            await receiver.save()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    trio.run(main, sys.argv[1].split(","), LedgerWriter(Path(sys.argv[2])))
