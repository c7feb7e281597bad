"""What a producer must discard: malformed messages, those of other versions, and unknown ones."""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import Dialect
from dafka_conformance.play.scenario import Registry
from dafka_conformance.scenarios._nodes import MIB
from dafka_conformance.scenarios._producer import FED, expect_answer, expect_no_answer, fetch, publish_numbered
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage

SCENARIOS = Registry()


@attrs.frozen
class Fault:
    """A message that must be discarded: why, and its frames."""

    clause: str
    what: str
    frames: list[bytes]


def faults(stage: Stage, message: Message) -> Iterator[Fault]:
    """The ways to spoil a message that still match the subscription which it comes through."""
    frames = stage.grammar.formats.encode(message, stage.dialect)
    *before, fields = frames
    start = 0 if stage.dialect is Dialect.RFC46 else fields.index(b"\0") + 1
    name = message.name

    def spoilt(clause: str, what: str, octets: bytes) -> Fault:
        return Fault(clause, f"{name} {what}", [*before, octets])

    if stage.dialect is Dialect.RFC46:
        for signature in (b"\xaa\xa0", b"\0\0", b"\xa5\xaa", b""):
            shown = signature.hex(" ").upper()
            what = f"with the signature {shown}" if shown else "without signature"
            yield spoilt("signature.discarded", what, signature + fields[2:])
        yield spoilt("robust.unknown-command", "with the unknown id Z", fields[:2] + b"Z" + fields[3:])
        yield Fault("robust.malformed", f"{name} of the topic frame alone", before)
    version = start + (3 if stage.dialect is Dialect.RFC46 else 0)
    for octet in (b"\0", b"\x02", b"0", b"1", b"\xff"):
        what = f"of the version {octet.hex().upper()}"
        yield spoilt("version.discarded", what, fields[:version] + octet + fields[version + 1 :])
    for end in range(start, len(fields)):
        what = f"without its last {_octets(len(fields) - end)}"
        yield spoilt("robust.malformed", what, fields[:end])
    for extra in (b"\0", b"\xff" * 1000):
        yield spoilt("robust.malformed", f"with {_octets(len(extra))} behind it", fields + extra)
    yield Fault("robust.malformed", f"{name} with another frame behind it", [*frames, b"more"])
    yield Fault("robust.malformed", f"{name} with ten empty frames behind it", [*frames, *[b""] * 10])
    at = version + 1
    for field in ("address", "subject"):
        if field not in message.values or (name == "ACK" and field == "address" and start):
            continue
        length = len(message.octets(field))
        # An address that is merely another one would be answered there, which is no fault that can be told apart.
        for wrong in (255,) if field == "address" else (0, length - 1, length + 1, 255):
            what = f"whose {field} of {length} octets claims to have {wrong}"
            yield spoilt("robust.malformed", what, fields[:at] + bytes([wrong]) + fields[at + 1 :])
        at += 1 + length
    noise = random.Random(46).randbytes(MIB)
    yield spoilt("robust.malformed", "with 1 MiB of rubbish in place of its fields", fields[: version + 1] + noise)
    yield spoilt("robust.malformed", "with 1 MiB of rubbish", fields[:start] + noise)


def _octets(count: int) -> str:
    return f"{count:,} octet{'s' if count > 1 else ''}"


@SCENARIOS.add(
    "producer.malformed-fetch",
    "robust.malformed",
    "version.discarded",
    "signature.discarded",
    needs=FED,
    shares=True,
)
async def malformed_fetch(stage: Stage) -> None:
    """A FETCH with another signature or version, or one that is cut short, too long or inconsistent, is discarded."""
    first = await publish_numbered(stage, 10)
    consumer = await stage.join("C")
    place = await fetch(stage, consumer, first, 10)
    await expect_answer(stage, consumer, "direct-record.sent", first, 10, place)
    values: dict[str, Value] = {"address": consumer.address, "subject": stage.topic, "sequence": first, "count": 5}
    for fault in faults(stage, Message("FETCH", stage.address, values)):
        # Whoever answers it is to be blamed for that, not for answering what nobody asked for.
        stage.ledger.asked(consumer.address, stage.address, first, 5)
        consumer.say_frames(fault.frames, "FETCH", fault.what)
        await expect_no_answer(stage, consumer, fault.clause, first, f"a {fault.what}")
    await _goes_on(stage, consumer)


@SCENARIOS.add(
    "producer.malformed-ack",
    "robust.malformed",
    "record.kept-until-ack",
    "version.discarded",
    "signature.discarded",
    needs=FED,
    shares=True,
)
async def malformed_ack(stage: Stage) -> None:
    """An ACK with another signature or version, or a malformed one, does not make a producer forget its records."""
    store = await stage.join("S")
    first = await publish_numbered(stage, 5)
    values: dict[str, Value] = {"address": store.address, "subject": stage.topic, "sequence": first + 4}
    for fault in faults(stage, Message("ACK", stage.address, values)):
        store.say_frames(fault.frames, "ACK", fault.what)
        place = await fetch(stage, store, first, 5)
        heard = await stage.hear(
            "DIRECT-RECORD",
            lambda message, last=first + 4: message.topic == store.address and message["sequence"] == last,  # type: ignore[misc]
            since=place,
        )
        stage.check_alive("robust.malformed")
        text = f"an {fault.what} was taken for an acknowledgement: the records were not sent any more"
        stage.require(fault.clause, heard is not None, text)
    await _goes_on(stage, store)


@SCENARIOS.add("producer.unknown-commands", "robust.unknown-command", "robust.malformed", needs=FED, shares=True)
async def unknown_commands(stage: Stage) -> None:
    """Messages that the grammar does not have, and those that are for others, end nothing."""
    first = await publish_numbered(stage, 1)
    consumer = await stage.join("C")
    for command in (b"Z", b"\0", b"\xff", b"M", b"D", b"E", b"W", b"L"):
        for topic in (stage.address, stage.topic, b""):
            consumer.say_frames([command + topic, b"\xaa\xa5" + command + b"\x01", b"content"], "unknown")
            consumer.say_frames([command + topic + b"\0\x01", b"content"], "unknown")
    consumer.say_frames([b""], "nothing")
    place = await fetch(stage, consumer, first, 1)
    await expect_answer(stage, consumer, "robust.unknown-command", first, 1, place, "unknown commands")
    for command in (b"F" + stage.address, b"K" + stage.address, b"G" + stage.topic):
        for frames in ([command], [command, b""], [command, b"", b""], [command + b"\0"], [command + b"\0", b""]):
            consumer.say_frames(frames, "no fields")
    place = await fetch(stage, consumer, first, 1)
    await expect_answer(stage, consumer, "robust.malformed", first, 1, place, "commands without fields")
    await _goes_on(stage, consumer)


async def _goes_on(stage: Stage, peer: Peer) -> None:
    stage.check_alive("robust.malformed")
    first = await publish_numbered(stage, 3)
    place = await fetch(stage, peer, first, 3)
    await expect_answer(stage, peer, "robust.malformed", first, 3, place)
