"""What a store must do with many topics, with strange ones, and with many and large records."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from dafka_conformance.model import Dialect
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._store import (
    acknowledges,
    answers,
    ask,
    ask_heads,
    expect_head,
    fetch_back,
    save,
    say_head,
)
from dafka_conformance.stage.addresses import new_address
from dafka_conformance.stage.ledger import Partition
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage

SCENARIOS = Registry()

_TOPICS = 300
_CATCH_UP_RECORDS = 250_000
_LOAD_PRODUCERS = 4
_LOAD_RECORDS = 20_000
_LARGE_OCTETS = 64 * 2**20
_VOLUME_S = 60.0
"""How long a store may take for what is much: many times what it needs, since the machine may be busy."""

_SAMPLES = (0, 99_998, 199_998, _CATCH_UP_RECORDS - 4)
_SAMPLE_RECORDS = 4


@SCENARIOS.add("store.many-topics", "topics.unlimited", "ack.sent", "direct-head.store", "direct-record.sent")
async def many_topics(stage: Stage) -> None:
    """A store keeps the records of 300 topics apart."""
    await _keep_topics(stage, [b"%b.%d" % (stage.topic, number) for number in range(_TOPICS)], "topics.unlimited")


@SCENARIOS.add("store.any-topic", "topic.any-octets", shares=True)
async def any_topic(stage: Stage) -> None:
    """A topic may have any octets in its name, as far as the dialect can carry them."""
    octets = bytes(range(256)) if stage.dialect is Dialect.RFC46 else bytes(range(1, 256))
    topics = [bytes((octet,)) * 2 + stage.topic for octet in octets]
    await _keep_topics(stage, [*topics, octets[:128], octets[128:], b" ", "Ä€😀".encode()], "topic.any-octets")


@SCENARIOS.add("store.long-topic", "topic.length", shares=True)
async def long_topic(stage: Stage) -> None:
    """A topic may have a name of 255 octets, or of one."""
    await _keep_topics(stage, [b"t", b"t" * 254, b"t" * 255], "topic.length")


@SCENARIOS.add("store.any-content", "record.any-size", "direct-record.content", shares=True)
async def any_content(stage: Stage) -> None:
    """A record's content may be empty, and have any octets."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    proper = stage.grammar.formats.id_of("RECORD")
    contents = [
        b"",
        b"\0",
        b"a\0b\0",
        b"\n",
        b"\r\n\r\n",
        bytes(range(256)),
        b"",
        proper,
        b"\xaa\xa5M\1",
        b"x" * 100_000,
        b"the same again",
        b"the same again",
    ]
    for sequence, content in enumerate(contents):
        producer.partition.add(sequence, content)
    await save(stage, producer, 0, len(contents) - 2, clause="record.any-size")
    await save(stage, producer, len(contents) - 1, len(contents) - 1, clause="record.any-size")
    await fetch_back(stage, consumer, producer.partition, 0, len(contents) - 1, clause="record.any-size")


