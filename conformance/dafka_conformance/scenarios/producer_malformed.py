"""Producer scenarios: malformed and unknown messages, and those of other versions, which must be discarded."""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import Dialect
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._nodes import MIB
from dafka_conformance.scenarios._producer import FED, expect_answer, expect_no_answer, fetch, publish_numbered
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()


@attrs.frozen
class Fault:
    """A malformed message.

    Attributes:
        clause: The clause that demands that it is discarded.
        what: The message's name and fault.
        frames: Its frames.
    """

    clause: str
    what: str
    frames: list[bytes]


def faults(testbed: Testbed, message: Message) -> Iterator[Fault]:
    """Yield malformed variants of a message that still match the target's subscription."""
    frames = testbed.grammar.formats.encode(message, testbed.dialect)
    *before, fields = frames
    start = 0 if testbed.dialect is Dialect.RFC46 else fields.index(b"\0") + 1
    name = message.name

    def with_fields(clause: str, what: str, changed: bytes) -> Fault:
        return Fault(clause, f"{name} {what}", [*before, changed])

    if testbed.dialect is Dialect.RFC46:
        for signature in (b"\xaa\xa0", b"\0\0", b"\xa5\xaa", b""):
            shown = signature.hex(" ").upper()
            what = f"with the signature {shown}" if shown else "without a signature"
            yield with_fields("signature.discarded", what, signature + fields[2:])
        yield with_fields("robust.unknown-command", "with the unknown id Z", fields[:2] + b"Z" + fields[3:])
        yield Fault("robust.malformed", f"{name} with only a topic frame", before)
    version = start + (3 if testbed.dialect is Dialect.RFC46 else 0)
    for value in (b"\0", b"\x02", b"0", b"1", b"\xff"):
        what = f"of the version {value.hex().upper()}"
        yield with_fields("version.discarded", what, fields[:version] + value + fields[version + 1 :])
    for end in range(start, len(fields)):
        what = f"without its last {_byte_count(len(fields) - end)}"
        yield with_fields("robust.malformed", what, fields[:end])
    for extra in (b"\0", b"\xff" * 1000):
        yield with_fields("robust.malformed", f"with {_byte_count(len(extra))} after it", fields + extra)
    yield Fault("robust.malformed", f"{name} with another frame after it", [*frames, b"more"])
    yield Fault("robust.malformed", f"{name} with ten empty frames after it", [*frames, *[b""] * 10])
    at = version + 1
    for field in ("address", "subject"):
        if field not in message.values or (name == "ACK" and field == "address" and start):
            continue
        length = len(message.get_bytes(field))
        # A shorter address would be a valid one, and an answer to it is not a fault.
        for wrong in (255,) if field == "address" else (0, length - 1, length + 1, 255):
            what = f"whose {field} of {length} bytes has the length {wrong}"
            yield with_fields("robust.malformed", what, fields[:at] + bytes([wrong]) + fields[at + 1 :])
        at += 1 + length
    noise = random.Random(46).randbytes(MIB)
    yield with_fields("robust.malformed", "with 1 MiB of garbage instead of its fields", fields[: version + 1] + noise)
    yield with_fields("robust.malformed", "with 1 MiB of garbage", fields[:start] + noise)


def _byte_count(count: int) -> str:
    return f"{count:,} byte{'s' if count > 1 else ''}"


@SCENARIOS.add(
    "producer.malformed-fetch",
    "robust.malformed",
    "version.discarded",
    "signature.discarded",
    needs=FED,
    shares_target=True,
)
async def malformed_fetch(testbed: Testbed) -> None:
    """A FETCH with another signature or version, or a truncated, overlong or inconsistent one, is discarded."""
    first = await publish_numbered(testbed, 10)
    consumer = await testbed.add_peer("C")
    place = await fetch(testbed, consumer, first, 10)
    await expect_answer(testbed, consumer, "direct-record.sent", first, 10, place)
    values: dict[str, Value] = {"address": consumer.address, "subject": testbed.topic, "sequence": first, "count": 5}
    for fault in faults(testbed, Message("FETCH", testbed.address, values)):
        # So that only the answer itself is reported, and not also as an unrequested one.
        testbed.known_records.add_fetch(consumer.address, testbed.address, first, 5)
        consumer.send_frames(fault.frames, "FETCH", fault.what)
        await expect_no_answer(testbed, consumer, fault.clause, first, f"a {fault.what}")
    await _check_works(testbed, consumer)


@SCENARIOS.add(
    "producer.malformed-ack",
    "robust.malformed",
    "record.kept-until-ack",
    "version.discarded",
    "signature.discarded",
    needs=FED,
    shares_target=True,
)
async def malformed_ack(testbed: Testbed) -> None:
    """An ACK with another signature or version, or a malformed one, does not make a producer drop its records."""
    store = await testbed.add_peer("S")
    first = await publish_numbered(testbed, 5)
    values: dict[str, Value] = {"address": store.address, "subject": testbed.topic, "sequence": first + 4}
    for fault in faults(testbed, Message("ACK", testbed.address, values)):
        store.send_frames(fault.frames, "ACK", fault.what)
        place = await fetch(testbed, store, first, 5)
        received = await testbed.receive(
            "DIRECT-RECORD",
            lambda message, last=first + 4: message.topic == store.address and message["sequence"] == last,  # type: ignore[misc]
            since=place,
        )
        testbed.check_running("robust.malformed")
        text = f"an {fault.what} was accepted as an acknowledgment: the records were not resent"
        testbed.require_clause(fault.clause, received is not None, text)
    await _check_works(testbed, store)


@SCENARIOS.add("producer.unknown-commands", "robust.unknown-command", "robust.malformed", needs=FED, shares_target=True)
async def unknown_commands(testbed: Testbed) -> None:
    """Messages that the grammar does not define, or that are for other roles, do not stop a producer."""
    first = await publish_numbered(testbed, 1)
    consumer = await testbed.add_peer("C")
    for command in (b"Z", b"\0", b"\xff", b"M", b"D", b"E", b"W", b"L"):
        for topic in (testbed.address, testbed.topic, b""):
            consumer.send_frames([command + topic, b"\xaa\xa5" + command + b"\x01", b"content"], "unknown")
            consumer.send_frames([command + topic + b"\0\x01", b"content"], "unknown")
    consumer.send_frames([b""], "nothing")
    place = await fetch(testbed, consumer, first, 1)
    await expect_answer(testbed, consumer, "robust.unknown-command", first, 1, place, "unknown commands")
    for command in (b"F" + testbed.address, b"K" + testbed.address, b"G" + testbed.topic):
        for frames in ([command], [command, b""], [command, b"", b""], [command + b"\0"], [command + b"\0", b""]):
            consumer.send_frames(frames, "no fields")
    place = await fetch(testbed, consumer, first, 1)
    await expect_answer(testbed, consumer, "robust.malformed", first, 1, place, "commands without fields")
    await _check_works(testbed, consumer)


async def _check_works(testbed: Testbed, peer: ScriptedPeer) -> None:
    testbed.check_running("robust.malformed")
    first = await publish_numbered(testbed, 3)
    place = await fetch(testbed, peer, first, 3)
    await expect_answer(testbed, peer, "robust.malformed", first, 3, place)
