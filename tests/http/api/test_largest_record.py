"""The largest record is taken, and a larger one refused with the same sentence, whichever way it comes to a broker."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

import attrs
import pytest
from websockets.sync.client import connect

from dafka import Config, blocking
from dafka.batches import Compression, encode_batch
from dafka.config import BATCH_BYTES_MAX, RECORD_BYTES_MAX
from dafka.errors import RecordError
from dafka.kafka.protocol.constants import ApiKey
from dafka.records import BATCH_OVERHEAD_BYTES
from dafka.testing import RunningKafka
from tests.kafka.apis.door import Client
from tests.kafka.server.fixtures import run_broker
from tests.ports import free_port

SMALL = 300_000
DEADLINE_S = 120
TOPIC = "large"


@attrs.frozen
class Running:
    """A broker, and the largest record that it takes."""

    kafka: RunningKafka
    http_port: int
    bytes_max: int

    @property
    def config(self) -> Config:
        return self.kafka.config.with_node(message_bytes_max=self.bytes_max)


def post(running: Running, value: bytes) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", running.http_port, timeout=DEADLINE_S)
    with closing(connection):
        connection.request("POST", f"/topics/{TOPIC}/records", value)
        answer = connection.getresponse()
        document = json.loads(answer.read())
    assert answer.status in {200, 413}, document
    return str(document["error"]["message"]) if answer.status == 413 else ""


def send_message(running: Running, value: bytes) -> str:
    record = {"value_base64": base64.b64encode(value).decode(), "timestamp": 1}
    with connect(f"ws://127.0.0.1:{running.http_port}/ws", max_size=None, open_timeout=DEADLINE_S) as connection:
        connection.recv(DEADLINE_S)
        connection.send(json.dumps({"type": "publish", "id": 1, "topic": TOPIC, "records": [record]}))
        answer = json.loads(connection.recv(DEADLINE_S))
    assert answer["type"] == "published" or answer["code"] == "too_large", answer
    return str(answer.get("message", ""))


def produce(running: Running, value: bytes, compression: Compression = Compression.NONE) -> str:
    data = encode_batch(0, [value], timestamps=1, compression=compression)
    topics = [{"name": TOPIC, "partition_data": [{"index": 0, "records": data}]}]
    with Client(running.kafka.bootstrap_servers) as client:
        answer = client.ask(ApiKey.PRODUCE, 8, acks=-1, timeout_ms=DEADLINE_S * 1000, topic_data=topics)
    return answer["responses"][0]["partition_responses"][0]["error_message"] or ""


def run_command(running: Running, value: bytes) -> str:
    beacon = running.config.beacon
    towers = ["--tower-sub", beacon.tower_sub[0], "--tower-pub", beacon.tower_pub[0]]
    command = [sys.executable, "-m", "dafka", "produce", TOPIC, *towers]
    environment = {**os.environ, "DAFKA_NODE_MESSAGE_BYTES_MAX": str(running.bytes_max)}
    done = subprocess.run(
        command, input=value + b"\n", capture_output=True, timeout=DEADLINE_S, env=environment, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stderr.decode() if done.returncode else ""


def send(running: Running, value: bytes) -> str:
    with blocking.open_producer(TOPIC, running.config) as producer:
        try:
            producer.send(value)
        except RecordError as error:
            return str(error)
        producer.wait_stored()
    return ""


DOORS: dict[str, Callable[[Running, bytes], str]] = {
    "HTTP": post,
    "WebSocket": send_message,
    "Kafka": produce,
    "Kafka, compressed": partial(produce, compression=Compression.ZSTD),
    "dafka produce": run_command,
    "send": send,
}
"""By the way that a record takes, a function that publishes it, and returns why it was refused."""


@contextmanager
def run(bytes_max: int) -> Iterator[Running]:
    port = free_port()
    batch_bytes_max = min(bytes_max + BATCH_OVERHEAD_BYTES, BATCH_BYTES_MAX)
    config = (
        Config()
        .with_node(message_bytes_max=bytes_max)
        .with_kafka(message_bytes_max=batch_bytes_max, batch_bytes_max=batch_bytes_max)
        .with_http(listen=f"127.0.0.1:{port}", body_bytes_max=2 * bytes_max, message_bytes_max=2 * bytes_max)
    )
    with run_broker("memory:", config) as running:
        yield Running(running, port, bytes_max)


def test_the_largest_record_is_taken_and_a_larger_one_refused() -> None:
    sentence = rf"expected at most {SMALL} bytes \(\[node\] message_bytes_max\), not {SMALL + 1}"
    with run(SMALL) as running:
        assert post(running, b"the topic") == ""
        for door, publish in DOORS.items():
            assert publish(running, b"x" * SMALL) == "", door
            assert re.search(sentence, publish(running, b"x" * (SMALL + 1))), door


@pytest.mark.long
def test_so_are_those_of_the_default_settings() -> None:
    with run(RECORD_BYTES_MAX) as running:
        assert post(running, b"the topic") == ""
        for door, publish in DOORS.items():
            assert publish(running, b"x" * RECORD_BYTES_MAX) == "", door
            assert f"expected at most {RECORD_BYTES_MAX} bytes" in publish(running, b"x" * (RECORD_BYTES_MAX + 1)), door
