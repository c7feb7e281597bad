"""What the scenarios for stores have in common: saving records, fetching them back, and asking for heads."""

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
    """Is a message an ACK of this record, or of a later one?"""
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
    """The played producer publishes these records, and the store acknowledges them. Raises `UnmetError`."""
    partition = partition or producer.partition
    await testbed.wait_subscribed(producer, "RECORD", partition.topic)
    await producer.send_records(range(first, last + 1), partition=partition)
    matches = acknowledges(partition, last)
    await testbed.expect("ACK", clause, matches, seconds=seconds, what=f"ACK of {last}")


async def send_head(testbed: Testbed, producer: ScriptedPeer, sequence: int) -> None:
    """The played producer announces its last record."""
    await testbed.send(
        producer, "HEAD", producer.topic, address=producer.address, subject=producer.topic, sequence=sequence
    )


async def ask_heads(testbed: Testbed, consumer: ScriptedPeer, topic: bytes | None = None) -> None:
    """The played consumer says GET-HEADS for its topic, or another one."""
    await testbed.send(consumer, "GET-HEADS", consumer.topic if topic is None else topic, address=consumer.address)


async def expect_head(
    testbed: Testbed, consumer: ScriptedPeer, partition: Partition, sequence: int, clause: str
) -> ReceivedMessage:
    """The store tells this consumer of a partition's head. Raises `UnmetError`."""
    wanted = (consumer.address, partition.address, sequence)
    return await testbed.expect(
        "DIRECT-HEAD",
        clause,
        lambda message: (message.topic, message["address"], message["sequence"]) == wanted,
        what=f"DIRECT-HEAD of {sequence}",
    )


async def ask(testbed: Testbed, consumer: ScriptedPeer, partition: Partition, first: int, count: int) -> None:
    """The played consumer says FETCH, once the store hears it."""
    await testbed.wait_subscribed(consumer, "FETCH", partition.address)
    send_fetch(consumer, partition, first, count)


def send_fetch(consumer: ScriptedPeer, partition: Partition, first: int, count: int) -> None:
    """The played consumer says FETCH."""
    values: dict[str, Value] = {"address": consumer.address, "subject": partition.topic}
    consumer.send("FETCH", partition.address, {**values, "sequence": first, "count": count})


def answers(testbed: Testbed, consumer: ScriptedPeer, partition: Partition, since: int = 0) -> list[ReceivedMessage]:
    """The DIRECT-RECORDs of a partition for this consumer so far."""
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
    """The records that the store sends for a FETCH of these, in its order.

    Raises `UnmetError`, the clause being violated, where it leaves any out; `after` names what may be the reason. What
    is wrong with their order and contents is found by `stage.watch`.
    """
    since = place = len(testbed.received)
    wanted = set(range(first, last + 1))

    def look() -> bool:
        nonlocal place
        wanted.difference_update(
            received.message.get_number("sequence") for received in answers(testbed, consumer, partition, place)
        )
        place = len(testbed.received)
        return not wanted

    await ask(testbed, consumer, partition, first, last - first + 1)
    await testbed.wait(look, seconds)
    text = f"of the records {first}..{last}, asked for with a FETCH{after}, {len(wanted):,} did not come"
    text += f", the first is {min(wanted)}" if wanted else ""
    testbed.require_clause(clause, not wanted, testbed.exit_message(after) or text)
    testbed.check_clause(clause, True)
    return answers(testbed, consumer, partition, since)


async def own_address(testbed: Testbed, peer: ScriptedPeer, name: str, clause: str) -> bytes:
    """The address under which the store takes messages of this name: one that is several nodes has several."""

    def find() -> bytes:
        return next((address for address in testbed.nodes if peer.is_subscribed(name, address)), b"")

    await testbed.wait(lambda: bool(find()))
    testbed.require_clause(clause, bool(find()), f"the store has no subscription for {name} with an address of its own")
    return find()


def nth(number: int) -> str:
    """An ordinal, for a finding."""
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