@SCENARIOS.add("store.large-content", "record.any-size", is_heavy=True)
async def large_content(stage: Stage) -> None:
    """A record's content may have 64 MiB. What is too much at once, the store may fetch."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.partition
    producer.answers = True
    partition.add(0, b"before it")
    partition.add(1, b"%b" * 4 % (b"large", b"\0" * (_LARGE_OCTETS // 2), b"content", b"\n" * (_LARGE_OCTETS // 2)))
    partition.add(2, b"after it")
    await save(stage, producer, 0, 2, clause="record.any-size", seconds=_VOLUME_S)
    for heard in await fetch_back(stage, consumer, partition, 0, 2, clause="record.any-size", seconds=_VOLUME_S):
        number = heard.message.number("sequence")
        holds = heard.message["content"] == partition.contents[number]
        text = f"record {number} of {len(partition.contents[number]):,} octets came back with another content"
        stage.require("record.any-size", holds, text, heard.event)


@SCENARIOS.add("store.load", "ack.sent", "direct-record.sent", "direct-record.ascending", is_heavy=True)
async def load(stage: Stage) -> None:
    """Of four producers that publish 20,000 records each at once, a store keeps every record, in order."""
    topics = [stage.topic, stage.topic, stage.topic + b".2", stage.topic + b".3"]
    producers = [await stage.join(f"P{number + 1}", topic) for number, topic in enumerate(topics)]
    consumer = await stage.join("C")
    last = _LOAD_RECORDS - 1
    async with trio.open_nursery() as nursery:
        for producer in producers:
            await stage.reach(producer, "RECORD", producer.topic)
            producer.answers = True
        for producer in producers:
            nursery.start_soon(producer.say_records, range(_LOAD_RECORDS))
    for producer in producers:
        matches = acknowledges(producer.partition, last)
        await stage.expect("ACK", "ack.sent", matches, seconds=_VOLUME_S, what=f"ACK of {last} for {producer.label}")
    for producer in producers:
        await fetch_back(stage, consumer, producer.partition, 0, last, seconds=_VOLUME_S)


@SCENARIOS.add("store.catch-up", "fetch.pages", "fetch.sent", "ack.sent", is_heavy=True)
async def catch_up(stage: Stage) -> None:
    """A store that comes late fetches all of the 250,000 records that a producer has published."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.hold(_CATCH_UP_RECORDS)
    producer.answers = producer.beats = True
    last = _CATCH_UP_RECORDS - 1
    await say_head(stage, producer, last)
    saved = -1
    while saved < last:
        acked = await stage.hear("ACK", acknowledges(partition, saved + 1))
        if acked is None:
            text = f"of {_CATCH_UP_RECORDS:,} records, which the producer announces and sends when asked, only the"
            text += f" first {saved + 1:,} were fetched and acknowledged, then no more"
            stage.require("fetch.pages", False, stage.died() or text)
        saved = max(each.number("sequence") for each in stage.all_heard("ACK") if each.topic == partition.address)
    producer.answers = producer.beats = False
    for first in _SAMPLES:
        await fetch_back(stage, consumer, partition, first, first + _SAMPLE_RECORDS - 1)


@SCENARIOS.add("store.answers-many", "direct-record.sent", "direct-record.ascending", is_heavy=True)
async def answers_many(stage: Stage) -> None:
    """A store answers a FETCH of 250,000 records with all of them, in order."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    producer.answers = True
    last = _CATCH_UP_RECORDS - 1
    await save(stage, producer, 0, last, seconds=_VOLUME_S)
    await fetch_back(stage, consumer, producer.partition, 0, last, seconds=_VOLUME_S)


async def _keep_topics(stage: Stage, topics: Sequence[bytes], clause: str) -> None:
    """One producer publishes a record to each topic, in a partition of its own; heads and records are asked for."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partitions = [Partition(new_address(), topic) for topic in topics]
    for partition in partitions:
        await stage.reach(producer, "RECORD", partition.topic)
        await producer.say_records([0], partition=partition)
    for partition in partitions:
        shown = stage.trace.show(partition.topic)
        matches = acknowledges(partition, 0)
        await stage.expect("ACK", clause, matches, what=f"ACK of the record of the topic {shown}")
    for partition in partitions:
        await ask_heads(stage, consumer, partition.topic)
        await ask(stage, consumer, partition, 0, 1)
    for partition in partitions:
        await expect_head(stage, consumer, partition, 0, clause)
        await _expect_record(stage, consumer, partition, clause)


async def _expect_record(stage: Stage, consumer: Peer, partition: Partition, clause: str) -> None:
    is_there = await stage.wait(lambda: bool(answers(stage, consumer, partition)))
    text = f"the record of the topic {stage.trace.show(partition.topic)} did not come when it was asked for"
    stage.require(clause, is_there, stage.died() or text)
