"""What a consumer must do, where a script cannot say it: joining, asking for heads, and whose records it takes."""

from __future__ import annotations

from dafka_conformance.grammar import Message, Value
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._consumer import (
    COLLECT,
    LATEST,
    ORDERLY,
    end_with_gap,
    fetches,
    gone_partition,
    require,
    serving,
    subscribed,
    tell_heads,
)
from dafka_conformance.stage.addresses import new_address
from dafka_conformance.stage.ledger import content_of
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.targets.base import Ability, Reset

SCENARIOS = Registry()

HELLO_CLAUSES = ("consumer-hello.sent", "consumer-hello.subjects", "consumer-hello.not-empty")


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
