"""Consumer scenarios: malformed messages, which must have no effect and must not stop valid ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs

from dafka_conformance.grammar import Message, Value
from dafka_conformance.interpreters.script_runner import tamper
from dafka_conformance.model import DELIVERY, Dialect, Role
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._consumer import COLLECT, end_with_gap, require_clause_or_running
from dafka_conformance.scenarios._nodes import MIB
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.network import new_address
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed
from dafka_conformance.testbed.trace import ReceivedMessage

SCENARIOS = ScenarioRegistry()

_MARK = b"malformed of "

ACCEPTED = ("RECORD", "DIRECT-RECORD", "HEAD", "DIRECT-HEAD", "STORE-HELLO")
"""The messages that a consumer accepts."""


@attrs.define
class _Malformed:
    """A malformed message: its name, its fault, and the effect that it had, if any."""

    name: str
    fault: str
    effect: str = ""
    event: int | None = None


class _MalformedSender:
    """Sends malformed messages and checks that they have no effect.

    Each one has its own partition or store, so any reaction to that shows that the consumer accepted the message.
    """

    def __init__(self, testbed: Testbed, producer: ScriptedPeer, clause: str) -> None:
        self._testbed = testbed
        self._producer = producer
        self._clause = clause
        self._sent: dict[bytes, _Malformed] = {}
        self._next = 0

    def message(self, name: str) -> Message:
        """Return a valid message."""
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
        """Send a message after a change; `fault` describes the change."""
        message = self.message(name)
        address = message.get_bytes("address")
        self._sent[address] = _Malformed(name, fault)
        # If the consumer accepts the message, that is the only fault to report; its answer is not another one.
        role = Role.STORE if name == "STORE-HELLO" else Role.PRODUCER
        self._testbed.message_checks.record_sent(role, message)
        self._testbed.message_checks.peers[address] = role
        await self._testbed.wait_subscribed(self._producer, name, message.topic)
        frames = change(self._testbed.grammar.formats.encode(message, self._testbed.dialect))
        self._producer.send_frames(frames, name, fault)

    async def check_valid_delivered(self, what: str) -> None:
        """Check that a valid record is delivered after the malformed messages."""
        testbed, producer = self._testbed, self._producer
        await testbed.publish(producer, self._next, self._next)
        content = record_content(producer.address, self._next)
        is_there = await testbed.wait(lambda: any(delivery.content == content for delivery in testbed.delivered[-50:]))
        text = f"after {what} no valid record was delivered"
        require_clause_or_running(testbed, self._clause, is_there, text, DELIVERY)
        self._next += 1

    async def end(self) -> None:
        """Check that no malformed message had an effect."""
        testbed = self._testbed
        await end_with_gap(testbed, self._producer)
        for delivery in testbed.delivered:
            self._note(delivery.content.removeprefix(_MARK), "its content was delivered")
        for received in testbed.received:
            if received.message.name in {"FETCH", "CONSUMER-HELLO"}:
                self._note(received.message.topic, f"it caused a {received.message.name}", received.event)
                self._check_known(received)
        for name in ACCEPTED:
            sent = [each for each in self._sent.values() if each.name == name]
            taken = [each for each in sent if each.effect]
            if taken:
                first = taken[0]
                text = f"a {name} with {first.fault} was not discarded: {first.effect}"
                text += f" ({len(taken)} of {len(sent)} such messages were not)" if len(sent) > 1 else ""
                testbed.check_clause(self._clause, False, text, first.event)
        testbed.check_running(self._clause)

    def _check_known(self, received: ReceivedMessage) -> None:
        """Check that the consumer fetches only known partitions and sends hellos only to known stores."""
        testbed, topic = self._testbed, received.message.topic
        known = testbed.known_records.partitions if received.message.name == "FETCH" else testbed.message_checks.peers
        shown = testbed.trace.show(topic)
        text = f"a malformed message caused a {received.message.name} to {shown}, which does not exist"
        if topic not in known:
            testbed.check_clause(self._clause, False, text, received.event)

    def _note(self, address: bytes, effect: str, event: int | None = None) -> None:
        malformed = self._sent.get(address)
        if malformed is not None and not malformed.effect:
            malformed.effect, malformed.event = effect, event


async def _check_faults(
    testbed: Testbed, clause: str, faults: Iterable[tuple[str, str, str]], names: Sequence[str]
) -> None:
    """Send messages with these faults. Each is a description, and the name and value of a change for `tamper`."""
    sender = _MalformedSender(testbed, await testbed.add_peer("P"), clause)
    for fault, how, value in faults:
        for name in names:
            await sender.send(name, fault, partial(tamper, how={how: value}))
        await sender.check_valid_delivered(fault)
    await sender.end()


@SCENARIOS.add(
    "consumer.signature", "signature.discarded", needs=COLLECT, dialects=(Dialect.RFC46,), shares_target=True
)
async def signature(testbed: Testbed) -> None:
    """Messages with another signature are discarded."""
    faults = [(f"the signature {value}", "signature", value) for value in ("AAA0", "A5AA", "0000", "AAA4")]
    await _check_faults(testbed, "signature.discarded", [*faults, ("no signature", "signature", "")], ACCEPTED)


@SCENARIOS.add("consumer.version", "version.discarded", needs=COLLECT, shares_target=True)
async def version(testbed: Testbed) -> None:
    """Messages with another version are discarded."""
    faults = [(f"the version {value}", "version", value) for value in ("00", "02", "30", "31", "FF")]
    await _check_faults(testbed, "version.discarded", faults, ACCEPTED)


@SCENARIOS.add(
    "consumer.unknown-command", "robust.unknown-command", needs=COLLECT, dialects=(Dialect.RFC46,), shares_target=True
)
async def unknown_command(testbed: Testbed) -> None:
    """Messages with an unknown id in the second frame are discarded, whatever their topic frame is."""
    sender = _MalformedSender(testbed, await testbed.add_peer("P"), "robust.unknown-command")
    for value in (b"Z", b"\0", b"m", b"\xff"):
        fault = f"the id {value!r}"
        for name in ACCEPTED:
            await sender.send(name, fault, partial(_replace, place=1, at=2, value=value))
        await sender.check_valid_delivered(fault)
    await sender.end()


@SCENARIOS.add("consumer.truncated", "robust.malformed", needs=COLLECT, shares_target=True)
async def truncated(testbed: Testbed) -> None:
    """Messages that are truncated at any byte are discarded."""
    sender = _MalformedSender(testbed, await testbed.add_peer("P"), "robust.malformed")
    for name in ACCEPTED:
        message = sender.message(name)
        frames = testbed.grammar.formats.encode(message, testbed.dialect)
        place = 0 if testbed.dialect is Dialect.LIBDAFKA else 1
        least = len(message.topic) + 1 if place == 0 else 0
        for length in range(least, len(frames[place])):
            fault = f"{len(frames[place]) - length} bytes missing at the end of its fields"
            await sender.send(name, fault, partial(_cut, place=place, length=length))
        await sender.check_valid_delivered(f"a {name} that was truncated")
    await sender.end()


def _topic_of(frames: list[bytes]) -> bytes:
    """Return the id and topic, which match the consumer's subscription."""
    return frames[0].partition(b"\0")[0]


