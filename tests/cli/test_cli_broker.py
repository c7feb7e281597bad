"""`dafka up --kafka` and `dafka broker`: a client of Kafka and the command read what each other writes."""

from __future__ import annotations

from pathlib import Path

from tests.cli.harness import Dafka
from tests.listener.clients import Confluent, Message


def test_up_serves_clients_of_kafka(dafka: Dafka, tmp_path: Path) -> None:
    up = dafka.start_up("--kafka", "0", "--storage", f"filelog:{tmp_path}/log")
    servers = up.wait_output(3)[2].split()[-1]
    Confluent().write(servers, "orders", [Message(b"from a client", b"k")], "none")
    consumed = dafka.node("consume", "orders", "--from-beginning", "--count", "1")
    assert consumed.output == b"from a client\n"
    assert dafka.node("produce", "orders", stdin=b"from the command\n").status == 0
    values = [each.value for each in Confluent().read(servers, "orders", 2)]
    assert values == [b"from a client", b"from the command"]


def test_taken_port_is_named(dafka: Dafka) -> None:
    up = dafka.start_up("--kafka", "0", "--storage", "memory:")
    servers = up.wait_output(3)[2].split()[-1]
    second = dafka.node("broker", "--kafka", servers, "--storage", "memory:")
    assert second.status == 1
    assert f"cannot listen to clients of Kafka at {servers}" in second.errors
