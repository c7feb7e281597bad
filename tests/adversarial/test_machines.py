"""Machines limit memory and work for unverified peers, and serve honest nodes during an attack."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import islice

import pytest

from dafka import wire
from dafka.config import Config
from dafka.errors import WireError
from dafka.protocol import ConsumerMachine, Machine, ProducerMachine, StoreMachine
from dafka.protocol.actions import Publish
from dafka.records import Partition, RecordBatch
from tests.adversarial import NODE_ATTACKS, Target, generate

TOPIC, ME, HONEST = "orders", "A" * 32, "B" * 32
CONFIG = (
    Config()
    .with_node(partitions_max=300, partitions_unproven_max=100, partitions_per_node_max=10)
    .with_consumer(offset_reset="earliest")
)
MESSAGES = 500


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


# Decoders turn any frames into a message or a `WireError`, in memory proportional to the frames


MEMORY_FACTOR = 40
"""An empty text is an object too, so that a frame of a list costs memory beyond its own bytes."""

MEMORY_BYTES = 100_000
AIM = Target("A" * 32, "orders", "B" * 32, "store")


@pytest.mark.parametrize("attack", NODE_ATTACKS)
def test_decoding_takes_memory_in_proportion(attack: str) -> None:
    count = 20 if attack == "hellos" else 500
    messages = list(islice(generate(attack, AIM, 7), count))
    size = sum(len(frame) + 64 for message in messages for frame in message)
    decoder = wire.BatchDecoder()
    tracemalloc.start()
    try:
        decoder.decode(messages)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY_FACTOR * size + MEMORY_BYTES


def test_a_list_that_claims_to_be_huge_takes_no_memory() -> None:
    frames = [b"WSTORE", b"\xaa\xa5W\1\1C" + b"\xff" * 4 + b"\0" * 100_000]
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="at most"):
            wire.decode(frames)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
