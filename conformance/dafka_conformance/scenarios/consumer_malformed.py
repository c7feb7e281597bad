"""What a consumer must discard: it has no effect, and the consumer goes on handing on what is proper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs

from dafka_conformance.grammar import Message, Value
from dafka_conformance.interpreters.script_runner import tamper
from dafka_conformance.model import Dialect, Role
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._consumer import COLLECT, end_with_gap, require
from dafka_conformance.scenarios._nodes import MIB
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.network import new_address
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed
from dafka_conformance.testbed.trace import ReceivedMessage

SCENARIOS = ScenarioRegistry()

_MARK = b"forged by "

TAKEN = ("RECORD", "DIRECT-RECORD", "HEAD", "DIRECT-HEAD", "STORE-HELLO")
"""What a consumer takes."""


@attrs.define
class _Forged:
    """A message that must be discarded: what it is, what is wrong with it, and what it caused all the same."""

    name: str
    fault: str
    effect: str = ""
    event: int | None = None


class _Forgery:
    """Sends what must be discarded, and finds out whether it was.

    Each forged message is about a partition, or from a store, that there is nothing else of: whatever the consumer
    does about that shows that it took the message.
    """

    def __init__(self, testbed: Testbed, producer: ScriptedPeer, clause: str) -> None:
        self._testbed = testbed
        self._producer = producer
        self._clause = clause
        self._forged: dict[bytes, _Forged] = {}
        self._next = 0

    def message(self, name: str) -> Message:
        """A message that would be taken if nothing were wrong with it."""
        testbed, address = self._testbed, new_address()
        testbed.known_records.partition(address, testbed.topic)
        fields: dict[str, Value] = {"address": address, "subject": testbed.topic}
        if name in {"RECORD", "DIRECT-RECORD"}:
            fields |= {"sequence": 0, "content": _MARK + address}
        elif name in {"HEAD", "DIRECT-HEAD"}:
            fields["sequence"] = 5
        topic = testbed.topic if name in {"RECORD", "HEAD"} else testbed.address
        form = testbed.grammar.formats.by_name[name]
        return Message(name, topic, {field: fields[field] for field in form.field_names})

    async def send(self, name: str, fault: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
        """One message, changed; `fault` says how."""
        message = self.message(name)
        address = message.get_bytes("address")
        self._forged[address] = _Forged(name, fault)
        # Taken for what it is not, it is a fault of its own kind, and no answer to it is another.
        role = Role.STORE if name == "STORE-HELLO" else Role.PRODUCER
        self._testbed.message_checks.note_sent(role, message)
        self._testbed.message_checks.peers[address] = role
        await self._testbed.wait_subscribed(self._producer, name, message.topic)
        frames = change(self._testbed.grammar.formats.encode(message, self._testbed.dialect))
        self._producer.send_frames(frames, name, fault)

    async def settle(self, what: str) -> None:
        """A proper record is handed on after all that was sent."""
        testbed, producer = self._testbed, self._producer
        await testbed.publish(producer, self._next, self._next)
        content = record_content(producer.address, self._next)
        is_there = await testbed.wait(lambda: any(delivery.content == content for delivery in testbed.delivered[-50:]))
        require(testbed, self._clause, is_there, f"after {what} no proper record was handed on any more")
        self._next += 1

    async def end(self) -> None:
        """Nothing of it had an effect."""
        testbed = self._testbed
        await end_with_gap(testbed, self._producer)
        for delivery in testbed.delivered:
            self._note(delivery.content.removeprefix(_MARK), "its content was handed on")
        for received in testbed.received:
            if received.message.name in {"FETCH", "CONSUMER-HELLO"}:
                self._note(received.message.topic, f"it caused a {received.message.name}", received.event)
                self._check_known(received)
        for name in TAKEN:
            sent = [each for each in self._forged.values() if each.name == name]
            taken = [each for each in sent if each.effect]
            if taken:
                first = taken[0]
                text = f"a {name} with {first.fault} was not discarded: {first.effect}"
                text += f" (so it was with {len(taken)} of {len(sent)} of them)" if len(sent) > 1 else ""
                testbed.check_clause(self._clause, False, text, first.event)
        testbed.check_running(self._clause)

    def _check_known(self, received: ReceivedMessage) -> None:
        """What the consumer asks for, or greets, is something that it was told of."""
        testbed, topic = self._testbed, received.message.topic
        known = testbed.known_records.partitions if received.message.name == "FETCH" else testbed.message_checks.peers
        text = f"what is malformed caused a {received.message.name} to {testbed.trace.show(topic)}, which there is not"
        if topic not in known:
            testbed.check_clause(self._clause, False, text, received.event)

    def _note(self, address: bytes, effect: str, event: int | None = None) -> None:
        forged = self._forged.get(address)
        if forged is not None and not forged.effect:
            forged.effect, forged.event = effect, event


async def _forge(testbed: Testbed, clause: str, faults: Iterable[tuple[str, str, str]], names: Sequence[str]) -> None:
    """Messages with faults, as scripts write them: what the fault is, and how it is made."""
    forgery = _Forgery(testbed, await testbed.add_peer("P"), clause)
    for fault, how, value in faults:
        for name in names:
            await forgery.send(name, fault, partial(tamper, how={how: value}))
        await forgery.settle(fault)
    await forgery.end()


@SCENARIOS.add(
    "consumer.signature", "signature.discarded", needs=COLLECT, dialects=(Dialect.RFC46,), shares_target=True
)
async def signature(testbed: Testbed) -> None:
    """Messages with another signature are discarded."""
    faults = [(f"the signature {octets}", "signature", octets) for octets in ("AAA0", "A5AA", "0000", "AAA4")]
    await _forge(testbed, "signature.discarded", [*faults, ("no signature", "signature", "")], TAKEN)


@SCENARIOS.add("consumer.version", "version.discarded", needs=COLLECT, shares_target=True)
async def version(testbed: Testbed) -> None:
    """Messages of another version are discarded."""
    faults = [(f"the version {octet}", "version", octet) for octet in ("00", "02", "30", "31", "FF")]
    await _forge(testbed, "version.discarded", faults, TAKEN)


@SCENARIOS.add(
    "consumer.unknown-command", "robust.unknown-command", needs=COLLECT, dialects=(Dialect.RFC46,), shares_target=True
)
async def unknown_command(testbed: Testbed) -> None:
    """Messages whose id is none of the grammar's are discarded, whatever topic frame they come under."""
    forgery = _Forgery(testbed, await testbed.add_peer("P"), "robust.unknown-command")
    for octet in (b"Z", b"\0", b"m", b"\xff"):
        fault = f"the id {octet!r}"
        for name in TAKEN:
            await forgery.send(name, fault, partial(_replace, place=1, at=2, octets=octet))
        await forgery.settle(fault)
    await forgery.end()


