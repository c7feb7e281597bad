"""Store scenarios: malformed messages, which must have no effect and must not stop the store.

A valid message follows each malformed one. Its effect shows that the store has processed both; by then, any effect of
the malformed one would show too: a record with another content, a FETCH, or an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import Dialect
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._store import (
    acknowledges,
    answers,
    ask_heads,
    expect_head,
    fetch_back,
    own_address,
    save,
)
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

_WRONG_VERSIONS = (b"\x00", b"\x02", b"0", b"1", b"\x81", b"\xff")
_WRONG_SIGNATURES = (b"\xaa\xa0", b"\xa5\xaa", b"\x00\xa5", b"\x00\x00", b"")
_UNKNOWN_IDS = (b"X", b"m", b"\x00", b"\xff")
_INVALID_CONTENT = b"not to be stored"
_GARBAGE_BYTES = 2**20
_HUGE_COUNT = b"\xff\xff\xff\xff"
_ANNOUNCED_BEYOND = 1000


@attrs.frozen
class _Frames:
    """A message's frames, and the position of the fields in them."""

    frames: tuple[bytes, ...]
    dialect: Dialect
    topic_size: int

    @property
    def place(self) -> int:
        """The index of the frame with the fields."""
        return 1 if self.dialect is Dialect.RFC46 else 0

    @property
    def header(self) -> bytes:
        """The frame with the fields."""
        return self.frames[self.place]

    @property
    def start(self) -> int:
        """The position of the version in the header; the fields follow it."""
        return 3 if self.dialect is Dialect.RFC46 else self.topic_size + 2

    def with_header(self, header: bytes) -> list[bytes]:
        """Return the frames with another header."""
        return [*self.frames[: self.place], header, *self.frames[self.place + 1 :]]

    def with_version(self, version: bytes) -> list[bytes]:
        """Return the frames with another version."""
        return self.with_header(self.header[: self.start] + version + self.header[self.start + 1 :])


_Fault = tuple[str, list[bytes]]
_Alter = Callable[[_Frames], Iterable[_Fault]]


def _versions(valid: _Frames) -> Iterator[_Fault]:
    for version in _WRONG_VERSIONS:
        yield f"with the version {version.hex().upper()}", valid.with_version(version)


def _signatures(valid: _Frames) -> Iterator[_Fault]:
    for signature in _WRONG_SIGNATURES:
        shown = f"with the signature {signature.hex(' ').upper()}" if signature else "without a signature"
        yield shown, valid.with_header(signature + valid.header[2:])


def _unknown_ids(valid: _Frames) -> Iterator[_Fault]:
    for unknown in _UNKNOWN_IDS:
        frames = list(valid.frames)
        if valid.dialect is Dialect.RFC46:
            header = valid.header
            yield (
                f"with the unknown id {unknown!r} in its second frame",
                [
                    frames[0],
                    header[:2] + unknown + header[3:],
                    *frames[2:],
                ],
            )
        frames[0] = unknown + frames[0][1:]
        yield f"with the unknown id {unknown!r}", frames


def _cut(valid: _Frames) -> Iterator[_Fault]:
    # Without the first byte of the topic frame, the message would not match a subscription.
    longest = len(valid.header) - (0 if valid.place else 1)
    for count in range(1, longest + 1):
        yield (
            f"without its last {count} {'byte' if count == 1 else 'bytes'}",
            valid.with_header(valid.header[:-count]),
        )


def _frame_counts(valid: _Frames) -> Iterator[_Fault]:
    frames = list(valid.frames)
    yield "with an additional frame", [*frames, b"more"]
    yield "with ten additional frames", [*frames, *[b"more"] * 10]
    if len(frames) > 1:
        yield "without its last frame", frames[:-1]
    if len(frames) > 2:
        yield "with only its first frame", frames[:1]


