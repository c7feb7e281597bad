"""The messages of lease rounds, and of the check of a store after a start.

They are ACKs of a subject that is no topic. Each broker that is alive asks all others in rounds whether they hear it,
and tells of its store. A broker whose store is checked asks the same way, and the others answer what they remember.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

from dafka import wire
from dafka.broker.core.metadata.store_check import StoreClaim, StoreMemory
from dafka.broker.core.partition_address import parse_address
from dafka.records import Partition

ROUNDS_TOPIC = "$rounds"
"""The subject of the ACKs of rounds."""

CHECKS_TOPIC = "$checks"
"""The subject of the ACKs that answer the check of a store."""

SEPARATOR = "/"
_STARTS_SEPARATOR = "."


class RoundKind(StrEnum):
    """What a broker that asks in a round says of itself."""

    WRITABLE = "writable"
    UNWRITABLE = "unwritable"
    CHECKED = "checked"  # its store is checked: it neither votes nor acknowledges yet


@attrs.frozen
class Round:
    """A round of another broker, which says whether it can write, and tells of its store."""

    number: int
    kind: RoundKind
    claim: StoreClaim


@attrs.frozen
class RoundReply:
    """The answer of another broker to a round.

    Attributes:
        number: The number of the round.
        control_end: The sequence after the last durable control record of the broker that answers.
        applied: The offset up to which it has applied the log of metadata.
        time_ms: Its time in milliseconds since 1970.
        start: The number of its start.
    """

    number: int
    control_end: int
    applied: int
    time_ms: int
    start: str


@attrs.frozen
class CheckAnswer:
    """The answer of another broker to the check of a start of a store: what it remembers of the store."""

    start: str
    memory: StoreMemory


def ask_round(broker: str, asked: Round) -> wire.Ack:
    """Return the message that asks the other brokers whether they hear this one, which has this address."""
    claim = asked.claim
    starts = _STARTS_SEPARATOR.join(claim.starts)
    numbers = map(str, (claim.applied, claim.counter, claim.counter_at_start, claim.control_end))
    fields = (ROUNDS_TOPIC, asked.kind.value, *numbers, starts)
    return wire.Ack(SEPARATOR.join(fields), ROUNDS_TOPIC, asked.number, broker)


def answer_round(requester: str, broker: str, answer: RoundReply) -> wire.Ack:
    """Return the message with which a broker answers `ask_round` of another one."""
    fields = (requester, *map(str, (answer.control_end, answer.applied, answer.time_ms)), answer.start)
    return wire.Ack(SEPARATOR.join(fields), ROUNDS_TOPIC, answer.number, broker)


def answer_check(requester: str, broker: str, answer: CheckAnswer) -> wire.Ack:
    """Return the message with which a broker answers the check of another one's store."""
    memory = answer.memory
    numbers = map(str, (memory.applied, memory.counter, memory.control_end))
    fields = (requester, answer.start, memory.accepted, memory.running, *numbers)
    return wire.Ack(SEPARATOR.join(fields), CHECKS_TOPIC, 0, broker)


def tell_end(partition: Partition, broker: str, end: int) -> wire.Ack:
    """Return the message that tells the leader of a log how far this broker has a partition of the leader.

    It is sent before `answer_check`.
    """
    return wire.Ack(partition.address, f"{CHECKS_TOPIC}{SEPARATOR}{partition.topic}", end, broker)


def read_round(message: wire.Ack) -> Round | RoundReply | None:
    """Return what a message of rounds says; None if it is malformed."""
    first, *fields = message.partition.split(SEPARATOR)
    number = message.sequence
    if first != ROUNDS_TOPIC:
        if len(fields) != 4 or not _are_numbers(*fields[:3]):
            return None
        control_end, applied, time_ms = map(int, fields[:3])
        return RoundReply(number, control_end, applied, time_ms, fields[3])
    if len(fields) != 6 or fields[0] not in set(RoundKind) or not _are_numbers(*fields[1:5]):
        return None
    claim = StoreClaim(tuple(fields[5].split(_STARTS_SEPARATOR)), *map(int, fields[1:5]))
    return Round(number, RoundKind(fields[0]), claim)


def read_check(message: wire.Ack) -> CheckAnswer | tuple[Partition, int] | None:
    """Return what a message of checks says: an answer, or the end of a partition. None if it is malformed."""
    if message.subject != CHECKS_TOPIC:
        topic = message.subject.removeprefix(f"{CHECKS_TOPIC}{SEPARATOR}")
        is_valid = topic != message.subject and parse_address(message.partition) is not None
        return (Partition(topic, message.partition), message.sequence) if is_valid else None
    fields = message.partition.split(SEPARATOR)
    if len(fields) != 7 or not _are_numbers(*fields[4:]):
        return None
    _, start, accepted, running, *numbers = fields
    applied, counter, control_end = map(int, numbers)
    return CheckAnswer(start, StoreMemory(accepted, applied, running, counter, control_end))


def _are_numbers(*fields: str) -> bool:
    return all(each.isascii() and each.isdigit() for each in fields)
