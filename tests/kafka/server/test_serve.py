"""Where clients are told to reach a broker."""

from __future__ import annotations

import pytest

from dafka import Config
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, open_door


@pytest.mark.parametrize(
    ("listen", "advertised", "expected", "registered"),
    [
        ("127.0.0.1:0", "", "127.0.0.1:{port}", "127.0.0.1:{port}"),
        ("127.0.0.1:0", "broker.example:1234", "broker.example:1234", "broker.example:1234"),
        ("0.0.0.0:0", "", "127.0.0.1:{port}", "127.0.0.1:{port}"),
        ("0.0.0.0:0", "[fd00::1]:1234", "fd00::1:1234", "[fd00::1]:1234"),
    ],
)
def test_clients_are_told_where_they_reach_the_broker(
    listen: str, advertised: str, expected: str, registered: str
) -> None:
    """Its own clients use the address to which they have connected, and those of other brokers the registered one."""
    config = Config().with_kafka(advertised_listener=advertised).with_clients(allow_unauthenticated="on")
    with open_door(config, listen=listen) as door:
        host, _, port = door.servers.rpartition(":")
        assert f"{host}:0" == listen
        with Client(f"127.0.0.1:{port}") as client:
            (broker,) = client.ask(ApiKey.METADATA, 1, topics=[])["brokers"]
        assert f"{broker['host']}:{broker['port']}" == expected.format(port=port)
        assert door.broker.node.brokers.own.kafka_listener == registered.format(port=port)
