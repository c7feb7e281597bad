"""Store scenarios: subscriptions, acknowledgments, hellos and heads."""

from __future__ import annotations

from functools import partial

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import Dialect
from dafka_conformance.scenario import ScenarioRegistry
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
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

_HELLO_TOPICS = 3
_LONG_TOPIC_BYTES = 200


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
async def subscriptions(testbed: Testbed) -> None:
    """A store subscribes to all messages that it must receive."""
    peer = await testbed.add_peer("C")
    addresses = set(testbed.nodes)
    ids = {name: testbed.grammar.formats.id_of(name) for name in testbed.grammar.formats.by_name}
    wanted = {name: {ids[name]} for name in ("RECORD", "HEAD", "FETCH", "GET-HEADS")}
    wanted["DIRECT-RECORD"] = {ids["DIRECT-RECORD"] + address for address in addresses}
    wanted["CONSUMER-HELLO"] = {ids["CONSUMER-HELLO"] + address for address in addresses}
    if testbed.dialect is Dialect.RFC46:
        wanted["CONSUMER-HELLO"] = {ids["CONSUMER-HELLO"]}
    else:
        wanted["CONSUMER-HELLO"].add(ids["CONSUMER-HELLO"])

    def has(name: str) -> bool:
        return any(peer.subscriptions[prefix] > 0 for prefix in wanted[name])

    await testbed.wait(lambda: all(map(has, wanted)))
    for name, prefixes in wanted.items():
        shown = " or ".join(sorted(testbed.trace.show(prefix) for prefix in prefixes))
        text = f"the store has no subscription for {name}: expected {shown}"
        testbed.check_clause(f"subscription.store.{name.lower()}", has(name), text)
    missing = [name for name in wanted if not has(name)]
    testbed.check_clause(
        "subscription.registered", not missing, f"the store does not subscribe to {', '.join(missing)}"
    )


@SCENARIOS.add("store.ack-reading", "ack.cumulative", "ack.sent", shares_target=True)
async def ack_reading(testbed: Testbed) -> None:
    """A store acknowledges the last of a thousand records, with one ACK for each or for several."""
    producer = await testbed.add_peer("P")
    await save(testbed, producer, 0, BURST_RECORDS - 1)
    acked = {message["sequence"] for message in testbed.messages("ACK") if message.topic == producer.address}
    reading = "each" if acked >= set(range(BURST_RECORDS)) else "cumulative"
    testbed.check_clause("ack.cumulative", True, reading=reading)


