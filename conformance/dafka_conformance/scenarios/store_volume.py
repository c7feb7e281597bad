"""Store scenarios: many topics, unusual topics, and many or large records."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from dafka_conformance.model import Dialect
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._store import (
    acknowledges,
    answers,
    ask,
    ask_heads,
    expect_head,
    fetch_back,
    save,
    send_head,
)
from dafka_conformance.testbed.known_records import Partition
from dafka_conformance.testbed.network import new_address
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

_TOPICS = 300
_CATCH_UP_RECORDS = 250_000
_ANSWERED_RECORDS = 110_000
"""More than the 100,000 records that libdafka fetches at a time."""
_LOAD_PRODUCERS = 4
_LOAD_RECORDS = 20_000
_LARGE_BYTES = 64 * 2**20
_VOLUME_S = 60.0
"""The time limit for large amounts: many times what a store needs, because the machine may be busy."""

_SAMPLES = (0, 99_998, 199_998, _CATCH_UP_RECORDS - 4)
_SAMPLE_RECORDS = 4


@SCENARIOS.add("store.many-topics", "topics.unlimited", "ack.sent", "direct-head.store", "direct-record.sent")
async def many_topics(testbed: Testbed) -> None:
    """A store keeps the records of 300 topics apart."""
    await _keep_topics(testbed, [b"%b.%d" % (testbed.topic, number) for number in range(_TOPICS)], "topics.unlimited")


@SCENARIOS.add("store.any-topic", "topic.any-bytes", shares_target=True)
async def any_topic(testbed: Testbed) -> None:
    """A topic may have any bytes that the dialect can carry."""
    every_byte = bytes(range(256)) if testbed.dialect is Dialect.RFC46 else bytes(range(1, 256))
    topics = [bytes((value,)) * 2 + testbed.topic for value in every_byte]
    await _keep_topics(testbed, [*topics, every_byte[:128], every_byte[128:], b" ", "Ä€😀".encode()], "topic.any-bytes")


@SCENARIOS.add("store.long-topic", "topic.length", shares_target=True)
async def long_topic(testbed: Testbed) -> None:
    """A topic may have 255 bytes or one byte."""
    await _keep_topics(testbed, [b"t", b"t" * 254, b"t" * 255], "topic.length")


@SCENARIOS.add("store.any-content", "record.any-size", "direct-record.content", shares_target=True)
async def any_content(testbed: Testbed) -> None:
    """A content may be empty and have any bytes."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    record_id = testbed.grammar.formats.id_of("RECORD")
    contents = [
        b"",
        b"\0",
        b"a\0b\0",
        b"\n",
        b"\r\n\r\n",
        bytes(range(256)),
        b"",
        record_id,
        b"\xaa\xa5M\1",
        b"x" * 100_000,
        b"the same again",
        b"the same again",
    ]
    for sequence, content in enumerate(contents):
        producer.partition.add(sequence, content)
    await save(testbed, producer, 0, len(contents) - 2, clause="record.any-size")
    await save(testbed, producer, len(contents) - 1, len(contents) - 1, clause="record.any-size")
    await fetch_back(testbed, consumer, producer.partition, 0, len(contents) - 1, clause="record.any-size")


