"""What a store must discard: it has no effect, and the store goes on, with everything that it had and is sent next.

Each malformed message is followed by a proper one whose effect shows that the store has taken both. What the malformed
one asks for would show by then: a record with another content, a FETCH, or an answer.
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
_FORGED = b"not to be stored"
_GARBAGE_OCTETS = 2**20
_HUGE_COUNT = b"\xff\xff\xff\xff"
_ANNOUNCED_BEYOND = 1000


@attrs.frozen
class _Frames:
    """A message's frames, and where the fields stand in them."""

    frames: tuple[bytes, ...]
    dialect: Dialect
    topic_octets: int

    @property
    def place(self) -> int:
        """Which frame holds the fields."""
        return 1 if self.dialect is Dialect.RFC46 else 0

    @property
    def header(self) -> bytes:
        """The frame that holds the fields."""
        return self.frames[self.place]

    @property
    def start(self) -> int:
        """Where in it the version stands, and the fields behind it."""
        return 3 if self.dialect is Dialect.RFC46 else self.topic_octets + 2

    def with_header(self, header: bytes) -> list[bytes]:
        """The frames with another one in its place."""
        return [*self.frames[: self.place], header, *self.frames[self.place + 1 :]]

    def with_version(self, version: bytes) -> list[bytes]:
        """The frames with another version."""
        return self.with_header(self.header[: self.start] + version + self.header[self.start + 1 :])


_Fault = tuple[str, list[bytes]]
_Alter = Callable[[_Frames], Iterable[_Fault]]


def _versions(proper: _Frames) -> Iterator[_Fault]:
    for version in _WRONG_VERSIONS:
        yield f"with the version {version.hex().upper()}", proper.with_version(version)


def _signatures(proper: _Frames) -> Iterator[_Fault]:
    for signature in _WRONG_SIGNATURES:
        shown = f"with the signature {signature.hex(' ').upper()}" if signature else "without a signature"
        yield shown, proper.with_header(signature + proper.header[2:])


def _unknown_ids(proper: _Frames) -> Iterator[_Fault]:
    for unknown in _UNKNOWN_IDS:
        frames = list(proper.frames)
        if proper.dialect is Dialect.RFC46:
            header = proper.header
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


def _cut(proper: _Frames) -> Iterator[_Fault]:
    # Without a topic frame's first octet it would reach nobody.
    longest = len(proper.header) - (0 if proper.place else 1)
    for octets in range(1, longest + 1):
        yield (
            f"without its last {octets} {'octet' if octets == 1 else 'octets'}",
            proper.with_header(proper.header[:-octets]),
        )


def _frame_counts(proper: _Frames) -> Iterator[_Fault]:
    frames = list(proper.frames)
    yield "with an additional frame", [*frames, b"more"]
    yield "with ten additional frames", [*frames, *[b"more"] * 10]
    if len(frames) > 1:
        yield "without its last frame", frames[:-1]
    if len(frames) > 2:
        yield "with its first frame alone", frames[:1]


def _lengths(proper: _Frames) -> Iterator[_Fault]:
    header, first = proper.header, proper.start + 1
    yield "with 1 octet behind its fields", proper.with_header(header + b"\0")
    yield "with 100 octets behind its fields", proper.with_header(header + b"\xff" * 100)
    for length in (header[first] + 1, 0xFF):
        shown = f"with an address of {header[first]} octets that says to have {length}"
        yield shown, proper.with_header(header[:first] + bytes((length,)) + header[first + 1 :])


def _garbage(proper: _Frames) -> Iterator[_Fault]:
    command, garbage = proper.frames[0][:1], b"\xa5" * _GARBAGE_OCTETS
    following = [b"\xa5"] * (len(proper.frames) - 1)
    yield "that is its id alone", [command]
    yield "with empty frames behind its id", [command, *[b""] * len(following)]
    yield "with a first frame of 1 MiB of garbage", [command + garbage, *following]
    if proper.place:
        yield "with frames of 1 MiB of garbage", [proper.frames[0], *[garbage] * len(following)]


