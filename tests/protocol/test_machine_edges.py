"""What all machines have in common: what they subscribe to, the messages that they discard, and their limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dafka import wire
from dafka.config import Config, ProducerConfig
from dafka.protocol import ConsumerMachine, ProducerMachine, ReaderMachine, StoreMachine
from dafka.protocol.actions import Subscribe
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_FETCHES, NODE_BURST, TOO_OFTEN
from dafka.records import SEQUENCE_MAX, Partition
from dafka.wire import Command
from tests.protocol.helpers import (
    HELLO,
    asked,
    batches,
    contents,
    direct,
    direct_head,
    head,
    live,
    next_batch,
    published,
    run,
    sequences,
    subscription,
)

ME = "ME"
OTHER = Partition("hello", "OTHER")
LONGER = Partition("hello2", "PRODUCER")
"""A topic that only begins with the other's name (erratum 14)."""


def make_producer() -> ProducerMachine:
    """Return a producer that has published ten records."""
    producer = ProducerMachine(HELLO, ProducerConfig(), 100)
    producer.start(0.0)
    producer.node_settled(0.0)
    producer.publish(next_batch(producer, contents(0, 10)), 0.0)
    return producer


def make_consumer(partitions_max: int = 1000) -> ConsumerMachine:
    config = Config().with_node(partitions_max=partitions_max).with_consumer(offset_reset="earliest")
    consumer = ConsumerMachine(ME, config)
    consumer.start(0.0)
    consumer.subscribe("hello", 0.0)
    return consumer


def make_reader(partitions_max: int = 1000) -> ReaderMachine:
    """Return a reader that fetches ten records."""
    reader = ReaderMachine(ME, Config().with_node(partitions_max=partitions_max), ["hello"])
    reader.start(0.0)
    reader.fetch_range(HELLO, 0, 10, 0.0)
    return reader


def make_store(partitions_max: int = 1000, replies_max: int = 1000) -> StoreMachine:
    """Return a store that holds five records."""
    config = Config().with_node(partitions_max=partitions_max).with_fetch(replies_max=replies_max)
    store = StoreMachine(ME, config, {HELLO: 5})
    store.start(0.0)
    return store


def ack(sequence: int, partition: Partition = HELLO) -> wire.Ack:
    return wire.Ack(partition.address, partition.topic, sequence, "STORE")


def fetch(sequence: int, count: int, partition: Partition = HELLO, requestor: str = "CONSUMER") -> wire.Fetch:
    return wire.Fetch(partition.address, requestor, partition.topic, sequence, count)


Startable = ProducerMachine | ConsumerMachine | ReaderMachine | StoreMachine


@pytest.mark.parametrize(
    ("machine", "prefixes"),
    [
        (ProducerMachine(HELLO, ProducerConfig(min_stores=0), 100), "KPRODUCER FPRODUCER Ghello"),
        (ProducerMachine(HELLO, ProducerConfig(min_stores=1), 100), "KPRODUCER FPRODUCER Ghello"),
        # It needs ACKs that name their stores: TPRODUCER shows that it is of this project (erratum 30).
        (ProducerMachine(HELLO, ProducerConfig(min_stores=2), 100), "KPRODUCER FPRODUCER Ghello TPRODUCER"),
        (ConsumerMachine(ME, Config()), "DME EME RME LME TME"),
        (ReaderMachine(ME, Config()), "DME EME RME LME TME"),
        (ReaderMachine(ME, Config(), ["hello"]), "DME EME RME LME TME K"),
        (StoreMachine(ME, Config(), {}), "M H F G W DME EME SME WME TME QME"),  # erratum 12
    ],
)
def test_a_machine_first_subscribes_to_what_it_must_hear(machine: Startable, prefixes: str) -> None:
    assert machine.start(0.0) == [Subscribe(prefix.encode()) for prefix in prefixes.split()]


