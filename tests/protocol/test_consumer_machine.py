"""The consumer's machine: where it begins, what it fetches and delivers, and what it reports."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import ConsumerMachine, DeliveryBuffer
from dafka.protocol.actions import Publish
from dafka.records import Partition, RecordBatch
from tests.protocol.scripts import play, scripts_of

SCRIPTS = """
# A topic is subscribed to once, and its heads are asked for
consumer subscribe=hello
subscribe world => +RECORD world, +HEAD world, GET-HEADS world
subscribe world
# A peer that now hears GET-HEADS is asked, but only once a second
consumer offset_reset=earliest subscribe=hello,world
0.5 +GET-HEADS hello2 & +GET-HEADS other & -GET-HEADS hello
until 1.1
1.2 +GET-HEADS => GET-HEADS hello, GET-HEADS world
1.3 +GET-HEADS
unsubscribe world => -RECORD world, -HEAD world
until 3 => GET-HEADS hello at 2.2
5 +GET-HEADS => GET-HEADS hello
# GET-HEADS is repeated twice, because an answer may be lost, unless the topic is given up
consumer offset_reset=earliest subscribe=hello
until 199 => GET-HEADS hello at 5 35
200 subscribe world => +RECORD world, +HEAD world, GET-HEADS world
unsubscribe world => -RECORD world, -HEAD world
until 400
# A store is greeted with the topics
consumer offset_reset=earliest subscribe=hello,world
0.1 < STORE-HELLO from=STORE => CONSUMER-HELLO hello,world to=STORE
+CONSUMER-HELLO STORE => CONSUMER-HELLO hello,world to=STORE
+CONSUMER-HELLO
< STORE-HELLO to=ME2 from=STORE
unsubscribe hello => -RECORD hello, -HEAD hello
unsubscribe world => -RECORD world, -HEAD world
< STORE-HELLO from=STORE
+CONSUMER-HELLO STORE
# Stores are asked in turn from time to time: they need not have told all (erratum 28)
consumer subscribe=hello stores=STORE1,STORE2
until 400
    => GET-HEADS hello at 5 35, CONSUMER-HELLO hello to=STORE1 at 61.548 192.495 301.082, CONSUMER-HELLO hello
       to=STORE2 at 135.868 239.868 375.773
