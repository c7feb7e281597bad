"""How a consumer comes by the records that it misses, where a script cannot say it."""

from __future__ import annotations

import trio

from dafka_conformance.grammar import Value
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._consumer import (
    COLLECT,
    ORDERLY,
    check_counts,
    end_with_gap,
    fetches,
    gone_partition,
    serving,
    subscribed,
    tell_heads,
)
from dafka_conformance.scenarios._nodes import until_dropped
from dafka_conformance.stage.ledger import content_of
from dafka_conformance.stage.stage import Stage

SCENARIOS = Registry()

ASKED_AGAIN_S = 1.2
"""A consumer may refrain from sending the same FETCH twice within a second."""
LOWER_HEAD_COUNT = 5000
"""More than a consumer that fetches by pages asks for at first."""
STORM_S = 3.0
STORM_FETCHES_MAX = 50
"""While nobody answers: a FETCH for each of the many records that come meanwhile would be a storm."""


@SCENARIOS.add("consumer.fetch-repeated", "fetch.repeated", needs=COLLECT, shares=True)
async def fetch_repeated(stage: Stage) -> None:
    """A FETCH that nobody answers is sent again, and not without measure; what then is answered is handed on."""
    producer = await stage.join("P")
    producer.hold(204)
    producer.beats = True
    await stage.publish(producer, 3, 3)
    await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    for sequence in range(4, 204):
        await stage.publish(producer, sequence, sequence)
        await trio.sleep(STORM_S / 200)
    sent = len(fetches(stage, producer.address))
    text = f"{sent:,} FETCHes were sent within {STORM_S:g} s, while nobody answered and 200 records came"
    stage.check("fetch.repeated", sent < STORM_FETCHES_MAX, text)
    check_counts(stage)
    producer.answers = True
    await stage.expect(
        "FETCH",
        "fetch.repeated",
        lambda message: message.topic == producer.address,
        since=len(stage.heard),
        what=f"FETCH (the first one went unanswered {STORM_S:g} s ago, and a HEAD is sent each second)",
    )
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(204)])


@SCENARIOS.add("consumer.half-answered", "fetch.repeated", "delivery.complete", needs=COLLECT, shares=True)
async def half_answered(stage: Stage) -> None:
    """Where only half of what a FETCH asked for comes, the rest is asked for."""
    producer = await stage.join("P")
    producer.hold(10)
    producer.beats = True
    await stage.publish(producer, 9, 9)
    await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    await producer.say_records(range(5), requestor=stage.address)
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(5)])
    await stage.expect(
        "FETCH",
        "fetch.repeated",
        lambda message: message.topic == producer.address and message["sequence"] == 5,
        what="FETCH of 5, after 0..4 of what was asked for had come",
    )
    producer.answers = True
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(10)])


@SCENARIOS.add("consumer.store-vanishes", "delivery.complete", "delivery.once", "robust.vanished-peer", needs=COLLECT)
async def store_vanishes(stage: Stage) -> None:
    """A store vanishes in the middle of its answer; another one that comes later answers the rest."""
    await subscribed(stage)
    store = await stage.join("S2")
    partition = gone_partition(stage, store, 100, "gone")
    store.answers = False
    await tell_heads(stage, store, [partition])
    await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == partition.address)
    await store.say_records(range(50), partition=partition, requestor=stage.address)
    await stage.expect_delivered([partition.contents[sequence] for sequence in range(50)])
    stage.leave("S2")
    await trio.sleep(ASKED_AGAIN_S)
    other = await stage.join("S3")
    other.hold(100, partition)
    other.answers = True
    await tell_heads(stage, other, [partition])
    await stage.expect_delivered([partition.contents[sequence] for sequence in range(100)])
    stage.check_alive("robust.vanished-peer")


@SCENARIOS.add("consumer.lower-head", "fetch.pages", "delivery.complete", needs=COLLECT)
async def lower_head(stage: Stage) -> None:
    """A store that lags behind tells a lower head: what another one has told of is fetched all the same."""
    await subscribed(stage)
    full, lagging = await stage.join("S2"), await stage.join("S3")
    partition = gone_partition(stage, full, LOWER_HEAD_COUNT, "gone")
    full.answers = False
    await tell_heads(stage, full, [partition])
    asked = await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == partition.address)
    about: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
    await stage.say(lagging, "DIRECT-HEAD", stage.address, **about, sequence=9)
    # What it fetches of this one, it fetches after it has heard the lower head.
    other = gone_partition(stage, lagging, 3, "gone, too")
    await tell_heads(stage, lagging, [other])
    await stage.expect_delivered([other.contents[sequence] for sequence in range(3)])
    full.answers = True
    await full.answer(asked.message)
    await stage.expect_delivered([partition.contents[sequence] for sequence in range(LOWER_HEAD_COUNT)])


@SCENARIOS.add("consumer.huge-head", "fetch.sent", "robust.malformed", needs=COLLECT)
async def huge_head(stage: Stage) -> None:
    """Heads of more records than a FETCH can count are asked for from the first on, and end nothing."""
    for number, head in enumerate((2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1), 1):
        producer = await stage.join(f"P{number}")
        producer.hold(2)
        producer.answers = True
        await stage.say(producer, "HEAD", stage.topic, address=producer.address, subject=stage.topic, sequence=head)
        stage.check_alive("robust.malformed")
        await stage.expect(
            "FETCH",
            "fetch.sent",
            lambda message, address=producer.address: (  # type: ignore[misc]
                message.topic == address and message["sequence"] == 0 and message.number("count") > 0
            ),
            what=f"FETCH of a number of records from 0 on, after a HEAD of {head:,}",
        )
        await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(2)])
    await end_with_gap(stage, await stage.join("P6"))
    check_counts(stage)


@SCENARIOS.add("consumer.producer-returns", *ORDERLY, "subscription.registered", needs=COLLECT)
async def producer_returns(stage: Stage) -> None:
    """A producer falls silent, with a gap before its last record, and returns: nothing is lost or handed on twice."""
    producer = await serving(stage, "P", 0)
    producer.answers = False
    await stage.publish(producer, 0, 1)
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(2)])
    await stage.publish(producer, 6, 6)
    await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    await until_dropped(stage, producer)
    store = await stage.join("S2")
    store.hold(7, producer.partition)
    store.answers = True
    await tell_heads(stage, store, [producer.partition])
    for message in fetches(stage, producer.address)[-1:]:  # it may have asked while the store joined
        await store.answer(message)
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(7)])
    stage.introductions.announce(producer.address, producer.endpoint)
    await stage.reach(producer, "RECORD", stage.topic)
    producer.hold(10)
    producer.answers = producer.beats = True
    await stage.publish(producer, 7, 7)
    await stage.publish(producer, 9, 9)
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(10)])
