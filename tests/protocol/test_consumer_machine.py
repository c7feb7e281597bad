from __future__ import annotations

from typing import Any

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import (
    ConsumerMachine,
    DeliveryBuffer,
    FetchUnanswered,
    PartitionSilent,
)
from dafka.protocol.actions import Action, Deliver, Publish, Subscribe, Unsubscribe
from dafka.protocol.events import PartitionHeard
from dafka.protocol.polling import RETRY_WAITS_S
from dafka.records import Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import (
    HELLO,
    asked,
    batches,
    direct,
    direct_head,
    events,
    head,
    live,
    published,
    sequences,
    subscription,
)

ME = "CONSUMER"


def make_consumer(
    *topics: str, positions: dict[Partition, int] | None = None, config: Config | None = None, **settings: Any
) -> ConsumerMachine:
    """Return a consumer that begins at `earliest`, with these settings of its section."""
    config = (config or Config()).with_consumer(**{"offset_reset": "earliest", **settings})
    consumer = ConsumerMachine(ME, config, positions)
    consumer.start(0.0)
    for topic in topics or ("hello",):
        consumer.subscribe(topic, 0.0)
    return consumer


def delivered(actions: list[Action]) -> list[int]:
    return sequences(batches(actions))


def receive(consumer: ConsumerMachine, *messages: wire.BatchedMessage, now: float = 0.1) -> list[int]:
    return delivered(consumer.receive(messages, now))


def test_subscribe_follows_a_topic_and_asks_for_its_heads() -> None:
    consumer = make_consumer()
    heads = Publish(wire.GetHeads("world", ME))
    assert consumer.subscribe("world", 0.0) == [Subscribe(b"Mworld"), Subscribe(b"Hworld"), heads]
    assert consumer.subscribe("world", 0.0) == []


def test_a_peer_that_now_hears_get_heads_is_asked_but_only_once_a_second() -> None:
    consumer = make_consumer("hello", "world")
    for other in ("hello2", "other"):
        assert consumer.receive_subscriptions(subscription(Command.GET_HEADS, other), 0.5) == []
    assert consumer.receive_subscriptions(subscription(Command.GET_HEADS, "hello", active=False), 0.5) == []
    newcomer = subscription(Command.GET_HEADS)
    assert published(consumer.receive_subscriptions(newcomer, 0.5), wire.GetHeads) == []
    assert consumer.deadline() == 1.0
    assert published(consumer.receive_subscriptions(newcomer, 0.6), wire.GetHeads) == []
    consumer.unsubscribe("world")
    assert published(consumer.tick(1.0), wire.GetHeads) == [wire.GetHeads("hello", ME)]
    assert published(consumer.tick(1.1), wire.GetHeads) == []
    assert published(consumer.receive_subscriptions(newcomer, 5.0), wire.GetHeads) == [wire.GetHeads("hello", ME)]


def test_get_heads_is_repeated_twice_because_an_answer_may_be_lost() -> None:
    consumer = make_consumer()
    assert consumer.deadline() == RETRY_WAITS_S[0]
    times = [0.5 * half for half in range(1, 200)]
    asked_at = [time for time in times if published(consumer.tick(time), wire.GetHeads)]
    assert asked_at == [RETRY_WAITS_S[0], sum(RETRY_WAITS_S)]
    consumer.subscribe("world", 200.0)
    consumer.unsubscribe("world")
    assert published(consumer.tick(200.0 + sum(RETRY_WAITS_S)), wire.GetHeads) == [], "it was given up"


def test_a_store_is_greeted_with_the_topics() -> None:
    consumer = make_consumer("hello", "world")
    hello = Publish(wire.ConsumerHello("STORE", ME, ("hello", "world")))
    assert consumer.receive([wire.StoreHello(ME, "STORE")], 0.1) == [hello]
    assert consumer.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "STORE"), 0.1) == [hello]
    assert consumer.receive_subscriptions(subscription(Command.CONSUMER_HELLO), 0.1) == []
    assert consumer.receive([wire.StoreHello("CONSUMER2", "STORE")], 0.1) == []
    for topic in ("hello", "world"):
        consumer.unsubscribe(topic)
    assert consumer.receive([wire.StoreHello(ME, "STORE")], 0.1) == []
    assert consumer.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "STORE"), 0.1) == []


