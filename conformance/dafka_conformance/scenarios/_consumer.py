"""Helpers for consumer scenarios: scripted producers and stores, and a barrier before negative checks.

A scripted producer answers FETCHes and sends a HEAD each second, as a consumer may expect. A check that something was
not delivered or requested comes after the effect of a later message on the same connection.
"""

from __future__ import annotations

from collections.abc import Iterable

from dafka_conformance.grammar import Message, Value
from dafka_conformance.targets.base import Ability, Delivery
from dafka_conformance.testbed.known_records import Partition, record_content
from dafka_conformance.testbed.network import new_address
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

COLLECT = (Ability.COLLECT,)
LATEST = (Ability.COLLECT, Ability.LATEST)
ORDERLY = ("delivery.complete", "delivery.in-order", "delivery.once")


async def subscribed(testbed: Testbed) -> None:
    """Wait until the consumer has subscribed to its topic. Before that, it may have no topics for a CONSUMER-HELLO."""
    await testbed.wait_subscribed(await testbed.add_peer("P"), "RECORD", testbed.topic)


async def serving(testbed: Testbed, label: str, count: int) -> ScriptedPeer:
    """Add a producer that has `count` records and answers FETCHes."""
    producer = await testbed.add_peer(label)
    producer.add_records(count)
    producer.answers_requests = True
    return producer


def gone_partition(testbed: Testbed, store: ScriptedPeer, count: int, label: str) -> Partition:
    """Return a partition whose producer has left; a store has its records and answers FETCHes."""
    partition = Partition(new_address(), testbed.topic)
    testbed.trace.name_node(partition.address, label)
    store.add_records(count, partition)
    store.answers_requests = True
    testbed.known_records.partition(partition.address, partition.topic)
    return partition


async def send_heads(testbed: Testbed, store: ScriptedPeer, partitions: Iterable[Partition]) -> None:
    """Send a store's heads, as it does after a CONSUMER-HELLO."""
    for partition in partitions:
        about: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
        await testbed.send(store, "DIRECT-HEAD", testbed.address, **about, sequence=partition.head)


def require_clause_or_running(testbed: Testbed, clause: str, holds: bool, text: str, missing: str = "") -> None:
    """Check a clause as `Testbed.require_clause` does. If the target has ended, report that instead."""
    if not holds:
        testbed.check_running(clause)
    testbed.require_clause(clause, holds, text, missing=missing)


def fetches(testbed: Testbed, partition: bytes) -> list[Message]:
    """Return the FETCHes for a partition so far."""
    return [message for message in testbed.messages("FETCH") if message.topic == partition]


def check_counts(testbed: Testbed) -> None:
    """Check that no FETCH so far has the count 0."""
    for received in testbed.received:
        if received.message.name == "FETCH" and not received.message.get_number("count"):
            text = f"a FETCH has the count 0: {testbed.describe(received.message)}"
            testbed.check_clause("fetch.sent", False, text, received.event)


def delivered_of(testbed: Testbed, partition: bytes) -> list[Delivery]:
    """Return the deliveries of a partition, or of an unknown one if the output has no address."""
    return [delivery for delivery in testbed.delivered if delivery.address in {None, partition}]


async def end_with_gap(testbed: Testbed, producer: ScriptedPeer) -> None:
    """Publish a record after a gap and wait for its delivery: by then, all earlier messages have had their effect."""
    head = max(testbed.known_records.partition(producer.address, producer.topic).contents, default=-1)
    producer.add_records(head + 3)
    producer.answers_requests = producer.sends_heads = True
    before = len(testbed.received)
    await testbed.publish(producer, head + 2, head + 2)
    await testbed.expect(
        "FETCH",
        "fetch.sent",
        lambda message: message.topic == producer.address,
        since=before,
        what=f"FETCH of record {head + 1} of {producer.label} after record {head + 2}",
    )
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(head + 3)])
