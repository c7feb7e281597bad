"""A scripted store that behaves like libdafka's: two nodes, which read only their own dialect.

Its reading half ends with the first message that is not in libdafka's dialect, as libdafka's does with a failed
assertion. Its writing half ignores such messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import attrs
import trio

from dafka import Config, Partition, wire
from dafka.discovery import Advertisement, DiscoveryEvent, open_discovery
from dafka.protocol import PeerJoined
from dafka.records import new_address
from dafka.transport import Mesh, open_mesh
from dafka.wire import Dialect, codec
from dafka.wire.batch import iter_frames

Answer: TypeAlias = Callable[[Sequence[bytes]], list[wire.Message]]

READER = (b"G", b"F", b"W*")
WRITER = (b"M", b"H", b"D*")
PAGE = 100_000
"""It asks for records up to the next multiple of this number, and no further ones by itself."""


@attrs.define
class LibdafkaStore:
    """The records of a scripted store, and the messages that it has received.

    Attributes:
        reader: The address of its reading half.
        writer: The address of its writing half.
        records: The contents of its records, by partition.
        requests: The requests that the reading half has received.
        unreadable: The messages that it could not read. The first such message ends the store of libdafka.
        fetches: The FETCHes that the writing half has sent.
    """

    reader: str = attrs.field(factory=new_address)
    writer: str = attrs.field(factory=new_address)
    records: dict[Partition, list[bytes]] = attrs.field(factory=dict)
    requests: list[wire.Message] = attrs.field(factory=list)
    unreadable: list[Sequence[bytes]] = attrs.field(factory=list)
    fetches: list[wire.Fetch] = attrs.field(factory=list)

    def answer(self, frames: Sequence[bytes]) -> list[wire.Message]:
        """Return the answers of the reading half."""
        message, dialect = codec.decode(frames)
        if dialect is not Dialect.LIBDAFKA:
            self.unreadable.append(frames)
        if self.unreadable:
            return []
        self.requests.append(message)
        if isinstance(message, wire.GetHeads):
            return self._heads(message.address, message.subject)
        if isinstance(message, wire.ConsumerHello):
            return [head for subject in message.subjects for head in self._heads(message.address, subject)]
        assert isinstance(message, wire.Fetch)
        held = self.records.get(Partition(message.subject, message.partition), [])
        wanted = enumerate(held[message.sequence :][: message.count + 1], message.sequence)
        return [
            wire.DirectRecord(message.address, message.partition, message.subject, sequence, content)
            for sequence, content in wanted
        ]

    def store(self, frames: Sequence[bytes]) -> list[wire.Message]:
        """Return the answers of the writing half."""
        message, dialect = codec.decode(frames)
        if dialect is not Dialect.LIBDAFKA:
            return []
        assert isinstance(message, (wire.Record, wire.DirectRecord, wire.Head))
        partition = Partition(message.subject, message.address)
        held = self.records.setdefault(partition, [])
        if isinstance(message, wire.Head):
            return self._fetch(partition) if message.sequence >= len(held) else []
        if message.sequence != len(held):
            return self._fetch(partition) if message.sequence > len(held) else []
        held.append(message.content)
        return [wire.Ack(partition.address, partition.topic, message.sequence)]

    def _fetch(self, partition: Partition) -> list[wire.Message]:
        first = len(self.records[partition])
        fetch = wire.Fetch(partition.address, self.writer, partition.topic, first, PAGE - first % PAGE)
        self.fetches.append(fetch)
        return [fetch]

    def _heads(self, requestor: str, prefix: str) -> list[wire.Message]:
        return [
            wire.DirectHead(requestor, partition.address, partition.topic, len(held) - 1)
            for partition, held in self.records.items()
            if partition.topic.startswith(prefix) and held
        ]


@asynccontextmanager
async def open_libdafka_store(config: Config, store: LibdafkaStore | None = None) -> AsyncIterator[LibdafkaStore]:
    """Run both halves of a scripted store for the length of a block."""
    store = store or LibdafkaStore()
    async with trio.open_nursery() as nursery:
        await nursery.start(run_node, config, store.reader, READER, store.answer)
        await nursery.start(run_node, config, store.writer, WRITER, store.store)
        yield store
        nursery.cancel_scope.cancel()


async def run_node(
    config: Config,
    address: str,
    prefixes: Sequence[bytes],
    answer: Answer,
    subscribed: Callable[[bytes], object] | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a scripted node that subscribes to prefixes, in which `*` is its address, until cancelled.

    It is one of libdafka. With `subscribed`, which is called for each subscription of a peer, it is one of RFC 46.
    """
    dialect = Dialect.RFC46 if subscribed else Dialect.LIBDAFKA
    async with open_mesh(config.with_node(record_batches="off").node, 0) as mesh, trio.open_nursery() as nursery:
        for prefix in prefixes:
            mesh.subscriber.subscribe(prefix.replace(b"*", address.encode()))

        def discovered(report: DiscoveryEvent) -> None:
            if isinstance(report, PeerJoined):
                mesh.subscriber.connect_peer(report.endpoint)

        nursery.start_soon(_receive, mesh, answer, dialect)
        nursery.start_soon(_hear_subscriptions, mesh, subscribed or partial(_greet, mesh, address))
        await nursery.start(open_discovery(config).run, Advertisement(address, "", mesh.port), discovered)
        task_status.started()


async def _receive(mesh: Mesh, answer: Answer, dialect: Dialect) -> None:
    while True:
        items, _ = await mesh.subscriber.receive()
        answers = [message for frames in iter_frames(items) for message in answer(frames)]
        mesh.publisher.send_many([codec.encode(message, dialect) for message in answers])


async def _hear_subscriptions(mesh: Mesh, subscribed: Callable[[bytes], object]) -> None:
    while True:
        for (frame,) in await mesh.publisher.receive_many():
            subscribed(frame)


def _greet(mesh: Mesh, address: str, frame: bytes) -> None:
    """Greet consumers, which subscribe to STORE-HELLO with their address."""
    found = wire.decode_subscription(frame)
    if found is not None and found.command is wire.Command.STORE_HELLO and found.active:
        mesh.publisher.send_many([codec.encode(wire.StoreHello(found.topic, address), Dialect.LIBDAFKA)])