@pytest.mark.parametrize("message", [head(6), direct_head(6, ME)])
def test_earliest_fetches_up_to_a_head(message: wire.BatchedMessage) -> None:
    assert asked(make_consumer().receive([message], 0.1)) == [(0, 7)]


def test_latest_begins_with_the_record_after_the_first_sign_erratum_15() -> None:
    consumer = make_consumer(offset_reset="latest")
    assert consumer.receive([head(6)], 0.1) == []
    assert receive(consumer, live(7, 9)) == [7, 8]
    other = Partition("hello", "OTHER")
    assert receive(consumer, live(3, 5, other)) == [3, 4]


def test_latest_takes_a_producer_that_joined_after_settling_from_0_erratum_15() -> None:
    consumer = make_consumer(offset_reset="latest")
    consumer.node_settled(0.2)
    consumer.peer_joined("PRODUCER", 0.3)
    assert asked(consumer.receive([live(5, 7)], 0.4)) == [(0, 5)]


def test_a_producer_that_was_there_before_is_not_new_when_it_comes_back() -> None:
    consumer = make_consumer(offset_reset="latest")
    consumer.peer_joined("PRODUCER", 0.1)
    consumer.node_settled(0.2)
    consumer.peer_joined("PRODUCER", 0.3)
    consumer.peer_left("PRODUCER", 4.0)
    consumer.peer_joined("PRODUCER", 5.0)
    assert receive(consumer, live(5, 7)) == [5, 6]


@pytest.mark.parametrize("offset_reset", ["latest", "earliest"])
def test_a_position_comes_before_everything(offset_reset: str) -> None:
    consumer = make_consumer(positions={HELLO: 3}, offset_reset=offset_reset)
    consumer.node_settled(0.0)
    consumer.peer_joined("PRODUCER", 0.1)
    assert asked(consumer.receive([head(6)], 0.2)) == [(3, 4)]
    assert receive(consumer, direct(0, 5, ME)) == [3, 4]


def test_if_the_program_is_behind_live_records_are_dropped_and_fetched_later() -> None:
    consumer = make_consumer(buffer_bytes_max=100)
    assert receive(consumer, live(0, 3)) == [0, 1, 2]
    consumer.records_buffered(100)
    assert consumer.receive([live(3, 6), head(7)], 0.2) == []
    assert published(consumer.tick(60.0), wire.Fetch) == []
    assert asked(consumer.records_taken(50, 60.1)) == []
    assert asked(consumer.records_taken(1, 60.1)) == [(3, 5)]
    assert receive(consumer, direct(3, 8, ME)) == [3, 4, 5, 6, 7]


def test_one_wake_up_brings_little_more_than_the_buffer_takes() -> None:
    consumer = make_consumer(buffer_bytes_max=200)
    actions = consumer.receive([live(0, 1), live(1, 2), live(2, 3), live(3, 4)], 0.1)
    delivered = [action.batch for action in actions if isinstance(action, Deliver)]
    assert [batch.first_sequence for batch in delivered] == [0, 1]
    consumer.records_buffered(sum(batch.memory_bytes for batch in delivered))
    assert asked(consumer.records_taken(100, 60.0)) == [(2, 2)]


def test_records_fetched_before_the_pause_have_the_half_that_live_records_leave() -> None:
    consumer = make_consumer(buffer_bytes_max=100)
    consumer.receive([head(9)], 0.1)
    consumer.records_buffered(99)
    assert receive(consumer, live(0, 1)) == []
    assert receive(consumer, direct(0, 4, ME)) == [0, 1, 2, 3]
    consumer.records_buffered(1)
    assert receive(consumer, direct(4, 10, ME)) == []
    assert asked(consumer.records_taken(100, 0.2)) == [(4, 6)]


def test_a_paused_fetch_is_not_reported_as_unanswered() -> None:
    consumer = make_consumer(buffer_bytes_max=100)
    consumer.receive([head(9)], 0.1)
    consumer.records_buffered(200)
    told = []
    for _ in range(10):
        told += events(consumer.tick(consumer.deadline()))
    assert [event for event in told if isinstance(event, FetchUnanswered)] == []