unsubscribe hello => -RECORD hello, -HEAD hello
until 900
# `earliest` fetches up to a head
consumer offset_reset=earliest subscribe=hello
0.1 < HEAD 6 => FETCH 0:7
< DIRECT-HEAD OTHER 6 => FETCH OTHER 0:7
# `latest` begins with the record after the first sign (erratum 15)
consumer subscribe=hello
0.1 < HEAD 6
< RECORD 7:9 => deliver 7:9
< RECORD OTHER 3:5 => deliver OTHER 3:5
# Nodes that answer for a subscribed topic are asked for its heads, once an interval
consumer settled subscribe=hello,world
+GET-HEADS hello
0.1 +GET-HEADS world & +GET-HEADS other
until 3 => GET-HEADS hello at 1, GET-HEADS world at 1
+GET-HEADS hel => GET-HEADS hello
# A partition of which nothing came for a while gives its place to another one
consumer settled subscribe=hello offset_reset=earliest partitions_unproven_max=1
< HEAD A 4 => FETCH A 0:5
29.9 < HEAD B 4 => GET-HEADS hello, discarded 1 (too many partitions without records)
30 < HEAD B 4 => FETCH B 0:5
reassembler.cursors => = B=0:5
# `latest` takes a producer that joined after settling from 0 (erratum 15)
consumer subscribe=hello
0.2 node_settled
0.3 peer_joined PRODUCER
0.4 < RECORD 5:7 => FETCH 0:5
# A producer that was there before is not new when it comes back
consumer subscribe=hello
0.1 peer_joined PRODUCER
0.2 node_settled
0.3 peer_joined PRODUCER
4 peer_left PRODUCER
5 peer_joined PRODUCER
5.1 < RECORD 5:7 => deliver 5:7
# A position comes before `latest`
consumer PRODUCER=3 subscribe=hello settled
0.1 peer_joined PRODUCER
0.2 < HEAD 6 => FETCH 3:7
< DIRECT-RECORD 0:5 => deliver 3:5
# A position comes before `earliest`
consumer PRODUCER=3 offset_reset=earliest subscribe=hello settled
0.1 < HEAD 6 => FETCH 3:7
# If the program is behind, live records are dropped and fetched later
consumer offset_reset=earliest buffer_bytes_max=100 subscribe=hello
0.1 < RECORD 0:3 => deliver 0:3
records_buffered 100
0.2 < RECORD 3:6 & HEAD 7
until 60 => GET-HEADS hello at 5 35, PartitionSilent 7.3 at 7.5
60.1 records_taken 50
records_taken 1 => FETCH 3:8
< DIRECT-RECORD 3:8 => deliver 3:8
# One wake-up brings little more than the buffer takes
consumer offset_reset=earliest buffer_bytes_max=200 subscribe=hello
0.1 < RECORD 0:1 & RECORD 1:2 & RECORD 2:3 & RECORD 3:4 => deliver 0:1, deliver 1:2
records_buffered 130
60 records_taken 100 => FETCH 2:4
# Records fetched before the pause have the half that live records leave
consumer offset_reset=earliest buffer_bytes_max=100 subscribe=hello
0.1 < HEAD 9 => FETCH 0:10
records_buffered 99
< RECORD 0:1
< DIRECT-RECORD 0:4 => deliver 0:4
records_buffered 1
< DIRECT-RECORD 4:10
0.2 records_taken 100 => FETCH 4:10
# A paused FETCH is not reported as unanswered
consumer offset_reset=earliest buffer_bytes_max=100 subscribe=hello
0.1 < HEAD 9 => FETCH 0:10
records_buffered 200
until 100 => GET-HEADS hello at 5 35
# An unanswered FETCH is reported, repeated, and sent to a node that connects
consumer offset_reset=earliest subscribe=hello
< HEAD 9 => FETCH 0:10
until 3.6 => FETCH 0:10 at 0.5 1.5 3.5, FetchUnanswered 0 3 at 3.5
+FETCH => FETCH 0:10
# A silent producer is reported once, and so is its return
consumer offset_reset=earliest silence_ms=2000 subscribe=hello
0.5 < RECORD 0:3 => deliver 0:3
until 8.9 => PartitionSilent 2.5 at 3, GET-HEADS hello at 5
9 < HEAD 2 => PartitionHeard
9.1 < HEAD 2
# The silence of a lost producer is no surprise
consumer offset_reset=earliest silence_ms=2000 subscribe=hello
0.5 < RECORD 0:3 => deliver 0:3
1 peer_left PRODUCER => GET-HEADS hello
until 100 => GET-HEADS hello at 6 36
# Stores are asked for the last records of a producer that has left
consumer offset_reset=earliest subscribe=hello
0.5 < RECORD 0:3 => deliver 0:3
5 peer_left PRODUCER => GET-HEADS hello
10 peer_left PRODUCER
11 < RECORD 3:5 => deliver 3:5
15 peer_left ANOTHER
peer_left PRODUCER => GET-HEADS hello
# A store's answers do not speak for the producer
consumer offset_reset=earliest silence_ms=2000 subscribe=hello
0.5 < DIRECT-HEAD 2 & DIRECT-RECORD 0:3 => deliver 0:3
until 100 => GET-HEADS hello at 5 35
# Unsubscribing forgets a topic
consumer offset_reset=earliest subscribe=hello,world
0.1 < HEAD 9 & RECORD world/PRODUCER 0:2 => deliver world/PRODUCER 0:2, FETCH 0:10
unsubscribe hello => -RECORD hello, -HEAD hello
unsubscribe hello
topics => = world=1
0.2 < RECORD 0:3 & HEAD 9 & DIRECT-RECORD 0:3 => discarded 2 (another topic), discarded 3 (not asked for)
until 60 => GET-HEADS world at 5 35, PartitionSilent world/PRODUCER 7.4 at 7.5
60.1 < RECORD world/PRODUCER 2:4 => PartitionHeard world/PRODUCER, deliver world/PRODUCER 2:4
# A head of a producer that has left is no sign of life
consumer offset_reset=earliest subscribe=hello
peer_joined PRODUCER
1 < HEAD 2 & DIRECT-RECORD 0:3 => deliver 0:3
until 100 => GET-HEADS hello at 5 35, PartitionSilent 6.5 at 7.5
# A producer of which only its heads are known is not missed while other nodes are there (erratum 32)
consumer offset_reset=earliest subscribe=hello
peer_joined OTHER
1 < HEAD 2 & DIRECT-RECORD 0:3 => deliver 0:3
until 100 => GET-HEADS hello at 5 35
# A producer that spoke for long may be silent for long (erratum 33)
consumer offset_reset=earliest subscribe=hello
peer_joined PRODUCER
< RECORD 0:1 => deliver 0:1
1 < HEAD 0
2 < HEAD 0
4 < HEAD 0
8 < HEAD 0
16 < HEAD 0
until 32 => GET-HEADS hello at 16
< HEAD 0
until 62 => GET-HEADS hello at 46
< HEAD 0
until 92
< HEAD 0
until 400 => PartitionSilent 64 at 156
< HEAD 0 => PartitionHeard
until 1000 => PartitionSilent 63.5 at 463.5
# A producer that spoke a moment ago is reported after the silence
consumer offset_reset=earliest subscribe=hello
peer_joined PRODUCER
< RECORD 0:1 => deliver 0:1
0.5 < HEAD 0
1 < HEAD 0
1.5 < HEAD 0
until 500 => GET-HEADS hello at 5 35, PartitionSilent 6 at 7.5
< HEAD 0 => PartitionHeard
until 1000 => PartitionSilent 5 at 505
"""


@scripts_of(SCRIPTS)
def test_consumer(script: Sequence[str]) -> None:
    play(script)


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
