"""What a store answers to FETCHes, where a script cannot say it: many at once, again, and from several nodes."""

from __future__ import annotations

from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._store import (
    BURST_RECORDS,
    REPEATS,
    answers,
    fetch_back,
    nth,
    save,
    say_fetch,
)
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage

SCENARIOS = Registry()

_SCATTERED = range(0, 40, 2)
_PART_RECORDS = 100


@SCENARIOS.add("store.many-fetches", "direct-record.sent", shares=True)
async def many_fetches(stage: Stage) -> None:
    """FETCHes of one consumer, sent at once for different parts of a partition, are all answered."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, _SCATTERED[-1])
    await stage.reach(consumer, "FETCH", partition.address)
    for sequence in _SCATTERED:
        say_fetch(consumer, partition, sequence, 1)

    def missing() -> set[int]:
        return set(_SCATTERED) - {heard.message.number("sequence") for heard in answers(stage, consumer, partition)}

    await stage.wait(lambda: not missing())
    text = f"of {len(_SCATTERED)} FETCHes of one record each, sent at once, those of {sorted(missing())} got no answer"
    stage.require("direct-record.sent", not missing(), text)


@SCENARIOS.add("store.fetched-again", "direct-record.sent", shares=True)
async def fetched_again(stage: Stage) -> None:
    """A FETCH that is sent again is answered again: the first answer may have been lost."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    await save(stage, producer, 0, 4)
    for times in range(1, REPEATS + 1):
        after = f" for the {nth(times)} time"
        await fetch_back(stage, consumer, producer.partition, 0, 4, after=after)


@SCENARIOS.add("store.fetches-at-once", "direct-record.sent", "topic.DIRECT-RECORD", shares=True)
async def fetches_at_once(stage: Stage) -> None:
    """Consumers that fetch the same partitions at the same time are each sent everything that they asked for."""
    producers = [await stage.join("P1"), await stage.join("P2")]
    consumers = [await stage.join(f"C{number}") for number in range(1, 4)]
    for producer in producers:
        await save(stage, producer, 0, BURST_RECORDS - 1)
    for consumer in consumers:
        for producer in producers:
            await stage.reach(consumer, "FETCH", producer.address)
    parts = [(number * _PART_RECORDS, BURST_RECORDS - 2 * number * _PART_RECORDS) for number in range(len(consumers))]
    for producer in producers:
        for consumer, (first, count) in zip(consumers, parts, strict=True):
            say_fetch(consumer, producer.partition, first, count)

    def missing(consumer: Peer, producer: Peer, first: int, count: int) -> set[int]:
        found = {heard.message.number("sequence") for heard in answers(stage, consumer, producer.partition)}
        return set(range(first, first + count)) - found

    for producer in producers:
        for consumer, (first, count) in zip(consumers, parts, strict=True):
            await stage.wait(lambda args=(consumer, producer, first, count): not missing(*args))  # type: ignore[misc]
            lacking = missing(consumer, producer, first, count)
            text = f"of the records {first}..{first + count - 1} of {producer.label}, {len(lacking)} were not sent to "
            text += f"{consumer.label}, while {len(consumers) - 1} others fetched them, too"
            stage.require("direct-record.sent", not lacking, text)


@SCENARIOS.add("store.overlapping-fetches", "direct-record.sent", shares=True)
async def overlapping_fetches(stage: Stage) -> None:
    """FETCHes of one consumer that overlap, sent at once, are all answered: no record that they ask for is left out."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, 29)
    await stage.reach(consumer, "FETCH", partition.address)
    asked = [(10, 10), (15, 10), (12, 2), (5, 7), (0, 3), (20, 10)]
    for first, count in asked:
        say_fetch(consumer, partition, first, count)
    wanted = {sequence for first, count in asked for sequence in range(first, first + count)}

    def missing() -> set[int]:
        return wanted - {heard.message.number("sequence") for heard in answers(stage, consumer, partition)}

    await stage.wait(lambda: not missing())
    shown = ", ".join(f"{first}..{first + count - 1}" for first, count in asked)
    text = f"of the records that overlapping FETCHes asked for ({shown}), {sorted(missing())} were not sent"
    stage.require("direct-record.sent", not missing(), text)
