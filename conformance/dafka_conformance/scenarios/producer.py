"""Producer scenarios: RECORDs and HEADs."""

from __future__ import annotations

from itertools import pairwise

import trio

from dafka_conformance.grammar import Value
from dafka_conformance.model import Role
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._nodes import MIB, SERIES_MAX, is_regular, until_dropped
from dafka_conformance.scenarios._producer import (
    FED,
    expect_answer,
    expect_content,
    expect_records,
    fetch,
    publish,
    publish_numbered,
)
from dafka_conformance.targets.base import Ability, Request
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

HEAD_INTERVAL_MAX_S = 10.0
BEFORE_FIRST_RECORD_S = 2.0
PUBLISHING_PAUSE_S = 0.05
"""The pause between two records of a busy producer: much less than any interval of HEADs."""
MANY_COUNT = 300
LOAD_COUNT = 100_000
LOAD_BATCH_COUNT = 10_000
LOAD_S = 60.0
LARGE_S = 30.0

ODD_TOPIC = bytes(value for value in range(1, 256) if value not in b"\n\r")[:200]
LONG_TOPIC = b"long" + b"-" * 250 + b"t"


# Records


@SCENARIOS.add(
    "producer.records",
    "record.command",
    "partition.at-least-one",
    "partition.one",
    "partition.name",
    "sequence.first",
    "sequence.increment",
    "topic.RECORD",
    needs=FED,
)
async def records(testbed: Testbed) -> None:
    """A producer publishes its records in order as RECORDs of one partition, which is named by its address."""
    contents = [b"first", b"second " * 20, b"", *(b"record %d" % number for number in range(MANY_COUNT))]
    await publish(testbed, contents[:3])
    await publish(testbed, contents[3:])
    # `MessageChecks` checks that the others are in the same partition.
    partition = testbed.messages("RECORD")[0].get_bytes("address")
    text = "the partition's name is not the producer's address in its beacons"
    testbed.check_clause("partition.name", partition in testbed.nodes, text)
    expect_records(testbed, contents)


@SCENARIOS.add("producer.two", "partition.single-writer", needs=FED)
async def two_producers(testbed: Testbed) -> None:
    """No two producers share a partition, neither at the same time nor one after the other."""
    nodes = testbed.target.node_counts.get(Role.PRODUCER, 1)
    for number, what in enumerate(["at the same time", "after another had ended"], 2):
        folder = testbed.folder / f"producer-{number}"
        folder.mkdir()
        discovery = testbed.discovery
        request = Request(
            Role.PRODUCER,
            testbed.dialect,
            discovery.sub_endpoint,
            discovery.pub_endpoint,
            testbed.topic,
            folder,
        )
        testbed.trace.add_note(f"another producer starts, {what}")
        first = set(testbed.live_endpoints)
        async with testbed.target.start(request):
            is_there = await testbed.wait(lambda expected=number * nodes: len(testbed.nodes) >= expected)  # type: ignore[misc]
        testbed.disconnect(testbed.live_endpoints - first)
        text = f"a producer that started {what} has the same address, so both write the same partition"
        testbed.require_clause("partition.single-writer", is_there, text)


@SCENARIOS.add("producer.contents", "record.any-size", "direct-record.content", needs=FED, shares_target=True)
async def contents_of_any_bytes(testbed: Testbed) -> None:
    """Contents may be empty and have any bytes; they are published and resent unchanged."""
    every_byte = bytes(value for value in range(256) if value not in b"\n\r") + b"."
    contents = [b"", every_byte, b"\0", b"\0" * 1000 + b".", b"", b"x" * MIB]
    first = await publish(testbed, contents)
    expect_records(testbed, contents)
    store = await testbed.add_peer("S")
    place = await fetch(testbed, store, first, len(contents))
    await expect_answer(testbed, store, "direct-record.sent", first, len(contents), place)


@SCENARIOS.add("producer.large-content", "record.any-size", needs=FED, runs_alone=True)
async def large_content(testbed: Testbed) -> None:
    """A content may have 64 MiB. The producer may wait for its ACK before it publishes more."""
    content = b"abcdefgh" * (8 * MIB)
    store = await testbed.add_peer("S")
    about: dict[str, Value] = {"address": store.address, "subject": testbed.topic}
    with trio.move_on_after(LARGE_S * testbed.patience):
        await testbed.feed([content, b"after"])
    for sequence, expected in enumerate([content, b"after"]):
        received = await testbed.receive(
            "RECORD",
            lambda message, n=sequence: message["sequence"] == n,  # type: ignore[misc]
            seconds=LARGE_S,
        )
        text = f"a record of {len(expected):,} bytes was not published"
        testbed.require_clause("record.any-size", received is not None, text)
        assert received is not None
        testbed.check_running("record.any-size")
        expect_content(testbed, received.message, expected)
        await testbed.send(store, "ACK", testbed.address, **about, sequence=sequence)


