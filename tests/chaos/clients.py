"""A producer or a consumer in a process of its own, which keeps a ledger until SIGTERM.

    python -m tests.chaos.clients LEDGER produce TOPIC RATE
    python -m tests.chaos.clients LEDGER consume TOPICS

Settings come from the environment. A producer publishes at a steady rate. After a kill it continues the ledger, with
its former partition if it has a spool, else with a new one. A consumer checks every record, and saves its positions.
After a kill, it continues at the saved ones.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import trio

import dafka
from tests.chaos.ledger import LedgerWriter, Sequel, contents_of

PUBLISH_S = 0.05
"""Seconds between two batches, and between two lines of a producer's ledger."""

CATCH_UP = 2
"""The multiple of the rate at which a producer catches up after a stall."""

TICK_S = 0.1
"""Seconds between two lines of a consumer's ledger."""

SAVE_TICKS = 10
"""Ticks between two saves of the positions. Records delivered since the last save are delivered again after a kill."""


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
            await trio.sleep(PUBLISH_S)

    async def publish(self, rate: float) -> None:
        address = self._producer.partition.address
        begun = trio.current_time()
        published = 0
        step_max = max(round(CATCH_UP * rate * PUBLISH_S), 1)
        while True:
            count = min(int((trio.current_time() - begun) * rate) - published, step_max)
            if count > 0:
                first = self._producer.statistics().next_sequence
                await self._producer.send_many(contents_of(address, first, first + count))
                published += count
            await trio.sleep(PUBLISH_S)


async def produce(ledger: LedgerWriter, topic: str, rate: float) -> None:
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


async def consume(ledger: LedgerWriter, topics: list[str]) -> None:
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
    _, path, kind, topic, *rate = sys.argv
    if kind == "produce":
        trio.run(produce, LedgerWriter(Path(path)), topic, float(rate[0]))
    else:
        trio.run(consume, LedgerWriter(Path(path)), topic.split(","))