_MALFORMED: tuple[_Alter, ...] = (_cut, _lengths, _garbage)
"""Of records. What else has additional frames is malformed, too."""


@SCENARIOS.add(
    "store.wrong-signature", "signature.discarded", "signature.value", dialects=(Dialect.RFC46,), shares_target=True
)
async def wrong_signature(testbed: Testbed) -> None:
    """A store discards messages with another signature, or none."""
    await _check_all(testbed, "signature.discarded", (_signatures,))


@SCENARIOS.add("store.wrong-version", "version.discarded", "version.value", shares_target=True)
async def wrong_version(testbed: Testbed) -> None:
    """A store discards messages of another version."""
    await _check_all(testbed, "version.discarded", (_versions,))


@SCENARIOS.add("store.unknown-command", "robust.unknown-command", shares_target=True)
async def unknown_command(testbed: Testbed) -> None:
    """A store discards messages with an id that the grammar does not have."""
    await _check_all(testbed, "robust.unknown-command", (_unknown_ids,))


@SCENARIOS.add("store.malformed-records", "robust.malformed", shares_target=True)
async def malformed_records(testbed: Testbed) -> None:
    """A store discards RECORDs and HEADs that are cut short, too long, or whose lengths lie, and goes on."""
    await _Publishing(testbed, "robust.malformed").check(("RECORD",), _MALFORMED)
    testbed.remove_peer("P")
    testbed.remove_peer("C")
    await _Publishing(testbed, "robust.malformed").check(("HEAD",), (*_MALFORMED, _frame_counts))


@SCENARIOS.add("store.malformed-direct-records", "robust.malformed", shares_target=True)
async def malformed_direct_records(testbed: Testbed) -> None:
    """A store discards DIRECT-RECORDs that are cut short, too long, or whose lengths lie, and goes on."""
    await _Publishing(testbed, "robust.malformed").check(("DIRECT-RECORD",), _MALFORMED)


@SCENARIOS.add("store.malformed-requests", "robust.malformed", shares_target=True)
async def malformed_requests(testbed: Testbed) -> None:
    """A store discards FETCH, GET-HEADS and CONSUMER-HELLO that are cut short, too long, or whose lengths lie."""
    await _Asking(testbed, "robust.malformed").check(
        ("FETCH", "GET-HEADS", "CONSUMER-HELLO"), (*_MALFORMED, _frame_counts)
    )


@SCENARIOS.add("store.record-frames", "robust.multi-frame", shares_target=True)
async def record_frames(testbed: Testbed) -> None:
    """A store discards records whose content has several frames, or that have none."""
    await _Publishing(testbed, "robust.multi-frame").check(("RECORD", "DIRECT-RECORD"), (_frame_counts,))


@SCENARIOS.add("store.lying-topics", "robust.malformed", shares_target=True)
async def lying_topics(testbed: Testbed) -> None:
    """A store discards a CONSUMER-HELLO whose list of topics says to be longer than it is."""
    await _Asking(testbed, "robust.malformed").check(("CONSUMER-HELLO",), (_lying_topics,))


@SCENARIOS.add("store.extreme-numbers", "robust.malformed", "ack.no-gap")
async def extreme_numbers(testbed: Testbed) -> None:
    """Sequences as great as a number can be do not stop a store from saving and serving what follows."""
    producer, other, consumer = await testbed.add_peer("P"), await testbed.add_peer("P2"), await testbed.add_peer("C")
    await save(testbed, producer, 0, 2)
    for sequence in (2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1):
        about: dict[str, Value] = {"address": producer.address, "subject": producer.topic, "sequence": sequence}
        await testbed.send(producer, "HEAD", producer.topic, **about)
        await testbed.send(producer, "RECORD", producer.topic, **about, content=_FORGED)
    await save(testbed, other, 0, 2)
    await save(testbed, producer, 3, 4, clause="robust.malformed")
    await ask_heads(testbed, consumer)
    await expect_head(testbed, consumer, producer.partition, 4, "robust.malformed")
    await fetch_back(testbed, consumer, other.partition, 0, 2)
    await fetch_back(testbed, consumer, producer.partition, 0, 4)


