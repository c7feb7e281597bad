"""What the scenarios for stores have in common: saving records, fetching them back, and asking for heads."""

from __future__ import annotations

from collections.abc import Callable

from dafka_conformance.grammar import Message, Value
from dafka_conformance.stage.ledger import Partition
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.stage.trace import Heard

BURST_RECORDS = 1000
REPEATS = 3
OTHER_CONTENT = b"another record's content"


def acknowledges(partition: Partition, sequence: int) -> Callable[[Message], bool]:
    """Is a message an ACK of this record, or of a later one?"""
    return lambda message: (
        message.topic == partition.address
        and message["subject"] == partition.topic
        and message.number("sequence") >= sequence
    )


async def save(
    stage: Stage,
    producer: Peer,
    first: int,
    last: int,
    *,
    partition: Partition | None = None,
    clause: str = "ack.sent",
    seconds: float | None = None,
) -> None:
    """The played producer publishes these records, and the store acknowledges them. Raises `UnmetError`."""
    partition = partition or producer.partition
    await stage.reach(producer, "RECORD", partition.topic)
    await producer.say_records(range(first, last + 1), partition=partition)
    matches = acknowledges(partition, last)
    await stage.expect("ACK", clause, matches, seconds=seconds, what=f"ACK of {last}")


async def say_head(stage: Stage, producer: Peer, sequence: int) -> None:
    """The played producer announces its last record."""
    await stage.say(
        producer, "HEAD", producer.topic, address=producer.address, subject=producer.topic, sequence=sequence
    )


async def ask_heads(stage: Stage, consumer: Peer, topic: bytes | None = None) -> None:
    """The played consumer says GET-HEADS for its topic, or another one."""
    await stage.say(consumer, "GET-HEADS", consumer.topic if topic is None else topic, address=consumer.address)


async def expect_head(stage: Stage, consumer: Peer, partition: Partition, sequence: int, clause: str) -> Heard:
    """The store tells this consumer of a partition's head. Raises `UnmetError`."""
    wanted = (consumer.address, partition.address, sequence)
    return await stage.expect(
        "DIRECT-HEAD",
        clause,
        lambda message: (message.topic, message["address"], message["sequence"]) == wanted,
        what=f"DIRECT-HEAD of {sequence}",
    )


async def ask(stage: Stage, consumer: Peer, partition: Partition, first: int, count: int) -> None:
    """The played consumer says FETCH, once the store hears it."""
    await stage.reach(consumer, "FETCH", partition.address)
    say_fetch(consumer, partition, first, count)


def say_fetch(consumer: Peer, partition: Partition, first: int, count: int) -> None:
    """The played consumer says FETCH."""
    values: dict[str, Value] = {"address": consumer.address, "subject": partition.topic}
    consumer.say("FETCH", partition.address, {**values, "sequence": first, "count": count})


def answers(stage: Stage, consumer: Peer, partition: Partition, since: int = 0) -> list[Heard]:
    """The DIRECT-RECORDs of a partition for this consumer so far."""
    return [
        heard
        for heard in stage.heard[since:]
        if heard.message.name == "DIRECT-RECORD"
        and heard.message.topic == consumer.address
        and heard.message["address"] == partition.address
    ]


async def fetch_back(
    stage: Stage,
    consumer: Peer,
    partition: Partition,
    first: int,
    last: int,
    *,
    clause: str = "direct-record.sent",
    after: str = "",
    seconds: float | None = None,
) -> list[Heard]:
    """The records that the store sends for a FETCH of these, in its order.

    Raises `UnmetError`, the clause being violated, where it leaves any out; `after` names what may be the reason. What
    is wrong with their order and contents is found by `stage.watch`.
    """
    since = place = len(stage.heard)
    wanted = set(range(first, last + 1))

    def look() -> bool:
        nonlocal place
        wanted.difference_update(
            heard.message.number("sequence") for heard in answers(stage, consumer, partition, place)
        )
        place = len(stage.heard)
        return not wanted

    await ask(stage, consumer, partition, first, last - first + 1)
    await stage.wait(look, seconds)
    text = f"of the records {first}..{last}, asked for with a FETCH{after}, {len(wanted):,} did not come"
    text += f", the first is {min(wanted)}" if wanted else ""
    stage.require(clause, not wanted, stage.died(after) or text)
    stage.check(clause, True)
    return answers(stage, consumer, partition, since)


async def own_address(stage: Stage, peer: Peer, name: str, clause: str) -> bytes:
    """The address under which the store takes messages of this name: one that is several nodes has several."""

    def find() -> bytes:
        return next((address for address in stage.nodes if peer.hears(name, address)), b"")

    await stage.wait(lambda: bool(find()))
    stage.require(clause, bool(find()), f"the store has no subscription for {name} with an address of its own")
    return find()


def nth(number: int) -> str:
    """An ordinal, for a finding."""
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
