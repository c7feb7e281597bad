"""Consumer scenarios: joining, requesting heads, and which records a consumer accepts."""

from __future__ import annotations

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import DELIVERY
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._consumer import (
    COLLECT,
    LATEST,
    ORDERLY,
    end_with_gap,
    fetches,
    gone_partition,
    require_clause_or_running,
    send_heads,
    serving,
    subscribed,
)
from dafka_conformance.targets.base import Ability, Reset
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.network import new_address
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

HELLO_CLAUSES = ("consumer-hello.sent", "consumer-hello.subjects", "consumer-hello.not-empty")


@SCENARIOS.add("consumer.get-heads", "get-heads.sent", "topic.GET-HEADS", "get-heads.address", "grammar.GET-HEADS")
async def get_heads(testbed: Testbed) -> None:
    """A consumer requests the heads of its topic when it starts."""
    await _check_get_heads(testbed)


@SCENARIOS.add("consumer.get-heads-latest", "get-heads.sent", needs=[Ability.LATEST], reset=Reset.LATEST)
async def get_heads_latest(testbed: Testbed) -> None:
    """A consumer that starts at the latest record also requests the heads of its topic."""
    await _check_get_heads(testbed)


async def _check_get_heads(testbed: Testbed) -> None:
    await subscribed(testbed)
    await testbed.add_peer("S2")
    received = await testbed.expect("GET-HEADS", "get-heads.sent")
    shown = testbed.trace.show(received.message.topic)
    text = f"the topic frame of GET-HEADS is {shown}, not the topic {testbed.trace.show(testbed.topic)}"
    testbed.check_clause("topic.GET-HEADS", received.message.topic == testbed.topic, text, received.event)


@SCENARIOS.add("consumer.hello", *HELLO_CLAUSES, needs=COLLECT)
async def hello(testbed: Testbed) -> None:
    """A consumer answers a STORE-HELLO with its topics."""
    await _check_hello(testbed)


@SCENARIOS.add("consumer.hello-latest", *HELLO_CLAUSES, needs=LATEST, reset=Reset.LATEST)
async def hello_latest(testbed: Testbed) -> None:
    """A consumer that starts at the latest record answers a STORE-HELLO with its topics or not at all."""
    await _check_hello(testbed)


async def _check_hello(testbed: Testbed) -> None:
    """Send a STORE-HELLO and check the answer, which is a SHOULD."""
    await subscribed(testbed)
    store = await testbed.add_peer("S2")
    before = len(testbed.received)
    await testbed.send(store, "STORE-HELLO", testbed.address, address=store.address)
    found = await testbed.receive("CONSUMER-HELLO", lambda message: message.topic == store.address, since=before)
    if not testbed.check_clause(
        "consumer-hello.sent", found is not None, "no CONSUMER-HELLO arrived in answer to a STORE-HELLO"
    ):
        return
    # The consumer may have sent an empty one when the store connected, before its program subscribed to a topic.
    full = await testbed.receive("CONSUMER-HELLO", lambda message: bool(message["subjects"]), since=before, seconds=1)
    received = full or found
    assert received is not None
    subjects = received.message["subjects"]
    assert isinstance(subjects, tuple)
    shown = ", ".join(map(testbed.trace.show, subjects)) or "no topic"
    text = f"CONSUMER-HELLO has {shown}, but the consumer is subscribed to {testbed.trace.show(testbed.topic)}"
    if subjects:  # `MessageChecks` reports an empty one
        testbed.check_clause("consumer-hello.subjects", subjects == (testbed.topic,), text, received.event)


@SCENARIOS.add("consumer.subscription-ack", "subscription.consumer.ack", needs=COLLECT)
async def subscription_ack(testbed: Testbed) -> None:
    """A consumer may subscribe to the ACKs of the partitions that it knows."""
    producer = await testbed.add_peer("P")
    await end_with_gap(testbed, producer)
    prefix = testbed.grammar.formats.id_of("ACK") + producer.address
    text = "there is no subscription for the ACKs of a partition whose records were delivered"
    testbed.check_clause("subscription.consumer.ack", producer.subscriptions[prefix] > 0, text)


@SCENARIOS.add(
    "consumer.producers-are-gone",
    *ORDERLY,
    "get-heads.sent",
    needs=COLLECT,
)
async def producers_are_gone(testbed: Testbed) -> None:
    """A consumer that starts at the earliest record gets the records of producers that have left from a store."""
    await subscribed(testbed)
    store = await testbed.add_peer("S2")
    partitions = [gone_partition(testbed, store, count, f"gone {count}") for count in (1, 40, 1500)]

    def is_greeted() -> bool:
        messages = [received.message for received in testbed.received]
        return any(
            message.name == "GET-HEADS" or (message.name, message.topic) == ("CONSUMER-HELLO", store.address)
            for message in messages
        )

    text = "neither a GET-HEADS nor a CONSUMER-HELLO arrived, so stores cannot know that their heads are requested"
    require_clause_or_running(testbed, "get-heads.sent", await testbed.wait(is_greeted), text)
    await send_heads(testbed, store, partitions)
    for partition in partitions:
        await testbed.expect_delivered([partition.contents[sequence] for sequence in range(partition.head + 1)])


