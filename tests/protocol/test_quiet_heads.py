"""Which peers need the HEADs of an idle producer at a regular interval (erratum 33)."""

from __future__ import annotations

import pytest

from dafka.config import Config
from dafka.protocol import ConsumerMachine, HeadListeners, Machine, ReaderMachine, StoreMachine, SurveyMachine
from dafka.protocol.actions import Subscribe
from dafka.protocol.presence import subscribers


class Peers:
    """The subscriptions of peers at one publisher."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.listeners = HeadListeners(self.open.__contains__)

    def connect(self, number: int, *prefixes: bytes) -> None:
        self.open.add(number)
        for prefix in prefixes:
            self.listeners.record_subscription(number, b"\1" + prefix)

    def need_regular_heads(self) -> bool:
        return self.listeners.need_regular_heads()


def machines() -> list[Machine]:
    consumer = ConsumerMachine("C", Config())
    return [consumer, StoreMachine("S", Config(), {}), ReaderMachine("R", Config()), SurveyMachine("O", Config())]


@pytest.mark.parametrize("machine", machines(), ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_nodes_of_this_project_do_not_need_regular_heads(machine: Machine, *, is_reversed: bool) -> None:
    actions = machine.start(0.0)
    if isinstance(machine, ConsumerMachine):
        actions += machine.subscribe("hello", 0.0)
    prefixes = sorted((each.prefix for each in actions if isinstance(each, Subscribe)), reverse=is_reversed)
    peers = Peers()
    peers.connect(1, *prefixes)
    assert not peers.need_regular_heads()


@pytest.mark.parametrize("prefix", [b"", b"H", b"Hhello"])
def test_other_nodes_need_regular_heads_as_long_as_they_are_connected(prefix: bytes) -> None:
    peers = Peers()
    peers.connect(1, b"H", b"TS")
    peers.connect(2, b"Mhello", b"DC", prefix, b"EC")
    assert peers.need_regular_heads()
    peers.open.discard(2)
    assert not peers.need_regular_heads()


def test_a_subscription_to_direct_earliest_counts_for_its_own_connection_only() -> None:
    peers = Peers()
    peers.connect(1, b"H")
    peers.connect(2, b"H", b"TS")
    assert peers.need_regular_heads()
    peers.connect(1, b"T")
    assert peers.need_regular_heads(), "it names no node"
    peers.connect(1, b"TS2")
    assert not peers.need_regular_heads()


def test_peers_that_take_no_heads_and_connections_that_have_ended_do_not_count() -> None:
    peers = Peers()
    peers.connect(1, b"KP", b"FP", b"Ghello")
    peers.listeners.record_subscription(-1, b"\1H")
    peers.listeners.record_subscription(1, b"\0H")
    peers.listeners.record_subscription(1, b"")
    assert not peers.need_regular_heads()


def test_only_so_many_connections_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "CONNECTIONS_MAX", 2)
    peers = Peers()
    for number in range(10):
        peers.connect(number, b"H", b"TS")
        peers.open.discard(number)
    peers.connect(20, b"H", b"TS", b"Hhello")
    assert not peers.need_regular_heads(), "those that have ended make room"
    for number in range(10, 20):
        peers.connect(number, b"H")
        if number < 19:
            peers.open.discard(number)
    assert peers.need_regular_heads()
