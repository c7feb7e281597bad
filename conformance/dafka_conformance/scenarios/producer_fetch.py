"""Producer scenarios: keeping records and answering FETCHes."""

from __future__ import annotations

import trio

from dafka_conformance.grammar import Value
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._producer import FED, expect_answer, expect_no_answer, fetch, publish_numbered
from dafka_conformance.testbed.expectations import UnmetError
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

UNACKNOWLEDGED_COUNT = 20_000
UNACKNOWLEDGED_S = 5.0
UNFINISHED_S = 2.0
FINISHED_S = 4.0


@SCENARIOS.add("producer.kept-until-ack", "record.kept-until-ack", "direct-record.ascending", needs=FED)
async def kept_until_ack(testbed: Testbed) -> None:
    """A producer keeps every record until it is acknowledged, however many more it publishes."""
    await publish_numbered(testbed, 20)
    store = await testbed.add_peer("S")
    place = await fetch(testbed, store, 0, 20)
    await expect_answer(testbed, store, "record.kept-until-ack", 0, 20, place)
    await publish_numbered(testbed, 200)
    place = await fetch(testbed, store, 0, 220)
    await expect_answer(testbed, store, "record.kept-until-ack", 0, 220, place)


@SCENARIOS.add("producer.many-unacknowledged", "record.kept-until-ack", "direct-record.content", needs=FED)
async def many_unacknowledged(testbed: Testbed) -> None:
    """Thousands of unacknowledged records are resent as they were published, also after an ACK of some of them."""
    count = 3000
    await publish_numbered(testbed, count)
    store = await testbed.add_peer("S")
    place = await fetch(testbed, store, 0, count)
    await expect_answer(testbed, store, "record.kept-until-ack", 0, count, place)
    await testbed.send(store, "ACK", testbed.address, address=store.address, subject=testbed.topic, sequence=999)
    place = await fetch(testbed, store, 1000, count - 1000)
    await expect_answer(testbed, store, "record.kept-until-ack", 1000, count - 1000, place)


