"""A broker for tests of programs that use Kafka."""

from __future__ import annotations

import pytest

from dafka.errors import AddressInUseError
from dafka.testing import kafka
from tests.kafka.server.clients import AioKafka, Confluent, Message


def test_broker_serves_plain_and_asyncio_programs() -> None:
    with kafka() as running:
        Confluent().write(running.bootstrap_servers, "orders", [Message(b"a")], "none")
        AioKafka().write(running.bootstrap_servers, "orders", [Message(b"b")], "none")
        found = AioKafka().read(running.bootstrap_servers, "orders", 2)
        assert [each.value for each in found] == [b"a", b"b"]


def test_taken_port_is_named() -> None:
    with kafka("memory:") as running:
        port = int(running.bootstrap_servers.split(":")[1])
        with pytest.raises(AddressInUseError), kafka("memory:", port=port):
            pass
