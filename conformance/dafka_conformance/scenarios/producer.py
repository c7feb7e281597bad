"""What a producer must publish, as far as scripts cannot say it: RECORDs and HEADs."""

from __future__ import annotations

from itertools import pairwise

import trio

from dafka_conformance.grammar import Value
from dafka_conformance.model import Role
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._nodes import MIB, SERIES_MAX, is_regular, until_dropped
from dafka_conformance.scenarios._producer import FED, expect_answer, expect_content, fetch, publish, publish_numbered
from dafka_conformance.stage.ledger import content_of
from dafka_conformance.stage.stage import Stage
from dafka_conformance.targets.base import Ability, Request

SCENARIOS = Registry()

HEAD_INTERVAL_MAX_S = 10.0
BEFORE_FIRST_RECORD_S = 2.0
PUBLISHING_PAUSE_S = 0.05
"""Between two records of a producer that publishes all the time: much less than any interval of HEADs."""
LOAD_COUNT = 100_000
LOAD_BATCH_COUNT = 10_000
LOAD_S = 60.0
LARGE_S = 30.0

ODD_TOPIC = bytes(octet for octet in range(1, 256) if octet not in b"\n\r")[:200]
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
async def records(stage: Stage) -> None:
    """A producer publishes what it is given, in order, as RECORDs of one partition, which has its address as a name."""
    contents = [b"first", b"second " * 20, b"", b"last"]
    await publish(stage, contents[:3])
    await publish(stage, contents[3:])
    messages = stage.all_heard("RECORD")
    text = f"{len(messages)} RECORDs were published of {len(contents)} records"
    stage.require("record.command", len(messages) == len(contents), text)
    partitions = {message.octets("address") for message in messages}
    stage.check("partition.one", len(partitions) == 1, f"the records are in {len(partitions)} partitions")
    text = "the partition is not named by the producer's address, which its beacons tell"
    stage.check("partition.name", partitions <= set(stage.nodes), text)
    for message, content in zip(messages, contents, strict=True):
        expect_content(stage, message, content)


@SCENARIOS.add("producer.two", "partition.single-writer", needs=FED)
async def two_producers(stage: Stage) -> None:
    """No two producers have the same partition, neither at the same time nor one after the other."""
    nodes = stage.target.node_counts.get(Role.PRODUCER, 1)
    for number, what in enumerate(["at the same time", "after another had ended"], 2):
        folder = stage.folder / f"producer-{number}"
        folder.mkdir()
        introductions = stage.introductions
        request = Request(
            Role.PRODUCER,
            stage.dialect,
            introductions.sub_endpoint,
            introductions.pub_endpoint,
            stage.topic,
            folder,
        )
        stage.trace.note(f"another producer is started, {what}")
        async with stage.target.start(request):
            is_there = await stage.wait(lambda expected=number * nodes: len(stage.nodes) >= expected)  # type: ignore[misc]
        text = f"a producer that was started {what} has the same address: both write the same partition"
        stage.require("partition.single-writer", is_there, text)


@SCENARIOS.add("producer.contents", "record.any-size", "direct-record.content", needs=FED, shares=True)
async def contents_of_any_octets(stage: Stage) -> None:
    """Contents may be empty, and hold any octets; they go out, and are sent again, as they were given."""
    octets = bytes(octet for octet in range(256) if octet not in b"\n\r") + b"."
    contents = [b"", octets, b"\0", b"\0" * 1000 + b".", b"", b"x" * MIB]
    first = await publish(stage, contents)
    for message, content in zip(stage.all_heard("RECORD"), contents, strict=True):
        expect_content(stage, message, content)
    store = await stage.join("S")
    place = await fetch(stage, store, first, len(contents))
    await expect_answer(stage, store, "direct-record.sent", first, len(contents), place)


@SCENARIOS.add("producer.large-content", "record.any-size", needs=FED, is_heavy=True)
async def large_content(stage: Stage) -> None:
    """A record's content may have 64 MiB. A producer may wait for its ACK before it publishes more."""
    content = b"abcdefgh" * (8 * MIB)
    store = await stage.join("S")
    about: dict[str, Value] = {"address": store.address, "subject": stage.topic}
    with trio.move_on_after(LARGE_S * stage.patience):
        await stage.feed([content, b"after"])
    for sequence, expected in enumerate([content, b"after"]):
        heard = await stage.hear("RECORD", lambda message, n=sequence: message["sequence"] == n, seconds=LARGE_S)  # type: ignore[misc]
        text = f"a record of {len(expected):,} octets was not published"
        stage.require("record.any-size", heard is not None, text)
        assert heard is not None
        stage.check_alive("record.any-size")
        expect_content(stage, heard.message, expected)
        await stage.say(store, "ACK", stage.address, **about, sequence=sequence)


