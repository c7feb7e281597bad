"""How a store comes by the records that it misses, where a script cannot say it."""

from __future__ import annotations

from dafka_conformance.grammar import Message
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._store import (
    OTHER_CONTENT,
    acknowledges,
    ask_heads,
    expect_head,
    fetch_back,
    save,
    say_head,
)
from dafka_conformance.stage.ledger import Partition
from dafka_conformance.stage.stage import Stage

SCENARIOS = Registry()


@SCENARIOS.add("store.gap", "ack.no-gap", "fetch.sent", "fetch.sequence", "direct-head.last-offset", shares=True)
async def gap(stage: Stage) -> None:
    """A store asks for the records that are missing, and acknowledges and announces nothing beyond them till then."""
    producer, other, consumer = await stage.join("P"), await stage.join("P2"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, 2)
    producer.hold(10)
    await producer.say_records(range(6, 10))
    await _expect_fetch(stage, partition, 3, 5)
    # Whatever is to be said of the records beyond the gap has been, once later ones of another partition are saved.
    await save(stage, other, 0, 0)
    await ask_heads(stage, consumer)
    await expect_head(stage, consumer, partition, 2, "direct-head.last-offset")
    early = [
        heard for heard in stage.heard if heard.message.name == "ACK" and acknowledges(partition, 3)(heard.message)
    ]
    for heard in early[:1]:
        text = f"ACK of {heard.message.number('sequence')}, although 3..5 are missing"
        stage.require("ack.no-gap", False, text, heard.event)
    producer.answers = producer.beats = True
    await stage.expect("ACK", "ack.sent", acknowledges(partition, 9), what="ACK of 9, when the gap was filled,")
    await fetch_back(stage, consumer, partition, 0, 9)


@SCENARIOS.add("store.fetch-repeated", "fetch.repeated", shares=True)
async def fetch_repeated(stage: Stage) -> None:
    """While its FETCH is not answered and the producer goes on sending HEADs, a store asks again."""
    producer = await stage.join("P")
    producer.hold(6)
    partition = producer.partition
    await say_head(stage, producer, 5)
    await _expect_fetch(stage, partition, 0, 5)

    def times() -> int:
        fetches = [message for message in stage.all_heard("FETCH") if message.topic == producer.address]
        return sum(message["sequence"] == 0 for message in fetches)

    producer.beats = True
    is_repeated = await stage.wait(lambda: times() >= 3, 12)
    text = f"FETCH of 0..5 was sent {times()} times, then no more, although it was not answered and HEADs of 5 went on"
    stage.require("fetch.repeated", is_repeated, text)
    producer.answers = True
    await stage.expect(
        "ACK", "fetch.repeated", acknowledges(partition, 5), seconds=12, what="ACK of 5, with FETCHes answered again,"
    )


@SCENARIOS.add("store.partner", "fetch.sent", "fetch.sequence", shares=True)
async def partner(stage: Stage) -> None:
    """What its producer does not answer, a store takes from another store."""
    producer, store, consumer = await stage.join("P"), await stage.join("S2"), await stage.join("C")
    partition = producer.partition
    producer.hold(6)
    store.hold(6, partition)
    store.answers = True
    await producer.say_records([5])
    await _expect_fetch(stage, partition, 0, 4)
    await stage.expect("ACK", "ack.sent", acknowledges(partition, 5), what="ACK of 5")
    stage.leave("P")
    await fetch_back(stage, consumer, partition, 0, 5)


@SCENARIOS.add("store.others-answers", "direct-record.requestor", shares=True)
async def others_answers(stage: Stage) -> None:
    """A store pays no heed to DIRECT-RECORDs and DIRECT-HEADs that are for another store."""
    producer, store, consumer = await stage.join("P"), await stage.join("S2"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, 0)
    about = {"address": producer.address, "subject": producer.topic}
    for sequence in (1, 2):
        message = Message("DIRECT-RECORD", store.address, {**about, "sequence": sequence, "content": OTHER_CONTENT})
        producer.say_frames(stage.grammar.formats.encode(message, stage.dialect), message.name, "for another store")
    message = Message("DIRECT-HEAD", store.address, {**about, "sequence": 99})
    producer.say_frames(stage.grammar.formats.encode(message, stage.dialect), message.name, "for another store")
    await save(stage, producer, 1, 2)
    for heard in await fetch_back(stage, consumer, partition, 0, 2):
        number = heard.message.number("sequence")
        text = f"DIRECT-RECORD {number}, which was for another store, was stored"
        holds = heard.message["content"] == partition.contents[number]
        stage.require("direct-record.requestor", holds, text, heard.event)
    strange = [each for each in stage.all_heard("FETCH") if each.topic == producer.address]
    text = "a FETCH came because of a DIRECT-HEAD that was for another store"
    stage.require("direct-record.requestor", not strange, text)


@SCENARIOS.add("store.gaps", "fetch.sent", "fetch.sequence", "ack.no-gap", shares=True)
async def gaps(stage: Stage) -> None:
    """A store closes several gaps, in several partitions of a topic at once."""
    producers = [await stage.join(f"P{number}") for number in range(1, 4)]
    consumer = await stage.join("C")
    for number, producer in enumerate(producers):
        await save(stage, producer, 0, number)
        producer.hold(20)
        producer.answers = producer.beats = True
    for producer in producers:
        for first, last in ((5, 6), (9, 9), (15, 19)):
            await producer.say_records(range(first, last + 1))
    for producer in producers:
        text = f"ACK of 19 for {producer.label}, of which 0..2, 5..6, 9 and 15..19 were sent at first,"
        await stage.expect("ACK", "fetch.sent", acknowledges(producer.partition, 19), what=text)
    for producer in producers:
        await fetch_back(stage, consumer, producer.partition, 0, 19)


async def _expect_fetch(stage: Stage, partition: Partition, first: int, last: int) -> None:
    """The store asks for these records, the first FETCH beginning with the first of them."""

    def is_of_partition(message: Message) -> bool:
        return message.topic == partition.address

    fetch = await stage.expect("FETCH", "fetch.sent", is_of_partition, what=f"FETCH of {first}..{last}")
    found = fetch.message.number("sequence")
    text = f"FETCH begins with {found}, the first record that is missing is {first}"
    stage.require("fetch.sequence", found == first, text, fetch.event)

    def uncovered() -> set[int]:
        missing = set(range(first, last + 1))
        for message in filter(is_of_partition, stage.all_heard("FETCH")):
            sequence = message.number("sequence")
            missing -= set(range(max(sequence, first), min(sequence + message.number("count"), last + 1)))
        return missing

    await stage.wait(lambda: not uncovered())
    text = f"of the missing records {first}..{last}, no FETCH asks for {sorted(uncovered())}"
    stage.require("fetch.sent", not uncovered(), text, fetch.event)
