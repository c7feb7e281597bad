"""What a broker's store takes for signs of life of other brokers."""

from __future__ import annotations

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol.machines.broker import BrokerMachine, BrokerTopics
from dafka.records import Partition, RecordBatch

OWN, OTHER, PRODUCER = "A" * 32, "B" * 32, "C" * 32
LOG = f"{OTHER}/{'d' * 32}/0"


@pytest.fixture
def machine() -> BrokerMachine:
    topics = BrokerTopics("$brokers", "$logs", frozenset(("$logs",)))
    return BrokerMachine(
        OWN,
        Config(),
        {},
        {},
        {},
        (),
        topics,
        is_own=lambda partition: partition.address.startswith(OWN),
        keeps=lambda partition: True if "/" in partition.address else None,
        has_index=lambda _: False,
    )


def run(address: str, requestor: str | None = None) -> wire.RecordRun:
    return wire.RecordRun(RecordBatch(Partition("orders", address), 0, [b"x"]), requestor)


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        (wire.Head(OTHER, "$brokers", 3), {OTHER}),
        (run(LOG), {OTHER}),
        (run(LOG, requestor=OWN), set()),
        (run(PRODUCER), set()),
        (wire.Head(PRODUCER, "orders", 3), set()),
    ],
    ids=["the head of its description", "records that it has ordered", "an answer", "a producer", "its head"],
)
def test_signs_of_life_are_what_a_broker_sends_by_itself(
    machine: BrokerMachine, message: wire.BatchedMessage, heard: set[str]
) -> None:
    machine.receive([message], 0.0)
    assert machine.take_signs().heard == heard
    assert not machine.take_signs()
