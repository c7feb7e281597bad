"""What a store must do, where a script cannot say it: subscriptions, acknowledging, greetings, heads."""

from __future__ import annotations

from functools import partial

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import Dialect
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._store import (
    BURST_RECORDS,
    OTHER_CONTENT,
    REPEATS,
    ask_heads,
    expect_head,
    fetch_back,
    nth,
    own_address,
    save,
)
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage

SCENARIOS = Registry()

_HELLO_TOPICS = 3
_LONG_TOPIC_OCTETS = 200


@SCENARIOS.add(
    "store.subscriptions",
    "subscription.registered",
    "subscription.store.record",
    "subscription.store.head",
    "subscription.store.direct-record",
    "subscription.store.fetch",
    "subscription.store.get-heads",
    "subscription.store.consumer-hello",
)
async def subscriptions(stage: Stage) -> None:
    """A store subscribes to everything that concerns it."""
    peer = await stage.join("C")
    addresses = set(stage.nodes)
    ids = {name: stage.grammar.formats.id_of(name) for name in stage.grammar.formats.by_name}
    wanted = {name: {ids[name]} for name in ("RECORD", "HEAD", "FETCH", "GET-HEADS")}
    wanted["DIRECT-RECORD"] = {ids["DIRECT-RECORD"] + address for address in addresses}
    wanted["CONSUMER-HELLO"] = {ids["CONSUMER-HELLO"] + address for address in addresses}
    if stage.dialect is Dialect.RFC46:
        wanted["CONSUMER-HELLO"] = {ids["CONSUMER-HELLO"]}
    else:
        wanted["CONSUMER-HELLO"].add(ids["CONSUMER-HELLO"])

    def has(name: str) -> bool:
        return any(peer.subscriptions[prefix] > 0 for prefix in wanted[name])

    await stage.wait(lambda: all(map(has, wanted)))
    for name, prefixes in wanted.items():
        shown = " or ".join(sorted(stage.trace.show(prefix) for prefix in prefixes))
        text = f"the store has no subscription for {name}: expected {shown}"
        stage.check(f"subscription.store.{name.lower()}", has(name), text)
    missing = [name for name in wanted if not has(name)]
    stage.check("subscription.registered", not missing, f"the store does not subscribe to {', '.join(missing)}")


@SCENARIOS.add("store.ack-reading", "ack.cumulative", "ack.sent", shares=True)
async def ack_reading(stage: Stage) -> None:
    """Of a thousand records, a store acknowledges each, or several with one ACK: the last one is acknowledged."""
    producer = await stage.join("P")
    await save(stage, producer, 0, BURST_RECORDS - 1)
    acked = {message["sequence"] for message in stage.all_heard("ACK") if message.topic == producer.address}
    reading = "each" if acked >= set(range(BURST_RECORDS)) else "cumulative"
    stage.check("ack.cumulative", True, reading=reading)