def test_an_unanswered_fetch_is_reported_and_repeated() -> None:
    consumer = make_consumer()
    consumer.receive([head(9)], 0.0)
    actions = [action for now in (0.5, 1.5, 3.5) for action in consumer.tick(now)]
    assert asked(actions) == [(0, 10)] * 3
    assert events(actions) == [FetchUnanswered(HELLO, 0, 3)]


def test_unanswered_fetches_are_sent_to_a_node_that_connects() -> None:
    consumer = make_consumer()
    consumer.receive([head(9)], 0.0)
    assert asked(consumer.receive_subscriptions(subscription(Command.FETCH), 0.1)) == [(0, 10)]


def test_a_silent_producer_is_reported_once_and_so_is_its_return() -> None:
    consumer = make_consumer(silence_ms=2000)
    receive(consumer, live(0, 3), now=0.5)
    told = []
    for _ in range(6):
        told += [(consumer.deadline(), *events(consumer.tick(consumer.deadline())))]
    assert [row for row in told if len(row) > 1] == [(3.0, PartitionSilent(HELLO, 2.5))]
    assert events(consumer.receive([head(2)], 9.0)) == [PartitionHeard(HELLO)]
    assert events(consumer.receive([head(2)], 9.1)) == []


def test_the_silence_of_a_lost_producer_is_no_surprise() -> None:
    consumer = make_consumer(silence_ms=2000)
    receive(consumer, live(0, 3), now=0.5)
    consumer.peer_left("PRODUCER", 1.0)
    assert events(consumer.tick(100.0)) == []


def test_stores_are_asked_for_the_last_records_of_a_producer_that_has_left() -> None:
    consumer = make_consumer()
    receive(consumer, live(0, 3), now=0.5)
    heads = wire.GetHeads("hello", ME)
    assert published(consumer.peer_left("PRODUCER", 5.0), wire.GetHeads) == [heads]
    assert published(consumer.peer_left("PRODUCER", 10.0), wire.GetHeads) == [], "it has left already"
    receive(consumer, live(3, 5), now=11.0)
    assert published(consumer.peer_left("ANOTHER", 15.0), wire.GetHeads) == []
    assert published(consumer.peer_left("PRODUCER", 15.0), wire.GetHeads) == [heads]


def test_a_stores_answers_do_not_speak_for_the_producer() -> None:
    consumer = make_consumer(silence_ms=2000)
    consumer.receive([direct_head(5, ME), direct(0, 3, ME)], 0.5)
    assert [event for event in events(consumer.tick(100.0)) if isinstance(event, PartitionSilent)] == []


def test_unsubscribe_forgets_a_topic() -> None:
    consumer = make_consumer("hello", "world")
    consumer.receive([head(9), live(0, 2, Partition("world", "PRODUCER"))], 0.1)
    assert consumer.unsubscribe("hello") == [Unsubscribe(b"Mhello"), Unsubscribe(b"Hhello")]
    assert consumer.unsubscribe("hello") == []
    assert list(consumer.topics) == ["world"]
    assert consumer.receive([live(0, 3), head(9), direct(0, 3, ME)], 0.2) == []
    assert asked(consumer.tick(60.0)) == []
    assert receive(consumer, live(2, 4, Partition("world", "PRODUCER"))) == [2, 3]


# Handing records to a program


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


def test_a_run_is_handed_over_in_parts_and_no_record_twice() -> None:
    delivery, machine = make_delivery(10)
    for first, count in ((5, 4), (9, 4), (13, 2)):
        assert delivery.waiting_positions() == {PARTITION: first}
        batch = take(delivery, 4)
        assert batch is not None
        assert (batch.first_sequence, list(batch.values)) == (
            first,
            [b"%d" % number for number in range(first, first + count)],
        )
        assert delivery.positions == {PARTITION: first + count}
    assert take(delivery, 4) is None
    assert (delivery.records, delivery.waiting_positions(), machine.capacity.buffered_bytes) == (10, {}, 0)


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