async def _publish_on(stage: Stage, clause: str) -> None:
    first = await publish_numbered(stage, 3)
    message = stage.all_heard("RECORD")[0]
    text = f"the topic frame of RECORD has {stage.trace.show(message.topic)}, not {stage.trace.show(stage.topic)}"
    stage.require(clause, message.topic == stage.topic == message["subject"], text)
    store = await stage.join("S")
    place = await fetch(stage, store, first, 3)
    await expect_answer(stage, store, "direct-record.sent", first, 3, place)
    stage.check(clause, True)


@SCENARIOS.add("producer.odd-topic", "topic.any-octets", needs=(*FED, Ability.CHOOSE_TOPIC), topic=ODD_TOPIC)
async def odd_topic(stage: Stage) -> None:
    """A topic's name may hold any octets: control characters, and what is not UTF-8."""
    await _publish_on(stage, "topic.any-octets")


@SCENARIOS.add("producer.long-topic", "topic.length", needs=(*FED, Ability.CHOOSE_TOPIC), topic=LONG_TOPIC)
async def long_topic(stage: Stage) -> None:
    """A topic's name may have 255 octets."""
    await _publish_on(stage, "topic.length")


@SCENARIOS.add("producer.load", "record.command", "sequence.increment", "head.last-offset", needs=FED, is_heavy=True)
async def load(stage: Stage) -> None:
    """100,000 records go out, each of them and in order, while a store acknowledges them now and then."""
    store = await stage.join("S")
    contents = [content_of(stage.address, sequence) for sequence in range(LOAD_COUNT)]
    with trio.move_on_after(LOAD_S * stage.patience) as scope:
        for start in range(0, LOAD_COUNT, LOAD_BATCH_COUNT):
            await stage.feed(contents[start : start + LOAD_BATCH_COUNT])
            published = stage.watch.published(stage.address)
            if published:
                about: dict[str, Value] = {"address": store.address, "subject": stage.topic}
                await stage.say(store, "ACK", stage.address, **about, sequence=published - 1)
    published = stage.watch.published(stage.address)
    stage.require(
        "record.command", not scope.cancelled_caught, f"after {LOAD_S:g} s it had taken {published:,} records"
    )
    await stage.wait(lambda: stage.watch.published(stage.address) >= LOAD_COUNT, LOAD_S)
    messages = stage.all_heard("RECORD")
    text = f"{len(messages):,} RECORDs were published of {LOAD_COUNT:,} records"
    stage.require("record.command", len(messages) == LOAD_COUNT, text)
    for message, content in zip(messages, contents, strict=True):
        if message["content"] != content:
            expect_content(stage, message, content)
    stage.check_alive("record.command")


# Heads


@SCENARIOS.add("producer.heads-at-intervals", "head.interval", "head.after-first-record", "topic.HEAD", needs=FED)
async def heads_at_intervals(stage: Stage) -> None:
    """From the first record on, and not before, a producer sends HEADs at a regular interval."""
    await stage.join("C")
    await trio.sleep(BEFORE_FIRST_RECORD_S)
    stage.require("head.after-first-record", not stage.all_heard("HEAD"), "HEAD was sent before the first RECORD")
    await publish_numbered(stage, 3)
    for _ in range(SERIES_MAX):
        gaps = await _gaps_between_heads(stage)
        if is_regular(gaps):
            break
    shown = ", ".join(f"{gap:.1f} s" for gap in gaps)
    stage.check("head.interval", is_regular(gaps), f"HEADs came after {shown}: not at a regular interval")


async def _gaps_between_heads(stage: Stage) -> list[float]:
    """The seconds between five HEADs, from the next one on."""
    times = []
    place = len(stage.heard)
    for which in ("first", "second", "third", "fourth", "fifth"):
        heard = await stage.hear("HEAD", since=place, seconds=HEAD_INTERVAL_MAX_S)
        text = f"no {which} HEAD came within {HEAD_INTERVAL_MAX_S * stage.patience:g} s"
        stage.require("head.interval", heard is not None, text)
        assert heard is not None
        times.append(heard.at)
        place = stage.heard.index(heard, place) + 1
    return [after - before for before, after in pairwise(times)]


@SCENARIOS.add("producer.head-of-last-record", "head.last-offset", "head.address", "head.interval", needs=FED)
async def head_of_last_record(stage: Stage) -> None:
    """A HEAD tells the sequence of the record that was published last, also when more have been published since."""
    for count in (4, 3):
        await publish_numbered(stage, count)
        place = len(stage.heard)
        last = stage.watch.published(stage.address) - 1
        heard = await stage.hear("HEAD", since=place, seconds=HEAD_INTERVAL_MAX_S)
        text = f"no HEAD came within {HEAD_INTERVAL_MAX_S * stage.patience:g} s after record {last}"
        stage.require("head.interval", heard is not None, text)
        assert heard is not None
        text = f"HEAD has the offset {heard.message.number('sequence')}, the last published record's is {last}"
        stage.require("head.last-offset", heard.message["sequence"] == last, text, heard.event)