@SCENARIOS.add("consumer.truncated", "robust.malformed", needs=COLLECT, shares_target=True)
async def truncated(testbed: Testbed) -> None:
    """Messages that are cut short, at whichever octet, are discarded."""
    forgery = _Forgery(testbed, await testbed.add_peer("P"), "robust.malformed")
    for name in TAKEN:
        message = forgery.message(name)
        frames = testbed.grammar.formats.encode(message, testbed.dialect)
        place = 0 if testbed.dialect is Dialect.LIBDAFKA else 1
        least = len(message.topic) + 1 if place == 0 else 0
        for length in range(least, len(frames[place])):
            fault = f"{len(frames[place]) - length} octets missing at the end of its fields"
            await forgery.send(name, fault, partial(_cut, place=place, length=length))
        await forgery.settle(f"a {name} that was cut short")
    await forgery.end()


def _topic_of(frames: list[bytes]) -> bytes:
    """Id and topic, by which the message reaches the consumer."""
    return frames[0].partition(b"\0")[0]


def _cut(frames: list[bytes], place: int, length: int) -> list[bytes]:
    return [frame[:length] if index == place else frame for index, frame in enumerate(frames)]


@SCENARIOS.add("consumer.trailing-octets", "robust.malformed", needs=COLLECT, shares_target=True)
async def trailing_octets(testbed: Testbed) -> None:
    """Messages with octets behind their last field are discarded."""
    faults = [(f"{count} octets behind its last field", "append", str(count)) for count in (1, 8, 70_000)]
    await _forge(testbed, "robust.malformed", faults, TAKEN)


