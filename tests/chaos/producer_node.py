"""A producer in a process of its own: publishes at a steady rate until SIGTERM, and keeps a ledger.

    python -m tests.chaos.producer_node TOPIC RATE LEDGER

Settings come from the environment. After a kill it continues the ledger, with its former partition if it has a spool,
else with a new one.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import trio

import dafka
from tests.chaos.contents import contents_of
from tests.chaos.ledger import LedgerWriter

TICK_S = 0.05
"""Seconds between two batches, and between two lines of the ledger."""

CATCH_UP = 2
"""The multiple of the rate at which it catches up after a stall."""


class Publisher:
    def __init__(self, producer: dafka.Producer, ledger: LedgerWriter, *, is_spooled: bool) -> None:
        self._producer = producer
        self._ledger = ledger
        self._is_spooled = is_spooled
        self._written = (-1, -1)

    def write(self, kind: str) -> None:
        statistics = self._producer.statistics()
        sent = statistics.next_sequence
        written = (sent - statistics.unacknowledged, sent)
        if kind != "ack" or written != self._written:
            self._written = written
            self._ledger.write(
                kind=kind,
                address=self._producer.partition.address,
                acknowledged=written[0],
                sent=sent,
                next=sent,
                spool=self._is_spooled,
            )

    async def write_acknowledged(self) -> None:
        """Write what is acknowledged, in a task of its own because publishing may have to wait."""
        while True:
            self.write("ack")
            await trio.sleep(TICK_S)

    async def publish(self, rate: float) -> None:
        address = self._producer.partition.address
        begun = trio.current_time()
        published = 0
        step_max = max(round(CATCH_UP * rate * TICK_S), 1)
        while True:
            count = min(int((trio.current_time() - begun) * rate) - published, step_max)
            if count > 0:
                first = self._producer.statistics().next_sequence
                await self._producer.send_many(contents_of(address, first, first + count))
                published += count
            await trio.sleep(TICK_S)


async def main(topic: str, rate: float, ledger: LedgerWriter) -> None:
    config = dafka.Config.load()
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        print("ready", flush=True)
        async with dafka.open_producer(topic, config) as producer, trio.open_nursery() as nursery:
            publisher = Publisher(producer, ledger, is_spooled=bool(config.producer.spool))
            publisher.write("open")
            nursery.start_soon(publisher.write_acknowledged)
            async with trio.open_nursery() as publishing:
                publishing.start_soon(publisher.publish, rate)
                async for _ in signals:
                    break
                publishing.cancel_scope.cancel()
            await producer.wait_stored()
            nursery.cancel_scope.cancel()
        publisher.write("close")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    trio.run(main, sys.argv[1], float(sys.argv[2]), LedgerWriter(Path(sys.argv[3])))