async def _publish_on(testbed: Testbed, clause: str) -> None:
    first = await publish_numbered(testbed, 3)
    message = testbed.messages("RECORD")[0]
    text = f"the topic frame of RECORD has {testbed.trace.show(message.topic)}, not {testbed.trace.show(testbed.topic)}"
    testbed.require_clause(clause, message.topic == testbed.topic == message["subject"], text)
    store = await testbed.add_peer("S")
    place = await fetch(testbed, store, first, 3)
    await expect_answer(testbed, store, "direct-record.sent", first, 3, place)
    testbed.check_clause(clause, True)


@SCENARIOS.add("producer.odd-topic", "topic.any-bytes", needs=(*FED, Ability.CHOOSE_TOPIC), topic=ODD_TOPIC)
async def odd_topic(testbed: Testbed) -> None:
    """A topic may have any bytes, such as control characters and bytes that are not UTF-8."""
    await _publish_on(testbed, "topic.any-bytes")


@SCENARIOS.add("producer.long-topic", "topic.length", needs=(*FED, Ability.CHOOSE_TOPIC), topic=LONG_TOPIC)
async def long_topic(testbed: Testbed) -> None:
    """A topic may have 255 bytes."""
    await _publish_on(testbed, "topic.length")


@SCENARIOS.add("producer.load", "record.command", "sequence.increment", "head.last-offset", needs=FED, runs_alone=True)
async def load(testbed: Testbed) -> None:
    """A producer publishes each of 100,000 records in order, while a store acknowledges some of them."""
    store = await testbed.add_peer("S")
    contents = [record_content(testbed.address, sequence) for sequence in range(LOAD_COUNT)]
    with trio.move_on_after(LOAD_S * testbed.patience) as scope:
        for start in range(0, LOAD_COUNT, LOAD_BATCH_COUNT):
            await testbed.feed(contents[start : start + LOAD_BATCH_COUNT])
            published = testbed.message_checks.published_count(testbed.address)
            if published:
                about: dict[str, Value] = {"address": store.address, "subject": testbed.topic}
                await testbed.send(store, "ACK", testbed.address, **about, sequence=published - 1)
    published = testbed.message_checks.published_count(testbed.address)
    testbed.require_clause(
        "record.command", not scope.cancelled_caught, f"after {LOAD_S:g} s it had published {published:,} records"
    )
    await testbed.wait(lambda: testbed.message_checks.published_count(testbed.address) >= LOAD_COUNT, LOAD_S)
    expect_records(testbed, contents)
    testbed.check_running("record.command")


# Heads


@SCENARIOS.add("producer.heads-at-intervals", "head.interval", "head.after-first-record", "topic.HEAD", needs=FED)
async def heads_at_intervals(testbed: Testbed) -> None:
    """A producer sends HEADs at a regular interval from its first record on, and not before."""
    await testbed.add_peer("C")
    await trio.sleep(BEFORE_FIRST_RECORD_S)
    testbed.require_clause(
        "head.after-first-record", not testbed.messages("HEAD"), "HEAD was sent before the first RECORD"
    )
    await publish_numbered(testbed, 3)
    for _ in range(SERIES_MAX):
        gaps = await _gaps_between_heads(testbed)
        if is_regular(gaps):
            break
    shown = ", ".join(f"{gap:.1f} s" for gap in gaps)
    testbed.check_clause("head.interval", is_regular(gaps), f"HEADs arrived after {shown}, not at a regular interval")


async def _gaps_between_heads(testbed: Testbed) -> list[float]:
    """Return the seconds between the next five HEADs."""
    times = []
    place = len(testbed.received)
    for which in ("first", "second", "third", "fourth", "fifth"):
        received = await testbed.receive("HEAD", since=place, seconds=HEAD_INTERVAL_MAX_S)
        text = f"no {which} HEAD arrived within {HEAD_INTERVAL_MAX_S * testbed.patience:g} s"
        testbed.require_clause("head.interval", received is not None, text)
        assert received is not None
        times.append(received.at)
        place = testbed.received.index(received, place) + 1
    return [after - before for before, after in pairwise(times)]


@SCENARIOS.add("producer.head-of-last-record", "head.last-offset", "head.address", "head.interval", needs=FED)
async def head_of_last_record(testbed: Testbed) -> None:
    """A HEAD has the sequence of the last record, also after more records are published."""
    for count in (4, 3):
        await publish_numbered(testbed, count)
        place = len(testbed.received)
        last = testbed.message_checks.published_count(testbed.address) - 1
        received = await testbed.receive("HEAD", since=place, seconds=HEAD_INTERVAL_MAX_S)
        text = f"no HEAD arrived within {HEAD_INTERVAL_MAX_S * testbed.patience:g} s after record {last}"
        testbed.require_clause("head.interval", received is not None, text)
        assert received is not None
        found = received.message.get_number("sequence")
        text = f"HEAD has the offset {found}, expected {last}, the last published record's"
        testbed.require_clause("head.last-offset", received.message["sequence"] == last, text, received.event)


