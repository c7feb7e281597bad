"""A broker under hostile clients of many kinds at once: its memory stays within its limit, and others are served.

    python -m tests.broker.cluster.test_hostile_clients FOLDER SCALE SECONDS [KIND ...]

prints the broker's largest memory (`VmHWM` in `/proc/PID/status`), and how long honest clients have waited.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.broker.cluster.hostile_clients import LARGE, OWN, ZEROS, ZEROS_BYTES
from tests.kafka.server.secured import EVERYTHING, PASSWORD, write_user_file
from tests.ports import free_ports

MIB = 2**20
MEMORY_BYTES = 64 * MIB
"""`[broker] memory`."""

BASE_BYTES = 450 * MIB
"""What the broker takes besides: itself (100 MiB), what is not durable yet (80 MiB), and what four reads of the storage
unpack, however many clients wait for them: two batches of 16 MiB each, with up to three copies of one of them."""

DEADLINE_S = 60.0
HONEST = "alice"
TOPIC = "orders"


@attrs.frozen
class Running:
    """A broker, its ports, and how long its honest clients waited, in seconds."""

    process: subprocess.Popen[bytes]
    kafka_port: int
    http_port: int
    waited_s: dict[str, list[float]] = attrs.field(factory=lambda: defaultdict(list))

    @property
    def memory_max(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        login = base64.b64encode(f"{HONEST}:{PASSWORD}".encode()).decode()
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=DEADLINE_S)
        try:
            connection.request(method, path, body, {"Authorization": f"Basic {login}"})
            answer = connection.getresponse()
            found = answer.read()
            assert answer.status == 200, (answer.status, found)
            return found
        finally:
            connection.close()

    def settings(self, **further: object) -> dict[str, object]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.kafka_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": HONEST,
            "sasl.password": PASSWORD,
            "socket.timeout.ms": int(DEADLINE_S * 1000),
            **{name.replace("_", "."): value for name, value in further.items()},
        }

    def timed(self, what: str, action: Callable[[], object]) -> None:
        began = time.monotonic()
        action()
        self.waited_s[what].append(time.monotonic() - began)
        assert self.waited_s[what][-1] < DEADLINE_S, what


@contextmanager
def run(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, **environment}
    process = subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=subprocess.PIPE)
    try:
        yield process
        assert process.poll() is None, f"{command[:2]} has ended"
    finally:
        process.terminate()
        try:
            process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextmanager
def run_broker(folder: Path) -> Iterator[Running]:
    kafka_port, http_port, sub, pub = free_ports(4)
    write_user_file(folder / "users", alice=EVERYTHING, mallory=EVERYTHING)
    tower = [f"tcp://127.0.0.1:{sub}", f"tcp://127.0.0.1:{pub}"]
    ports = ["--kafka", str(kafka_port), "--http", str(http_port), "--users", str(folder / "users")]
    where = ["--tower-sub", tower[0], "--tower-pub", tower[1], "--storage", f"filelog:{folder}/log"]
    with ExitStack() as stack:
        stack.enter_context(run("dafka", "tower", "--sub", tower[0], "--pub", tower[1]))
        broker = stack.enter_context(run("dafka", "broker", *ports, *where, DAFKA_BROKER_MEMORY=str(MEMORY_BYTES)))
        running = Running(broker, kafka_port, http_port)
        deadline = time.monotonic() + 2 * DEADLINE_S
        while True:
            try:
                running.request("GET", "/topics")
                break
            except OSError:
                assert time.monotonic() < deadline
                assert broker.poll() is None
                time.sleep(0.1)
        yield running


def fill(running: Running) -> None:
    for _ in range(20):
        running.request("POST", f"/topics/{LARGE}/records", os.urandom(MIB - 1000))
    producer = Producer(running.settings(compression_type="zstd", message_max_bytes=64 * MIB, linger_ms=0))
    for _ in range(20):
        producer.produce(ZEROS, bytes(ZEROS_BYTES))
        assert producer.flush(DEADLINE_S) == 0
    running.request("POST", f"/topics/{OWN}/records", b"x")
    running.request("POST", f"/topics/{TOPIC}/records", b"x")


class Honest:
    """Clients that publish records, read each of them, and look at the topics."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._producer = Producer(running.settings(linger_ms=0))
        self._consumer = Consumer(running.settings(group_id="honest", enable_auto_commit=False))
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self._count = 1
        assert self._consumer.consume(1, DEADLINE_S)

    def work(self) -> None:
        timed = self._running.timed
        timed("kafka produce", self._produce)
        timed("kafka consume", self._consume)
        timed("http post", lambda: self._running.request("POST", f"/topics/{TOPIC}/records", b"posted"))
        timed("kafka consume", self._consume)
        timed("http get", self._get)
        timed("http topics", lambda: self._running.request("GET", "/topics"))

    def _produce(self) -> None:
        failed: list[object] = []
        self._producer.produce(TOPIC, b"produced", on_delivery=lambda error, _: failed.append(error))
        assert self._producer.flush(DEADLINE_S) == 0
        assert failed == [None]

    def _consume(self) -> None:
        (found,) = self._consumer.consume(1, DEADLINE_S)
        assert found.error() is None, found.error()
        assert found.offset() == self._count
        self._count += 1

    def _get(self) -> None:
        found = self._running.request("GET", f"/topics/{TOPIC}/records?from={self._count - 1}&limit=1")
        assert json.loads(found)["offset"] == self._count - 1

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize(
    ("scale", "seconds"), [(2, 2), pytest.param(40, 60, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_memory_is_bounded_and_honest_clients_are_served(tmp_path: Path, scale: int, seconds: float) -> None:
    attack(tmp_path, scale, seconds)


def attack(folder: Path, scale: int, seconds: float, *kinds: str) -> None:
    with run_broker(folder) as running:
        fill(running)
        honest = Honest(running)
        honest.work()
        before = running.memory_max
        arguments = [str(each) for each in (running.kafka_port, running.http_port, scale)]
        with ExitStack() as stack:
            hostile = stack.enter_context(run("tests.broker.cluster.hostile_clients", *arguments, *kinds))
            assert hostile.stdout is not None
            assert hostile.stdout.readline()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                honest.work()
        honest.close()
        print(f"memory: {before // MIB} MiB before, at most {running.memory_max // MIB} MiB")
        for what, waited_s in running.waited_s.items():
            ordered = sorted(waited_s)
            print(
                f"{what}: {len(ordered)} times, median {ordered[len(ordered) // 2]:.3f} s, longest {ordered[-1]:.3f} s"
            )
        assert running.memory_max < MEMORY_BYTES + BASE_BYTES


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True)
    attack(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
