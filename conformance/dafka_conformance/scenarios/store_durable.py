"""What a store still has when it was killed, and how it goes on."""

from __future__ import annotations

from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._store import (
    acknowledges,
    ask_heads,
    fetch_back,
    save,
)
from dafka_conformance.stage.ledger import Partition
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.targets.base import Ability

SCENARIOS = Registry()

_DURABLE_ROUNDS = 3
_DURABLE_RECORDS = 4000
_DURABLE_BATCH = 200
_DURABLE_CONTENT = b"." * 500


@SCENARIOS.add("store.durable", "ack.durable", needs={Ability.KILL})
async def durable(stage: Stage) -> None:
    """A store that is killed as soon as it acknowledged something still has all that it acknowledged."""
    consumer = await stage.join("C")
    for round_number in range(_DURABLE_ROUNDS):
        producer = await stage.join(f"P{round_number + 1}")
        partition = producer.partition
        for sequence in range(_DURABLE_RECORDS):
            partition.add(sequence, b"%d %b" % (sequence, _DURABLE_CONTENT))
        await stage.reach(producer, "RECORD", partition.topic)
        for first in range(0, _DURABLE_RECORDS, _DURABLE_BATCH):
            await producer.say_records(range(first, first + _DURABLE_BATCH))
        await stage.expect("ACK", "ack.sent", acknowledges(partition, 0), what="ACK")
        await stage.kill()
        await stage.restart()
        await _check_durable(stage, consumer, partition)


async def _check_durable(stage: Stage, consumer: Peer, partition: Partition) -> None:
    """Everything of a partition that was acknowledged, whenever that was, is there."""
    since = len(stage.heard)
    await ask_heads(stage, consumer)
    await stage.hear(
        "DIRECT-HEAD",
        lambda message: (message.topic, message["address"]) == (consumer.address, partition.address),
        since=since,
    )
    acked = max(each.number("sequence") for each in stage.all_heard("ACK") if each.topic == partition.address)
    heads = [each for each in stage.all_heard("DIRECT-HEAD", since) if each["address"] == partition.address]
    head = max((each.number("sequence") for each in heads), default=-1)
    has = f"has only 0..{head}" if head >= 0 else "has none of them"
    text = f"0..{acked} were acknowledged; the store was killed, and started again it {has}"
    stage.require("ack.durable", head >= acked, text)
    await fetch_back(stage, consumer, partition, 0, head, clause="ack.durable", seconds=20)


@SCENARIOS.add("store.resumes", "ack.durable", "fetch.sequence", "ack.sent", needs={Ability.KILL})
async def resumes(stage: Stage) -> None:
    """Started again, a store has all its partitions, and takes each up where it stood."""
    counts = (1, 5, 12)
    topics = (stage.topic, stage.topic, stage.topic + b".other")
    producers = [await stage.join(f"P{number}", topic) for number, topic in enumerate(topics, 1)]
    consumer = await stage.join("C")
    for producer, count in zip(producers, counts, strict=True):
        await save(stage, producer, 0, count - 1)
    await stage.kill()
    await stage.restart()
    await stage.reach(consumer, "GET-HEADS", stage.topic)
    for topic in dict.fromkeys(topics):
        await ask_heads(stage, consumer, topic)
    for producer, count in zip(producers, counts, strict=True):
        await _expect_head_kept(stage, consumer, producer, count - 1)
        after = f" of {producer.label}, after the store was started again"
        for first in (count - 1, 0):
            await fetch_back(stage, consumer, producer.partition, first, count - 1, clause="ack.durable", after=after)
    since = len(stage.heard)
    for producer, count in zip(producers, counts, strict=True):
        producer.answers = producer.beats = True
        await stage.reach(producer, "RECORD", producer.topic)
        await producer.say_records(range(count, count + 3))
    for producer, count in zip(producers, counts, strict=True):
        wanted = count + 2
        what = f"ACK of {wanted} for {producer.label}, which went on after the store was started again,"
        await stage.expect("ACK", "ack.sent", acknowledges(producer.partition, wanted), since=since, what=what)
        await fetch_back(stage, consumer, producer.partition, 0, wanted)
    for heard in [each for each in stage.heard if each.message.name == "FETCH"]:
        message = heard.message
        count = next((each for each, own in zip(counts, producers, strict=True) if own.address == message.topic), 0)
        text = f"after it was started again, the store fetched from {message.number('sequence')} on, although it had "
        text += f"acknowledged 0..{count - 1}"
        stage.require("fetch.sequence", message.number("sequence") >= count, text, heard.event)


async def _expect_head_kept(stage: Stage, consumer: Peer, producer: Peer, head: int) -> None:
    """The store tells the head that it had acknowledged before it was started again."""
    partition = producer.partition
    found = await stage.hear(
        "DIRECT-HEAD",
        lambda message: (message.topic, message["address"]) == (consumer.address, partition.address),
    )
    tells = f"the head {found.message.number('sequence')}" if found else "no head"
    text = f"0..{head} of {producer.label} were acknowledged; the store was killed, and started again it tells {tells}"
    holds = found is not None and found.message["sequence"] == head
    stage.require("ack.durable", holds, stage.died(" when it was started again") or text)
