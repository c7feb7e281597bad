"""Where a consumer begins that is told to begin at the latest record."""

from __future__ import annotations

import trio

from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._consumer import (
    LATEST,
    ORDERLY,
)
from dafka_conformance.stage.findings import UnmetError
from dafka_conformance.stage.ledger import content_of
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.targets.base import Reset

SCENARIOS = Registry()


async def _join_before(stage: Stage, label: str, reset: Reset) -> Peer:
    """Starts the consumer while a producer is there already."""
    unmet: list[UnmetError] = []

    async def join() -> None:
        try:
            await stage.join(label)
        except UnmetError as error:
            unmet.append(error)

    async def start() -> None:
        try:
            await stage.start(reset=reset)
        except UnmetError as error:
            unmet.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join)
        nursery.start_soon(start)
    if unmet:
        raise unmet[0]
    return stage.peers[label]


@SCENARIOS.add("consumer.latest", "latest.new-only", "delivery.complete", needs=LATEST, starts=True)
async def latest(stage: Stage) -> None:
    """A consumer that begins at the latest record hands on what is published from then on, and nothing older."""
    producer = await _join_before(stage, "P", Reset.LATEST)
    producer.hold(10)
    producer.answers = True
    await _check_latest(stage, producer, 10)


@SCENARIOS.add("consumer.latest-after-head", "latest.new-only", "delivery.complete", needs=LATEST, starts=True)
async def latest_after_head(stage: Stage) -> None:
    """A HEAD of 9 does not make a consumer that begins at the latest record hand on 0..8."""
    producer = await _join_before(stage, "P", Reset.LATEST)
    producer.hold(10)
    await stage.say(producer, "HEAD", stage.topic, address=producer.address, subject=stage.topic, sequence=9)
    producer.answers = True
    # Record 9 itself may pass for the latest one, which it is.
    await _check_latest(stage, producer, 9)


async def _check_latest(stage: Stage, producer: Peer, old: int) -> None:
    """Of records 0..12, of which 10..12 are published now, those before `old` are not handed on."""
    producer.beats = True
    await stage.publish(producer, 10, 12)
    new = [content_of(producer.address, sequence) for sequence in range(10, 13)]
    # What it handed on of the old ones stands before these, in the order of the partition.
    await stage.wait(lambda: any(delivery.content == new[-1] for delivery in stage.delivered))
    handed_on = {delivery.content for delivery in stage.delivered}
    taken = [sequence for sequence in range(old) if content_of(producer.address, sequence) in handed_on]
    text = f"{len(taken)} records that were published before the consumer began at the latest one were handed on"
    stage.check("latest.new-only", not taken, text)
    await stage.expect_delivered(new)


@SCENARIOS.add("consumer.large-sequences", *ORDERLY, "fetch.sequence", needs=LATEST, starts=True)
async def large_sequences(stage: Stage) -> None:
    """Sequences beyond 32 bits are handed on in order, and what is missing there is asked for, to the record."""
    producer = await _join_before(stage, "P", Reset.LATEST)
    middle = 2**32
    for sequence in range(middle - 2, middle + 8):
        producer.partition.add(sequence, content_of(producer.address, sequence))
    producer.beats = True
    await stage.publish(producer, middle - 2, middle + 2)
    wanted = [content_of(producer.address, sequence) for sequence in range(middle - 2, middle + 8)]
    await stage.expect_delivered(wanted[:5])
    await stage.publish(producer, middle + 6, middle + 6)
    await stage.expect(
        "FETCH",
        "fetch.sequence",
        lambda message: message.topic == producer.address and message["sequence"] == middle + 3,
        what=f"FETCH of {middle + 3:,}, of which {middle + 6:,} was published",
    )
    producer.answers = True
    # Record 7 of these is told of by HEADs alone.
    await stage.expect_delivered(wanted)
