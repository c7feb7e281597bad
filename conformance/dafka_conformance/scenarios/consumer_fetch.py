"""Consumer scenarios: fetching missing records."""

from __future__ import annotations

import trio

from dafka_conformance.grammar import Value
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._consumer import (
    COLLECT,
    ORDERLY,
    check_counts,
    end_with_gap,
    fetches,
    gone_partition,
    send_heads,
    serving,
    subscribed,
)
from dafka_conformance.scenarios._nodes import until_dropped
from dafka_conformance.scenarios.nodes import check_works
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

FETCH_REPEATED_S = 1.2
"""The time after which a consumer repeats a FETCH: it may wait a second before it sends the same one again."""
DIRECT_HEADS_COUNT = 4
LOWER_HEAD_COUNT = 5000
"""More records than the first FETCH of a consumer requests."""
STORM_S = 3.0
STORM_FETCHES_PER_S = 16
"""The limit on FETCHes while no node answers: one FETCH for each arriving record would be a storm."""


@SCENARIOS.add("consumer.fetch-repeated", "fetch.repeated", needs=COLLECT, shares_target=True)
async def fetch_repeated(testbed: Testbed) -> None:
    """A FETCH without an answer is repeated, but not too often; the records are delivered once it is answered."""
    producer = await testbed.add_peer("P")
    producer.add_records(204)
    producer.sends_heads = True
    await testbed.publish(producer, 3, 3)
    await testbed.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    begin = trio.current_time()
    for sequence in range(4, 204):
        await testbed.publish(producer, sequence, sequence)
        await trio.sleep(STORM_S / 200)
    sent, elapsed_s = len(fetches(testbed, producer.address)), trio.current_time() - begin
    text = f"{sent:,} FETCHes were sent within {elapsed_s:.1f} s, while no node answered and 200 records arrived"
    testbed.check_clause("fetch.repeated", sent < STORM_FETCHES_PER_S * elapsed_s, text)
    check_counts(testbed)
    producer.answers_requests = True
    await testbed.expect(
        "FETCH",
        "fetch.repeated",
        lambda message: message.topic == producer.address,
        since=len(testbed.received),
        what=f"FETCH (the first one had no answer for {STORM_S:g} s, and a HEAD is sent each second)",
    )
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(204)])


@SCENARIOS.add("consumer.half-answered", "fetch.repeated", "delivery.complete", needs=COLLECT, shares_target=True)
async def half_answered(testbed: Testbed) -> None:
    """If only half of the requested records arrive, the consumer fetches the rest."""
    producer = await testbed.add_peer("P")
    producer.add_records(10)
    producer.sends_heads = True
    await testbed.publish(producer, 9, 9)
    await testbed.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    await producer.send_records(range(5), requestor=testbed.address)
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(5)])
    await testbed.expect(
        "FETCH",
        "fetch.repeated",
        lambda message: message.topic == producer.address and message["sequence"] == 5,
        what="FETCH of 5, after only 0..4 of the requested records had arrived",
    )
    producer.answers_requests = True
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(10)])


@SCENARIOS.add("consumer.store-vanishes", "delivery.complete", "delivery.once", "robust.vanished-peer", needs=COLLECT)
async def store_vanishes(testbed: Testbed) -> None:
    """A store disappears during its answer; another store that joins later answers the rest."""
    await subscribed(testbed)
    store = await testbed.add_peer("S2")
    partition = gone_partition(testbed, store, 100, "gone")
    store.answers_requests = False
    await send_heads(testbed, store, [partition])
    await testbed.expect("FETCH", "fetch.sent", lambda message: message.topic == partition.address)
    await store.send_records(range(50), partition=partition, requestor=testbed.address)
    await testbed.expect_delivered([partition.contents[sequence] for sequence in range(50)])
    testbed.remove_peer("S2")
    await trio.sleep(FETCH_REPEATED_S)
    other = await testbed.add_peer("S3")
    other.add_records(100, partition)
    other.answers_requests = True
    await send_heads(testbed, other, [partition])
    await testbed.expect_delivered([partition.contents[sequence] for sequence in range(100)])
    testbed.check_running("robust.vanished-peer")


@SCENARIOS.add("consumer.lower-head", "fetch.pages", "delivery.complete", needs=COLLECT)
async def lower_head(testbed: Testbed) -> None:
    """A lower head from a store that lags behind does not stop the consumer from fetching up to a higher head."""
    await subscribed(testbed)
    full, lagging = await testbed.add_peer("S2"), await testbed.add_peer("S3")
    partition = gone_partition(testbed, full, LOWER_HEAD_COUNT, "gone")
    full.answers_requests = False
    await send_heads(testbed, full, [partition])
    asked = await testbed.expect("FETCH", "fetch.sent", lambda message: message.topic == partition.address)
    about: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
    await testbed.send(lagging, "DIRECT-HEAD", testbed.address, **about, sequence=9)
    # Once it fetches this partition, it has received the lower head.
    other = gone_partition(testbed, lagging, 3, "gone 2")
    await send_heads(testbed, lagging, [other])
    await testbed.expect_delivered([other.contents[sequence] for sequence in range(3)])
    full.answers_requests = True
    await full.answer_request(asked.message)
    await testbed.expect_delivered([partition.contents[sequence] for sequence in range(LOWER_HEAD_COUNT)])


