"""Several brokers in one process, with a tower."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from dafka.batches import BatchHeader, check_crc, decode_batch, encode_batch
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.broker.log.index_reader import read_index
from dafka.broker.node import BrokerNode
from dafka.broker.startup import serve_broker
from dafka.config import Config
from dafka.errors import NotLeaderError
from dafka.records import Partition, RecordBatch
from dafka.storage import Storage
from dafka.testing import open_cluster
from tests.waiting import wait_until

PATIENCE_S = 60


@attrs.define(eq=False)
class BrokerCluster:
    """Several brokers in one process.

    Attributes:
        config: The configuration of the cluster.
        brokers: The running brokers, by name.
    """

    config: Config
    nursery: trio.Nursery
    folder: Path
    scheme: str
    brokers: dict[str, BrokerNode] = attrs.field(factory=dict)
    scopes: dict[str, trio.CancelScope] = attrs.field(factory=dict)
    ended: dict[str, trio.Event] = attrs.field(factory=dict)

    async def start(self, name: str, **settings: Any) -> BrokerNode:
        """Start a broker, for the first time or again."""
        storage = f"{self.scheme}:{self.folder / name}"
        quick: dict[str, Any] = {
            "heartbeat_ms": 100,
            "leader_timeout_ms": 2000,
            "preferred_leader_after_ms": 60_000,
            "replace_replicas_after_ms": 1000,
        }
        config = self.config.with_store(storage=storage).with_broker(**{**quick, **settings})
        ended = self.ended[name] = trio.Event()

        async def run(task_status: trio.TaskStatus[BrokerNode]) -> None:
            with trio.CancelScope() as scope:
                self.scopes[name] = scope
                await serve_broker(config, task_status=task_status)
            ended.set()

        self.brokers[name] = await self.nursery.start(run)
        return self.brokers[name]

    async def start_all(self, *names: str, **settings: Any) -> list[BrokerNode]:
        """Start brokers, and wait until all know each other."""
        found = [await self.start(name, **settings) for name in names]
        await wait_until(lambda: all(len(each.brokers.living()) == len(self.brokers) for each in found))
        return found

    async def stop(self, name: str) -> None:
        """Stop a broker."""
        self.scopes.pop(name).cancel()
        del self.brokers[name]
        await self.ended[name].wait()

    def name_of(self, broker: BrokerNode) -> str:
        """Return the name under which a broker runs."""
        return next(name for name, each in self.brokers.items() if each is broker)

    def logs(self, topic: str) -> list[tuple[BrokerNode, Log]]:
        """Return the logs of a topic that are led, each with its leader."""
        found = [(each, log) for each in self.brokers.values() for log in each.log_table.logs(topic)]
        return [(broker, log) for broker, log in found if log.leadership.is_led]

    async def wait_led(self, topic: str, count: int = 1) -> list[tuple[BrokerNode, Log]]:
        """Wait until all logs of a topic are led, and all brokers know by whom."""

        def is_led() -> bool:
            led = self.logs(topic)
            logs = [log for each in self.brokers.values() for log in each.log_table.logs(topic)]
            if len(logs) < count * len(self.brokers):
                return False
            leaders = {log.number: broker.address for broker, log in led}
            return len(led) == count == len(leaders) and all(
                log.leadership.leader == leaders[log.number] for log in logs
            )

        await wait_until(is_led)
        return sorted(self.logs(topic), key=lambda each: each[1].number)

    async def append(self, topic: str, number: int, *values: bytes) -> None:
        """Append records to a log, whoever leads it, and again if its leader changes meanwhile: see `distinct`."""
        with trio.fail_after(PATIENCE_S):
            while True:
                led = [(broker, log) for broker, log in self.logs(topic) if log.number == number]
                with suppress(NotLeaderError):
                    for broker, log in led:
                        await append(broker, log, *values)
                        return
                await trio.sleep(0.01)


def make_batch(
    *values: bytes, producer: tuple[int, int, int] | None = None
) -> list[tuple[BatchHeader, bytes | memoryview]]:
    """Return records as a client sends them; of a producer with an id, an epoch and a first sequence."""
    producer_id, epoch, base_sequence = producer or (-1, -1, -1)
    data = encode_batch(
        0,
        values,
        timestamps=int(time.time() * 1000),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
    )
    return [(check_crc(memoryview(data), 0), data)]


async def append(broker: BrokerNode, log: Log, *values: bytes) -> int:
    """Append records, and wait until enough replicas have them. Return the offset of the first one."""
    with trio.fail_after(PATIENCE_S):
        return await broker.writer.append(log, make_batch(*values)).wait_offset()


def distinct(found: list[bytes]) -> list[bytes]:
    """Return values without those that `BrokerCluster.append` has appended again."""
    return list(dict.fromkeys(found))


async def read(broker: BrokerNode, log: Log) -> list[bytes]:
    """Return the values of all records of a log up to its high watermark."""
    return await read_from(broker, log, 0)


async def read_from(broker: BrokerNode, log: Log, offset: int) -> list[bytes]:
    """Return the values of the records of a log from an offset up to its high watermark."""
    found = await broker.reader.read(log, Offset(offset), log.high_watermark, 2**30)
    return [value or b"" for data in found for value in decode_batch(data, bytes_max=2**30).values]


def record_read_indexes(monkeypatch: pytest.MonkeyPatch, module: str) -> list[Partition]:
    """Return the partition of each index record that a module of the broker reads from now on."""
    found: list[Partition] = []

    async def read_and_note(storage: Storage, partition: Partition, *sequences: int) -> AsyncIterator[RecordBatch]:
        async for batch in read_index(storage, partition, *sequences):
            found.extend([partition] * len(batch))
            yield batch

    monkeypatch.setattr(f"dafka.broker.{module}.read_index", read_and_note)
    return found


@asynccontextmanager
async def open_broker_cluster(folder: Path, scheme: str = "filelog") -> AsyncIterator[BrokerCluster]:
    """Run a tower, and the brokers that are started."""
    async with open_cluster(Config(), storage=None) as cluster, trio.open_nursery() as nursery:
        yield BrokerCluster(cluster.config, nursery, folder, scheme)
        nursery.cancel_scope.cancel()
