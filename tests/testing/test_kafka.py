"""A broker for tests of programs that use Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka import Config
from dafka.errors import AddressInUseError
from dafka.testing import kafka
from tests.kafka.server.clients import AioKafka, Confluent, Message


def test_broker_serves_plain_and_asyncio_programs(tmp_path: Path) -> None:
    config = Config().with_producer(silence_ms=77).with_kafka(listen="127.0.0.1:1")
    with kafka(f"filelog:{tmp_path}", config) as running:
        assert running.bootstrap_servers.startswith("127.0.0.1:")
        assert running.config.producer.silence_ms == 77
        assert running.config.kafka == config.kafka
        Confluent().write(running.bootstrap_servers, "orders", [Message(b"a")], "none")
        AioKafka().write(running.bootstrap_servers, "orders", [Message(b"b")], "none")
        found = AioKafka().read(running.bootstrap_servers, "orders", 2)
        assert [each.value for each in found] == [b"a", b"b"]
    with kafka(f"filelog:{tmp_path}") as again:
        assert [each.value for each in AioKafka().read(again.bootstrap_servers, "orders", 2)] == [b"a", b"b"]


def test_taken_port_is_named() -> None:
    with kafka("memory:") as running:
        port = int(running.bootstrap_servers.split(":")[1])
        with pytest.raises(AddressInUseError), kafka("memory:", port=port):
            pass
