"""Consumer scenarios: starting at the latest record."""

from __future__ import annotations

import trio

from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._consumer import (
    LATEST,
    ORDERLY,
)
from dafka_conformance.targets.base import Reset
from dafka_conformance.testbed.expectations import UnmetError
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()


async def _join_before(testbed: Testbed, label: str, reset: Reset) -> ScriptedPeer:
    """Start the consumer while a producer is already running."""
    unmet: list[UnmetError] = []

    async def join() -> None:
        try:
            await testbed.add_peer(label)
        except UnmetError as error:
            unmet.append(error)

    async def start() -> None:
        try:
            await testbed.start(reset=reset)
        except UnmetError as error:
            unmet.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join)
        nursery.start_soon(start)
    if unmet:
        raise unmet[0]
    return testbed.peers[label]


@SCENARIOS.add("consumer.latest", "latest.new-only", "delivery.complete", needs=LATEST, starts_target=True)
async def latest(testbed: Testbed) -> None:
    """A consumer that starts at the latest record delivers only records that are published from then on."""
    producer = await _join_before(testbed, "P", Reset.LATEST)
    producer.add_records(10)
    producer.answers_requests = True
    await _check_latest(testbed, producer, 10)


@SCENARIOS.add("consumer.latest-after-head", "latest.new-only", "delivery.complete", needs=LATEST, starts_target=True)
async def latest_after_head(testbed: Testbed) -> None:
    """A HEAD of 9 does not make a consumer that starts at the latest record deliver 0..8."""
    producer = await _join_before(testbed, "P", Reset.LATEST)
    producer.add_records(10)
    await testbed.send(producer, "HEAD", testbed.topic, address=producer.address, subject=testbed.topic, sequence=9)
    producer.answers_requests = True
    # Record 9 is the latest record, so it may be delivered.
    await _check_latest(testbed, producer, 9)


async def _check_latest(testbed: Testbed, producer: ScriptedPeer, old: int) -> None:
    """Publish the records 10..12, and check that none of the records before `old` is delivered."""
    producer.sends_heads = True
    await testbed.publish(producer, 10, 12)
    new = [record_content(producer.address, sequence) for sequence in range(10, 13)]
    # Any old records are delivered before these, in the order of the partition.
    await testbed.wait(lambda: any(delivery.content == new[-1] for delivery in testbed.delivered))
    delivered = {delivery.content for delivery in testbed.delivered}
    taken = [sequence for sequence in range(old) if record_content(producer.address, sequence) in delivered]
    text = f"{len(taken)} records that were published before the consumer started at the latest one were delivered"
    testbed.check_clause("latest.new-only", not taken, text)
    await testbed.expect_delivered(new)


@SCENARIOS.add("consumer.large-sequences", *ORDERLY, "fetch.sequence", needs=LATEST, starts_target=True)
async def large_sequences(testbed: Testbed) -> None:
    """Records with sequences beyond 32 bits are delivered in order, and missing ones are fetched exactly."""
    producer = await _join_before(testbed, "P", Reset.LATEST)
    middle = 2**32
    for sequence in range(middle - 2, middle + 8):
        producer.partition.add(sequence, record_content(producer.address, sequence))
    await testbed.publish(producer, middle - 2, middle + 2)
    wanted = [record_content(producer.address, sequence) for sequence in range(middle - 2, middle + 8)]
    await testbed.expect_delivered(wanted[:5])
    producer.sends_heads = True  # not earlier: a consumer at latest skips the records before the first head
    await testbed.publish(producer, middle + 6, middle + 6)
    await testbed.expect(
        "FETCH",
        "fetch.sequence",
        lambda message: message.topic == producer.address and message["sequence"] == middle + 3,
        what=f"FETCH of record {middle + 3:,} after record {middle + 6:,}",
    )
    producer.answers_requests = True
    # The last of these is announced by HEADs only.
    await testbed.expect_delivered(wanted)
