"""Store scenarios: answering FETCHes that are concurrent, repeated, overlapping or from several nodes."""

from __future__ import annotations

from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._store import (
    BURST_RECORDS,
    REPEATS,
    answers,
    fetch_back,
    nth,
    save,
    send_fetch,
)
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

_SCATTERED = range(0, 40, 2)
_PART_RECORDS = 100


@SCENARIOS.add("store.many-fetches", "direct-record.sent", shares_target=True)
async def many_fetches(testbed: Testbed) -> None:
    """Concurrent FETCHes of one consumer for different parts of a partition are all answered."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    partition = producer.partition
    await save(testbed, producer, 0, _SCATTERED[-1])
    await testbed.wait_subscribed(consumer, "FETCH", partition.address)
    for sequence in _SCATTERED:
        send_fetch(consumer, partition, sequence, 1)

    def missing() -> set[int]:
        return set(_SCATTERED) - {
            received.message.get_number("sequence") for received in answers(testbed, consumer, partition)
        }

    await testbed.wait(lambda: not missing())
    text = (
        f"of {len(_SCATTERED)} FETCHes of one record each, sent at once, those of {sorted(missing())} were not answered"
    )
    testbed.require_clause("direct-record.sent", not missing(), text)


@SCENARIOS.add("store.fetched-again", "direct-record.sent", shares_target=True)
async def fetched_again(testbed: Testbed) -> None:
    """A repeated FETCH is answered again, because the first answer may have been lost."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    await save(testbed, producer, 0, 4)
    for times in range(1, REPEATS + 1):
        after = f" for the {nth(times)} time"
        await fetch_back(testbed, consumer, producer.partition, 0, 4, after=after)


@SCENARIOS.add("store.fetches-at-once", "direct-record.sent", "topic.DIRECT-RECORD", shares_target=True)
async def fetches_at_once(testbed: Testbed) -> None:
    """Consumers that fetch the same partitions at the same time each get all requested records."""
    producers = [await testbed.add_peer("P1"), await testbed.add_peer("P2")]
    consumers = [await testbed.add_peer(f"C{number}") for number in range(1, 4)]
    for producer in producers:
        await save(testbed, producer, 0, BURST_RECORDS - 1)
    for consumer in consumers:
        for producer in producers:
            await testbed.wait_subscribed(consumer, "FETCH", producer.address)
    parts = [(number * _PART_RECORDS, BURST_RECORDS - 2 * number * _PART_RECORDS) for number in range(len(consumers))]
    for producer in producers:
        for consumer, (first, count) in zip(consumers, parts, strict=True):
            send_fetch(consumer, producer.partition, first, count)

    def missing(consumer: ScriptedPeer, producer: ScriptedPeer, first: int, count: int) -> set[int]:
        found = {received.message.get_number("sequence") for received in answers(testbed, consumer, producer.partition)}
        return set(range(first, first + count)) - found

    for producer in producers:
        for consumer, (first, count) in zip(consumers, parts, strict=True):
            await testbed.wait(lambda args=(consumer, producer, first, count): not missing(*args))  # type: ignore[misc]
            lacking = missing(consumer, producer, first, count)
            text = f"of the records {first}..{first + count - 1} of {producer.label}, {len(lacking)} were not sent to "
            text += f"{consumer.label}, while {len(consumers) - 1} others also fetched them"
            testbed.require_clause("direct-record.sent", not lacking, text)


@SCENARIOS.add("store.overlapping-fetches", "direct-record.sent", shares_target=True)
async def overlapping_fetches(testbed: Testbed) -> None:
    """Concurrent, overlapping FETCHes of one consumer are all answered, without missing records."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    partition = producer.partition
    await save(testbed, producer, 0, 29)
    await testbed.wait_subscribed(consumer, "FETCH", partition.address)
    requested = [(10, 10), (15, 10), (12, 2), (5, 7), (0, 3), (20, 10)]
    for first, count in requested:
        send_fetch(consumer, partition, first, count)
    wanted = {sequence for first, count in requested for sequence in range(first, first + count)}

    def missing() -> set[int]:
        return wanted - {received.message.get_number("sequence") for received in answers(testbed, consumer, partition)}

    await testbed.wait(lambda: not missing())
    shown = ", ".join(f"{first}..{first + count - 1}" for first, count in requested)
    text = f"of the records that overlapping FETCHes requested ({shown}), {sorted(missing())} were not sent"
    testbed.require_clause("direct-record.sent", not missing(), text)