def _cut(frames: list[bytes], place: int, length: int) -> list[bytes]:
    return [frame[:length] if index == place else frame for index, frame in enumerate(frames)]


@SCENARIOS.add("consumer.trailing-bytes", "robust.malformed", needs=COLLECT, shares_target=True)
async def trailing_bytes(testbed: Testbed) -> None:
    """Messages with bytes after their last field are discarded."""
    faults = [(f"{count} bytes after its last field", "append", str(count)) for count in (1, 8, 70_000)]
    await _check_faults(testbed, "robust.malformed", faults, ACCEPTED)


@SCENARIOS.add("consumer.additional-frames", "robust.multi-frame", needs=COLLECT, shares_target=True)
async def additional_frames(testbed: Testbed) -> None:
    """Records whose content has several frames are discarded."""
    faults = [(f"{count + 1} frames of content", "frames", str(count)) for count in (1, 2, 100)]
    await _check_faults(testbed, "robust.multi-frame", faults, ("RECORD", "DIRECT-RECORD"))


@SCENARIOS.add("consumer.missing-frames", "robust.malformed", needs=COLLECT, shares_target=True)
async def missing_frames(testbed: Testbed) -> None:
    """Records without a content frame, and messages with only a topic frame, are discarded."""
    sender = _MalformedSender(testbed, await testbed.add_peer("P"), "robust.malformed")
    for name in ("RECORD", "DIRECT-RECORD"):
        await sender.send(name, "no content frame", lambda frames: frames[:-1])
    await sender.check_valid_delivered("a record without a content frame")
    for name in ACCEPTED:
        await sender.send(name, "only a topic frame", lambda frames: [_topic_of(frames)])
    await sender.check_valid_delivered("only a topic frame")
    await sender.end()


@SCENARIOS.add("consumer.lying-lengths", "robust.malformed", needs=COLLECT, shares_target=True)
async def lying_lengths(testbed: Testbed) -> None:
    """Messages with a string whose length is greater than the rest of the frame are discarded."""
    sender = _MalformedSender(testbed, await testbed.add_peer("P"), "robust.malformed")
    place = 0 if testbed.dialect is Dialect.LIBDAFKA else 1
    for name in ACCEPTED:
        message = sender.message(name)
        start = len(message.topic) + 3 if place == 0 else 4
        fields = [("address", start)]
        if "subject" in message.values:
            fields.append(("subject", start + 33))
        for field, at in fields:
            fault = f"a length of 255 for its {field}"
            await sender.send(name, fault, partial(_replace, place=place, at=at, value=b"\xff"))
    await sender.check_valid_delivered("a string whose length is greater than the frame")
    await sender.end()


def _replace(frames: list[bytes], place: int, at: int, value: bytes) -> list[bytes]:
    frame = frames[place]
    return [*frames[:place], frame[:at] + value + frame[at + len(value) :], *frames[place + 1 :]]


@SCENARIOS.add("consumer.garbage", "robust.malformed", needs=COLLECT, shares_target=True)
async def garbage(testbed: Testbed) -> None:
    """Frames with a mebibyte of garbage, and empty frames, are discarded for every message that a consumer accepts."""
    sender = _MalformedSender(testbed, await testbed.add_peer("P"), "robust.malformed")
    large = bytes(range(256)) * (MIB // 256)
    changes: list[tuple[str, Callable[[list[bytes]], list[bytes]]]] = [
        ("a mebibyte of garbage instead of its fields", lambda frames: [_topic_of(frames), large, large]),
        ("a mebibyte of garbage in its topic frame", lambda frames: [_topic_of(frames) + b"\0" + large]),
        ("a mebibyte of garbage in and after its topic frame", lambda frames: [_topic_of(frames) + large, large]),
        ("empty frames", lambda frames: [_topic_of(frames), b"", b""]),
        ("a hundred frames", lambda frames: [_topic_of(frames), *[b"\xaa\xa5"] * 99]),
    ]
    for fault, change in changes:
        for name in ACCEPTED:
            await sender.send(name, fault, change)
        await sender.check_valid_delivered(fault)
    await sender.end()
