"""What a store must do, where a script cannot say it: gaps, duplicates, greetings, durability."""

from __future__ import annotations

from functools import partial

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import Dialect
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._store import (
    acknowledges,
    answers,
    ask_heads,
    expect_head,
    fetch_back,
    own_address,
    save,
    say_fetch,
    say_head,
)
from dafka_conformance.stage.ledger import Partition
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.targets.base import Ability

SCENARIOS = Registry()

_BURST_RECORDS = 1000
_DURABLE_ROUNDS = 3
_DURABLE_RECORDS = 4000
_DURABLE_BATCH = 200
_DURABLE_CONTENT = b"." * 500
_SCATTERED = range(0, 40, 2)
_REPEATS = 3
_HELLO_TOPICS = 3
_LONG_TOPIC_OCTETS = 200
_PART_RECORDS = 100
_OTHER = b"another record's content"


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
    await save(stage, producer, 0, _BURST_RECORDS - 1)
    acked = {message["sequence"] for message in stage.all_heard("ACK") if message.topic == producer.address}
    reading = "each" if acked >= set(range(_BURST_RECORDS)) else "cumulative"
    stage.check("ack.cumulative", True, reading=reading)


@SCENARIOS.add("store.gap", "ack.no-gap", "fetch.sent", "fetch.sequence", "direct-head.last-offset", shares=True)
async def gap(stage: Stage) -> None:
    """A store asks for the records that are missing, and acknowledges and announces nothing beyond them till then."""
    producer, other, consumer = await stage.join("P"), await stage.join("P2"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, 2)
    producer.hold(10)
    await producer.say_records(range(6, 10))
    await _expect_fetch(stage, partition, 3, 5)
    # Whatever is to be said of the records beyond the gap has been, once later ones of another partition are saved.
    await save(stage, other, 0, 0)
    await ask_heads(stage, consumer)
    await expect_head(stage, consumer, partition, 2, "direct-head.last-offset")
    early = [
        heard for heard in stage.heard if heard.message.name == "ACK" and acknowledges(partition, 3)(heard.message)
    ]
    for heard in early[:1]:
        text = f"ACK of {heard.message.number('sequence')}, although 3..5 are missing"
        stage.require("ack.no-gap", False, text, heard.event)
    producer.answers = producer.beats = True
    await stage.expect("ACK", "ack.sent", acknowledges(partition, 9), what="ACK of 9, when the gap was filled,")
    await fetch_back(stage, consumer, partition, 0, 9)


@SCENARIOS.add("store.fetch-repeated", "fetch.repeated", shares=True)
async def fetch_repeated(stage: Stage) -> None:
    """While its FETCH is not answered and the producer goes on sending HEADs, a store asks again."""
    producer = await stage.join("P")
    producer.hold(6)
    partition = producer.partition
    await say_head(stage, producer, 5)
    await _expect_fetch(stage, partition, 0, 5)

    def times() -> int:
        fetches = [message for message in stage.all_heard("FETCH") if message.topic == producer.address]
        return sum(message["sequence"] == 0 for message in fetches)

    producer.beats = True
    is_repeated = await stage.wait(lambda: times() >= 3, 12)
    text = f"FETCH of 0..5 was sent {times()} times, then no more, although it was not answered and HEADs of 5 went on"
    stage.require("fetch.repeated", is_repeated, text)
    producer.answers = True
    await stage.expect(
        "ACK", "fetch.repeated", acknowledges(partition, 5), seconds=12, what="ACK of 5, with FETCHes answered again,"
    )


@SCENARIOS.add("store.duplicates", "nodes.duplicate-record", shares=True)
async def duplicates(stage: Stage) -> None:
    """Of a record that comes again with another content, a store keeps the copy that came first."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, 4)
    address = await own_address(stage, producer, "DIRECT-RECORD", "subscription.store.direct-record")
    for name, topic in (("RECORD", partition.topic), ("DIRECT-RECORD", address)):
        for sequence in range(5):
            _say_record(producer, name, topic, sequence, _OTHER)
    await producer.say_records([5])
    _say_record(producer, "RECORD", partition.topic, 5, _OTHER)
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


@SCENARIOS.add("store.many-fetches", "direct-record.sent", shares=True)
async def many_fetches(stage: Stage) -> None:
    """FETCHes of one consumer, sent at once for different parts of a partition, are all answered."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, _SCATTERED[-1])
    await stage.reach(consumer, "FETCH", partition.address)
    for sequence in _SCATTERED:
        say_fetch(consumer, partition, sequence, 1)

    def missing() -> set[int]:
        return set(_SCATTERED) - {heard.message.number("sequence") for heard in answers(stage, consumer, partition)}

    await stage.wait(lambda: not missing())
    text = f"of {len(_SCATTERED)} FETCHes of one record each, sent at once, those of {sorted(missing())} got no answer"
    stage.require("direct-record.sent", not missing(), text)


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


