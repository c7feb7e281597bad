"""Helpers for store scenarios: save records, fetch them back, and request heads."""

from __future__ import annotations

from collections.abc import Callable

from dafka_conformance.grammar import Message, Value
from dafka_conformance.testbed.known_records import Partition
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed
from dafka_conformance.testbed.trace import ReceivedMessage

BURST_RECORDS = 1000
REPEATS = 3
OTHER_CONTENT = b"another record's content"


def acknowledges(partition: Partition, sequence: int) -> Callable[[Message], bool]:
    """Return a predicate for messages: whether one is an ACK of this record or of a later one."""
    return lambda message: (
        message.topic == partition.address
        and message["subject"] == partition.topic
        and message.get_number("sequence") >= sequence
    )


async def save(
    testbed: Testbed,
    producer: ScriptedPeer,
    first: int,
    last: int,
    *,
    partition: Partition | None = None,
    clause: str = "ack.sent",
    seconds: float | None = None,
) -> None:
    """Publish records from a peer, and wait for the store's ACK. Raise `UnmetError` if it does not arrive."""
    partition = partition or producer.partition
    await testbed.wait_subscribed(producer, "RECORD", partition.topic)
    await producer.send_records(range(first, last + 1), partition=partition)
    matches = acknowledges(partition, last)
    await testbed.expect("ACK", clause, matches, seconds=seconds, what=f"ACK of {last}")


async def send_head(testbed: Testbed, producer: ScriptedPeer, sequence: int) -> None:
    """Send a HEAD from a scripted producer."""
    await testbed.send(
        producer, "HEAD", producer.topic, address=producer.address, subject=producer.topic, sequence=sequence
    )


async def ask_heads(testbed: Testbed, consumer: ScriptedPeer, topic: bytes | None = None) -> None:
    """Send a GET-HEADS from a scripted consumer for its topic, or another one."""
    await testbed.send(consumer, "GET-HEADS", consumer.topic if topic is None else topic, address=consumer.address)


async def expect_head(
    testbed: Testbed, consumer: ScriptedPeer, partition: Partition, sequence: int, clause: str
) -> ReceivedMessage:
    """Wait for a DIRECT-HEAD of a partition to this consumer. Raise `UnmetError` if it does not arrive."""
    wanted = (consumer.address, partition.address, sequence)
    return await testbed.expect(
        "DIRECT-HEAD",
        clause,
        lambda message: (message.topic, message["address"], message["sequence"]) == wanted,
        what=f"DIRECT-HEAD of {sequence}",
    )


async def ask(testbed: Testbed, consumer: ScriptedPeer, partition: Partition, first: int, count: int) -> None:
    """Send a FETCH from a scripted consumer, once the store is subscribed to it."""
    await testbed.wait_subscribed(consumer, "FETCH", partition.address)
    send_fetch(consumer, partition, first, count)


def send_fetch(consumer: ScriptedPeer, partition: Partition, first: int, count: int) -> None:
    """Send a FETCH from a scripted consumer."""
    values: dict[str, Value] = {"address": consumer.address, "subject": partition.topic}
    consumer.send("FETCH", partition.address, {**values, "sequence": first, "count": count})


def answers(testbed: Testbed, consumer: ScriptedPeer, partition: Partition, since: int = 0) -> list[ReceivedMessage]:
    """Return the DIRECT-RECORDs of a partition to this consumer so far."""
    return [
        received
        for received in testbed.received[since:]
        if received.message.name == "DIRECT-RECORD"
        and received.message.topic == consumer.address
        and received.message["address"] == partition.address
    ]


async def fetch_back(
    testbed: Testbed,
    consumer: ScriptedPeer,
    partition: Partition,
    first: int,
    last: int,
    *,
    clause: str = "direct-record.sent",
    after: str = "",
    seconds: float | None = None,
) -> list[ReceivedMessage]:
    """Send a FETCH and wait for all requested records. `MessageChecks` checks their order and contents.

    Args:
        testbed: The testbed.
        consumer: The peer that sends the FETCH.
        partition: The partition.
        first: The first record.
        last: The last record.
        clause: The clause that is violated if a record is missing.
        after: The messages before the FETCH that may prevent an answer, for the finding.
        seconds: The time limit.

    Returns:
        The DIRECT-RECORDs, in the order of arrival.
    """
    since = place = len(testbed.received)
    wanted = set(range(first, last + 1))

    def is_complete() -> bool:
        nonlocal place
        wanted.difference_update(
            received.message.get_number("sequence") for received in answers(testbed, consumer, partition, place)
        )
        place = len(testbed.received)
        return not wanted

    await ask(testbed, consumer, partition, first, last - first + 1)
    await testbed.wait(is_complete, seconds)
    text = f"of the records {first}..{last}, requested with a FETCH{after}, {len(wanted):,} did not arrive"
    text += f", the first is {min(wanted)}" if wanted else ""
    ended = testbed.exit_message(after)
    testbed.require_clause(clause, not wanted, ended or text, missing="" if ended else "DIRECT-RECORD")
    testbed.check_clause(clause, True)
    return answers(testbed, consumer, partition, since)


async def own_address(testbed: Testbed, peer: ScriptedPeer, name: str, clause: str) -> bytes:
    """Return the store's address for messages with this name. A store of several nodes has several addresses."""

    def find() -> bytes:
        return next((address for address in testbed.nodes if peer.is_subscribed(name, address)), b"")

    await testbed.wait(lambda: bool(find()))
    testbed.require_clause(clause, bool(find()), f"the store has no subscription for {name} with its own address")
    return find()


def nth(number: int) -> str:
    """Return an ordinal number, for a finding."""
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
