"""What a consumer must do, where a script cannot say it: joining, asking, whose records it takes, where it begins."""

from __future__ import annotations

import trio

from dafka_conformance.grammar import Message, Value
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._consumer import (
    COLLECT,
    LATEST,
    ORDERLY,
    check_counts,
    end_with_gap,
    fetches,
    gone_partition,
    require,
    serving,
    subscribed,
    tell_heads,
)
from dafka_conformance.scenarios._nodes import until_dropped
from dafka_conformance.stage.addresses import new_address
from dafka_conformance.stage.findings import UnmetError
from dafka_conformance.stage.ledger import content_of
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.targets.base import Ability, Reset

SCENARIOS = Registry()

ASKED_AGAIN_S = 1.2
"""A consumer may refrain from sending the same FETCH twice within a second."""

LOWER_HEAD_COUNT = 5000
"""More than a consumer that fetches by pages asks for at first."""

STORM_S = 3.0
STORM_FETCHES_MAX = 50
"""While nobody answers: a FETCH for each of the many records that come meanwhile would be a storm."""


# Joining


@SCENARIOS.add("consumer.get-heads", "get-heads.sent", "topic.GET-HEADS", "get-heads.address", "grammar.GET-HEADS")
async def get_heads(stage: Stage) -> None:
    """A consumer that begins asks for the heads of its topic."""
    await _check_get_heads(stage)


@SCENARIOS.add("consumer.get-heads-latest", "get-heads.sent", needs=[Ability.LATEST], reset=Reset.LATEST)
async def get_heads_latest(stage: Stage) -> None:
    """A consumer that begins at the latest record asks for the heads of its topic too."""
    await _check_get_heads(stage)


async def _check_get_heads(stage: Stage) -> None:
    await subscribed(stage)
    await stage.join("S2")
    heard = await stage.expect("GET-HEADS", "get-heads.sent")
    shown = stage.trace.show(heard.message.topic)
    text = f"the topic frame of GET-HEADS is {shown}, not the topic {stage.trace.show(stage.topic)}"
    stage.check("topic.GET-HEADS", heard.message.topic == stage.topic, text, heard.event)


HELLO_CLAUSES = ("consumer-hello.sent", "consumer-hello.subjects", "consumer-hello.not-empty")


@SCENARIOS.add("consumer.hello", *HELLO_CLAUSES, needs=COLLECT)
async def hello(stage: Stage) -> None:
    """A consumer answers a STORE-HELLO with its topics."""
    await _check_hello(stage)


@SCENARIOS.add("consumer.hello-latest", *HELLO_CLAUSES, needs=LATEST, reset=Reset.LATEST)
async def hello_latest(stage: Stage) -> None:
    """A consumer that begins at the latest record answers a STORE-HELLO with its topics, too, or not at all."""
    await _check_hello(stage)


async def _check_hello(stage: Stage) -> None:
    """A consumer SHOULD answer; where it does not, that is all there is to say, and takes no waiting for."""
    await subscribed(stage)
    store = await stage.join("S2")
    before = len(stage.heard)
    await stage.say(store, "STORE-HELLO", stage.address, address=store.address)
    found = await stage.hear("CONSUMER-HELLO", lambda message: message.topic == store.address, since=before)
    if not stage.check("consumer-hello.sent", found is not None, "no CONSUMER-HELLO came in answer to a STORE-HELLO"):
        return
    # What it may have said of itself when the store connected, before its program had named a topic, is in between.
    full = await stage.hear("CONSUMER-HELLO", lambda message: bool(message["subjects"]), since=before, seconds=1)
    heard = full or found
    assert heard is not None
    subjects = heard.message["subjects"]
    assert isinstance(subjects, tuple)
    shown = ", ".join(map(stage.trace.show, subjects)) or "no topic"
    text = f"CONSUMER-HELLO names {shown}, where the consumer is subscribed to {stage.trace.show(stage.topic)}"
    stage.check("consumer-hello.subjects", subjects == (stage.topic,), text, heard.event)