@SCENARIOS.add("consumer.additional-frames", "robust.multi-frame", needs=COLLECT, shares_target=True)
async def additional_frames(testbed: Testbed) -> None:
    """Records whose content has several frames are discarded."""
    faults = [(f"{count + 1} frames of content", "frames", str(count)) for count in (1, 2, 100)]
    await _forge(testbed, "robust.multi-frame", faults, ("RECORD", "DIRECT-RECORD"))


@SCENARIOS.add("consumer.missing-frames", "robust.malformed", needs=COLLECT, shares_target=True)
async def missing_frames(testbed: Testbed) -> None:
    """Records without content frame, and messages that consist of a topic frame alone, are discarded."""
    forgery = _Forgery(testbed, await testbed.add_peer("P"), "robust.malformed")
    for name in ("RECORD", "DIRECT-RECORD"):
        await forgery.send(name, "no content frame", lambda frames: frames[:-1])
    await forgery.settle("a record without content frame")
    for name in TAKEN:
        await forgery.send(name, "a topic frame alone", lambda frames: [_topic_of(frames)])
    await forgery.settle("a topic frame alone")
    await forgery.end()


@SCENARIOS.add("consumer.lying-lengths", "robust.malformed", needs=COLLECT, shares_target=True)
async def lying_lengths(testbed: Testbed) -> None:
    """Messages whose strings are said to be longer than the frame are discarded."""
    forgery = _Forgery(testbed, await testbed.add_peer("P"), "robust.malformed")
    place = 0 if testbed.dialect is Dialect.LIBDAFKA else 1
    for name in TAKEN:
        message = forgery.message(name)
        start = len(message.topic) + 3 if place == 0 else 4
        fields = [("address", start)]
        if "subject" in message.values:
            fields.append(("subject", start + 33))
        for field, at in fields:
            fault = f"a length of 255 at its {field}"
            await forgery.send(name, fault, partial(_replace, place=place, at=at, octets=b"\xff"))
    await forgery.settle("a string that is said to be longer than the frame")
    await forgery.end()


def _replace(frames: list[bytes], place: int, at: int, octets: bytes) -> list[bytes]:
    frame = frames[place]
    return [*frames[:place], frame[:at] + octets + frame[at + len(octets) :], *frames[place + 1 :]]


@SCENARIOS.add("consumer.garbage", "robust.malformed", needs=COLLECT, shares_target=True)
async def garbage(testbed: Testbed) -> None:
    """Frames of a mebibyte of garbage, and empty ones, are discarded under every topic that a consumer hears."""
    forgery = _Forgery(testbed, await testbed.add_peer("P"), "robust.malformed")
    large = bytes(range(256)) * (MIB // 256)
    changes: list[tuple[str, Callable[[list[bytes]], list[bytes]]]] = [
        ("a mebibyte of garbage for its fields", lambda frames: [_topic_of(frames), large, large]),
        ("a mebibyte of garbage in its topic frame", lambda frames: [_topic_of(frames) + b"\0" + large]),
        ("a mebibyte of garbage in its topic frame, and behind it", lambda frames: [_topic_of(frames) + large, large]),
        ("empty frames", lambda frames: [_topic_of(frames), b"", b""]),
        ("a hundred frames", lambda frames: [_topic_of(frames), *[b"\xaa\xa5"] * 99]),
    ]
    for fault, change in changes:
        for name in TAKEN:
            await forgery.send(name, fault, change)
        await forgery.settle(fault)
    await forgery.end()
