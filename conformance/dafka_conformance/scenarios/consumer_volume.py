"""Consumer scenarios: many records, large contents, and contents and topics of any bytes."""

from __future__ import annotations

from collections.abc import Sequence

from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._consumer import (
    COLLECT,
    ORDERLY,
    check_counts,
    delivered_of,
    end_with_gap,
    fetches,
    gone_partition,
    require_clause_or_running,
    send_heads,
    serving,
    subscribed,
)
from dafka_conformance.scenarios._nodes import MIB
from dafka_conformance.targets.base import Ability
from dafka_conformance.testbed.expectations import DEFAULT_TIMEOUT_S
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

ODD_TOPIC = (Ability.COLLECT, Ability.CHOOSE_TOPIC)
CATCH_UP_COUNT = 250_000


async def _wait_delivered(testbed: Testbed, number: int) -> bool:
    """Wait for the next delivery after this number of them."""
    return await testbed.wait(lambda: len(testbed.delivered) > number)


@SCENARIOS.add(
    "consumer.catch-up",
    "fetch.pages",
    *ORDERLY,
    needs=COLLECT,
    runs_alone=True,
)
async def catch_up(testbed: Testbed) -> None:
    """A consumer that catches up from a store gets all of 250,000 records without a HEAD."""
    await subscribed(testbed)
    store = await testbed.add_peer("S2")
    partition = gone_partition(testbed, store, CATCH_UP_COUNT, "gone")
    await send_heads(testbed, store, [partition])
    place = number = 0
    while number < CATCH_UP_COUNT and await _wait_delivered(testbed, place):
        new, place = testbed.delivered[place:], len(testbed.delivered)
        number += sum(delivery.address in {None, partition.address} for delivery in new)
    last = fetches(testbed, partition.address)[-1:]
    asked = (
        f"; the last FETCH was for {last[0].get_number('count'):,} from {last[0].get_number('sequence'):,} on"
        if last
        else ""
    )
    text = (
        f"{number:,} of {CATCH_UP_COUNT:,} records were delivered, then none for "
        f"{DEFAULT_TIMEOUT_S * testbed.patience:g} s, and no further FETCH{asked}"
    )
    require_clause_or_running(testbed, "fetch.pages", number >= CATCH_UP_COUNT, text)
    await testbed.expect_delivered([partition.contents[sequence] for sequence in range(CATCH_UP_COUNT)])
    check_counts(testbed)


@SCENARIOS.add("consumer.load", *ORDERLY, needs=COLLECT, runs_alone=True)
async def load(testbed: Testbed) -> None:
    """Four producers publish 20,000 records each as fast as possible: none is lost, and each partition is in order."""
    number = 20_000
    producers = [await serving(testbed, f"P{each}", number) for each in range(1, 5)]
    for first in range(0, number, 500):
        for producer in producers:
            await testbed.publish(producer, first, first + 499)
    for producer in producers:
        producer.sends_heads = True
    for producer in producers:
        contents = [producer.partition.contents[sequence] for sequence in range(number)]
        await testbed.expect_delivered(contents, seconds=30)


@SCENARIOS.add("consumer.every-other-record", *ORDERLY, needs=COLLECT, runs_alone=True)
async def every_other_record(testbed: Testbed) -> None:
    """If every other one of 10,000 records is missing, all gaps are filled and delivered in order."""
    number = 10_000
    producer = await serving(testbed, "P", number)
    await testbed.wait_subscribed(producer, "RECORD", testbed.topic)
    await producer.send_records(range(0, number, 2))
    producer.sends_heads = True
    contents = [producer.partition.contents[sequence] for sequence in range(number)]
    await testbed.expect_delivered(contents, seconds=30)


@SCENARIOS.add("consumer.contents", "record.any-size", "delivery.complete", needs=COLLECT)
async def contents(testbed: Testbed) -> None:
    """Empty contents, NUL bytes, spaces and any other bytes are delivered unchanged."""
    producer = await testbed.add_peer("P")
    every_byte = bytes(set(range(256)) - set(b"\0\r\n"))
    wanted = [
        b"first",
        b"",
        b"",
        b" ",
        b"two  words ",
        b"\0",
        b"a\0b",
        every_byte,
        "Dvořák".encode(),
        b"x" * 100_000,
        b"last",
    ]
    for sequence, content in enumerate(wanted):
        producer.partition.add(sequence, content)
    await testbed.publish(producer, 0, 3)
    producer.answers_requests = producer.sends_heads = True
    await testbed.publish(producer, len(wanted) - 1, len(wanted) - 1)  # the consumer fetches the others
    await _expect_exactly(testbed, producer, wanted)