@SCENARIOS.add("consumer.ten-producers", *ORDERLY, needs=COLLECT, shares_target=True)
async def ten_producers(testbed: Testbed) -> None:
    """The records of ten producers of the topic are delivered, in order for each producer."""
    producers = [await serving(testbed, f"P{number}", 20) for number in range(1, 11)]
    for sequence in range(20):
        for producer in producers[sequence % 2 :: 2]:  # every other record of each producer is missing
            await testbed.publish(producer, sequence, sequence)
    for producer in producers:
        await testbed.send(
            producer, "HEAD", testbed.topic, address=producer.address, subject=testbed.topic, sequence=19
        )
        producer.sends_heads = True
    for producer in producers:
        await testbed.expect_delivered([record_content(producer.address, sequence) for sequence in range(20)])


@SCENARIOS.add("consumer.prefix-topic", "subject.exact", needs=COLLECT, shares_target=True)
async def prefix_topic(testbed: Testbed) -> None:
    """Records of a topic whose name only starts with the consumer's topic are neither delivered nor fetched."""
    producer = await testbed.add_peer("P")
    other_producer = await testbed.add_peer("P2", testbed.topic + b"2")
    other_producer.add_records(9)
    other_producer.answers_requests = True
    topic = other_producer.topic
    about: dict[str, Value] = {"address": other_producer.address, "subject": topic}
    # Sent through P's connection, so that P's later messages arrive later.
    await testbed.wait_subscribed(producer, "RECORD", topic)
    await producer.send_records(range(3), partition=other_producer.partition)
    await testbed.send(producer, "HEAD", topic, **about, sequence=5)
    await testbed.send(producer, "DIRECT-HEAD", testbed.address, **about, sequence=6)
    await producer.send_records([8], partition=other_producer.partition)
    await end_with_gap(testbed, producer)
    _check_subject(testbed, other_producer)


@SCENARIOS.add("consumer.foreign-subject", "subject.exact", needs=COLLECT, shares_target=True)
async def foreign_subject(testbed: Testbed) -> None:
    """A record belongs to the topic in its subject, even if its topic frame has another one."""
    producer = await testbed.add_peer("P")
    other_producer = await testbed.add_peer("P2", testbed.topic + b"2")
    other_producer.add_records(4)
    other_producer.answers_requests = True
    about: dict[str, Value] = {"address": other_producer.address, "subject": other_producer.topic}
    content = record_content(other_producer.address, 0)
    await testbed.send(producer, "RECORD", testbed.topic, **about, sequence=0, content=content)
    await testbed.send(producer, "HEAD", testbed.topic, **about, sequence=3)
    await end_with_gap(testbed, producer)
    _check_subject(testbed, other_producer)


def _check_subject(testbed: Testbed, other_producer: ScriptedPeer) -> None:
    own, other = testbed.trace.show(testbed.topic), testbed.trace.show(other_producer.topic)
    foreign = set(other_producer.partition.contents.values())
    count = sum(delivery.content in foreign for delivery in testbed.delivered)
    text = f"a RECORD of {other} was delivered to a consumer of {own}" + (f" ({count} in all)" if count > 1 else "")
    testbed.check_clause("subject.exact", count == 0, text)


@SCENARIOS.add("consumer.longer-address", "direct-record.requestor", needs=COLLECT, shares_target=True)
async def longer_address(testbed: Testbed) -> None:
    """A consumer ignores messages to a node whose address starts with its own."""
    producer = await testbed.add_peer("P")
    other = testbed.address + b"0"
    unknown = new_address()
    testbed.trace.name_node(unknown, "P2")
    testbed.known_records.partition(unknown, testbed.topic)
    await testbed.publish(producer, 0, 0)
    about: dict[str, Value] = {"subject": testbed.topic, "sequence": 1, "content": b"for another"}
    await testbed.wait_subscribed(producer, "DIRECT-RECORD", other)
    for address, sequence in ((producer.address, 1), (unknown, 0)):
        fields: dict[str, Value] = about | {"address": address, "sequence": sequence}
        frames = testbed.grammar.formats.encode(Message("DIRECT-RECORD", other, fields), testbed.dialect)
        producer.send_frames(frames, "DIRECT-RECORD", "it is addressed to another node")
    head: dict[str, Value] = {"address": unknown, "subject": testbed.topic, "sequence": 7}
    await testbed.send(producer, "DIRECT-HEAD", other, **head)
    await _end_with_any_delivery(testbed, producer)
    text = "a DIRECT-RECORD that is addressed to another node was delivered"
    is_taken = any(delivery.content == b"for another" for delivery in testbed.delivered)
    testbed.check_clause("direct-record.requestor", not is_taken, text)
    text = "a DIRECT-HEAD that is addressed to another node caused a FETCH"
    testbed.check_clause("direct-record.requestor", not fetches(testbed, unknown), text)


async def _end_with_any_delivery(testbed: Testbed, producer: ScriptedPeer) -> None:
    """Publish a record after a gap as `end_with_gap` does, for a consumer that may have delivered a wrong record."""
    producer.add_records(4)
    producer.answers_requests = producer.sends_heads = True
    await testbed.publish(producer, 3, 3)
    await testbed.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    last = record_content(producer.address, 3)
    is_there = await testbed.wait(lambda: any(delivery.content == last for delivery in testbed.delivered))
    text = f"{testbed.trace.show(last)} was not delivered"
    require_clause_or_running(testbed, "delivery.complete", is_there, text, DELIVERY)