def _lengths(valid: _Frames) -> Iterator[_Fault]:
    header, first = valid.header, valid.start + 1
    yield "with 1 byte after its fields", valid.with_header(header + b"\0")
    yield "with 100 bytes after its fields", valid.with_header(header + b"\xff" * 100)
    for length in (header[first] + 1, 0xFF):
        shown = f"with an address of {header[first]} bytes that has the length {length}"
        yield shown, valid.with_header(header[:first] + bytes((length,)) + header[first + 1 :])


def _garbage(valid: _Frames) -> Iterator[_Fault]:
    command, garbage = valid.frames[0][:1], b"\xa5" * _GARBAGE_BYTES
    following = [b"\xa5"] * (len(valid.frames) - 1)
    yield "with only its id", [command]
    yield "with empty frames after its id", [command, *[b""] * len(following)]
    yield "with a first frame of 1 MiB of garbage", [command + garbage, *following]
    if valid.place:
        yield "with frames of 1 MiB of garbage", [valid.frames[0], *[garbage] * len(following)]


_MALFORMED: tuple[_Alter, ...] = (_cut, _lengths, _garbage)
"""The faults of records. For other messages, additional frames are another one."""


@SCENARIOS.add(
    "store.wrong-signature", "signature.discarded", "signature.value", dialects=(Dialect.RFC46,), shares_target=True
)
async def wrong_signature(testbed: Testbed) -> None:
    """A store discards messages with another signature or none."""
    await _check_all(testbed, "signature.discarded", (_signatures,))


@SCENARIOS.add("store.wrong-version", "version.discarded", "version.value", shares_target=True)
async def wrong_version(testbed: Testbed) -> None:
    """A store discards messages with another version."""
    await _check_all(testbed, "version.discarded", (_versions,))


@SCENARIOS.add("store.unknown-command", "robust.unknown-command", shares_target=True)
async def unknown_command(testbed: Testbed) -> None:
    """A store discards messages with an id that the grammar does not define."""
    await _check_all(testbed, "robust.unknown-command", (_unknown_ids,))


@SCENARIOS.add("store.malformed-records", "robust.malformed", shares_target=True)
async def malformed_records(testbed: Testbed) -> None:
    """A store discards truncated and overlong RECORDs and HEADs, and those with wrong lengths."""
    await _MalformedProducer(testbed, "robust.malformed").check(("RECORD",), _MALFORMED)
    testbed.remove_peer("P")
    testbed.remove_peer("C")
    await _MalformedProducer(testbed, "robust.malformed").check(("HEAD",), (*_MALFORMED, _frame_counts))


@SCENARIOS.add("store.malformed-direct-records", "robust.malformed", shares_target=True)
async def malformed_direct_records(testbed: Testbed) -> None:
    """A store discards truncated and overlong DIRECT-RECORDs, and those with wrong lengths."""
    await _MalformedProducer(testbed, "robust.malformed").check(("DIRECT-RECORD",), _MALFORMED)


@SCENARIOS.add("store.malformed-requests", "robust.malformed", shares_target=True)
async def malformed_requests(testbed: Testbed) -> None:
    """A store discards truncated and overlong FETCHes, GET-HEADS and CONSUMER-HELLOs, and those with wrong lengths."""
    await _MalformedConsumer(testbed, "robust.malformed").check(
        ("FETCH", "GET-HEADS", "CONSUMER-HELLO"), (*_MALFORMED, _frame_counts)
    )


@SCENARIOS.add("store.record-frames", "robust.multi-frame", shares_target=True)
async def record_frames(testbed: Testbed) -> None:
    """A store discards records whose content has several frames or none."""
    await _MalformedProducer(testbed, "robust.multi-frame").check(("RECORD", "DIRECT-RECORD"), (_frame_counts,))


@SCENARIOS.add("store.lying-topics", "robust.malformed", shares_target=True)
async def lying_topics(testbed: Testbed) -> None:
    """A store discards a CONSUMER-HELLO whose list of topics is shorter than its length says."""
    await _MalformedConsumer(testbed, "robust.malformed").check(("CONSUMER-HELLO",), (_wrong_topic_lists,))


