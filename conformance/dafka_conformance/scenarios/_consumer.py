"""What the scenarios for consumers have in common: played producers and stores, and the barrier before "never".

A producer that the suite plays behaves as real ones do where a consumer may rely on it: it answers FETCHes, and sends a
HEAD each second. What must not have been handed on, or asked for, is looked for after something later that came through
the same connection has had its effect.
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
    """Waits until the consumer's program has named its topic: before, it may have no topics to tell a store of.

    Raises `UnmetError`.
    """
    await testbed.wait_subscribed(await testbed.add_peer("P"), "RECORD", testbed.topic)


async def serving(testbed: Testbed, label: str, count: int) -> ScriptedPeer:
    """A producer that has so many records, and answers for them. Raises `UnmetError`."""
    producer = await testbed.add_peer(label)
    producer.add_records(count)
    producer.answers_requests = True
    return producer


def gone_partition(testbed: Testbed, store: ScriptedPeer, count: int, label: str) -> Partition:
    """A partition whose producer is gone; a store has its records, and answers for them."""
    partition = Partition(new_address(), testbed.topic)
    testbed.trace.name_node(partition.address, label)
    store.add_records(count, partition)
    store.answers_requests = True
    testbed.known_records.partition(partition.address, partition.topic)
    return partition


async def send_heads(testbed: Testbed, store: ScriptedPeer, partitions: Iterable[Partition]) -> None:
    """A store tells of its heads, as it does when a consumer greets it. Raises `UnmetError`."""
    for partition in partitions:
        about: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
        await testbed.send(store, "DIRECT-HEAD", testbed.address, **about, sequence=partition.head)


def require(testbed: Testbed, clause: str, holds: bool, text: str) -> None:
    """As `Stage.require`; where the target has ended, that is what is wrong."""
    if not holds:
        testbed.check_running(clause)
    testbed.require_clause(clause, holds, text)


def fetches(testbed: Testbed, partition: bytes) -> list[Message]:
    """The FETCHes for a partition so far."""
    return [message for message in testbed.messages("FETCH") if message.topic == partition]


def check_counts(testbed: Testbed) -> None:
    """Every FETCH so far asks for something."""
    for received in testbed.received:
        if received.message.name == "FETCH" and not received.message.get_number("count"):
            text = f"a FETCH asks for no record at all: {testbed.describe(received.message)}"
            testbed.check_clause("fetch.sent", False, text, received.event)


def delivered_of(testbed: Testbed, partition: bytes) -> list[Delivery]:
    """What was handed on of a partition, as far as the output tells; what else it prints is left out."""
    return [delivery for delivery in testbed.delivered if delivery.address in {None, partition}]


async def end_with_gap(testbed: Testbed, producer: ScriptedPeer) -> None:
    """A record with a gap before it, by this producer: when it was fetched, all that came before it had its effect.

    Raises `UnmetError`.
    """
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
        what=f"FETCH of {head + 1} of {producer.label}, of which {head + 2} was published",
    )
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(head + 3)])