@SCENARIOS.add("store.partner", "fetch.sent", "fetch.sequence", shares=True)
async def partner(stage: Stage) -> None:
    """What its producer does not answer, a store takes from another store."""
    producer, store, consumer = await stage.join("P"), await stage.join("S2"), await stage.join("C")
    partition = producer.partition
    producer.hold(6)
    store.hold(6, partition)
    store.answers = True
    await producer.say_records([5])
    await _expect_fetch(stage, partition, 0, 4)
    await stage.expect("ACK", "ack.sent", acknowledges(partition, 5), what="ACK of 5")
    stage.leave("P")
    await fetch_back(stage, consumer, partition, 0, 5)


@SCENARIOS.add("store.others-answers", "direct-record.requestor", shares=True)
async def others_answers(stage: Stage) -> None:
    """A store pays no heed to DIRECT-RECORDs and DIRECT-HEADs that are for another store."""
    producer, store, consumer = await stage.join("P"), await stage.join("S2"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, 0)
    about = {"address": producer.address, "subject": producer.topic}
    for sequence in (1, 2):
        message = Message("DIRECT-RECORD", store.address, {**about, "sequence": sequence, "content": _OTHER})
        producer.say_frames(stage.grammar.formats.encode(message, stage.dialect), message.name, "for another store")
    message = Message("DIRECT-HEAD", store.address, {**about, "sequence": 99})
    producer.say_frames(stage.grammar.formats.encode(message, stage.dialect), message.name, "for another store")
    await save(stage, producer, 1, 2)
    for heard in await fetch_back(stage, consumer, partition, 0, 2):
        number = heard.message.number("sequence")
        text = f"DIRECT-RECORD {number}, which was for another store, was stored"
        holds = heard.message["content"] == partition.contents[number]
        stage.require("direct-record.requestor", holds, text, heard.event)
    strange = [each for each in stage.all_heard("FETCH") if each.topic == producer.address]
    text = "a FETCH came because of a DIRECT-HEAD that was for another store"
    stage.require("direct-record.requestor", not strange, text)


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


@SCENARIOS.add("store.heads-again", "direct-head.store", "direct-head.last-offset", shares=True)
async def heads_again(stage: Stage) -> None:
    """Each time that it is asked, a store tells the present head of a partition, once."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.partition
    for times in range(1, _REPEATS + 1):
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
        text = f"asked for the heads of its topic for the {_nth(times)} time, C was sent {len(told)} DIRECT-HEADs"
        text += " for one partition"
        stage.require("direct-head.store", len(told) == 1, text, told[-1].event if told else None)
        found = told[0].message.number("sequence")
        text = f"DIRECT-HEAD has the offset {found}, although {partition.head} was acknowledged before it was asked for"
        stage.require("direct-head.last-offset", found == partition.head, text, told[0].event)


@SCENARIOS.add("store.fetched-again", "direct-record.sent", shares=True)
async def fetched_again(stage: Stage) -> None:
    """A FETCH that is sent again is answered again: the first answer may have been lost."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    await save(stage, producer, 0, 4)
    for times in range(1, _REPEATS + 1):
        after = f" for the {_nth(times)} time"
        await fetch_back(stage, consumer, producer.partition, 0, 4, after=after)