async def _expect_head(stage: Stage, when: str, since: int) -> None:
    """A HEAD comes; that it tells the last record, the watch sees to. Raises `UnmetError`."""
    heard = await stage.hear("HEAD", since=since, seconds=HEAD_INTERVAL_MAX_S)
    text = f"no HEAD came within {HEAD_INTERVAL_MAX_S * stage.patience:g} s {when}"
    stage.require("head.interval", stage.died() == "" and heard is not None, stage.died() or text)


@SCENARIOS.add("producer.head-of-acknowledged", "head.interval", "head.last-offset", needs=FED)
async def head_of_acknowledged(stage: Stage) -> None:
    """HEADs begin with a single record, and go on when all that was published, or some of it, is acknowledged."""
    await publish_numbered(stage, 1)
    await _expect_head(stage, "after the first record", 0)
    store = await stage.join("S")
    about: dict[str, Value] = {"address": store.address, "subject": stage.topic}
    await stage.say(store, "ACK", stage.address, **about, sequence=0)
    # The first HEAD may have been said before the ACK was heard.
    for _ in range(2):
        await _expect_head(stage, "after the ACK of all that was published", len(stage.heard))
    await publish_numbered(stage, 4)
    await stage.say(store, "ACK", stage.address, **about, sequence=2)
    for _ in range(2):
        await _expect_head(stage, "after the ACK of some of what was published", len(stage.heard))


@SCENARIOS.add("producer.head-while-publishing", "head.interval", "head.last-offset", needs=FED)
async def head_while_publishing(stage: Stage) -> None:
    """A producer that publishes all the time says HEADs, too: records do not put them off."""
    await publish_numbered(stage, 1)
    count, place = 1, len(stage.heard)
    with trio.move_on_after(HEAD_INTERVAL_MAX_S * stage.patience):
        while not stage.all_heard("HEAD", place):
            await stage.feed([content_of(stage.address, count)])
            count += 1
            await trio.sleep(PUBLISHING_PAUSE_S)
    text = (
        f"no HEAD came within {HEAD_INTERVAL_MAX_S * stage.patience:g} s, "
        f"while a record was published each {PUBLISHING_PAUSE_S:g} s"
    )
    stage.check_alive("head.interval")
    stage.require("head.interval", bool(stage.all_heard("HEAD", place)), text)


@SCENARIOS.add("producer.peer-expires", "head.interval", "record.kept-until-ack", "robust.vanished-peer", needs=FED)
async def peer_expires(stage: Stage) -> None:
    """When the only peer has been silent for too long, HEADs go on, and whoever comes next gets every record."""
    await publish_numbered(stage, 10)
    store = await stage.join("S")
    await until_dropped(stage, store)
    stage.leave("S")
    for _ in range(2):
        await _expect_head(stage, "after a silent peer was dropped", len(stage.heard))
    await publish_numbered(stage, 5)
    other = await stage.join("S2")
    place = await fetch(stage, other, 0, 15)
    await expect_answer(stage, other, "record.kept-until-ack", 0, 15, place)


@SCENARIOS.add("producer.heads-before-first-record", "direct-head.last-offset", needs=FED)
async def heads_before_first_record(stage: Stage) -> None:
    """Before it has published a record, a producer has no head to tell to who asks for it."""
    consumer = await stage.join("C")
    consumer.say("GET-HEADS", stage.topic, {"address": consumer.address})
    first = await publish_numbered(stage, 1)
    place = await fetch(stage, consumer, first, 1)
    await expect_answer(stage, consumer, "direct-record.sent", first, 1, place)
    names = [heard.message.name for heard in stage.heard]
    is_early = "DIRECT-HEAD" in names[: names.index("RECORD")]
    text = "GET-HEADS was answered with a DIRECT-HEAD before the first record was published"
    stage.check("direct-head.last-offset", not is_early, text)


@SCENARIOS.add("producer.heads-of-other-topics", "subject.exact", "direct-head.producer", needs=FED, shares=True)
async def heads_of_other_topics(stage: Stage) -> None:
    """Asked for the heads of a topic that begins with its own's name, or with which that begins, it does not answer."""
    first = await publish_numbered(stage, 1)
    consumer = await stage.join("C")
    for topic in (stage.topic + b"2", stage.topic + b"\x01", stage.topic[:-1], b""):
        # Not all of these match a subscription: where none does, they do not get there.
        consumer.say("GET-HEADS", topic, {"address": consumer.address})
        place = await fetch(stage, consumer, first, 1)
        await expect_answer(stage, consumer, "direct-record.sent", first, 1, place)
        heads = [heard for heard in stage.heard if heard.message.name == "DIRECT-HEAD"]
        text = f"GET-HEADS of the topic {stage.trace.show(topic)} was answered with a DIRECT-HEAD"
        stage.require("subject.exact", not heads, text, heads[0].event if heads else None)