@SCENARIOS.add("consumer.subscription-ack", "subscription.consumer.ack", needs=COLLECT)
async def subscription_ack(stage: Stage) -> None:
    """A consumer may subscribe to the ACKs of the partitions that it knows."""
    producer = await stage.join("P")
    await end_with_gap(stage, producer)
    prefix = stage.grammar.formats.id_of("ACK") + producer.address
    text = "there is no subscription for the ACKs of a partition whose records were handed on"
    stage.check("subscription.consumer.ack", producer.subscriptions[prefix] > 0, text)


@SCENARIOS.add(
    "consumer.producers-are-gone",
    *ORDERLY,
    "get-heads.sent",
    needs=COLLECT,
)
async def producers_are_gone(stage: Stage) -> None:
    """A consumer that begins at the beginning gets the records of producers that are gone from a store."""
    await subscribed(stage)
    store = await stage.join("S2")
    partitions = [gone_partition(stage, store, count, f"gone {count}") for count in (1, 40, 1500)]

    def is_greeted() -> bool:
        messages = [heard.message for heard in stage.heard]
        return any(
            message.name == "GET-HEADS" or (message.name, message.topic) == ("CONSUMER-HELLO", store.address)
            for message in messages
        )

    text = "neither a GET-HEADS nor a CONSUMER-HELLO came, by which stores learn that their heads are wanted"
    require(stage, "get-heads.sent", await stage.wait(is_greeted), text)
    await tell_heads(stage, store, partitions)
    for partition in partitions:
        await stage.expect_delivered([partition.contents[sequence] for sequence in range(partition.head + 1)])


# Asking


@SCENARIOS.add("consumer.fetch-repeated", "fetch.repeated", needs=COLLECT, shares=True)
async def fetch_repeated(stage: Stage) -> None:
    """A FETCH that nobody answers is sent again, and not without measure; what then is answered is handed on."""
    producer = await stage.join("P")
    producer.hold(204)
    producer.beats = True
    await stage.publish(producer, 3, 3)
    await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    for sequence in range(4, 204):
        await stage.publish(producer, sequence, sequence)
        await trio.sleep(STORM_S / 200)
    sent = len(fetches(stage, producer.address))
    text = f"{sent:,} FETCHes were sent within {STORM_S:g} s, while nobody answered and 200 records came"
    stage.check("fetch.repeated", sent < STORM_FETCHES_MAX, text)
    check_counts(stage)
    producer.answers = True
    await stage.expect(
        "FETCH",
        "fetch.repeated",
        lambda message: message.topic == producer.address,
        since=len(stage.heard),
        what=f"FETCH (the first one went unanswered {STORM_S:g} s ago, and a HEAD is sent each second)",
    )
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(204)])


@SCENARIOS.add("consumer.half-answered", "fetch.repeated", "delivery.complete", needs=COLLECT, shares=True)
async def half_answered(stage: Stage) -> None:
    """Where only half of what a FETCH asked for comes, the rest is asked for."""
    producer = await stage.join("P")
    producer.hold(10)
    producer.beats = True
    await stage.publish(producer, 9, 9)
    await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    await producer.say_records(range(5), requestor=stage.address)
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(5)])
    await stage.expect(
        "FETCH",
        "fetch.repeated",
        lambda message: message.topic == producer.address and message["sequence"] == 5,
        what="FETCH of 5, after 0..4 of what was asked for had come",
    )
    producer.answers = True
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(10)])


@SCENARIOS.add("consumer.store-vanishes", "delivery.complete", "delivery.once", "robust.vanished-peer", needs=COLLECT)
async def store_vanishes(stage: Stage) -> None:
    """A store vanishes in the middle of its answer; another one that comes later answers the rest."""
    await subscribed(stage)
    store = await stage.join("S2")
    partition = gone_partition(stage, store, 100, "gone")
    store.answers = False
    await tell_heads(stage, store, [partition])
    await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == partition.address)
    await store.say_records(range(50), partition=partition, requestor=stage.address)
    await stage.expect_delivered([partition.contents[sequence] for sequence in range(50)])
    stage.leave("S2")
    await trio.sleep(ASKED_AGAIN_S)
    other = await stage.join("S3")
    other.hold(100, partition)
    other.answers = True
    await tell_heads(stage, other, [partition])
    await stage.expect_delivered([partition.contents[sequence] for sequence in range(100)])
    stage.check_alive("robust.vanished-peer")