@SCENARIOS.add("store.large-content", "record.any-size", runs_alone=True)
async def large_content(testbed: Testbed) -> None:
    """A content may have 64 MiB. The store may fetch the record."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    partition = producer.partition
    producer.answers_requests = True
    partition.add(0, b"before it")
    partition.add(1, b"%b" * 4 % (b"large", b"\0" * (_LARGE_BYTES // 2), b"content", b"\n" * (_LARGE_BYTES // 2)))
    partition.add(2, b"after it")
    await save(testbed, producer, 0, 2, clause="record.any-size", seconds=_VOLUME_S)
    for received in await fetch_back(testbed, consumer, partition, 0, 2, clause="record.any-size", seconds=_VOLUME_S):
        number = received.message.get_number("sequence")
        holds = received.message["content"] == partition.contents[number]
        text = f"record {number} of {len(partition.contents[number]):,} bytes was returned with another content"
        testbed.require_clause("record.any-size", holds, text, received.event)


@SCENARIOS.add("store.load", "ack.sent", "direct-record.sent", "direct-record.ascending", runs_alone=True)
async def load(testbed: Testbed) -> None:
    """A store keeps every record, in order, of four producers that publish 20,000 records each at once."""
    topics = [testbed.topic, testbed.topic, testbed.topic + b".2", testbed.topic + b".3"]
    producers = [await testbed.add_peer(f"P{number + 1}", topic) for number, topic in enumerate(topics)]
    consumer = await testbed.add_peer("C")
    last = _LOAD_RECORDS - 1
    async with trio.open_nursery() as nursery:
        for producer in producers:
            await testbed.wait_subscribed(producer, "RECORD", producer.topic)
            producer.answers_requests = True
        for producer in producers:
            nursery.start_soon(producer.send_records, range(_LOAD_RECORDS))
    for producer in producers:
        matches = acknowledges(producer.partition, last)
        await testbed.expect("ACK", "ack.sent", matches, seconds=_VOLUME_S, what=f"ACK of {last} for {producer.label}")
    for producer in producers:
        await fetch_back(testbed, consumer, producer.partition, 0, last, seconds=_VOLUME_S)


@SCENARIOS.add("store.catch-up", "fetch.pages", "fetch.sent", "ack.sent", runs_alone=True)
async def catch_up(testbed: Testbed) -> None:
    """A store that joins late fetches all of a producer's 250,000 records."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    partition = producer.add_records(_CATCH_UP_RECORDS)
    producer.answers_requests = producer.sends_heads = True
    last = _CATCH_UP_RECORDS - 1
    await send_head(testbed, producer, last)
    saved = -1
    while saved < last:
        acked = await testbed.receive("ACK", acknowledges(partition, saved + 1))
        if acked is None:
            text = f"of {_CATCH_UP_RECORDS:,} records, which the producer announces and sends on request, only the"
            text += f" first {saved + 1:,} were fetched and acknowledged, then no more"
            testbed.require_clause("fetch.pages", False, testbed.exit_message() or text)
        saved = max(each.get_number("sequence") for each in testbed.messages("ACK") if each.topic == partition.address)
    producer.answers_requests = producer.sends_heads = False
    for first in _SAMPLES:
        await fetch_back(testbed, consumer, partition, first, first + _SAMPLE_RECORDS - 1)


@SCENARIOS.add("store.answers-many", "direct-record.sent", "direct-record.ascending", runs_alone=True)
async def answers_many(testbed: Testbed) -> None:
    """A store answers a FETCH of 110,000 records with all of them in order."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    producer.answers_requests = True
    last = _ANSWERED_RECORDS - 1
    await save(testbed, producer, 0, last, seconds=_VOLUME_S)
    await fetch_back(testbed, consumer, producer.partition, 0, last, seconds=_VOLUME_S)


async def _keep_topics(testbed: Testbed, topics: Sequence[bytes], clause: str) -> None:
    """Publish a record to each topic, each in its own partition, and check that the store serves heads and records."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    partitions = [Partition(new_address(), topic) for topic in topics]
    for partition in partitions:
        await testbed.wait_subscribed(producer, "RECORD", partition.topic)
        await producer.send_records([0], partition=partition)
    for partition in partitions:
        shown = testbed.trace.show(partition.topic)
        matches = acknowledges(partition, 0)
        await testbed.expect("ACK", clause, matches, what=f"ACK of the record of the topic {shown}")
    for partition in partitions:
        await ask_heads(testbed, consumer, partition.topic)
        await ask(testbed, consumer, partition, 0, 1)
    for partition in partitions:
        await expect_head(testbed, consumer, partition, 0, clause)
        await _expect_record(testbed, consumer, partition, clause)


async def _expect_record(testbed: Testbed, consumer: ScriptedPeer, partition: Partition, clause: str) -> None:
    is_there = await testbed.wait(lambda: bool(answers(testbed, consumer, partition)))
    text = f"the record of the topic {testbed.trace.show(partition.topic)} was not sent in answer to a FETCH"
    ended = testbed.exit_message()
    testbed.require_clause(clause, is_there, ended or text, missing="" if ended else "DIRECT-RECORD")
