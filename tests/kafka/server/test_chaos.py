"""Producers whose connections are cut at random, and whose broker is killed: nothing twice, nothing lost, all or none.

What ends a test is what the producers have done. Seeds are fixed, but the moments differ from run to run.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.cli.harness import FREE, Dafka, Running
from tests.kafka.server.clients import Confluent, read_log
from tests.kafka.server.cutting_proxy import CuttingProxy, cut_connections
from tests.ports import free_port

DEADLINE_S = 240
TRANSACTION_RECORDS = 5
STORAGES = ["filelog:{}/log", "sqlite:{}/broker.db"]

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20, "linger.ms": 1}


class Chaos:
    """A broker behind a proxy that cuts connections. It is killed and started again when counts reach targets.

    Attributes:
        proxy: The proxy, where clients find the broker.
        targets: The counts at which the broker is killed.
    """

    def __init__(self, dafka: Dafka, storage: str, proxy: CuttingProxy, port: int, targets: list[int]) -> None:
        self.proxy = proxy
        self.targets = targets
        self._dafka = dafka
        self._arguments = ("--kafka", f"127.0.0.1:{port}", "--storage", storage.format(dafka.folder))
        self._running = self._start()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.proxy.port}"

    def disturb(self, count: int) -> None:
        """Kill the broker and start it again if a count has reached the next target."""
        if self.targets and count >= self.targets[0]:
            self.targets.pop(0)
            self._running.end(signal.SIGKILL)
            self._running = self._start()

    def _start(self) -> Running:
        environment = {"DAFKA_KAFKA_ADVERTISED_LISTENER": self.servers}
        up = self._dafka.start("up", "--sub", FREE, "--pub", FREE, *self._arguments, environment=environment)
        up.wait_output(3)
        return up


@contextmanager
def open_chaos(dafka: Dafka, storage: str, count: int, kills: int, seed: int) -> Iterator[Chaos]:
    """Run a broker behind a proxy. It is to be killed some times until there is this count."""
    port = free_port()
    with cut_connections(port, seed) as proxy:
        yield Chaos(dafka, storage, proxy, port, [count * (each + 1) // (kills + 1) for each in range(kills)])


def check_once(servers: str, records: int) -> None:
    """Check that a topic has each of the numbers once, in order."""
    found = [int(each.value or b"") for each in Confluent().read(servers, "orders", records)]
    assert found == list(range(records)), [number for number, count in Counter(found).items() if count > 1][:10]


def produce_idempotently(dafka: Dafka, storage: str, records: int, kills: int, seed: int) -> None:
    with open_chaos(dafka, storage, records, kills, seed) as chaos:
        producer = Producer(
            {"bootstrap.servers": chaos.servers, "enable.idempotence": True, "batch.num.messages": 10, **QUICK}
        )
        acknowledged: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            acknowledged.append(int(message.value()))

        for number in range(records):
            producer.produce("orders", b"%d" % number, on_delivery=delivered)
        deadline = time.monotonic() + DEADLINE_S
        while len(acknowledged) < records:
            assert time.monotonic() < deadline, len(acknowledged)
            producer.poll(0.01)
            chaos.disturb(len(acknowledged))
        assert chaos.proxy.cuts
        assert not chaos.targets
        chaos.proxy.is_cutting = False
        assert sorted(acknowledged) == list(range(records))
        check_once(chaos.servers, records)


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


def write_transactions(dafka: Dafka, storage: str, transactions: int, kills: int, seed: int) -> None:
    with open_chaos(dafka, storage, transactions, kills, seed) as chaos:
        client = TransactionalClient(chaos.servers, chaos.disturb)
        client.run(lambda: len(client.ended) >= transactions and chaos.proxy.cuts > 0)
        assert not chaos.targets
        chaos.proxy.is_cutting = False
        committed = [number for number, is_committed in client.ended.items() if is_committed]
        assert len(committed) > transactions // 3
        values = [
            value or b"" for _, value in read_log(chaos.servers, "orders", isolation_level="read_committed").values()
        ]
        found = Counter(values)
        assert set(found.values()) == {1}
        seen = Counter(int(value.partition(b"-")[0]) for value in found)
        assert set(seen.values()) == {TRANSACTION_RECORDS}
        assert set(committed) <= set(seen) <= set(committed) | client.unknown


def test_idempotent_producer_writes_each_record_once(dafka: Dafka) -> None:
    produce_idempotently(dafka, STORAGES[0], 300, 1, seed=1)


def test_transactions_are_atomic(dafka: Dafka) -> None:
    write_transactions(dafka, STORAGES[0], 6, 1, seed=3)


@pytest.mark.long
@pytest.mark.parametrize("storage", STORAGES, ids=["filelog", "sqlite"])
@pytest.mark.parametrize("seed", range(3))
def test_idempotent_producer_writes_each_record_once_at_length(dafka: Dafka, storage: str, seed: int) -> None:
    produce_idempotently(dafka, storage, 60_000, 12, seed)


@pytest.mark.long
@pytest.mark.parametrize("storage", STORAGES, ids=["filelog", "sqlite"])
@pytest.mark.parametrize("seed", range(3))
def test_transactions_are_atomic_at_length(dafka: Dafka, storage: str, seed: int) -> None:
    write_transactions(dafka, storage, 400, 10, seed)