@SCENARIOS.add("store.duplicates", "nodes.duplicate-record", shares_target=True)
async def duplicates(testbed: Testbed) -> None:
    """A store that receives a sequence again with another content keeps the first copy."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    partition = producer.partition
    await save(testbed, producer, 0, 4)
    address = await own_address(testbed, producer, "DIRECT-RECORD", "subscription.store.direct-record")
    for name, topic in (("RECORD", partition.topic), ("DIRECT-RECORD", address)):
        for sequence in range(5):
            _say_record(producer, name, topic, sequence, OTHER_CONTENT)
    await producer.send_records([5])
    _say_record(producer, "RECORD", partition.topic, 5, OTHER_CONTENT)
    await save(testbed, producer, 6, 6)
    for received in await fetch_back(testbed, consumer, partition, 0, 6):
        number = received.message.get_number("sequence")
        text = f"record {number} was overwritten by a second one with that sequence"
        holds = received.message["content"] == partition.contents[number]
        testbed.require_clause("nodes.duplicate-record", holds, text, received.event)


@SCENARIOS.add("store.hello", "store-hello.sent", "direct-head.store", shares_target=True)
async def hello(testbed: Testbed) -> None:
    """A store sends a STORE-HELLO to a consumer, and the heads of the topics in the CONSUMER-HELLO."""
    topics = [b"%b.hello-%d" % (testbed.topic, number) for number in range(4)]
    topics[_HELLO_TOPICS - 1] += b"." * (_LONG_TOPIC_BYTES - len(topics[_HELLO_TOPICS - 1]))
    producers = [await testbed.add_peer(f"P{number + 1}", topic) for number, topic in enumerate(topics)]
    for number, producer in enumerate(producers):
        await save(testbed, producer, 0, number)
    consumer = await testbed.add_peer("C", topics[0])
    greeting = await testbed.expect(
        "STORE-HELLO", "store-hello.sent", lambda message: message.topic == consumer.address, what="STORE-HELLO to C"
    )
    store = greeting.message.get_bytes("address")
    await testbed.send(
        consumer, "CONSUMER-HELLO", store, address=consumer.address, subjects=tuple(topics[:_HELLO_TOPICS])
    )
    for number in range(_HELLO_TOPICS):
        await expect_head(testbed, consumer, producers[number].partition, number, "direct-head.store")
    others = [each for each in testbed.messages("DIRECT-HEAD") if each.topic == consumer.address]
    strange = [each for each in others if each["address"] == producers[_HELLO_TOPICS].address]
    text = "DIRECT-HEAD of a topic that is not in the CONSUMER-HELLO"
    testbed.require_clause("direct-head.store", not strange, text)


@SCENARIOS.add(
    "store.hello-again",
    "store-hello.sent",
    "grammar.STORE-HELLO",
    "topic.STORE-HELLO",
    "store-hello.address",
    shares_target=True,
)
async def hello_again(testbed: Testbed) -> None:
    """A store sends a STORE-HELLO to each consumer that subscribes, addressed to the consumer."""
    for number in range(2, 5):
        address = (await testbed.add_peer(f"C{number}")).address
        await testbed.expect(
            "STORE-HELLO", "store-hello.sent", partial(_is_to, address), what=f"STORE-HELLO to C{number}"
        )


@SCENARIOS.add(
    "store.vanished-producer", "robust.vanished-peer", "direct-record.sent", "direct-head.store", shares_target=True
)
async def vanished_producer(testbed: Testbed) -> None:
    """The records of a producer that has disappeared are served to a consumer that joins later."""
    producer = await testbed.add_peer("P")
    partition = producer.partition
    await save(testbed, producer, 0, 99)
    testbed.remove_peer("P")
    consumer = await testbed.add_peer("C")
    await ask_heads(testbed, consumer)
    await expect_head(testbed, consumer, partition, 99, "direct-head.store")
    await fetch_back(testbed, consumer, partition, 0, 99)
    testbed.check_running("robust.vanished-peer")


@SCENARIOS.add("store.heads-again", "direct-head.store", "direct-head.last-offset", shares_target=True)
async def heads_again(testbed: Testbed) -> None:
    """A store answers each GET-HEADS once, with the current head of a partition."""
    producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
    partition = producer.partition
    for times in range(1, REPEATS + 1):
        await save(testbed, producer, partition.head + 1, partition.head + 2)
        since = len(testbed.received)
        await ask_heads(testbed, consumer)
        # A later request on the same connection is answered after all the heads.
        await fetch_back(testbed, consumer, partition, partition.head, partition.head)
        await fetch_back(testbed, consumer, partition, 0, 0)
        heads = [
            received
            for received in testbed.received[since:]
            if received.message.name == "DIRECT-HEAD" and received.message.topic == consumer.address
        ]
        text = f"for the {nth(times)} GET-HEADS, C was sent {len(heads)} DIRECT-HEADs"
        text += " for one partition"
        testbed.require_clause("direct-head.store", len(heads) == 1, text, heads[-1].event if heads else None)
        found = heads[0].message.get_number("sequence")
        text = f"DIRECT-HEAD has the offset {found}, although {partition.head} was acknowledged before the GET-HEADS"
        testbed.require_clause("direct-head.last-offset", found == partition.head, text, heads[0].event)


def _is_to(address: bytes, message: Message) -> bool:
    return message.topic == address


def _say_record(producer: ScriptedPeer, name: str, topic: bytes, sequence: int, content: bytes) -> None:
    values: dict[str, Value] = {"address": producer.address, "subject": producer.topic, "sequence": sequence}
    producer.send(name, topic, {**values, "content": content})
