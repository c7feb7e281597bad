"""A scripted consumer that behaves like libdafka's.

It takes records in their order only, and forgets what comes too early. It asks for a page of missing records when a
RECORD or a HEAD shows that they exist, at most once in a second for each page, and never by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from dafka import Config, Partition, wire
from dafka.records import new_address
from dafka.wire import codec
from tests.roles.libdafka_store import PAGE, run_node


@attrs.define
class LibdafkaConsumer:
    """A scripted consumer of one topic, from the earliest record on.

    Attributes:
        topic: The topic.
        second_s: How long the second is in which a page is asked for once.
        page: The number of records of a page.
        address: The address of the consumer.
        records: The contents that it has delivered, by partition.
        fetches: The FETCHes that it has sent.
    """

    topic: str
    second_s: float = 1.0
    page: int = PAGE
    address: str = attrs.field(factory=new_address)
    records: dict[Partition, list[bytes]] = attrs.field(factory=dict)
    fetches: list[wire.Fetch] = attrs.field(factory=list)
    _asked: set[tuple[Partition, int, int]] = attrs.field(factory=set)

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """What it subscribes to, with `*` for its address."""
        topic = self.topic.encode()
        return (b"D*", b"E*", b"W*", b"M" + topic, b"H" + topic)

    def answer(self, frames: Sequence[bytes], now: float) -> list[wire.Message]:
        """Return the answers to a message."""
        message, _ = codec.decode(frames)
        if isinstance(message, wire.StoreHello):
            return [wire.ConsumerHello(message.address, self.address, (self.topic,))]
        assert isinstance(message, (wire.Record, wire.DirectRecord, wire.Head, wire.DirectHead))
        partition = Partition(message.subject, message.address)
        held = self.records.setdefault(partition, [])
        if isinstance(message, (wire.Record, wire.DirectRecord)) and message.sequence == len(held):
            held.append(message.content)
            return []
        return self._fetch(partition, len(held), now) if message.sequence >= len(held) else []

    def _fetch(self, partition: Partition, first: int, now: float) -> list[wire.Message]:
        key = partition, first // self.page, int(now / self.second_s)
        if key in self._asked:
            return []
        self._asked.add(key)
        fetch = wire.Fetch(partition.address, self.address, partition.topic, first, self.page - first % self.page)
        self.fetches.append(fetch)
        return [fetch]


@asynccontextmanager
async def open_libdafka_consumer(config: Config, consumer: LibdafkaConsumer) -> AsyncIterator[LibdafkaConsumer]:
    """Run a scripted consumer for the length of a block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(
            run_node,
            config,
            consumer.address,
            consumer.prefixes,
            lambda frames: consumer.answer(frames, trio.current_time()),
        )
        yield consumer
        nursery.cancel_scope.cancel()
