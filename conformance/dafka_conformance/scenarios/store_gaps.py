"""Store scenarios: fetching missing records."""

from __future__ import annotations

from dafka_conformance.grammar import Message
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._store import (
    OTHER_CONTENT,
    acknowledges,
    ask_heads,
    expect_head,
    fetch_back,
    save,
    send_head,
)
from dafka_conformance.testbed.known_records import Partition
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()


@SCENARIOS.add("store.gap", "ack.no-gap", "fetch.sent", "fetch.sequence", "direct-head.last-offset", shares_target=True)
async def gap(testbed: Testbed) -> None:
    """A store fetches missing records, and meanwhile acknowledges and announces nothing beyond them."""
    producer, other, consumer = await testbed.add_peer("P"), await testbed.add_peer("P2"), await testbed.add_peer("C")
    partition = producer.partition
    await save(testbed, producer, 0, 2)
    producer.add_records(10)
    await producer.send_records(range(6, 10))
    await _expect_fetch(testbed, partition, 3, 5)
    # Once a later record of another partition is saved, the store has processed the records beyond the gap.
    await save(testbed, other, 0, 0)
    await ask_heads(testbed, consumer)
    await expect_head(testbed, consumer, partition, 2, "direct-head.last-offset")
    early = [
        received
        for received in testbed.received
        if received.message.name == "ACK" and acknowledges(partition, 3)(received.message)
    ]
    for received in early[:1]:
        text = f"ACK of {received.message.get_number('sequence')}, although 3..5 are missing"
        testbed.require_clause("ack.no-gap", False, text, received.event)
    producer.answers_requests = producer.sends_heads = True
    await testbed.expect("ACK", "ack.sent", acknowledges(partition, 9), what="ACK of 9 after the gap was filled")
    await fetch_back(testbed, consumer, partition, 0, 9)


@SCENARIOS.add("store.fetch-repeated", "fetch.repeated", shares_target=True)
async def fetch_repeated(testbed: Testbed) -> None:
    """A store repeats a FETCH without an answer while the producer continues to send HEADs."""
    producer = await testbed.add_peer("P")
    producer.add_records(6)
    partition = producer.partition
    await send_head(testbed, producer, 5)
    await _expect_fetch(testbed, partition, 0, 5)

    def times() -> int:
        fetches = [message for message in testbed.messages("FETCH") if message.topic == producer.address]
        return sum(message["sequence"] == 0 for message in fetches)

    producer.sends_heads = True
    is_repeated = await testbed.wait(lambda: times() >= 3, 12)
    text = (
        f"FETCH of 0..5 was sent {times()} times, then no more, although it was not answered and HEADs of 5 continued"
    )
    testbed.require_clause("fetch.repeated", is_repeated, text)
    producer.answers_requests = True
    await testbed.expect(
        "ACK",
        "fetch.repeated",
        acknowledges(partition, 5),
        seconds=12,
        what="ACK of 5 after FETCHes were answered again",
    )


@SCENARIOS.add("store.partner", "fetch.sent", "fetch.sequence", shares_target=True)
async def partner(testbed: Testbed) -> None:
    """If the producer does not answer, a store gets the records from another store."""
    producer, store, consumer = await testbed.add_peer("P"), await testbed.add_peer("S2"), await testbed.add_peer("C")
    partition = producer.partition
    producer.add_records(6)
    store.add_records(6, partition)
    store.answers_requests = True
    await producer.send_records([5])
    await _expect_fetch(testbed, partition, 0, 4)
    await testbed.expect("ACK", "ack.sent", acknowledges(partition, 5), what="ACK of 5")
    testbed.remove_peer("P")
    await fetch_back(testbed, consumer, partition, 0, 5)


@SCENARIOS.add("store.others-answers", "direct-record.requestor", shares_target=True)
async def others_answers(testbed: Testbed) -> None:
    """A store ignores DIRECT-RECORDs and DIRECT-HEADs that are addressed to another store."""
    producer, store, consumer = await testbed.add_peer("P"), await testbed.add_peer("S2"), await testbed.add_peer("C")
    partition = producer.partition
    await save(testbed, producer, 0, 0)
    about = {"address": producer.address, "subject": producer.topic}
    for sequence in (1, 2):
        message = Message("DIRECT-RECORD", store.address, {**about, "sequence": sequence, "content": OTHER_CONTENT})
        producer.send_frames(
            testbed.grammar.formats.encode(message, testbed.dialect), message.name, "addressed to another store"
        )
    message = Message("DIRECT-HEAD", store.address, {**about, "sequence": 99})
    producer.send_frames(
        testbed.grammar.formats.encode(message, testbed.dialect), message.name, "addressed to another store"
    )
    await save(testbed, producer, 1, 2)
    for received in await fetch_back(testbed, consumer, partition, 0, 2):
        number = received.message.get_number("sequence")
        text = f"DIRECT-RECORD {number}, which was addressed to another store, was stored"
        holds = received.message["content"] == partition.contents[number]
        testbed.require_clause("direct-record.requestor", holds, text, received.event)
    strange = [each for each in testbed.messages("FETCH") if each.topic == producer.address]
    text = "a DIRECT-HEAD that was addressed to another store caused a FETCH"
    testbed.require_clause("direct-record.requestor", not strange, text)


@SCENARIOS.add("store.gaps", "fetch.sent", "fetch.sequence", "ack.no-gap", shares_target=True)
async def gaps(testbed: Testbed) -> None:
    """A store fills several gaps in several partitions of a topic at once."""
    producers = [await testbed.add_peer(f"P{number}") for number in range(1, 4)]
    consumer = await testbed.add_peer("C")
    for number, producer in enumerate(producers):
        await save(testbed, producer, 0, number)
        producer.add_records(20)
        producer.answers_requests = producer.sends_heads = True
    for producer in producers:
        for first, last in ((5, 6), (9, 9), (15, 19)):
            await producer.send_records(range(first, last + 1))
    for producer in producers:
        text = f"ACK of 19 for {producer.label}, after 0..2, 5..6, 9 and 15..19 were sent,"
        await testbed.expect("ACK", "fetch.sent", acknowledges(producer.partition, 19), what=text)
    for producer in producers:
        await fetch_back(testbed, consumer, producer.partition, 0, 19)


async def _expect_fetch(testbed: Testbed, partition: Partition, first: int, last: int) -> None:
    """Check that the store fetches these records, and that the first FETCH starts with the first one."""

    def is_of_partition(message: Message) -> bool:
        return message.topic == partition.address

    fetch = await testbed.expect("FETCH", "fetch.sent", is_of_partition, what=f"FETCH of {first}..{last}")
    found = fetch.message.get_number("sequence")
    text = f"FETCH begins with {found}, expected {first}, the first missing record"
    testbed.require_clause("fetch.sequence", found == first, text, fetch.event)

    def uncovered() -> set[int]:
        missing = set(range(first, last + 1))
        for message in filter(is_of_partition, testbed.messages("FETCH")):
            sequence = message.get_number("sequence")
            missing -= set(range(max(sequence, first), min(sequence + message.get_number("count"), last + 1)))
        return missing

    await testbed.wait(lambda: not uncovered())
    text = f"of the missing records {first}..{last}, no FETCH requests {sorted(uncovered())}"
    testbed.require_clause("fetch.sent", not uncovered(), text, fetch.event)
