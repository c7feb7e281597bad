"""Producers whose connections are cut at random, and whose broker is killed: nothing twice, nothing lost, all or none.

What ends a test is what the producers have done. Seeds are fixed, but the moments differ from run to run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.kafka.server.broker_process import BrokerProcess, open_broker_process
from tests.kafka.server.clients import Confluent
from tests.kafka.server.cutting_proxy import CuttingProxy, cut_connections
from tests.kafka.server.test_transactions import read_committed
from tests.ports import free_port

DEADLINE_S = 240
TRANSACTION_RECORDS = 5

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20, "linger.ms": 1}

STORAGES = {"filelog": "filelog:{}/log", "sqlite": "sqlite:{}/broker.db"}


@pytest.fixture(params=list(STORAGES.values()), ids=list(STORAGES))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


@contextmanager
def open_chaos(storage: str, seed: int) -> Iterator[tuple[BrokerProcess, CuttingProxy, str]]:
    """Run a broker behind a proxy, and yield both and where clients find the proxy."""
    port = free_port()
    with cut_connections(port, seed) as proxy, open_broker_process(storage, port, proxy.port) as broker:
        yield broker, proxy, f"127.0.0.1:{proxy.port}"


def kill_at(broker: BrokerProcess, count: int, targets: list[int]) -> None:
    """Kill the broker and start it again if a count has reached the next target."""
    if targets and count >= targets[0]:
        targets.pop(0)
        broker.kill()
        broker.start()


def check_once(servers: str, records: int) -> None:
    """Check that a topic has each of the numbers once, in order."""
    found = [int(each.value or b"") for each in Confluent().read(servers, "orders", records)]
    assert found == list(range(records)), [number for number, count in Counter(found).items() if count > 1][:10]


def produce_idempotently(storage: str, records: int, kills: int, seed: int) -> None:
    with open_chaos(storage, seed) as (broker, proxy, servers):
        producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "batch.num.messages": 10, **QUICK}
        )
        acknowledged: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            acknowledged.append(int(message.value()))

        targets = [records * (each + 1) // (kills + 1) for each in range(kills)]
        for number in range(records):
            producer.produce("orders", b"%d" % number, on_delivery=delivered)
        deadline = time.monotonic() + DEADLINE_S
        while len(acknowledged) < records:
            assert time.monotonic() < deadline, len(acknowledged)
            producer.poll(0.01)
            kill_at(broker, len(acknowledged), targets)
        assert proxy.cuts
        assert not targets
        proxy.is_cutting = False
        assert sorted(acknowledged) == list(range(records))
        check_once(servers, records)


def produce_with_aiokafka(storage: str, records: int, kills: int, seed: int) -> None:
    with open_chaos(storage, seed) as (broker, proxy, servers):
        targets = [records * (each + 1) // (kills + 1) for each in range(kills)]

        async def produce() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=servers,
                enable_idempotence=True,
                max_batch_size=300,
                retry_backoff_ms=20,
                request_timeout_ms=DEADLINE_S * 1000,
            )
            await producer.start()
            acknowledged = 0
            for first in range(0, records, 100):
                futures = [await producer.send("orders", b"%d" % number) for number in range(first, first + 100)]
                for future in futures:
                    await future
                    acknowledged += 1
                await asyncio.to_thread(kill_at, broker, acknowledged, targets)
            proxy.is_cutting = False
            await producer.stop()

        asyncio.run(asyncio.wait_for(produce(), DEADLINE_S))
        assert proxy.cuts
        assert not targets
        check_once(servers, records)


class TransactionalClient:
    """A client that writes transactions, every third of which it aborts, until enough of them have ended.

    Args:
        servers: Where the broker is.
        disturb: Called in the middle of each transaction, with the number of those that have ended.

    Attributes:
        ended: By the number of a transaction, whether it was committed, as the broker has confirmed.
        unknown: Transactions of which the client does not know how they ended.
    """

    def __init__(self, servers: str, disturb: Callable[[int], None]) -> None:
        self._servers = servers
        self._disturb = disturb
        self._number = 0
        self.ended: dict[int, bool] = {}
        self.unknown: set[int] = set()
        self._producer = self._open()

    def run(self, is_enough: Callable[[], bool]) -> None:
        """Write transactions until that is enough."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_enough():
            assert time.monotonic() < deadline, len(self.ended)
            self._number += 1
            try:
                self._write(self._number)
            except KafkaException as failed:
                self._recover(self._number, failed)

    def _open(self) -> Any:
        producer = Producer({"bootstrap.servers": self._servers, "transactional.id": "t", **QUICK})
        self._retry(producer.init_transactions, producer)
        return producer

    def _write(self, number: int) -> None:
        producer = self._producer
        producer.begin_transaction()
        for each in range(TRANSACTION_RECORDS):
            producer.produce("orders", b"%d-%d" % (number, each))
        if number % 2:
            producer.flush(DEADLINE_S)
        self._disturb(len(self.ended))
        if number % 3 == 0:
            self._retry(producer.abort_transaction, producer)
            self.ended[number] = False
        else:
            self._retry(producer.commit_transaction, producer)
            self.ended[number] = True

    def _retry(self, call: Callable[[float], object], producer: Any) -> None:
        """Call until it succeeds, or fails for good."""
        while True:
            try:
                call(DEADLINE_S)
                return
            except KafkaException as failed:
                if not failed.args[0].retriable():
                    raise

    def _recover(self, number: int, failed: KafkaException) -> None:
        error: KafkaError = failed.args[0]
        if error.txn_requires_abort():
            try:
                self._retry(self._producer.abort_transaction, self._producer)
                self.ended[number] = False
                return
            except KafkaException:
                pass
        self.unknown.add(number)
        self._producer = self._open()


def write_transactions(storage: str, transactions: int, kills: int, seed: int) -> None:
    with open_chaos(storage, seed) as (broker, proxy, servers):
        targets = [transactions * (each + 1) // (kills + 1) for each in range(kills)]
        client = TransactionalClient(servers, lambda ended: kill_at(broker, ended, targets))
        client.run(lambda: len(client.ended) >= transactions and proxy.cuts > 0)
        assert not targets
        proxy.is_cutting = False
        committed = [number for number, is_committed in client.ended.items() if is_committed]
        assert len(committed) > transactions // 3
        found = Counter(read_committed(servers, "orders", len(committed) * TRANSACTION_RECORDS, "check"))
        assert set(found.values()) == {1}
        seen = Counter(int(value.partition(b"-")[0]) for value in found)
        assert set(seen.values()) == {TRANSACTION_RECORDS}
        assert set(committed) <= set(seen) <= set(committed) | client.unknown


def test_idempotent_producer_writes_each_record_once(tmp_path: Path) -> None:
    produce_idempotently(STORAGES["filelog"].format(tmp_path), 300, 1, seed=1)


def test_transactions_are_atomic(tmp_path: Path) -> None:
    write_transactions(STORAGES["filelog"].format(tmp_path), 6, 1, seed=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_idempotent_producer_writes_each_record_once_at_length(storage: str, seed: int) -> None:
    produce_idempotently(storage, 60_000, 12, seed)


@pytest.mark.long
def test_idempotent_producer_of_aiokafka_writes_each_record_once_at_length(storage: str) -> None:
    produce_with_aiokafka(storage, 10_000, 8, seed=5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_transactions_are_atomic_at_length(storage: str, seed: int) -> None:
    write_transactions(storage, 400, 10, seed)
