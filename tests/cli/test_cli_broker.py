"""`dafka up --kafka` and `dafka broker`: a client of Kafka and the command read what each other writes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.harness import Dafka
from tests.kafka.server.clients import Confluent, Message
from tests.ports import free_ports


def test_up_serves_clients_of_kafka(dafka: Dafka, tmp_path: Path) -> None:
    up = dafka.start_up("--kafka", "0", "--storage", f"filelog:{tmp_path}/log")
    servers = up.wait_output(3)[2].split()[-1]
    Confluent().write(servers, "orders", [Message(b"from a client", b"k")], "none")
    consumed = dafka.node("consume", "orders", "--from-beginning", "--count", "1")
    assert consumed.output == b"from a client\n"
    assert dafka.node("produce", "orders", stdin=b"from the command\n").status == 0
    values = [each.value for each in Confluent().read(servers, "orders", 2)]
    assert values == [b"from a client", b"from the command"]


def test_a_broker_that_is_refused_for_its_number_invites_no_clients(dafka: Dafka) -> None:
    dafka.start_tower()
    first = dafka.start_node("broker", "--number", "1", "--kafka", "0", "--storage", "memory:")
    servers = first.wait_output(2)[1].split()[-1]
    second = dafka.node("broker", "--number", "1", "--kafka", "0", "--storage", "memory:")
    assert second.status == 2
    assert f" at {servers} has the number 1, too; start this broker with another one" in second.errors
    assert second.output == b""


@pytest.mark.parametrize("role", ["store", "broker"])
def test_a_daemon_that_hears_no_tower_serves_and_finds_it_later(dafka: Dafka, role: str) -> None:
    sub, pub = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    dafka.options = ["--tower-sub", sub, "--tower-pub", pub]
    kafka = ["--kafka", "0", "--number", "3"] if role == "broker" else []
    environment = {"DAFKA_NODE_TOWER_TIMEOUT_MS": "100"}
    daemon = dafka.start_node(role, "--storage", "memory:", *kafka, environment=environment)
    daemon.wait_errors(f"No tower heard at {pub}")
    if role == "broker":
        servers = daemon.wait_output(2)[1].split()[-1]
        Confluent().write(servers, "orders", [Message(b"before the tower", b"k")], "none")
    dafka.start("tower", "--sub", sub, "--pub", pub)
    assert dafka.node("produce", "orders", stdin=b"after it\n").status == 0
    assert daemon.end(signal.SIGTERM).status == 0