def _lying_topics(proper: _Frames) -> Iterator[_Fault]:
    header, first = proper.header, proper.start + 1
    fields, topic = header[: first + 1 + header[first]], header[first + 1 + header[first] + 4 :]
    one = b"\0\0\0\1"
    yield "with 4,294,967,295 topics, of which one is there", proper.with_header(fields + _HUGE_COUNT + topic)
    yield "with 4,294,967,295 topics, of which none is there", proper.with_header(fields + _HUGE_COUNT)
    yield "with two topics, of which one is there", proper.with_header(fields + b"\0\0\0\2" + topic)
    yield "with a topic that is not there", proper.with_header(fields + one)
    yield (
        "with a topic that says to have 4,294,967,295 octets",
        proper.with_header(fields + one + _HUGE_COUNT + topic[4:]),
    )


async def _check_all(testbed: Testbed, clause: str, alters: Sequence[_Alter]) -> None:
    await _Publishing(testbed, clause).check(("RECORD", "HEAD", "DIRECT-RECORD"), alters)
    for label in list(testbed.peers):
        testbed.remove_peer(label)
    await _Asking(testbed, clause).check(("FETCH", "GET-HEADS", "CONSUMER-HELLO"), alters)


class _Publishing:
    """Malformed messages of a producer, in the place of the record that comes next."""

    def __init__(self, testbed: Testbed, clause: str) -> None:
        self._testbed = testbed
        self._clause = clause

    async def check(self, names: Sequence[str], alters: Sequence[_Alter]) -> None:
        """Raises `UnmetError` at the first one that has any effect."""
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
        text = f"a FETCH came because of a malformed {' or '.join(names)} ({clause.partition('.')[0]})"
        testbed.require_clause(clause, strange is None, text, strange.event if strange else None)

    def _frames(self, producer: ScriptedPeer, name: str, topic: bytes, sequence: int) -> _Frames:
        values: dict[str, Value] = {"address": producer.address, "subject": producer.topic, "sequence": sequence}
        return _encode(self._testbed, Message(name, topic, {**values, "content": _FORGED}))

    async def _check_next(self, producer: ScriptedPeer, consumer: ScriptedPeer, sequence: int, what: str) -> None:
        testbed, clause, partition = self._testbed, self._clause, producer.partition
        await producer.send_records([sequence])
        acked = await testbed.receive("ACK", acknowledges(partition, sequence))
        text = testbed.exit_message(f" after {what}") or f"the record that followed {what} was not acknowledged"
        testbed.require_clause(clause, acked is not None, text)
        found = await fetch_back(
            testbed, consumer, partition, sequence, sequence, clause=clause, after=f" after {what}"
        )
        wrong = next((each for each in found if each.message["content"] == _FORGED), None)
        testbed.require_clause(clause, wrong is None, f"{what} was stored", wrong.event if wrong else None)


class _Asking:
    """Malformed messages of a consumer."""

    def __init__(self, testbed: Testbed, clause: str) -> None:
        self._testbed = testbed
        self._clause = clause

    async def check(self, names: Sequence[str], alters: Sequence[_Alter]) -> None:
        """Raises `UnmetError` at the first one that has any effect."""
        testbed = self._testbed
        # Answers about this partition are wrong, and those about the other one show that they would have come.
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
        found = answers(self._testbed, consumer, producer.partition)
        found += [
            received
            for received in self._testbed.received
            if received.message.name == "DIRECT-HEAD" and received.message.topic == consumer.address
        ]
        text = f"{what} was answered with {found[0].message.name}" if found else ""
        self._testbed.require_clause(self._clause, not found, text, found[0].event if found else None)


def _encode(testbed: Testbed, message: Message) -> _Frames:
    form = testbed.grammar.formats.by_name[message.name]
    values = {name: message.values[name] for name in form.field_names}
    message = Message(message.name, message.topic, values)
    return _Frames(tuple(form.encode(message, testbed.dialect)), testbed.dialect, len(message.topic))