@SCENARIOS.add("consumer.lower-head", "fetch.pages", "delivery.complete", needs=COLLECT)
async def lower_head(stage: Stage) -> None:
    """A store that lags behind tells a lower head: what another one has told of is fetched all the same."""
    await subscribed(stage)
    full, lagging = await stage.join("S2"), await stage.join("S3")
    partition = gone_partition(stage, full, LOWER_HEAD_COUNT, "gone")
    full.answers = False
    await tell_heads(stage, full, [partition])
    asked = await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == partition.address)
    about: dict[str, Value] = {"address": partition.address, "subject": partition.topic}
    await stage.say(lagging, "DIRECT-HEAD", stage.address, **about, sequence=9)
    # What it fetches of this one, it fetches after it has heard the lower head.
    other = gone_partition(stage, lagging, 3, "gone, too")
    await tell_heads(stage, lagging, [other])
    await stage.expect_delivered([other.contents[sequence] for sequence in range(3)])
    full.answers = True
    await full.answer(asked.message)
    await stage.expect_delivered([partition.contents[sequence] for sequence in range(LOWER_HEAD_COUNT)])


@SCENARIOS.add("consumer.huge-head", "fetch.sent", "robust.malformed", needs=COLLECT)
async def huge_head(stage: Stage) -> None:
    """Heads of more records than a FETCH can count are asked for from the first on, and end nothing."""
    for number, head in enumerate((2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1), 1):
        producer = await stage.join(f"P{number}")
        producer.hold(2)
        producer.answers = True
        await stage.say(producer, "HEAD", stage.topic, address=producer.address, subject=stage.topic, sequence=head)
        stage.check_alive("robust.malformed")
        await stage.expect(
            "FETCH",
            "fetch.sent",
            lambda message, address=producer.address: (  # type: ignore[misc]
                message.topic == address and message["sequence"] == 0 and message.number("count") > 0
            ),
            what=f"FETCH of a number of records from 0 on, after a HEAD of {head:,}",
        )
        await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(2)])
    await end_with_gap(stage, await stage.join("P6"))
    check_counts(stage)


@SCENARIOS.add("consumer.producer-returns", *ORDERLY, "subscription.registered", needs=COLLECT)
async def producer_returns(stage: Stage) -> None:
    """A producer falls silent, with a gap before its last record, and returns: nothing is lost or handed on twice."""
    producer = await serving(stage, "P", 0)
    producer.answers = False
    await stage.publish(producer, 0, 1)
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(2)])
    await stage.publish(producer, 6, 6)
    await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    await until_dropped(stage, producer)
    store = await stage.join("S2")
    store.hold(7, producer.partition)
    store.answers = True
    await tell_heads(stage, store, [producer.partition])
    for message in fetches(stage, producer.address)[-1:]:  # it may have asked while the store joined
        await store.answer(message)
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(7)])
    stage.introductions.announce(producer.address, producer.endpoint)
    await stage.reach(producer, "RECORD", stage.topic)
    producer.hold(10)
    producer.answers = producer.beats = True
    await stage.publish(producer, 7, 7)
    await stage.publish(producer, 9, 9)
    await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(10)])


# Whose they are


@SCENARIOS.add("consumer.ten-producers", *ORDERLY, needs=COLLECT, shares=True)
async def ten_producers(stage: Stage) -> None:
    """The records of ten producers of the topic are handed on, those of each in order."""
    producers = [await serving(stage, f"P{number}", 20) for number in range(1, 11)]
    for sequence in range(20):
        for producer in producers[sequence % 2 :: 2]:  # every other record of each is missed
            await stage.publish(producer, sequence, sequence)
    for producer in producers:
        await stage.say(producer, "HEAD", stage.topic, address=producer.address, subject=stage.topic, sequence=19)
        producer.beats = True
    for producer in producers:
        await stage.expect_delivered([content_of(producer.address, sequence) for sequence in range(20)])


