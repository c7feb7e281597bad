"""Nodes with one fault in what they send or take, made of this project's roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

import attrs
import pytest

from dafka.protocol.actions import Action
from dafka.protocol.machines.consumer import ConsumerMachine
from dafka.records import Partition
from dafka.transport.publisher import PublisherSocket
from dafka.wire import BatchedMessage, DirectHead, Head, RecordRun
from dafka.wire.batch import EncodedRun, iter_frames
from dafka_conformance.model import Role

Frames: TypeAlias = Sequence[bytes]
Change: TypeAlias = Callable[[Frames], Iterable[Frames]]
"""Returns the messages that a node sends instead of one message."""
Apply: TypeAlias = Callable[[pytest.MonkeyPatch], None]

SIGNATURE_END = 2
VERSION_PLACE = 3
STRING_PLACE = 4
NUMBER_BYTES = 8
PARTITION_RECORDS = 10
OTHER_PARTITION = b"0123456789ABCDEF" * 2


@attrs.frozen
class WireFault:
    """A node with one fault.

    Attributes:
        name: The fault.
        role: The role of the node.
        clause: The only clause that it must be reported to violate.
        apply: Gives every node of this process the fault. The suite's own nodes are not made of the project's roles.
        reading: The reading of the clause that it follows.
    """

    name: str
    role: Role
    clause: str
    apply: Apply
    reading: str = ""


def sending(change: Callable[[], Change], patch: pytest.MonkeyPatch) -> None:
    """Let each node send the messages that its own change returns instead of one message."""
    changes: dict[int, Change] = {}

    def send_many(socket: PublisherSocket, messages: Iterable[Frames | EncodedRun]) -> int:
        changed = changes.setdefault(id(socket), change())
        return send(socket, [each for frames in iter_frames(messages) for each in changed(frames)])

    send = PublisherSocket.send_many
    patch.setattr(PublisherSocket, "send_many", send_many)


def in_messages(ids: bytes, change: Callable[[Frames], Frames]) -> Apply:
    """Change the messages with these command ids."""
    return partial(sending, lambda: lambda frames: [change(frames) if frames[0][:1] in ids and frames[0] else frames])


def with_fields(change: Callable[[bytes], bytes]) -> Callable[[Frames], Frames]:
    """Return a change of the second frame."""
    return lambda frames: [frames[0], change(frames[1]), *frames[2:]]


def address_of(fields: bytes) -> bytes:
    """Return the address in the second frame."""
    return fields[STRING_PLACE + 1 : STRING_PLACE + 1 + fields[STRING_PLACE]]


def subject_of(fields: bytes) -> bytes:
    """Return the subject in the second frame, which follows the address."""
    at = STRING_PLACE + 1 + fields[STRING_PLACE]
    return fields[at + 1 : at + 1 + fields[at]]


def add_to_number(fields: bytes, at: int, size: int, amount: int) -> bytes:
    """Return the fields with a number changed. `at` is its place from the end."""
    start = len(fields) + at
    number = int.from_bytes(fields[start : start + size], "big") + amount
    return fields[:start] + max(number, 0).to_bytes(size, "big") + fields[start + size :]


def little_endian(fields: bytes) -> bytes:
    """Return the fields with the sequence at their end in little-endian order."""
    return fields[:-NUMBER_BYTES] + fields[-NUMBER_BYTES:][::-1]


def without_sequence_5() -> Change:
    """Number the records 0 to 4, and 6 and on."""

    def change(frames: Frames) -> list[Frames]:
        if frames[0][:1] not in b"MHE":
            return [frames]
        sequence = int.from_bytes(frames[1][-NUMBER_BYTES:], "big")
        return [with_fields(lambda fields: add_to_number(fields, -NUMBER_BYTES, NUMBER_BYTES, sequence >= 5))(frames)]

    return change


def split_partition() -> Change:
    """Publish every tenth record in another partition."""

    def change(frames: Frames) -> list[Frames]:
        if frames[0][:1] != b"M" or int.from_bytes(frames[1][-NUMBER_BYTES:], "big") % PARTITION_RECORDS < 9:
            return [frames]
        fields = frames[1]
        end = STRING_PLACE + 1 + fields[STRING_PLACE]
        changed = fields[:STRING_PLACE] + bytes([len(OTHER_PARTITION)]) + OTHER_PARTITION + fields[end:]
        return [[frames[0], changed, frames[2]]]

    return change


def answer_twice() -> Change:
    """Send each record of an answer twice."""
    return lambda frames: [frames] * (2 if frames[0][:1] == b"D" else 1)


def take_every_topic(patch: pytest.MonkeyPatch) -> None:
    """Let consumers take all records and heads that arrive for those of their topic."""
    receive = ConsumerMachine.receive

    def receive_all(self: ConsumerMachine, messages: Iterable[BatchedMessage], now: float) -> list[Action]:
        (topic,) = self.topics
        return receive(self, [in_topic(message, topic) for message in messages], now)

    patch.setattr(ConsumerMachine, "receive", receive_all)


def in_topic(message: BatchedMessage, topic: str) -> BatchedMessage:
    """Return a message, if it is about a partition, as one about a partition of another topic."""
    if isinstance(message, RecordRun):
        partition = Partition(topic, message.batch.partition.address)
        return attrs.evolve(message, batch=attrs.evolve(message.batch, partition=partition))
    return attrs.evolve(message, subject=topic) if isinstance(message, (Head, DirectHead)) else message


def with_signature(value: bytes) -> Callable[[Frames], Frames]:
    """Return a change of the signature."""
    return with_fields(lambda fields: value + fields[SIGNATURE_END:])


def with_version(value: bytes) -> Callable[[Frames], Frames]:
    """Return a change of the version."""
    return with_fields(lambda fields: fields[:VERSION_PLACE] + value + fields[VERSION_PLACE + 1 :])


ALL = b"MDFKHEGWL"

WIRE_FAULTS = {
    fault.name: fault
    for fault in (
        WireFault("skips-a-sequence", Role.PRODUCER, "sequence.increment", partial(sending, without_sequence_5)),
        WireFault("splits-its-partition", Role.PRODUCER, "partition.one", partial(sending, split_partition)),
        WireFault(
            "publishes-under-its-address",
            Role.PRODUCER,
            "topic.RECORD",
            in_messages(b"M", lambda frames: [b"M" + address_of(frames[1]), *frames[1:]]),
        ),
        WireFault(
            "announces-under-its-address",
            Role.PRODUCER,
            "topic.HEAD",
            in_messages(b"H", lambda frames: [b"H" + address_of(frames[1]), *frames[1:]]),
            "prose",
        ),
        WireFault(
            "numbers-little-endian",
            Role.PRODUCER,
            "number.byte-order",
            in_messages(b"MDHE", with_fields(little_endian)),
        ),
        WireFault(
            "producer-signs-as-the-prose",
            Role.PRODUCER,
            "signature.value",
            in_messages(ALL, with_signature(b"\xaa\xa0")),
            "prose",
        ),
        WireFault(
            "consumer-signs-as-the-prose",
            Role.CONSUMER,
            "signature.value",
            in_messages(ALL, with_signature(b"\xaa\xa0")),
            "prose",
        ),
        WireFault(
            "writes-its-version-as-text", Role.STORE, "version.value", in_messages(ALL, with_version(b"0")), "prose"
        ),
        WireFault(
            "publishes-without-content", Role.PRODUCER, "grammar.RECORD", in_messages(b"M", lambda frames: frames[:2])
        ),
        WireFault(
            "acknowledges-with-a-frame-too-much",
            Role.STORE,
            "grammar.ACK",
            in_messages(b"K", lambda frames: [*frames, b""]),
        ),
        WireFault(
            "acknowledges-one-too-many",
            Role.STORE,
            "ack.no-gap",
            in_messages(b"K", with_fields(lambda fields: add_to_number(fields, -NUMBER_BYTES, NUMBER_BYTES, 1))),
        ),
        WireFault(
            "fetches-under-its-own-address",
            Role.CONSUMER,
            "topic.FETCH",
            in_messages(b"F", lambda frames: [b"F" + address_of(frames[1]), *frames[1:]]),
            "prose",
        ),
        WireFault(
            "announces-one-too-few",
            Role.PRODUCER,
            "head.last-offset",
            in_messages(b"H", with_fields(lambda fields: add_to_number(fields, -NUMBER_BYTES, NUMBER_BYTES, -1))),
        ),
        WireFault(
            "announces-one-too-many",
            Role.PRODUCER,
            "head.last-offset",
            in_messages(b"H", with_fields(lambda fields: add_to_number(fields, -NUMBER_BYTES, NUMBER_BYTES, 1))),
        ),
        WireFault("answers-twice", Role.PRODUCER, "direct-record.ascending", partial(sending, answer_twice)),
        WireFault("takes-every-topic", Role.CONSUMER, "subject.exact", take_every_topic),
        WireFault(
            "answers-requests-for-heads-under-the-topic",
            Role.STORE,
            "topic.DIRECT-HEAD",
            in_messages(b"E", lambda frames: [b"E" + subject_of(frames[1]), *frames[1:]]),
            "grammar",
        ),
    )
}
