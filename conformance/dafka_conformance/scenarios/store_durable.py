"""Store scenarios: durability after a kill, and resuming."""

from __future__ import annotations

from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._store import (
    acknowledges,
    ask_heads,
    fetch_back,
    save,
)
from dafka_conformance.targets.base import Ability
from dafka_conformance.testbed.known_records import Partition
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

_DURABLE_ROUNDS = 3
_DURABLE_RECORDS = 4000
_DURABLE_BATCH = 200
_DURABLE_CONTENT = b"." * 500


@SCENARIOS.add("store.durable", "ack.durable", needs={Ability.KILL})
async def durable(testbed: Testbed) -> None:
    """A store that is killed right after an ACK still has every record that it acknowledged."""
    consumer = await testbed.add_peer("C")
    for round_number in range(_DURABLE_ROUNDS):
        producer = await testbed.add_peer(f"P{round_number + 1}")
        partition = producer.partition
        for sequence in range(_DURABLE_RECORDS):
            partition.add(sequence, b"%d %b" % (sequence, _DURABLE_CONTENT))
        await testbed.wait_subscribed(producer, "RECORD", partition.topic)
        for first in range(0, _DURABLE_RECORDS, _DURABLE_BATCH):
            await producer.send_records(range(first, first + _DURABLE_BATCH))
        await testbed.expect("ACK", "ack.sent", acknowledges(partition, 0), what="ACK")
        await testbed.kill()
        await testbed.restart()
        await _check_durable(testbed, consumer, partition)


async def _check_durable(testbed: Testbed, consumer: ScriptedPeer, partition: Partition) -> None:
    """Check that all acknowledged records of a partition are still stored."""
    since = len(testbed.received)
    await ask_heads(testbed, consumer)
    await testbed.receive(
        "DIRECT-HEAD",
        lambda message: (message.topic, message["address"]) == (consumer.address, partition.address),
        since=since,
    )
    acked = max(each.get_number("sequence") for each in testbed.messages("ACK") if each.topic == partition.address)
    heads = [each for each in testbed.messages("DIRECT-HEAD", since) if each["address"] == partition.address]
    head = max((each.get_number("sequence") for each in heads), default=-1)
    has = f"has only 0..{head}" if head >= 0 else "has none of them"
    text = f"0..{acked} were acknowledged, but after a kill and a restart the store {has}"
    testbed.require_clause("ack.durable", head >= acked, text)
    await fetch_back(testbed, consumer, partition, 0, head, clause="ack.durable", seconds=20)


@SCENARIOS.add("store.resumes", "ack.durable", "fetch.sequence", "ack.sent", needs={Ability.KILL})
async def resumes(testbed: Testbed) -> None:
    """After a restart, a store has all its partitions and resumes each of them."""
    counts = (1, 5, 12)
    topics = (testbed.topic, testbed.topic, testbed.topic + b".other")
    producers = [await testbed.add_peer(f"P{number}", topic) for number, topic in enumerate(topics, 1)]
    consumer = await testbed.add_peer("C")
    for producer, count in zip(producers, counts, strict=True):
        await save(testbed, producer, 0, count - 1)
    await testbed.kill()
    await testbed.restart()
    await testbed.wait_subscribed(consumer, "GET-HEADS", testbed.topic)
    for topic in dict.fromkeys(topics):
        await ask_heads(testbed, consumer, topic)
    for producer, count in zip(producers, counts, strict=True):
        await _expect_head_kept(testbed, consumer, producer, count - 1)
        after = f" of {producer.label} after the store's restart"
        for first in (count - 1, 0):
            await fetch_back(testbed, consumer, producer.partition, first, count - 1, clause="ack.durable", after=after)
    since = len(testbed.received)
    for producer, count in zip(producers, counts, strict=True):
        producer.answers_requests = producer.sends_heads = True
        await testbed.wait_subscribed(producer, "RECORD", producer.topic)
        await producer.send_records(range(count, count + 3))
    for producer, count in zip(producers, counts, strict=True):
        wanted = count + 2
        what = f"ACK of {wanted} for {producer.label}, which continued after the store's restart,"
        await testbed.expect("ACK", "ack.sent", acknowledges(producer.partition, wanted), since=since, what=what)
        await fetch_back(testbed, consumer, producer.partition, 0, wanted)
    for received in [each for each in testbed.received if each.message.name == "FETCH"]:
        message = received.message
        count = next((each for each, own in zip(counts, producers, strict=True) if own.address == message.topic), 0)
        text = f"after its restart, the store fetched from {message.get_number('sequence')} on, although it had "
        text += f"acknowledged 0..{count - 1}"
        testbed.require_clause("fetch.sequence", message.get_number("sequence") >= count, text, received.event)


async def _expect_head_kept(testbed: Testbed, consumer: ScriptedPeer, producer: ScriptedPeer, head: int) -> None:
    """Check that the store still has the head that it had acknowledged before its restart."""
    partition = producer.partition
    found = await testbed.receive(
        "DIRECT-HEAD",
        lambda message: (message.topic, message["address"]) == (consumer.address, partition.address),
    )
    answer = f"the head {found.message.get_number('sequence')}" if found else "no head"
    text = f"0..{head} of {producer.label} were acknowledged, but after a kill and a restart the store sends {answer}"
    holds = found is not None and found.message["sequence"] == head
    testbed.require_clause("ack.durable", holds, testbed.exit_message(" after its restart") or text)