@SCENARIOS.add("consumer.prefix-topic", "subject.exact", needs=COLLECT, shares=True)
async def prefix_topic(stage: Stage) -> None:
    """Records and heads of a topic that begins with the name of the consumer's are neither handed on nor fetched."""
    producer = await stage.join("P")
    stranger = await stage.join("P2", stage.topic + b"2")
    stranger.hold(9)
    stranger.answers = True
    topic = stranger.topic
    about: dict[str, Value] = {"address": stranger.address, "subject": topic}
    # Through P's connection, so that what P says later comes later.
    await stage.reach(producer, "RECORD", topic)
    await producer.say_records(range(3), partition=stranger.partition)
    await stage.say(producer, "HEAD", topic, **about, sequence=5)
    await stage.say(producer, "DIRECT-HEAD", stage.address, **about, sequence=6)
    await producer.say_records([8], partition=stranger.partition)
    await end_with_gap(stage, producer)
    _check_subject(stage, stranger, topic)


@SCENARIOS.add("consumer.foreign-subject", "subject.exact", needs=COLLECT, shares=True)
async def foreign_subject(stage: Stage) -> None:
    """A record is of the topic that its subject names, whatever topic frame it comes under."""
    producer = await stage.join("P")
    stranger = await stage.join("P2", stage.topic + b"2")
    stranger.hold(4)
    stranger.answers = True
    about: dict[str, Value] = {"address": stranger.address, "subject": stranger.topic}
    content = content_of(stranger.address, 0)
    await stage.say(producer, "RECORD", stage.topic, **about, sequence=0, content=content)
    await stage.say(producer, "HEAD", stage.topic, **about, sequence=3)
    await end_with_gap(stage, producer)
    _check_subject(stage, stranger, stranger.topic)


def _check_subject(stage: Stage, stranger: Peer, topic: bytes) -> None:
    own, other = stage.trace.show(stage.topic), stage.trace.show(topic)
    foreign = set(stranger.partition.contents.values())
    count = sum(delivery.content in foreign for delivery in stage.delivered)
    text = f"a RECORD of {other} was handed on to a consumer of {own}" + (f" ({count} in all)" if count > 1 else "")
    stage.check("subject.exact", count == 0, text)
    for heard in stage.heard:
        if heard.message.name == "FETCH" and heard.message.topic == stranger.address:
            text = f"a consumer of {own} asked for records of {other}"
            stage.check("subject.exact", False, text, heard.event)
            break


@SCENARIOS.add("consumer.longer-address", "direct-record.requestor", needs=COLLECT, shares=True)
async def longer_address(stage: Stage) -> None:
    """What is addressed to a node whose address begins with the consumer's is no concern of the consumer."""
    producer = await stage.join("P")
    other = stage.address + b"0"
    unknown = new_address()
    stage.trace.name(unknown, "P2")
    stage.ledger.partition(unknown, stage.topic)
    await stage.publish(producer, 0, 0)
    about: dict[str, Value] = {"subject": stage.topic, "sequence": 1, "content": b"for another"}
    await stage.reach(producer, "DIRECT-RECORD", other)
    for address, sequence in ((producer.address, 1), (unknown, 0)):
        fields: dict[str, Value] = about | {"address": address, "sequence": sequence}
        frames = stage.grammar.formats.encode(Message("DIRECT-RECORD", other, fields), stage.dialect)
        producer.say_frames(frames, "DIRECT-RECORD", "it is addressed to another")
    head: dict[str, Value] = {"address": unknown, "subject": stage.topic, "sequence": 7}
    await stage.say(producer, "DIRECT-HEAD", other, **head)
    await _end_somehow(stage, producer)
    text = "a DIRECT-RECORD that is addressed to another node was handed on"
    is_taken = any(delivery.content == b"for another" for delivery in stage.delivered)
    stage.check("direct-record.requestor", not is_taken, text)
    text = "a DIRECT-HEAD that is addressed to another node caused a FETCH"
    stage.check("direct-record.requestor", not fetches(stage, unknown), text)


