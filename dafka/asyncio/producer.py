"""Producers for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from dafka import roles
from dafka.asyncio.node import Node, Opening
from dafka.clients.hosted_node import Call, HostedNode
from dafka.config import Config
from dafka.records import Header, Partition, ProducerRecord, Record
from dafka.roles import ProducerStatistics


class Producer(Node[roles.Producer]):
    """A producer of one topic, opened by `open_producer`. Several tasks may use it at the same time."""

    def __init__(self, hosted: HostedNode[roles.Producer]) -> None:
        """Show an open producer. Programs call `open_producer` instead."""
        super().__init__(hosted)
        self._sending = asyncio.Lock()
        self._handed_over: Call[range] | None = None

    @property
    def partition(self) -> Partition:
        """The topic and the producer's address: the name of its partition."""
        return self._role.partition

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> int:
        """Publish one record, and return its sequence; see `dafka.Producer.send`. `send_many` is faster for many."""
        record = ProducerRecord(value, key, headers, timestamp)
        return (await self.send_many([record])).start

    async def send_many(self, records: Sequence[bytes | None] | Sequence[ProducerRecord | Record]) -> range:
        """Publish records in order, and return their sequences; see `dafka.Producer.send_many`.

        Where publishing cannot fail and need not wait for ACKs, the Trio thread may publish them just after this has
        returned, while the program makes the next ones.
        """
        batch = self._role._make_batch(records)
        self._hosted.thread.check_here()
        async with self._sending:
            await self._wait_published()
            send, attempt = partial(self._role._send_batch, batch), partial(self._role._send_nowait, batch)
            if not self._role._cannot_refuse(batch):
                return await self._wait(send, attempt)
            first = self._role._machine.next_sequence
            self._handed_over = self._hosted.accept(send, attempt)
            return range(first, first + len(batch))

    async def wait_stored(self) -> None:
        """Wait until `[producer] min_stores` stores have acknowledged every record sent so far."""
        await self._wait_published()
        await self._wait(self._role.wait_stored)

    async def wait_acknowledged(self) -> None:
        """Wait for outstanding ACKs, as leaving the block does; see `dafka.Producer.wait_acknowledged`."""
        await self._wait_published()
        await self._wait(self._role.wait_acknowledged)

    async def statistics(self) -> ProducerStatistics:
        """Return the counters so far."""
        return await self._ask(self._role.statistics)

    async def _wait_published(self) -> None:
        """Wait until the last batch that was handed over is published."""
        if self._handed_over is not None and not self._hosted.thread.is_foreign():
            await self._wait_call(self._handed_over, lambda: None)


def open_producer(
    topic: str, config: Config | None = None, *, address: str | None = None, next_sequence: int = 0
) -> Opening[Producer]:
    """Open a producer; see `dafka.open_producer`, whose arguments and exceptions it has.

    `async with` or `await` opens the producer. Leaving the block, or `aclose`, waits for outstanding ACKs.
    """
    return Opening(Producer, partial(roles.open_producer, topic, config, address=address, next_sequence=next_sequence))
