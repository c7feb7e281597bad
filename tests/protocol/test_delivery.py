from __future__ import annotations

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import ConsumerMachine, DeliveryBuffer
from dafka.protocol.actions import Publish
from dafka.records import Partition, RecordBatch

PARTITION = Partition("t", "A" * 32)


def make_delivery(count: int) -> tuple[DeliveryBuffer, ConsumerMachine]:
    """Return a buffer with `count` waiting records, from sequence 5 on, and its machine."""
    machine = ConsumerMachine("C" * 32, Config())
    delivery = DeliveryBuffer(machine)
    delivery.put_records(RecordBatch(PARTITION, 5, [b"%d" % number for number in range(5, 5 + count)]))
    return delivery, machine


def take(delivery: DeliveryBuffer, records_max: int | None = None) -> RecordBatch | None:
    taken = delivery.take_run(0.0)
    return None if taken is None else delivery.hand_over(taken[0], records_max)


@pytest.mark.parametrize("records_max", [3, 1])
def test_after_a_part_the_rest_can_be_taken_record_by_record(records_max: int) -> None:
    delivery, _ = make_delivery(5)
    take(delivery, records_max)
    given = []
    while (record := delivery.next_record()) is not None:
        given.append((record.sequence, record.value))
    assert given == [(number, b"%d" % number) for number in range(5 + records_max, 10)]
    assert take(delivery) is None
    assert delivery.positions == {PARTITION: 10}


def test_an_open_run_waits_until_its_records_are_handed_over() -> None:
    delivery, _ = make_delivery(10)
    taken = delivery.take_run(0.0)
    assert taken is not None
    delivery.open_run(taken[0])
    assert (delivery.positions, delivery.waiting_positions()) == ({PARTITION: 5}, {PARTITION: 5})
    batch = delivery.next_batch(4)
    assert batch is not None
    assert (batch.first_sequence, len(batch), delivery.positions) == (5, 4, {PARTITION: 9})
    record = delivery.next_record()
    assert record is not None
    assert record.sequence == 9
    batch = delivery.next_batch()
    assert batch is not None
    assert (batch.first_sequence, len(batch)) == (10, 5)
    assert (delivery.next_batch(), delivery.next_record(), delivery.waiting_positions()) == (None, None, {})


def test_taking_the_whole_run_leaves_nothing() -> None:
    delivery, _ = make_delivery(3)
    batch = take(delivery, 3)
    assert batch is not None
    assert len(batch) == 3
    assert (delivery.waiting_positions(), take(delivery)) == ({}, None)


def test_dropping_a_topic_from_a_full_buffer_makes_room_to_fetch_more() -> None:
    machine = ConsumerMachine("C" * 32, Config().with_consumer(buffer_bytes_max=100, offset_reset="earliest"))
    machine.start(0.0)
    machine.subscribe("dropped", 0.0)
    machine.subscribe("t", 0.0)
    delivery = DeliveryBuffer(machine)
    delivery.put_records(RecordBatch(Partition("dropped", PARTITION.address), 0, [b"x" * 1000]))
    head = wire.Head(PARTITION.address, "t", 9)
    assert [each for each in machine.receive([head], 0.1) if isinstance(each, Publish)] == []
    actions = delivery.drop_topic("dropped", 0.2)
    assert machine.capacity.buffered_bytes == 0
    assert [each.message for each in actions if isinstance(each, Publish)] == [
        wire.Fetch(PARTITION.address, "C" * 32, "t", 0, 10)
    ]


@pytest.mark.parametrize("topic", ["t", "other"])
def test_an_open_run_ends_when_its_topic_is_dropped(topic: str) -> None:
    delivery, machine = make_delivery(10)
    take(delivery, 2)
    delivery.drop_topic(topic, 0.1)
    record = delivery.next_record()
    assert (record is None) == (topic == "t")
    assert machine.capacity.buffered_bytes == 0
    delivery.end_run()
    assert (delivery.next_record(), delivery.next_batch(), delivery.waiting_positions()) == (None, None, {})