UNUSABLE: list[tuple[Callable[[], Startable], Sequence[wire.BatchedMessage], dict[str, int]]] = [
    (make_producer, [ack(10)], {"beyond the head": 1}),
    (make_producer, [ack(SEQUENCE_MAX - 1)], {"beyond the head": 1}),
    (make_producer, [ack(SEQUENCE_MAX), ack(2**64 - 1)], {ABSURD_SEQUENCE: 2}),
    (make_producer, [ack(3, OTHER), ack(3, LONGER)], {"another partition": 2}),
    (make_producer, [fetch(10, 1), fetch(2**64 - 1, 2**32 - 1)], {"beyond the head": 2}),
    (make_producer, [fetch(0, 1, OTHER), fetch(0, 1, LONGER)], {"another partition": 2}),
    (make_producer, [live(0, 1), head(5), direct_head(5, ME), wire.StoreHello(ME, "S")], {"unexpected command": 4}),
    (make_consumer, [live(0, 3, LONGER), head(9, LONGER), direct_head(9, ME, LONGER)], {"another topic": 3}),
    (make_consumer, [direct(0, 3, "ANOTHER"), direct_head(20, "ANOTHER")], {"another requestor": 4}),
    (make_consumer, [direct(0, 3, ME)], {"not asked for": 3}),
    (make_reader, [live(0, 2), direct(0, 3, "ANOTHER"), direct_head(9, "ANOTHER")], {"another requestor": 6}),
    (make_reader, [direct(0, 4, ME, OTHER)], {"not asked for": 4}),
    (make_reader, [head(50)], {"unexpected command": 1}),
    (make_store, [direct(0, 3, "ANOTHER"), direct_head(20, "ANOTHER")], {"another requestor": 4}),
    (make_store, [wire.GetHeads("hello", ME), wire.GetHeads("unknown", ME)], {"own message": 2}),
    (make_store, [wire.ConsumerHello(ME, ME, ("hello",)), fetch(0, 5, requestor=ME)], {"own message": 2}),
    (make_store, [wire.ConsumerHello("ANOTHER", "CONSUMER", ("hello",))], {"unexpected command": 1}),
    (make_store, [wire.GetHeads("", "CONSUMER")], {}),
    (make_store, [fetch(0, 5, OTHER), fetch(0, 5, LONGER)], {"beyond the head": 2}),
    (make_store, [fetch(5, 3)], {"beyond the head": 1}),
    (lambda: make_consumer(partitions_max=1), [head(0, OTHER), head(0)], {"too many partitions": 1}),
    (lambda: make_reader(partitions_max=1), [ack(1), ack(2, OTHER), ack(3)], {"too many partitions": 1}),
    (lambda: make_store(partitions_max=1), [live(0, 1, OTHER), head(3, LONGER)], {"too many partitions": 2}),
    (lambda: make_store(replies_max=1), [fetch(0, 5, requestor=name) for name in "ABC"], {"too many fetches": 2}),
]


@pytest.mark.parametrize(("make", "messages", "discarded"), UNUSABLE)
def test_messages_that_a_machine_cannot_use_are_counted_by_reason(
    make: Callable[[], Startable], messages: Sequence[wire.BatchedMessage], discarded: dict[str, int]
) -> None:
    machine = make()
    actions = machine.receive(messages, 0.1)
    assert batches(actions) == []
    assert machine.discarded == discarded
    if isinstance(machine, ProducerMachine):
        assert (actions, machine.acknowledged_end) == ([], 0)
    if isinstance(machine, (ProducerMachine, StoreMachine)):
        assert len(machine.responder) == ("too many fetches" in discarded)


@pytest.mark.parametrize("leaves", [True, False])
def test_fetches_are_limited(leaves: bool) -> None:
    for machine in (make_producer(), make_store()):
        machine.peer_joined("C", 0.0)
        if leaves:
            machine.peer_left("C", 0.0)
        machine.receive([fetch(4, 1, requestor="C")] * 6000, 0.0)
        assert 6000 - machine.discarded[MANY_FETCHES] == pytest.approx(5000, abs=1)


@pytest.mark.parametrize(("end", "is_taken"), [(SEQUENCE_MAX, True), (SEQUENCE_MAX + 1, False)])
def test_records_up_to_the_largest_sequence_are_taken(end: int, is_taken: bool) -> None:
    store = StoreMachine(ME, Config(), {HELLO: end - 2})
    store.start(0.0)
    taken = sequences(batches(store.receive([wire.RecordRun(run(end - 2, end))], 0.1)))
    assert taken == ([end - 2, end - 1] if is_taken else [])
    assert store.discarded == ({} if is_taken else {ABSURD_SEQUENCE: 2})


@pytest.mark.parametrize(("sequence", "is_taken"), [(SEQUENCE_MAX - 1, True), (SEQUENCE_MAX, False)])
def test_heads_up_to_the_largest_sequence_are_taken(sequence: int, is_taken: bool) -> None:
    for message in (head(sequence), direct_head(sequence, ME)):
        store = make_store()
        assert bool(asked(store.receive([message], 0.1))) is is_taken
        assert store.discarded == ({} if is_taken else {ABSURD_SEQUENCE: 1})


def test_greetings_of_one_name_are_limited() -> None:
    store, consumer = make_store(), make_consumer()
    store.peer_joined("C", 0.0)
    consumer.peer_joined("S", 0.0)
    greetings = subscription(Command.STORE_HELLO, "C") * (NODE_BURST + 5)
    assert (
        published(store.receive_subscriptions(greetings, 0.0), wire.StoreHello)
        == [wire.StoreHello("C", ME)] * NODE_BURST
    )
    answers = published(consumer.receive([wire.StoreHello(ME, "S")] * (NODE_BURST + 5), 0.1), wire.ConsumerHello)
    assert answers == [wire.ConsumerHello("S", ME, ("hello",))] * NODE_BURST
    assert store.discarded == consumer.discarded == {TOO_OFTEN: 5}


@pytest.mark.parametrize("question", [wire.GetHeads("hello", "C"), wire.ConsumerHello(ME, "C", ("hello",))])
def test_questions_for_heads_are_limited(question: wire.BatchedMessage) -> None:
    store = make_store()
    store.peer_joined("C", 0.0)
    store.receive([question] * 11_000, 0.0)
    assert store.discarded[TOO_OFTEN] == pytest.approx(1000, abs=1)
