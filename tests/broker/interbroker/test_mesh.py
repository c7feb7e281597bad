"""What a broker sends as a node: messages in order, acknowledgements, requests for records and heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import trio
from trio.testing import MockClock

from dafka import wire
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.protocol.actions import Publish
from dafka.records import Partition
from dafka.wire import Command

OWN = "A" * 32


class Machine:
    """The machine of a store."""

    address = OWN

    def expect_records(self, ends: Mapping[Partition, int], now: float) -> list[Any]:
        return [("expect", dict(ends), now)]

    def ask_heads(self, topics: Iterable[str]) -> list[Any]:
        return [Publish(wire.GetHeads(each, OWN)) for each in topics]


class Sockets:
    def __init__(self) -> None:
        self.sent: list[wire.BatchedMessage] = []
        self.prefixes: list[bytes] = []

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        self.sent += messages

    def subscribe(self, prefix: bytes) -> None:
        self.prefixes.append(prefix)


def make_mesh() -> tuple[BrokerMesh, Sockets, list[Any]]:
    sockets, acted = Sockets(), list[Any]()
    return BrokerMesh(cast("Any", Machine()), cast("Any", sockets), acted.extend), sockets, acted


def test_messages_for_a_broker_are_sent_to_it_at_once() -> None:
    mesh, sockets, _ = make_mesh()
    for each in (b"a", b"b"):
        mesh.send_bytes("B", each)
    assert sockets.sent == [wire.BrokerMessage("B", OWN, each) for each in (b"a", b"b")]


def test_acknowledgements_name_the_last_record_and_nothing_is_acknowledged_of_an_empty_index() -> None:
    mesh, sockets, _ = make_mesh()
    one, other = Partition("$logs", "B/t/0"), Partition("$logs", "C/t/1")
    mesh.acknowledge({one: 3, other: 0})
    assert sockets.sent == [wire.Ack(one.address, one.topic, 2, OWN)]


async def test_records_and_heads_are_asked_for(autojump_clock: MockClock) -> None:
    mesh, _, acted = make_mesh()
    await trio.sleep(7)
    now = trio.current_time()
    mesh.fetch_records({Partition("$logs", "B/t/0"): 9})
    mesh.ask_heads(("orders", "$logs"))
    assert acted[0] == ("expect", {Partition("$logs", "B/t/0"): 9}, now)
    assert acted[1:] == [Publish(wire.GetHeads(each, OWN)) for each in ("orders", "$logs")]


def test_acknowledgements_for_the_logs_of_a_leader_are_subscribed_to() -> None:
    mesh, sockets, _ = make_mesh()
    mesh.subscribe_acknowledgements("B")
    assert sockets.prefixes == [wire.subscription_prefix(Command.ACK, "B/")]
