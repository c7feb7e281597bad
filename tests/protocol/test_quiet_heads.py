"""An idle producer sends HEADs less and less often (erratum 33)."""

from __future__ import annotations

from typing import Any

import pytest

from dafka import wire
from dafka.config import Config, ProducerConfig
from dafka.protocol import (
    ConsumerMachine,
    HeadListeners,
    Machine,
    PartitionSilent,
    ProducerMachine,
    ReaderMachine,
    StoreMachine,
    SurveyMachine,
)
from dafka.protocol.actions import Subscribe
from dafka.protocol.presence import subscribers
from dafka.wire import Command
from tests.protocol.helpers import HELLO, contents, events, head, live, next_batch, published, subscription

LONG_S = 200.0
GROWING = [1, 2, 4, 8, 16, 32, 62, 92, 122, 152, 182]
"""When HEADs are sent after the last record, in seconds."""


def make_producer(**settings: Any) -> ProducerMachine:
    """Return a settled producer that has published a record at time 0, which both connected stores have."""
    producer = ProducerMachine(HELLO, ProducerConfig(**settings), 10)
    producer.start(0.0)
    producer.node_settled(0.0)
    for store in ("S1", "S2"):
        producer.receive_subscriptions(subscription(Command.CONSUMER_HELLO, store), 0.0)
    producer.publish(next_batch(producer, contents(0, 1)), 0.0)
    acknowledge(producer, 0, "S1", "S2")
    return producer


def acknowledge(producer: ProducerMachine, sequence: int, *stores: str, now: float = 0.0) -> None:
    producer.receive([wire.Ack(HELLO.address, HELLO.topic, sequence, store) for store in stores], now)


def head_times(producer: ProducerMachine, until: float) -> list[float]:
    """Return when the producer sends HEADs by itself."""
    times = []
    while (now := producer.deadline()) <= until:
        times += [now] * len(published(producer.tick(now), wire.Head))
    return times


def test_heads_that_say_nothing_new_become_rare() -> None:
    assert head_times(make_producer(), LONG_S) == pytest.approx(GROWING)


@pytest.mark.parametrize(
    ("settings", "stores"),
    [
        ({}, ()),
        ({}, ("S1",)),
        ({"min_stores": 0}, ("S1",)),
        ({"min_stores": 2}, ("S2",)),
    ],
)
def test_heads_are_regular_until_every_connected_store_has_everything(
    settings: dict[str, Any], stores: tuple[str, ...]
) -> None:
    producer = make_producer(**settings)
    producer.publish(next_batch(producer, contents(1, 2)), 50.0)
    acknowledge(producer, 1, *stores, now=50.0)
    assert len(head_times(producer, 150.0)) >= 99
    acknowledge(producer, 1, "S1", "S2", now=150.0)
    assert len(head_times(producer, 250.0)) <= 8


def test_a_new_subscriber_is_sent_heads_from_the_beginning() -> None:
    producer = make_producer()
    head_times(producer, 100.0)
    assert published(producer.receive_subscriptions(subscription(Command.HEAD, "hello"), 100.5), wire.Head) == [head(0)]
    assert head_times(producer, 110.0) == pytest.approx([101.5, 102.5, 104.5, 108.5])


def test_heads_are_regular_while_somebody_needs_them() -> None:
    producer = make_producer()
    is_needed = True
    producer.watch_listeners(lambda: is_needed)
    assert head_times(producer, 100.0) == pytest.approx(list(range(1, 101)))
    is_needed = False
    assert len(head_times(producer, 200.0)) <= 8


# Who needs them


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


# Consumers


def consumer_of(times: list[float], silence_ms: int = 5000) -> ConsumerMachine:
    """Return a consumer that has heard a record at time 0, and HEADs at these times."""
    consumer = ConsumerMachine("C", Config().with_consumer(silence_ms=silence_ms, offset_reset="earliest"))
    consumer.start(0.0)
    consumer.subscribe("hello", 0.0)
    consumer.peer_joined(HELLO.address, 0.0)
    consumer.receive([live(0, 1)], 0.0)
    for now in times:
        assert silences(consumer, now) == []
        consumer.receive([head(0)], now)
    return consumer


def silences(consumer: ConsumerMachine, until: float) -> list[float]:
    """Return when the consumer reports silent producers."""
    found = []
    while (now := consumer.deadline()) <= until:
        found += [now for event in events(consumer.tick(now)) if isinstance(event, PartitionSilent)]
    return found


def test_an_idle_producer_is_not_reported_as_silent() -> None:
    consumer = consumer_of([float(each) for each in GROWING])
    (at,) = silences(consumer, 1000.0)
    assert GROWING[-1] + 60 <= at <= GROWING[-1] + 70


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 2.0], [0.5 * each for each in range(20)]])
def test_a_producer_that_spoke_a_moment_ago_is_reported_after_the_silence(times: list[float]) -> None:
    (at,) = silences(consumer_of(times), 1000.0)
    last = times[-1] if times else 0.0
    assert last + 5 <= at <= last + 7.5


def test_a_silence_that_has_ended_does_not_lengthen_the_next_one() -> None:
    consumer = consumer_of([1.0])
    assert len(silences(consumer, 500.0)) == 1
    consumer.receive([head(0)], 500.0)
    (at,) = silences(consumer, 1000.0)
    assert at <= 507.5