@SCENARIOS.add("store.fetches-at-once", "direct-record.sent", "topic.DIRECT-RECORD", shares=True)
async def fetches_at_once(stage: Stage) -> None:
    """Consumers that fetch the same partitions at the same time are each sent everything that they asked for."""
    producers = [await stage.join("P1"), await stage.join("P2")]
    consumers = [await stage.join(f"C{number}") for number in range(1, 4)]
    for producer in producers:
        await save(stage, producer, 0, _BURST_RECORDS - 1)
    for consumer in consumers:
        for producer in producers:
            await stage.reach(consumer, "FETCH", producer.address)
    parts = [(number * _PART_RECORDS, _BURST_RECORDS - 2 * number * _PART_RECORDS) for number in range(len(consumers))]
    for producer in producers:
        for consumer, (first, count) in zip(consumers, parts, strict=True):
            say_fetch(consumer, producer.partition, first, count)

    def missing(consumer: Peer, producer: Peer, first: int, count: int) -> set[int]:
        found = {heard.message.number("sequence") for heard in answers(stage, consumer, producer.partition)}
        return set(range(first, first + count)) - found

    for producer in producers:
        for consumer, (first, count) in zip(consumers, parts, strict=True):
            await stage.wait(lambda args=(consumer, producer, first, count): not missing(*args))  # type: ignore[misc]
            lacking = missing(consumer, producer, first, count)
            text = f"of the records {first}..{first + count - 1} of {producer.label}, {len(lacking)} were not sent to "
            text += f"{consumer.label}, while {len(consumers) - 1} others fetched them, too"
            stage.require("direct-record.sent", not lacking, text)


@SCENARIOS.add("store.overlapping-fetches", "direct-record.sent", shares=True)
async def overlapping_fetches(stage: Stage) -> None:
    """FETCHes of one consumer that overlap, sent at once, are all answered: no record that they ask for is left out."""
    producer, consumer = await stage.join("P"), await stage.join("C")
    partition = producer.partition
    await save(stage, producer, 0, 29)
    await stage.reach(consumer, "FETCH", partition.address)
    asked = [(10, 10), (15, 10), (12, 2), (5, 7), (0, 3), (20, 10)]
    for first, count in asked:
        say_fetch(consumer, partition, first, count)
    wanted = {sequence for first, count in asked for sequence in range(first, first + count)}

    def missing() -> set[int]:
        return wanted - {heard.message.number("sequence") for heard in answers(stage, consumer, partition)}

    await stage.wait(lambda: not missing())
    shown = ", ".join(f"{first}..{first + count - 1}" for first, count in asked)
    text = f"of the records that overlapping FETCHes asked for ({shown}), {sorted(missing())} were not sent"
    stage.require("direct-record.sent", not missing(), text)


@SCENARIOS.add("store.gaps", "fetch.sent", "fetch.sequence", "ack.no-gap", shares=True)
async def gaps(stage: Stage) -> None:
    """A store closes several gaps, in several partitions of a topic at once."""
    producers = [await stage.join(f"P{number}") for number in range(1, 4)]
    consumer = await stage.join("C")
    for number, producer in enumerate(producers):
        await save(stage, producer, 0, number)
        producer.hold(20)
        producer.answers = producer.beats = True
    for producer in producers:
        for first, last in ((5, 6), (9, 9), (15, 19)):
            await producer.say_records(range(first, last + 1))
    for producer in producers:
        text = f"ACK of 19 for {producer.label}, of which 0..2, 5..6, 9 and 15..19 were sent at first,"
        await stage.expect("ACK", "fetch.sent", acknowledges(producer.partition, 19), what=text)
    for producer in producers:
        await fetch_back(stage, consumer, producer.partition, 0, 19)


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


def _nth(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _is_to(address: bytes, message: Message) -> bool:
    return message.topic == address


def _say_record(producer: Peer, name: str, topic: bytes, sequence: int, content: bytes) -> None:
    values: dict[str, Value] = {"address": producer.address, "subject": producer.topic, "sequence": sequence}
    producer.say(name, topic, {**values, "content": content})


async def _expect_fetch(stage: Stage, partition: Partition, first: int, last: int) -> None:
    """The store asks for these records, the first FETCH beginning with the first of them."""

    def is_of_partition(message: Message) -> bool:
        return message.topic == partition.address

    fetch = await stage.expect("FETCH", "fetch.sent", is_of_partition, what=f"FETCH of {first}..{last}")
    found = fetch.message.number("sequence")
    text = f"FETCH begins with {found}, the first record that is missing is {first}"
    stage.require("fetch.sequence", found == first, text, fetch.event)

    def uncovered() -> set[int]:
        missing = set(range(first, last + 1))
        for message in filter(is_of_partition, stage.all_heard("FETCH")):
            sequence = message.number("sequence")
            missing -= set(range(max(sequence, first), min(sequence + message.number("count"), last + 1)))
        return missing

    await stage.wait(lambda: not uncovered())
    text = f"of the missing records {first}..{last}, no FETCH asks for {sorted(uncovered())}"
    stage.require("fetch.sent", not uncovered(), text, fetch.event)