@SCENARIOS.add("store.extreme-numbers", "robust.malformed", "ack.no-gap")
async def extreme_numbers(testbed: Testbed) -> None:
    """The highest possible sequences do not prevent a store from saving and serving later records."""
    producer, other, consumer = await testbed.add_peer("P"), await testbed.add_peer("P2"), await testbed.add_peer("C")
    await save(testbed, producer, 0, 2)
    for sequence in (2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1):
        about: dict[str, Value] = {"address": producer.address, "subject": producer.topic, "sequence": sequence}
        await testbed.send(producer, "HEAD", producer.topic, **about)
        await testbed.send(producer, "RECORD", producer.topic, **about, content=_INVALID_CONTENT)
    await save(testbed, other, 0, 2)
    await save(testbed, producer, 3, 4, clause="robust.malformed")
    await ask_heads(testbed, consumer)
    await expect_head(testbed, consumer, producer.partition, 4, "robust.malformed")
    await fetch_back(testbed, consumer, other.partition, 0, 2)
    await fetch_back(testbed, consumer, producer.partition, 0, 4)


def _wrong_topic_lists(valid: _Frames) -> Iterator[_Fault]:
    header, first = valid.header, valid.start + 1
    fields, topic = header[: first + 1 + header[first]], header[first + 1 + header[first] + 4 :]
    one = b"\0\0\0\1"
    yield "with a count of 4,294,967,295 topics, but one topic", valid.with_header(fields + _HUGE_COUNT + topic)
    yield "with a count of 4,294,967,295 topics, but no topic", valid.with_header(fields + _HUGE_COUNT)
    yield "with a count of two topics, but one topic", valid.with_header(fields + b"\0\0\0\2" + topic)
    yield "with a count of one topic, but no topic", valid.with_header(fields + one)
    yield (
        "with a topic whose length is 4,294,967,295",
        valid.with_header(fields + one + _HUGE_COUNT + topic[4:]),
    )


async def _check_all(testbed: Testbed, clause: str, alters: Sequence[_Alter]) -> None:
    await _MalformedProducer(testbed, clause).check(("RECORD", "HEAD", "DIRECT-RECORD"), alters)
    for label in list(testbed.peers):
        testbed.remove_peer(label)
    await _MalformedConsumer(testbed, clause).check(("FETCH", "GET-HEADS", "CONSUMER-HELLO"), alters)


class _MalformedProducer:
    """Sends a producer's malformed messages, each in place of the next record."""

    def __init__(self, testbed: Testbed, clause: str) -> None:
        self._testbed = testbed
        self._clause = clause

    async def check(self, names: Sequence[str], alters: Sequence[_Alter]) -> None:
        """Send malformed messages. Raise `UnmetError` at the first one that has an effect."""
        testbed, clause = self._testbed, self._clause
        producer, consumer = await testbed.add_peer("P"), await testbed.add_peer("C")
        await save(testbed, producer, 0, 0)
        store = await own_address(testbed, producer, "DIRECT-RECORD", "subscription.store.direct-record")
        for name in names:
            topic = store if name == "DIRECT-RECORD" else producer.topic
            for alter in alters:
                number = len(list(alter(self._frames(producer, name, topic, 0))))
                for index in range(number):
                    sequence = producer.partition.head + 1
                    claimed = sequence + (_ANNOUNCED_BEYOND if name == "HEAD" else 0)
                    what, frames = list(alter(self._frames(producer, name, topic, claimed)))[index]
                    producer.send_frames(frames, name, what)
                    await self._check_next(producer, consumer, sequence, f"{name} {what}")
        fetches = [received for received in testbed.received if received.message.name == "FETCH"]
        strange = next((each for each in fetches if each.message.topic == producer.address), None)
        text = f"a malformed {' or '.join(names)} caused a FETCH ({clause.partition('.')[0]})"
        testbed.require_clause(clause, strange is None, text, strange.event if strange else None)

    def _frames(self, producer: ScriptedPeer, name: str, topic: bytes, sequence: int) -> _Frames:
        values: dict[str, Value] = {"address": producer.address, "subject": producer.topic, "sequence": sequence}
        return _encode(self._testbed, Message(name, topic, {**values, "content": _INVALID_CONTENT}))

    async def _check_next(self, producer: ScriptedPeer, consumer: ScriptedPeer, sequence: int, what: str) -> None:
        testbed, clause, partition = self._testbed, self._clause, producer.partition
        await producer.send_records([sequence])
        acked = await testbed.receive("ACK", acknowledges(partition, sequence))
        text = testbed.exit_message(f" after {what}") or f"the record after {what} was not acknowledged"
        testbed.require_clause(clause, acked is not None, text)
        found = await fetch_back(
            testbed, consumer, partition, sequence, sequence, clause=clause, after=f" after {what}"
        )
        wrong = next((each for each in found if each.message["content"] == _INVALID_CONTENT), None)
        testbed.require_clause(clause, wrong is None, f"{what} was stored", wrong.event if wrong else None)