@SCENARIOS.add("consumer.direct-head-again", "fetch.sent", "delivery.complete", needs=COLLECT, shares_target=True)
async def direct_head_again(testbed: Testbed) -> None:
    """A second, higher DIRECT-HEAD of a partition causes another FETCH."""
    producer = await serving(testbed, "P", 5)
    about: dict[str, Value] = {"address": producer.address, "subject": testbed.topic}
    await testbed.send(producer, "DIRECT-HEAD", testbed.address, **about, sequence=4)
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(5)])
    producer.add_records(10)

    def has_fetched() -> bool:
        return any(message["sequence"] == 5 for message in fetches(testbed, producer.address))

    for _ in range(DIRECT_HEADS_COUNT):
        await testbed.send(producer, "DIRECT-HEAD", testbed.address, **about, sequence=9)
        if await testbed.wait(has_fetched, FETCH_REPEATED_S):  # a consumer may pause between two FETCHes
            break
    text = f"no FETCH of record 5 arrived, although a DIRECT-HEAD of 9 was sent {DIRECT_HEADS_COUNT} times"
    ended = testbed.exit_message()
    testbed.require_clause("fetch.sent", has_fetched(), ended or text, missing="" if ended else "FETCH")
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(10)])


@SCENARIOS.add("consumer.large-head", "fetch.sent", "delivery.complete", needs=COLLECT)
async def large_head(testbed: Testbed) -> None:
    """Heads around the maximum count of a FETCH are fetched from the first record on."""
    for number, head in enumerate((2**31, 2**32 - 1, 2**32), 1):
        producer = await testbed.add_peer(f"P{number}")
        producer.add_records(2)
        await testbed.send(
            producer, "HEAD", testbed.topic, address=producer.address, subject=testbed.topic, sequence=head
        )
        fetch = await testbed.expect(
            "FETCH",
            "fetch.sent",
            lambda message, address=producer.address: (  # type: ignore[misc]
                message.topic == address and message["sequence"] == 0 and message.get_number("count") > 0
            ),
            what=f"FETCH from record 0 on, after a HEAD of {head:,}",
        )
        producer.answers_requests = True  # not earlier, so that no DIRECT-HEAD causes the FETCH
        await producer.answer_request(fetch.message)
        await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(2)])
    await end_with_gap(testbed, await testbed.add_peer("P4"))
    check_counts(testbed)


@SCENARIOS.add("consumer.huge-head", "robust.malformed", needs=COLLECT)
async def huge_head(testbed: Testbed) -> None:
    """Heads that no producer can have reached stop nothing, whether the consumer fetches their records or not."""
    for number, head in enumerate((2**63 - 1, 2**63, 2**64 - 1), 1):
        producer = await testbed.add_peer(f"P{number}")
        producer.add_records(2)
        producer.answers_requests = True
        about: dict[str, Value] = {"address": producer.address, "subject": testbed.topic}
        await testbed.send(producer, "HEAD", testbed.topic, **about, sequence=head)
        await testbed.send(producer, "DIRECT-HEAD", testbed.address, **about, sequence=head)
    await check_works(testbed, "robust.malformed")
    check_counts(testbed)


@SCENARIOS.add("consumer.producer-returns", *ORDERLY, "subscription.registered", needs=COLLECT)
async def producer_returns(testbed: Testbed) -> None:
    """A producer falls silent after a gap and returns: no record is lost or delivered twice."""
    producer = await serving(testbed, "P", 0)
    producer.answers_requests = False
    await testbed.publish(producer, 0, 1)
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(2)])
    await testbed.publish(producer, 6, 6)
    await testbed.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    await until_dropped(testbed, producer)
    store = await testbed.add_peer("S2")
    store.add_records(7, producer.partition)
    store.answers_requests = True
    await send_heads(testbed, store, [producer.partition])
    for message in fetches(testbed, producer.address)[-1:]:  # the consumer may have sent it while the store joined
        await store.answer_request(message)
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(7)])
    testbed.discovery.announce(producer.address, producer.endpoint)
    await testbed.wait_subscribed(producer, "RECORD", testbed.topic)
    producer.add_records(10)
    producer.answers_requests = producer.sends_heads = True
    await testbed.publish(producer, 7, 7)
    await testbed.publish(producer, 9, 9)
    await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(10)])
