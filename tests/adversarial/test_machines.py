"""Machines limit memory and work for unverified peers, and serve honest nodes during an attack."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import (
    ConsumerMachine,
    Machine,
    ProducerMachine,
    StoreMachine,
)
from dafka.protocol.actions import Publish
from dafka.protocol.answering.head_responder import SLICE
from dafka.records import Partition, RecordBatch
from dafka.wire import Command
from tests.adversarial import NODE_ATTACKS, Target, generate
from tests.protocol.helpers import published

TOPIC, ME, HONEST = "orders", "A" * 32, "B" * 32
CONFIG = (
    Config()
    .with_node(partitions_max=300, partitions_unproven_max=100, partitions_per_node_max=10)
    .with_consumer(offset_reset="earliest")
)
MESSAGES = 1000


def make_store() -> StoreMachine:
    return StoreMachine(ME, CONFIG, {Partition(TOPIC, HONEST): 10})


def make_consumer() -> ConsumerMachine:
    consumer = ConsumerMachine(ME, CONFIG)
    consumer.subscribe(TOPIC, 0.0)
    return consumer


def make_producer() -> ProducerMachine:
    producer = ProducerMachine(Partition(TOPIC, ME), CONFIG.producer, CONFIG.fetch.replies_max)
    producer.node_settled(0.0)
    producer.publish(RecordBatch(producer.partition, 0, [b"honest"] * 10), 0.0)
    return producer


ROLES: dict[str, Callable[[], Machine]] = {"store": make_store, "consumer": make_consumer, "producer": make_producer}


@pytest.mark.parametrize("attack", [*NODE_ATTACKS, "mixed"])
@pytest.mark.parametrize("role", ROLES)
def test_a_flood_is_answered_within_bounds(role: str, attack: str) -> None:
    machine = ROLES[role]()
    machine.start(0.0)
    partition = HONEST if role != "producer" else ME
    messages = list(
        islice(generate(attack, Target(ME, TOPIC, partition, role), 5), 20 if attack == "hellos" else MESSAGES)
    )
    decoder = wire.BatchDecoder()
    said = 0
    for start in range(0, len(messages), 200):
        now = start / 100_000
        actions = machine.receive(decoder.decode(messages[start : start + 200]), now) + machine.tick(now)
        said += sum(isinstance(action, Publish) for action in actions)
    assert said <= 2 * len(messages) + 100
    if isinstance(machine, (StoreMachine, ConsumerMachine)):
        assert len(machine.reassembler.cursors) <= CONFIG.node.partitions_max


@pytest.mark.parametrize("role", ["store", "consumer"])
def test_partitions_are_kept_up_to_a_limit_and_expire_without_records(role: str) -> None:
    machine = make_store() if role == "store" else make_consumer()
    names = CONFIG.node.partitions_unproven_max
    heads = [wire.DirectHead(ME, f"{number:032X}", TOPIC, 5) for number in range(names + 50)]
    machine.receive(heads, 1.0)
    assert machine.discarded == {"too many partitions without records": 50}
    run = wire.RecordRun(RecordBatch(Partition(TOPIC, f"{0:032X}"), 0, [b"proven"]), ME)
    machine.receive([run], 2.0)
    machine.receive([wire.DirectHead(ME, "E" * 32, TOPIC, 5)], 3.0)
    assert Partition(TOPIC, "E" * 32) in machine.reassembler.cursors
    machine.receive([wire.DirectHead(ME, "F" * 32, TOPIC, 5)], 60.0)
    assert Partition(TOPIC, "F" * 32) in machine.reassembler.cursors
    assert Partition(TOPIC, f"{0:032X}") in machine.reassembler.cursors
    assert len(machine.reassembler.cursors) < names


def test_one_node_starts_a_limited_number_of_partitions_and_others_are_unaffected() -> None:
    store = make_store()
    for address in ("LIAR", "HONEST"):
        store.peer_joined(address, 0.0)
    runs = [wire.RecordRun(RecordBatch(Partition(f"t{number}", "LIAR"), 0, [b"x"])) for number in range(50)]
    store.receive(runs, 1.0)
    assert store.discarded == {"too many partitions of one node": 40}
    store.receive([wire.RecordRun(RecordBatch(Partition("t", "HONEST"), 0, [b"x"]))], 1.0)
    assert Partition("t", "HONEST") in store.reassembler.cursors


def test_unknown_nodes_share_one_allowance_of_partitions() -> None:
    store = StoreMachine(ME, Config(), {})
    runs = [wire.RecordRun(RecordBatch(Partition("t", f"{number:032X}"), 0, [b"x"])) for number in range(1100)]
    store.receive(runs, 1.0)
    assert store.discarded == {"too many partitions of unknown nodes": 100}
    store.peer_joined(HONEST, 2.0)
    store.receive([wire.RecordRun(RecordBatch(Partition("t", HONEST), 0, [b"x"]))], 2.0)
    assert Partition("t", HONEST) in store.reassembler.cursors


def test_a_sequence_beyond_the_limit_is_discarded() -> None:
    for machine in (make_store(), make_consumer()):
        partition = Partition(TOPIC, HONEST)
        machine.receive([wire.Head(HONEST, TOPIC, 2**64 - 1)], 0.0)
        machine.receive([wire.RecordRun(RecordBatch(partition, 2**64 - 1, [b"x"]))], 0.0)
        machine.receive([wire.DirectHead(ME, HONEST, TOPIC, 2**62)], 0.0)
        assert machine.discarded["sequence too large"] == 3


def test_heads_are_sent_a_few_at_a_time_and_to_subscribers_first() -> None:
    ends = {Partition(TOPIC, f"{number:032X}"): 5 for number in range(3 * SLICE)}
    store = StoreMachine(ME, Config(), ends)
    store.receive_subscriptions([wire.Subscription(Command.DIRECT_HEAD, "LISTENER")], 0.0)
    questions = [wire.GetHeads(TOPIC, "STRANGER"), wire.GetHeads(TOPIC, "LISTENER")]
    told = published(store.receive(questions, 1.0), wire.DirectHead)
    assert [head.requestor for head in told[:SLICE]] == ["LISTENER"] * SLICE
    assert len(told) < 2 * SLICE
    now = 1.0
    for _ in range(1000):
        if store.deadline() == float("inf"):
            break
        now = max(store.deadline(), now)
        told += published(store.tick(now), wire.DirectHead)
    for requestor in ("LISTENER", "STRANGER"):
        assert {head.address for head in told if head.requestor == requestor} == {each.address for each in ends}


def test_the_answer_that_completes_heads_is_sent_after_them() -> None:
    store = StoreMachine(ME, Config(), {Partition(TOPIC, f"{number:032X}"): 5 for number in range(2 * SLICE)})
    own_commands = (Command.DIRECT_EARLIEST, Command.DIRECT_HEAD)
    store.receive_subscriptions([wire.Subscription(command, "READER") for command in own_commands], 0.0)
    actions = store.receive([wire.ConsumerHello(ME, "READER", (TOPIC,)), wire.Fetch(ME, "READER", TOPIC, 0, 1)], 1.0)
    assert not published(actions, wire.DirectEarliest)
    actions = store.tick(store.deadline()) + store.tick(2.0)
    assert len(published(actions, wire.DirectEarliest)) == 1
