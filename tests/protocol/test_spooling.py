from __future__ import annotations

from dafka import wire
from dafka.config import ProducerConfig
from dafka.protocol import ProducerMachine
from tests.protocol.helpers import HELLO, contents, next_batch


def make_producer(config: ProducerConfig) -> ProducerMachine:
    producer = ProducerMachine(HELLO, config, 10, is_spooled=True, spool_trim_records=10)
    producer.start(0.0)
    producer.node_settled(0.0)
    return producer


def acknowledge(producer: ProducerMachine, sequence: int) -> None:
    producer.receive([wire.Ack(HELLO.address, HELLO.topic, sequence, "STORE")], 0.1)


def test_acknowledged_records_are_trimmed_together_or_when_all_are_acknowledged() -> None:
    producer = make_producer(ProducerConfig())
    producer.publish(next_batch(producer, contents(0, 30)), 0.0)
    assert producer.begin_spool_trim() is None
    acknowledge(producer, 8)
    assert producer.begin_spool_trim() is None
    acknowledge(producer, 9)
    assert producer.begin_spool_trim() == 9
    acknowledge(producer, 12)
    assert producer.begin_spool_trim() is None
    acknowledge(producer, 29)
    assert producer.begin_spool_trim() == 29
    assert producer.begin_spool_trim() is None


def test_without_min_stores_the_latest_records_are_kept() -> None:
    producer = make_producer(ProducerConfig(min_stores=0, unacknowledged_records_max=20))
    producer.publish(next_batch(producer, contents(0, 20)), 0.0)
    assert producer.begin_spool_trim() is None
    producer.publish(next_batch(producer, contents(20, 40)), 0.0)
    assert producer.begin_spool_trim() == 20