async def _end_somehow(stage: Stage, producer: Peer) -> None:
    """As `end_with_gap`, for a consumer that may have taken one record for another."""
    producer.hold(4)
    producer.answers = producer.beats = True
    await stage.publish(producer, 3, 3)
    await stage.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    last = content_of(producer.address, 3)
    is_there = await stage.wait(lambda: any(delivery.content == last for delivery in stage.delivered))
    require(stage, "delivery.complete", is_there, f"{stage.trace.show(last)} was not handed on")


# The latest record


async def _join_before(stage: Stage, label: str, reset: Reset) -> Peer:
    """Starts the consumer while a producer is there already."""
    unmet: list[UnmetError] = []

    async def join() -> None:
        try:
            await stage.join(label)
        except UnmetError as error:
            unmet.append(error)

    async def start() -> None:
        try:
            await stage.start(reset=reset)
        except UnmetError as error:
            unmet.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join)
        nursery.start_soon(start)
    if unmet:
        raise unmet[0]
    return stage.peers[label]


@SCENARIOS.add("consumer.latest", "latest.new-only", "delivery.complete", needs=LATEST, starts=True)
async def latest(stage: Stage) -> None:
    """A consumer that begins at the latest record hands on what is published from then on, and nothing older."""
    producer = await _join_before(stage, "P", Reset.LATEST)
    producer.hold(10)
    producer.answers = True
    await _check_latest(stage, producer, 10)


@SCENARIOS.add("consumer.latest-after-head", "latest.new-only", "delivery.complete", needs=LATEST, starts=True)
async def latest_after_head(stage: Stage) -> None:
    """A HEAD of 9 does not make a consumer that begins at the latest record hand on 0..8."""
    producer = await _join_before(stage, "P", Reset.LATEST)
    producer.hold(10)
    await stage.say(producer, "HEAD", stage.topic, address=producer.address, subject=stage.topic, sequence=9)
    producer.answers = True
    # Record 9 itself may pass for the latest one, which it is.
    await _check_latest(stage, producer, 9)


async def _check_latest(stage: Stage, producer: Peer, old: int) -> None:
    """Of records 0..12, of which 10..12 are published now, those before `old` are not handed on."""
    producer.beats = True
    await stage.publish(producer, 10, 12)
    new = [content_of(producer.address, sequence) for sequence in range(10, 13)]
    # What it handed on of the old ones stands before these, in the order of the partition.
    await stage.wait(lambda: any(delivery.content == new[-1] for delivery in stage.delivered))
    handed_on = {delivery.content for delivery in stage.delivered}
    taken = [sequence for sequence in range(old) if content_of(producer.address, sequence) in handed_on]
    text = f"{len(taken)} records that were published before the consumer began at the latest one were handed on"
    stage.check("latest.new-only", not taken, text)
    await stage.expect_delivered(new)


@SCENARIOS.add("consumer.large-sequences", *ORDERLY, "fetch.sequence", needs=LATEST, starts=True)
async def large_sequences(stage: Stage) -> None:
    """Sequences beyond 32 bits are handed on in order, and what is missing there is asked for, to the record."""
    producer = await _join_before(stage, "P", Reset.LATEST)
    middle = 2**32
    for sequence in range(middle - 2, middle + 8):
        producer.partition.add(sequence, content_of(producer.address, sequence))
    producer.beats = True
    await stage.publish(producer, middle - 2, middle + 2)
    wanted = [content_of(producer.address, sequence) for sequence in range(middle - 2, middle + 8)]
    await stage.expect_delivered(wanted[:5])
    await stage.publish(producer, middle + 6, middle + 6)
    await stage.expect(
        "FETCH",
        "fetch.sequence",
        lambda message: message.topic == producer.address and message["sequence"] == middle + 3,
        what=f"FETCH of {middle + 3:,}, of which {middle + 6:,} was published",
    )
    producer.answers = True
    # Record 7 of these is told of by HEADs alone.
    await stage.expect_delivered(wanted)