async def _expect_head(testbed: Testbed, when: str, since: int) -> None:
    """Wait for a HEAD. `MessageChecks` checks its sequence. Raise `UnmetError` if none arrives."""
    received = await testbed.receive("HEAD", since=since, seconds=HEAD_INTERVAL_MAX_S)
    text = f"no HEAD arrived within {HEAD_INTERVAL_MAX_S * testbed.patience:g} s {when}"
    testbed.require_clause(
        "head.interval", testbed.exit_message() == "" and received is not None, testbed.exit_message() or text
    )


@SCENARIOS.add("producer.head-of-acknowledged", "head.interval", "head.last-offset", needs=FED)
async def head_of_acknowledged(testbed: Testbed) -> None:
    """HEADs start with one record and continue when all records, or some of them, are acknowledged."""
    await publish_numbered(testbed, 1)
    await _expect_head(testbed, "after the first record", 0)
    store = await testbed.add_peer("S")
    about: dict[str, Value] = {"address": store.address, "subject": testbed.topic}
    await testbed.send(store, "ACK", testbed.address, **about, sequence=0)
    # The first HEAD may have been sent before the ACK arrived.
    for _ in range(2):
        await _expect_head(testbed, "after the ACK of all published records", len(testbed.received))
    await publish_numbered(testbed, 4)
    await testbed.send(store, "ACK", testbed.address, **about, sequence=2)
    for _ in range(2):
        await _expect_head(testbed, "after the ACK of some published records", len(testbed.received))


@SCENARIOS.add("producer.head-while-publishing", "head.interval", "head.last-offset", needs=FED)
async def head_while_publishing(testbed: Testbed) -> None:
    """A producer that publishes all the time also sends HEADs: records do not delay them."""
    await publish_numbered(testbed, 1)
    count, place = 1, len(testbed.received)
    with trio.move_on_after(HEAD_INTERVAL_MAX_S * testbed.patience):
        while not testbed.messages("HEAD", place):
            await testbed.feed([record_content(testbed.address, count)])
            count += 1
            await trio.sleep(PUBLISHING_PAUSE_S)
    text = (
        f"no HEAD arrived within {HEAD_INTERVAL_MAX_S * testbed.patience:g} s, "
        f"while a record was published each {PUBLISHING_PAUSE_S:g} s"
    )
    testbed.check_running("head.interval")
    testbed.require_clause("head.interval", bool(testbed.messages("HEAD", place)), text)


@SCENARIOS.add("producer.peer-expires", "head.interval", "record.kept-until-ack", "robust.vanished-peer", needs=FED)
async def peer_expires(testbed: Testbed) -> None:
    """HEADs continue after the only peer is dropped as silent, and the next peer gets every record."""
    await publish_numbered(testbed, 10)
    store = await testbed.add_peer("S")
    await until_dropped(testbed, store)
    testbed.remove_peer("S")
    for _ in range(2):
        await _expect_head(testbed, "after a silent peer was dropped", len(testbed.received))
    await publish_numbered(testbed, 5)
    other = await testbed.add_peer("S2")
    place = await fetch(testbed, other, 0, 15)
    await expect_answer(testbed, other, "record.kept-until-ack", 0, 15, place)


@SCENARIOS.add("producer.heads-before-first-record", "direct-head.last-offset", needs=FED)
async def heads_before_first_record(testbed: Testbed) -> None:
    """A producer without records does not answer GET-HEADS."""
    consumer = await testbed.add_peer("C")
    consumer.send("GET-HEADS", testbed.topic, {"address": consumer.address})
    first = await publish_numbered(testbed, 1)
    place = await fetch(testbed, consumer, first, 1)
    await expect_answer(testbed, consumer, "direct-record.sent", first, 1, place)
    names = [received.message.name for received in testbed.received]
    is_early = "DIRECT-HEAD" in names[: names.index("RECORD")]
    text = "GET-HEADS was answered with a DIRECT-HEAD before the first record was published"
    testbed.check_clause("direct-head.last-offset", not is_early, text)


@SCENARIOS.add("producer.heads-of-other-topics", "subject.exact", needs=FED, shares_target=True)
async def heads_of_other_topics(testbed: Testbed) -> None:
    """A producer does not answer GET-HEADS for a topic that only shares a prefix with its own topic."""
    first = await publish_numbered(testbed, 1)
    consumer = await testbed.add_peer("C")
    for topic in (testbed.topic + b"2", testbed.topic + b"\x01", testbed.topic[:-1], b""):
        # Not all of these match a subscription; those that do not are not transmitted.
        consumer.send("GET-HEADS", topic, {"address": consumer.address})
        place = await fetch(testbed, consumer, first, 1)
        await expect_answer(testbed, consumer, "direct-record.sent", first, 1, place)
        heads = [received for received in testbed.received if received.message.name == "DIRECT-HEAD"]
        text = f"GET-HEADS of the topic {testbed.trace.show(topic)} was answered with a DIRECT-HEAD"
        testbed.require_clause("subject.exact", not heads, text, heads[0].event if heads else None)