class _MalformedConsumer:
    """Sends a consumer's malformed messages."""

    def __init__(self, testbed: Testbed, clause: str) -> None:
        self._testbed = testbed
        self._clause = clause

    async def check(self, names: Sequence[str], alters: Sequence[_Alter]) -> None:
        """Send malformed messages. Raise `UnmetError` at the first one that has an effect."""
        testbed = self._testbed
        # An answer about the first partition is wrong; one about the other shows that the store has processed both.
        producer, other = await testbed.add_peer("P"), await testbed.add_peer("P2", testbed.topic + b".other")
        await save(testbed, producer, 0, 0)
        await save(testbed, other, 0, 0)
        consumer = await testbed.add_peer("C")
        store = await own_address(testbed, consumer, "CONSUMER-HELLO", "subscription.store.consumer-hello")
        for name in names:
            for alter in alters:
                for what, frames in alter(self._frames(consumer, producer, name, store)):
                    consumer.send_frames(frames, name, what)
                    await fetch_back(
                        testbed, consumer, other.partition, 0, 0, clause=self._clause, after=f" after {name} {what}"
                    )
                    self._check_silence(consumer, producer, f"{name} {what}")

    def _frames(self, consumer: ScriptedPeer, producer: ScriptedPeer, name: str, store: bytes) -> _Frames:
        topic = {"FETCH": producer.address, "GET-HEADS": producer.topic, "CONSUMER-HELLO": store}[name]
        values: dict[str, Value] = {"address": consumer.address, "subject": producer.topic, "sequence": 0, "count": 1}
        return _encode(self._testbed, Message(name, topic, {**values, "subjects": (producer.topic,)}))

    def _check_silence(self, consumer: ScriptedPeer, producer: ScriptedPeer, what: str) -> None:
        # A store may announce the records of a producer that has left, such as one of the checks before this one.
        found = answers(self._testbed, consumer, producer.partition)
        found += [
            received
            for received in self._testbed.received
            if received.message.name == "DIRECT-HEAD"
            and received.message.topic == consumer.address
            and received.message["address"] == producer.address
        ]
        text = f"{what} was answered with {found[0].message.name}" if found else ""
        self._testbed.require_clause(self._clause, not found, text, found[0].event if found else None)


def _encode(testbed: Testbed, message: Message) -> _Frames:
    form = testbed.grammar.formats.by_name[message.name]
    values = {name: message.values[name] for name in form.field_names}
    message = Message(message.name, message.topic, values)
    return _Frames(tuple(form.encode(message, testbed.dialect)), testbed.dialect, len(message.topic))