@SCENARIOS.add("producer.kept-however-many", "record.kept-until-ack", needs=FED, runs_alone=True)
async def kept_however_many(testbed: Testbed) -> None:
    """A producer keeps all the records that it published of 20,000 without an ACK; it may publish some later."""
    contents = [record_content(testbed.address, sequence) for sequence in range(UNACKNOWLEDGED_COUNT)]
    with trio.move_on_after(UNACKNOWLEDGED_S * testbed.patience):
        for start in range(0, UNACKNOWLEDGED_COUNT, UNACKNOWLEDGED_COUNT // 10):
            await testbed.feed(contents[start : start + UNACKNOWLEDGED_COUNT // 10])
    store = await testbed.add_peer("S")
    # A producer may wait for ACKs before it publishes more.
    await testbed.wait(
        lambda: testbed.message_checks.published_count(testbed.address) >= UNACKNOWLEDGED_COUNT, UNACKNOWLEDGED_S
    )
    testbed.check_running("record.kept-until-ack")
    published = testbed.message_checks.published_count(testbed.address)
    testbed.require_clause("record.kept-until-ack", published > 0, "nothing was published")
    for first, last in ((0, min(99, published - 1)), (published // 2, published // 2), (0, published - 1)):
        place = await fetch(testbed, store, first, last - first + 1)
        await expect_answer(testbed, store, "record.kept-until-ack", first, last - first + 1, place)


@SCENARIOS.add("producer.fetches-in-a-row", "direct-record.sent", "fetch.count", needs=FED, shares_target=True)
async def fetches_in_a_row(testbed: Testbed) -> None:
    """Every one of many FETCHes of single records in a row is answered."""
    count = 60
    first = await publish_numbered(testbed, count)
    consumer, store = await testbed.add_peer("C"), await testbed.add_peer("S")
    place = len(testbed.received)
    for sequence in range(first + count - 1, first - 1, -2):
        await fetch(testbed, consumer, sequence, 1)
        await fetch(testbed, store, sequence - 1, 1)
    for peer, begin in ((consumer, first + 1), (store, first)):
        for sequence in range(begin, first + count, 2):
            await expect_answer(testbed, peer, "direct-record.sent", sequence, 1, place)


@SCENARIOS.add("producer.input-ended", "record.kept-until-ack", "ack.cumulative", needs=FED)
async def input_ended(testbed: Testbed) -> None:
    """After the end of its input, a producer runs until its records are acknowledged, for which one ACK is enough."""
    assert testbed.node is not None
    await publish_numbered(testbed, 10)
    await testbed.node.end_input()
    try:
        store = await testbed.add_peer("S")
        place = await fetch(testbed, store, 0, 10)
        await expect_answer(testbed, store, "record.kept-until-ack", 0, 10, place)
        about: dict[str, Value] = {"address": store.address, "subject": testbed.topic}
        await testbed.send(store, "ACK", testbed.address, **about, sequence=4)
        await _ends(testbed, UNFINISHED_S)  # a producer may end some time after its input
        place = await fetch(testbed, store, 5, 5)
        await expect_answer(testbed, store, "record.kept-until-ack", 5, 5, place)
    except UnmetError:
        text = "after the end of its input, the producer ended before all its records were acknowledged"
        testbed.check_clause("record.kept-until-ack", not testbed.node.ended.is_set(), text)
        raise
    await testbed.send(store, "ACK", testbed.address, **about, sequence=9)
    if await _ends(testbed, FINISHED_S * testbed.patience):
        testbed.check_clause("ack.cumulative", True)
        return
    for sequence in range(9):
        store.send("ACK", testbed.address, {**about, "sequence": sequence})
    # A producer need not end at all; then this shows nothing.
    text = "the ACK of record 9 did not acknowledge the records before it: each needed its own ACK"
    if await _ends(testbed, FINISHED_S * testbed.patience):
        testbed.check_clause("ack.cumulative", False, text, reading="each")


async def _ends(testbed: Testbed, seconds: float) -> bool:
    assert testbed.node is not None
    with trio.move_on_after(seconds):
        await testbed.node.ended.wait()
    return testbed.node.ended.is_set()


@SCENARIOS.add("producer.foreign-acks", "record.kept-until-ack", "subject.exact", needs=FED, shares_target=True)
async def foreign_acks(testbed: Testbed) -> None:
    """An ACK of another partition or topic, or of an unpublished record, does not make a producer drop records."""
    first = await publish_numbered(testbed, 10)
    last = first + 9
    store = await testbed.add_peer("S")
    about: dict[str, Value] = {"address": store.address, "subject": testbed.topic, "sequence": last}
    foreign: list[tuple[str, bytes, dict[str, Value]]] = [
        ("an ACK of another partition", testbed.address + b"0", about),
        ("an ACK of a topic that is a prefix of its own", testbed.address, about | {"subject": testbed.topic[:-1]}),
        ("an ACK of a topic that starts with its own", testbed.address, about | {"subject": testbed.topic + b"2"}),
        ("an ACK of a record that was never published", testbed.address, about | {"sequence": last + 1000}),
        ("an ACK of a sequence that differs above its 32nd bit", testbed.address, about | {"sequence": last + 2**32}),
        ("an ACK of the highest possible sequence", testbed.address, about | {"sequence": 2**64 - 1}),
    ]
    for what, partition, values in foreign:
        store.send("ACK", partition, values)
        place = await fetch(testbed, store, first, 10)
        await expect_answer(testbed, store, "record.kept-until-ack", first, 10, place, what)


@SCENARIOS.add("producer.foreign-fetches", "direct-record.checked", "subject.exact", needs=FED, shares_target=True)
async def foreign_fetches(testbed: Testbed) -> None:
    """A FETCH of another partition or topic that matches the same subscription is not answered."""
    first = await publish_numbered(testbed, 10)
    consumer = await testbed.add_peer("C")
    for sequence in (first, first + 9):
        place = await fetch(testbed, consumer, sequence, 1)
        await expect_answer(testbed, consumer, "direct-record.sent", sequence, 1, place)
    about: dict[str, Value] = {"address": consumer.address, "subject": testbed.topic, "sequence": first, "count": 5}
    foreign: list[tuple[str, str, bytes, dict[str, Value]]] = [
        ("direct-record.checked", "another partition", testbed.address + b"0", about),
        ("direct-record.checked", "another topic", testbed.address, about | {"subject": b"another"}),
        (
            "subject.exact",
            "a topic that starts with its own",
            testbed.address,
            about | {"subject": testbed.topic + b"2"},
        ),
        (
            "subject.exact",
            "a topic that is a prefix of its own",
            testbed.address,
            about | {"subject": testbed.topic[:-1]},
        ),
    ]
    for clause, what, partition, values in foreign:
        testbed.known_records.add_fetch(consumer.address, testbed.address, first, 5)
        consumer.send("FETCH", partition, values)
        await expect_no_answer(testbed, consumer, clause, first, f"a FETCH of {what}")


@SCENARIOS.add("producer.fetched-by-two", "direct-record.sent", "topic.DIRECT-RECORD", needs=FED, shares_target=True)
async def fetched_by_two(testbed: Testbed) -> None:
    """A consumer and a store that fetch at the same time each get their own answer."""
    first = await publish_numbered(testbed, 150)
    consumer, store = await testbed.add_peer("C"), await testbed.add_peer("S")
    place = len(testbed.received)
    await fetch(testbed, consumer, first, 150)
    await fetch(testbed, store, first + 10, 100)
    await expect_answer(testbed, consumer, "direct-record.sent", first, 150, place)
    await expect_answer(testbed, store, "direct-record.sent", first + 10, 100, place)
    counts = {peer.label: 0 for peer in (consumer, store)}
    for message in testbed.messages("DIRECT-RECORD", place):
        peer = next((peer for peer in (consumer, store) if peer.address == message.topic), None)
        if peer is not None:
            counts[peer.label] += 1
    text = f"C fetched 150 records and was sent {counts['C']}, S fetched 100 and was sent {counts['S']}"
    testbed.require_clause("fetch.count", counts == {"C": 150, "S": 100}, text)