@SCENARIOS.add("store.duplicates", "nodes.duplicate-record", shares=True)
async def duplicates(stage: Stage) -> None:
    """Of a record that comes again with another content, a store keeps the copy that came first."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, 4)
    address = await own_address(stage, producer, "DIRECT-RECORD", "subscription.store.direct-record")
    for name, topic in (("RECORD", partition.topic), ("DIRECT-RECORD", address)):
        for sequence in range(5):
            _say_record(producer, name, topic, sequence, OTHER_CONTENT)
    await producer.say_records([5])
    _say_record(producer, "RECORD", partition.topic, 5, OTHER_CONTENT)
    await save(stage, producer, 6, 6)
    for heard in await fetch_back(stage, consumer, partition, 0, 6):
        number = heard.message.number("sequence")
        text = f"record {number} was overwritten by a second one with that sequence"
        holds = heard.message["content"] == partition.contents[number]
        stage.require("nodes.duplicate-record", holds, text, heard.event)


@SCENARIOS.add("store.hello", "store-hello.sent", "direct-head.store", shares=True)
async def hello(stage: Stage) -> None:
    """A store greets a consumer, and tells it of the heads of the topics that it answers with."""
    topics = [b"%b.hello-%d" % (stage.topic, number) for number in range(4)]
    topics[_HELLO_TOPICS - 1] += b"." * (_LONG_TOPIC_OCTETS - len(topics[_HELLO_TOPICS - 1]))
    producers = [await stage.join(f"P{number + 1}", topic) for number, topic in enumerate(topics)]
    for number, producer in enumerate(producers):
        await save(stage, producer, 0, number)
    consumer = await stage.join("C", topics[0])
    greeting = await stage.expect(
        "STORE-HELLO", "store-hello.sent", lambda message: message.topic == consumer.address, what="STORE-HELLO to C"
    )
    store = greeting.message.octets("address")
    await stage.say(consumer, "CONSUMER-HELLO", store, address=consumer.address, subjects=tuple(topics[:_HELLO_TOPICS]))
    for number in range(_HELLO_TOPICS):
        await expect_head(stage, consumer, producers[number].partition, number, "direct-head.store")
    others = [each for each in stage.all_heard("DIRECT-HEAD") if each.topic == consumer.address]
    strange = [each for each in others if each["address"] == producers[_HELLO_TOPICS].address]
    text = "DIRECT-HEAD of a topic that the CONSUMER-HELLO did not name"
    stage.require("direct-head.store", not strange, text)


@SCENARIOS.add(
    "store.hello-again",
    "store-hello.sent",
    "grammar.STORE-HELLO",
    "topic.STORE-HELLO",
    "store-hello.address",
    shares=True,
)
async def hello_again(stage: Stage) -> None:
    """A store greets each consumer that subscribes, by the consumer's own address."""
    for number in range(2, 5):
        address = (await stage.join(f"C{number}")).address
        await stage.expect(
            "STORE-HELLO", "store-hello.sent", partial(_is_to, address), what=f"STORE-HELLO to C{number}"
        )


@SCENARIOS.add(
    "store.vanished-producer", "robust.vanished-peer", "direct-record.sent", "direct-head.store", shares=True
)
async def vanished_producer(stage: Stage) -> None:
    """The records of a producer that has vanished are served to a consumer that comes later."""
    producer = await stage.join("P")
    partition = producer.partition
    await save(stage, producer, 0, 99)
    stage.leave("P")
    consumer = await stage.join("C")
    await ask_heads(stage, consumer)
    await expect_head(stage, consumer, partition, 99, "direct-head.store")
    await fetch_back(stage, consumer, partition, 0, 99)
    stage.check_alive("robust.vanished-peer")


@SCENARIOS.add("store.heads-again", "direct-head.store", "direct-head.last-offset", shares=True)
async def heads_again(stage: Stage) -> None:
    """Each time that it is asked, a store tells the present head of a partition, once."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.partition
    for times in range(1, REPEATS + 1):
        await save(stage, producer, partition.head + 1, partition.head + 2)
        since = len(stage.heard)
        await ask_heads(stage, consumer)
        # The answer to what is asked later, on the same connection, comes behind all that there are.
        await fetch_back(stage, consumer, partition, partition.head, partition.head)
        await fetch_back(stage, consumer, partition, 0, 0)
        told = [
            heard
            for heard in stage.heard[since:]
            if heard.message.name == "DIRECT-HEAD" and heard.message.topic == consumer.address
        ]
        text = f"asked for the heads of its topic for the {nth(times)} time, C was sent {len(told)} DIRECT-HEADs"
        text += " for one partition"
        stage.require("direct-head.store", len(told) == 1, text, told[-1].event if told else None)
        found = told[0].message.number("sequence")
        text = f"DIRECT-HEAD has the offset {found}, although {partition.head} was acknowledged before it was asked for"
        stage.require("direct-head.last-offset", found == partition.head, text, told[0].event)


def _is_to(address: bytes, message: Message) -> bool:
    return message.topic == address


def _say_record(producer: Peer, name: str, topic: bytes, sequence: int, content: bytes) -> None:
    values: dict[str, Value] = {"address": producer.address, "subject": producer.topic, "sequence": sequence}
    producer.say(name, topic, {**values, "content": content})