async def _expect_exactly(testbed: Testbed, producer: ScriptedPeer, contents: Sequence[bytes]) -> None:
    """Check that the deliveries of a producer's records are exactly these, in this order."""

    def is_same(delivered: bytes, content: bytes) -> bool:
        # Some outputs truncate a content at a NUL.
        return delivered in {content, content.partition(b"\0")[0]}

    await testbed.wait(lambda: len(delivered_of(testbed, producer.address)) >= len(contents))
    delivered = [each.content for each in delivered_of(testbed, producer.address)]
    is_shuffled = sorted(delivered) == sorted(content for content in contents) and delivered != list(contents)
    testbed.require_clause("delivery.in-order", not is_shuffled, "the records were delivered in another order")
    wrong = next((pair for pair in zip(delivered, contents, strict=False) if not is_same(*pair)), None)
    if wrong is not None:
        text = f"the content {testbed.trace.show(wrong[0])} was delivered, expected {testbed.trace.show(wrong[1])}"
        testbed.require_clause("record.any-size", False, text)
    text = f"{len(delivered)} of {len(contents)} records were delivered"
    if len(delivered) < len(contents):
        text += f", the next content would be {testbed.trace.show(contents[len(delivered)])}"
    require_clause_or_running(testbed, "delivery.complete", len(delivered) == len(contents), text)


@SCENARIOS.add("consumer.large-contents", "record.any-size", needs=COLLECT, runs_alone=True)
async def large_contents(testbed: Testbed) -> None:
    """Contents of 64 MiB are delivered, both live and fetched."""
    producer = await testbed.add_peer("P")
    wanted = [letter * (64 * MIB) for letter in (b"a", b"b", b"c")]
    for sequence, content in enumerate([*wanted, b"last"]):
        producer.partition.add(sequence, content)
    producer.answers_requests = True
    await testbed.publish(producer, 0, 0)
    await testbed.publish(producer, 2, 3)
    producer.sends_heads = True
    await testbed.wait(lambda: len(delivered_of(testbed, producer.address)) >= 4, seconds=30)
    found = [delivery.content for delivery in delivered_of(testbed, producer.address)]
    sizes = ", ".join(f"{len(content):,}" for content in found) or "none"
    text = f"expected three contents of {64 * MIB:,} bytes and one of 4, delivered: {sizes}"
    if len(found) == 4:
        text += ", with wrong bytes"
    require_clause_or_running(testbed, "record.any-size", found == [*wanted, b"last"], text)


async def _check_topic(testbed: Testbed, clause: str) -> None:
    """Check that live and fetched records are delivered with their topic."""
    producer = await testbed.add_peer("P")
    await testbed.publish(producer, 0, 0)
    await end_with_gap(testbed, producer)
    store = await testbed.add_peer("S2")
    before = len(testbed.received)
    await testbed.send(store, "STORE-HELLO", testbed.address, address=store.address)
    received = await testbed.receive(
        "CONSUMER-HELLO", lambda message: bool(message["subjects"]), since=before, seconds=2
    )
    if received is not None:
        text = f"CONSUMER-HELLO does not have the topic {testbed.trace.show(testbed.topic)}"
        testbed.check_clause(clause, received.message["subjects"] == (testbed.topic,), text, received.event)
    topics = {delivery.topic for delivery in delivered_of(testbed, producer.address)} - {None}
    shown = " and ".join(testbed.trace.show(topic) for topic in topics if topic is not None)
    text = f"records of the topic {testbed.trace.show(testbed.topic)} were delivered with the topic {shown}"
    testbed.check_clause(clause, topics <= {testbed.topic}, text)


@SCENARIOS.add("consumer.topic-of-any-bytes", "topic.any-bytes", needs=ODD_TOPIC, topic=b"\xff\xfe\x80 \xc3\x28*#\x7f")
async def topic_of_any_bytes(testbed: Testbed) -> None:
    """A topic may have any bytes, including bytes that are not text."""
    await _check_topic(testbed, "topic.any-bytes")


@SCENARIOS.add("consumer.topic-with-spaces", "topic.any-bytes", needs=ODD_TOPIC, topic=b"two words, and more")
async def topic_with_spaces(testbed: Testbed) -> None:
    """A topic may have spaces."""
    await _check_topic(testbed, "topic.any-bytes")


@SCENARIOS.add("consumer.topic-of-255-bytes", "topic.length", needs=ODD_TOPIC, topic=b"t" * 255)
async def topic_of_255_bytes(testbed: Testbed) -> None:
    """A topic may have 255 bytes."""
    await _check_topic(testbed, "topic.length")
