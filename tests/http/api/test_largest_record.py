"""The largest record is taken, and a larger one refused with the same sentence, whichever way it comes to a broker."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
from websockets.sync.client import connect

from dafka import Config, blocking
from dafka.batches import Compression, encode_batch
from dafka.config import BATCH_BYTES_MAX, RECORD_BYTES_MAX
from dafka.errors import RecordError
from dafka.kafka.protocol.constants import ApiKey
from dafka.records import BATCH_OVERHEAD_BYTES
from tests.http.running import SharedWeb, run_web
from tests.kafka.apis.door import Client

SMALL = 300_000
DEADLINE_S = 120
TOPIC = "large"


def post(web: SharedWeb, value: bytes) -> str:
    answer = web.ask("POST", f"/topics/{TOPIC}/records", value)
    assert answer.status in {200, 413}, answer.body
    return str(answer.document["error"]["message"]) if answer.status == 413 else ""


def send_message(web: SharedWeb, value: bytes) -> str:
    record = {"value_base64": base64.b64encode(value).decode(), "timestamp": 1}
    with connect(f"ws://127.0.0.1:{web.port}/ws", max_size=None, open_timeout=DEADLINE_S) as connection:
        connection.recv(DEADLINE_S)
        connection.send(json.dumps({"type": "publish", "id": 1, "topic": TOPIC, "records": [record]}))
        answer = json.loads(connection.recv(DEADLINE_S))
    assert answer["type"] == "published" or answer["code"] == "too_large", answer
    return str(answer.get("message", ""))


def produce(web: SharedWeb, value: bytes, compression: Compression = Compression.NONE) -> str:
    data = encode_batch(0, [value], timestamps=1, compression=compression)
    topics = [{"name": TOPIC, "partition_data": [{"index": 0, "records": data}]}]
    with Client(web.broker.bootstrap_servers) as client:
        answer = client.ask(ApiKey.PRODUCE, 8, acks=-1, timeout_ms=DEADLINE_S * 1000, topic_data=topics)
    return answer["responses"][0]["partition_responses"][0]["error_message"] or ""


def run_command(web: SharedWeb, value: bytes) -> str:
    beacon = web.config.beacon
    towers = ["--tower-sub", beacon.tower_sub[0], "--tower-pub", beacon.tower_pub[0]]
    command = [sys.executable, "-m", "dafka", "produce", TOPIC, *towers]
    environment = {**os.environ, "DAFKA_NODE_MESSAGE_BYTES_MAX": str(web.config.node.message_bytes_max)}
    done = subprocess.run(
        command, input=value + b"\n", capture_output=True, timeout=DEADLINE_S, env=environment, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stderr.decode() if done.returncode else ""


def send(web: SharedWeb, value: bytes) -> str:
    with blocking.open_producer(TOPIC, web.config) as producer:
        try:
            producer.send(value)
        except RecordError as error:
            return str(error)
        producer.wait_stored()
    return ""


DOORS: dict[str, Callable[[SharedWeb, bytes], str]] = {
    "HTTP": post,
    "WebSocket": send_message,
    "Kafka": produce,
    "Kafka, compressed": partial(produce, compression=Compression.ZSTD),
    "dafka produce": run_command,
    "send": send,
}
"""By the way that a record takes, a function that publishes it, and returns why it was refused."""


@pytest.mark.parametrize("bytes_max", [SMALL, pytest.param(RECORD_BYTES_MAX, marks=pytest.mark.long)])
def test_the_largest_record_is_taken_and_a_larger_one_refused(bytes_max: int) -> None:
    batch_bytes_max = min(bytes_max + BATCH_OVERHEAD_BYTES, BATCH_BYTES_MAX)
    config = (
        Config()
        .with_node(message_bytes_max=bytes_max)
        .with_kafka(message_bytes_max=batch_bytes_max, batch_bytes_max=batch_bytes_max)
        .with_http(body_bytes_max=2 * bytes_max, message_bytes_max=2 * bytes_max)
    )
    sentence = rf"expected at most {bytes_max} bytes \(\[node\] message_bytes_max\), not {bytes_max + 1}"
    with run_web(config=config) as web:
        assert post(web, b"the topic") == ""
        for door, publish in DOORS.items():
            assert publish(web, b"x" * bytes_max) == "", door
            assert re.search(sentence, publish(web, b"x" * (bytes_max + 1))), door
