"""What the scenarios for consumers have in common: played producers and stores, and the barrier before "never".

A producer that the suite plays behaves as real ones do where a consumer may rely on it: it answers FETCHes, and sends a
HEAD each second. What must not have been handed on, or asked for, is looked for after something later that came through
the same connection has had its effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from dafka_conformance.grammar import Message, Value
from dafka_conformance.stage.addresses import new_address
from dafka_conformance.stage.ledger import Partition, content_of
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.targets.base import Ability, Delivery

COLLECT = (Ability.COLLECT,)
LATEST = (Ability.COLLECT, Ability.LATEST)
ORDERLY = ("delivery.complete", "delivery.in-order", "delivery.once")


async def subscribed(stage: Stage) -> None:
    """Waits until the consumer's program has named its topic: before, it may have no topics to tell a store of.

    Raises `UnmetError`.
    """
    await stage.reach(await stage.join("P"), "RECORD", stage.topic)


async def serving(stage: Stage, label: str, count: int) -> Peer:
    """A producer that has so many records, and answers for them. Raises `UnmetError`."""
    producer = await stage.join(label)
    producer.hold(count)
    producer.answers = True
    return producer


def gone_partition(stage: Stage, store: Peer, count: int, label: str) -> Partition:
    """A partition whose producer is gone; a store has its records, and answers for them."""
    partition = Partition(new_address(), stage.topic)
    stage.trace.name(partition.address, label)
    store.hold(count, partition)
    store.answers = True
    stage.ledger.partition(partition.address, partition.topic)
    return partition


async def tell_heads(stage: Stage, store: Peer, partitions: Iterable[Partition]) -> None:
    """A store tells of its heads, as it does when a consumer greets it. Raises `UnmetError`."""
    for partition in partitions:
        about: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
        await stage.say(store, "DIRECT-HEAD", stage.address, **about, sequence=partition.head)


def require(stage: Stage, clause: str, holds: bool, text: str) -> None:
    """As `Stage.require`; where the target has ended, that is what is wrong."""
    if not holds:
        stage.check_alive(clause)
    stage.require(clause, holds, text)


def fetches(stage: Stage, partition: bytes) -> list[Message]:
    """The FETCHes for a partition so far."""
    return [message for message in stage.all_heard("FETCH") if message.topic == partition]


def check_counts(stage: Stage) -> None:
    """Every FETCH so far asks for something."""
    for heard in stage.heard:
        if heard.message.name == "FETCH" and not heard.message.number("count"):
            text = f"a FETCH asks for no record at all: {stage.describe(heard.message)}"
            stage.check("fetch.sent", False, text, heard.event)


def delivered_of(stage: Stage, partition: bytes) -> list[Delivery]:
    """What was handed on of a partition, as far as the output tells; what else it prints is left out."""
    return [delivery for delivery in stage.delivered if delivery.address in {None, partition}]


async def end_with_gap(stage: Stage, producer: Peer) -> None:
    """A record with a gap before it, by this producer: when it was fetched, all that came before it had its effect.

    Raises `UnmetError`.
    """
    head = max(stage.ledger.partition(producer.address, producer.topic).contents, default=-1)
    producer.hold(head + 3)
    producer.answers = producer.beats = True
    before = len(stage.heard)
    await stage.publish(producer, head + 2, head + 2)
    await stage.expect(
        "FETCH",
        "fetch.sent",
        lambda message: message.topic == producer.address,
        since=before,
        what=f"FETCH of {head + 1} of {producer.label}, of which {head + 2} was published",
    )
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(head + 3)])
