"""Producers whose connections are cut at random, and whose broker is killed: nothing twice, nothing lost, all or none.

What ends a test is what the producers have done. Seeds are fixed, but the moments differ from run to run.
"""

from __future__ import annotations

import random
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.cli.harness import FREE, Dafka, Running
from tests.kafka.server.clients import Confluent, read_log
from tests.ports import free_port

DEADLINE_S = 240
TRANSACTION_RECORDS = 5
STORAGES = ["filelog:{}/log", "sqlite:{}/broker.db"]

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20, "linger.ms": 1}


CUT_BYTES_MIN, CUT_BYTES_MAX = 1_500, 10_000
"""The bytes that pass a connection, in both directions, until it is cut."""

_RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """The proxy. It passes connections on to a port of this machine."""

    def __init__(self, target_port: int, seed: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cuts = 0
        self.is_cutting = True

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._target)
            except OSError:  # the broker is being restarted
                client.close()
                continue
            left = [self._random.randint(CUT_BYTES_MIN, CUT_BYTES_MAX)]
            for source, sink in ((client, broker), (broker, client)):
                threading.Thread(target=self._pass_on, args=(source, sink, left), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _pass_on(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                if self.is_cutting and len(data) >= left[0]:
                    sink.sendall(data[: max(left[0], 0)])
                    self.cuts += 1
                    for each in (source, sink):
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    break
                left[0] -= len(data)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def cut_connections(target_port: int, seed: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target_port, seed)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()


class Chaos:
    """A broker behind a proxy that cuts connections. It is killed and started again when counts reach targets."""

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
    """A client that writes transactions, every third of which it aborts, until enough of them have ended."""

    def __init__(self, servers: str, disturb: Callable[[int], None]) -> None:
        self._servers = servers
        self._disturb = disturb
        self._number = 0
        self.ended: dict[int, bool] = {}
        self.unknown: set[int] = set()
        self._producer = self._open()

    def run(self, is_enough: Callable[[], bool]) -> None:
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
        least = transactions // 3

        def is_enough() -> bool:
            ended, committed = client.ended, sum(client.ended.values())
            return len(ended) >= transactions and committed > least and chaos.proxy.cuts > 0

        client.run(is_enough)
        assert not chaos.targets
        chaos.proxy.is_cutting = False
        committed = [number for number, is_committed in client.ended.items() if is_committed]
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
