"""The nine commands of RFC 46 as values, a tenth of our own, and the table that describes them.

A message is checked when it is made: what exists can be sent. Each class says which of its fields the ZeroMQ topic
frame carries (`TOPIC`) and which follow, in order (`FIELDS`); the codec, the documentation page and the tests are
driven by these two. Where a topic is also a field (the subject of RECORD and HEAD), both must agree.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, ClassVar, TypeAlias

import attrs

from dafka.errors import WireError
from dafka.records import RecordBatch, encode_text
from dafka.wire.constants import NUMBER_4_MAX, NUMBER_8_MAX, Command


class FieldType(enum.Enum):
    """How a field is written (the grammar's rule names)."""

    STRING = "string"
    STRINGS = "strings"
    NUMBER_4 = "number-4"
    NUMBER_8 = "number-8"
    FRAME = "frame"


def _check_text(_: Any, attribute: attrs.Attribute[str], value: str) -> None:
    encode_text(value, attribute.name)


def _check_number(maximum: int) -> Any:
    def check(_: Any, attribute: attrs.Attribute[int], value: int) -> None:
        if type(value) is not int or not 0 <= value <= maximum:
            raise WireError(attribute.name, f"a number from 0 to {maximum}, not {value!r}")

    return check


def _check_content(_: Any, attribute: attrs.Attribute[bytes], value: bytes) -> None:
    if not isinstance(value, bytes):
        raise WireError(attribute.name, f"bytes, not {type(value).__name__}")


def _as_tuple(values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise WireError("subjects", "several topics, not one text")
    return tuple(values)


def _check_texts(_: Any, attribute: attrs.Attribute[tuple[str, ...]], values: tuple[str, ...]) -> None:
    for value in values:
        encode_text(value, attribute.name)


_CHECK_SEQUENCE = _check_number(NUMBER_8_MAX)
_CHECK_COUNT = _check_number(NUMBER_4_MAX)

_RECORD_FIELDS = (
    ("address", FieldType.STRING),
    ("subject", FieldType.STRING),
    ("sequence", FieldType.NUMBER_8),
    ("content", FieldType.FRAME),
)
_HEAD_FIELDS = _RECORD_FIELDS[:3]


@attrs.frozen
class Record:
    """RECORD: from a producer (`address`) to the consumers and stores of the topic `subject`."""

    COMMAND: ClassVar = Command.RECORD
    TOPIC: ClassVar = "subject"
    FIELDS: ClassVar = _RECORD_FIELDS

    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)
    content: bytes = attrs.field(validator=_check_content)


@attrs.frozen
class DirectRecord:
    """DIRECT-RECORD: a stored record of partition `address`, to the node (`requestor`) that fetched it."""

    COMMAND: ClassVar = Command.DIRECT_RECORD
    TOPIC: ClassVar = "requestor"
    FIELDS: ClassVar = _RECORD_FIELDS

    requestor: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)
    content: bytes = attrs.field(validator=_check_content)


@attrs.frozen
class Fetch:
    """FETCH: the node `address` asks for `count` records of a partition, from `sequence` on.

    The topic is the partition, not (as RFC 46's prose has it) the consumer's address (erratum 3).
    """

    COMMAND: ClassVar = Command.FETCH
    TOPIC: ClassVar = "partition"
    FIELDS: ClassVar = (
        ("address", FieldType.STRING),
        ("subject", FieldType.STRING),
        ("sequence", FieldType.NUMBER_8),
        ("count", FieldType.NUMBER_4),
    )

    partition: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)
    count: int = attrs.field(validator=_CHECK_COUNT)


@attrs.frozen
class Ack:
    """ACK: a store has made every record of a partition up to and including `sequence` durable.

    `address` is the store's (erratum 7). The libdafka dialect has no such field: there it is empty.
    """

    COMMAND: ClassVar = Command.ACK
    TOPIC: ClassVar = "partition"
    FIELDS: ClassVar = (("address", FieldType.STRING), ("subject", FieldType.STRING), ("sequence", FieldType.NUMBER_8))

    partition: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)
    address: str = attrs.field(validator=_check_text, default="")


@attrs.frozen
class Head:
    """HEAD: the producer `address` has published up to and including `sequence`."""

    COMMAND: ClassVar = Command.HEAD
    TOPIC: ClassVar = "subject"
    FIELDS: ClassVar = _HEAD_FIELDS

    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)


@attrs.frozen
class DirectHead:
    """DIRECT-HEAD: the head of partition `address`, to the node (`requestor`) that asked for heads."""

    COMMAND: ClassVar = Command.DIRECT_HEAD
    TOPIC: ClassVar = "requestor"
    FIELDS: ClassVar = _HEAD_FIELDS

    requestor: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)


@attrs.frozen
class GetHeads:
    """GET-HEADS: the node `address` asks for the heads of all partitions of the topic `subject`."""

    COMMAND: ClassVar = Command.GET_HEADS
    TOPIC: ClassVar = "subject"
    FIELDS: ClassVar = (("address", FieldType.STRING),)

    subject: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)


@attrs.frozen
class ConsumerHello:
    """CONSUMER-HELLO: the consumer `address` tells the store `store` which topics it is subscribed to."""

    COMMAND: ClassVar = Command.CONSUMER_HELLO
    TOPIC: ClassVar = "store"
    FIELDS: ClassVar = (("address", FieldType.STRING), ("subjects", FieldType.STRINGS))

    store: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    subjects: tuple[str, ...] = attrs.field(converter=_as_tuple, validator=_check_texts)


@attrs.frozen
class StoreHello:
    """STORE-HELLO: the store `address` greets the consumer `consumer`."""

    COMMAND: ClassVar = Command.STORE_HELLO
    TOPIC: ClassVar = "consumer"
    FIELDS: ClassVar = (("address", FieldType.STRING),)

    consumer: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)


@attrs.frozen
class DirectEarliest:
    """DIRECT-EARLIEST: the node `address` tells whoever fetched (`requestor`) that it has not got what was asked for.

    Of that partition it holds the records from `sequence` on, if it holds any. Those before `gone` have been dropped by
    who kept them; those that it merely has not got may be elsewhere. RFC 46 has no such command (erratum 26): it goes
    to nodes alone that subscribe to it.
    """

    COMMAND: ClassVar = Command.DIRECT_EARLIEST
    TOPIC: ClassVar = "requestor"
    FIELDS: ClassVar = (
        ("address", FieldType.STRING),
        ("partition", FieldType.STRING),
        ("subject", FieldType.STRING),
        ("sequence", FieldType.NUMBER_8),
        ("gone", FieldType.NUMBER_8),
    )

    requestor: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    partition: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)
    gone: int = attrs.field(validator=_CHECK_SEQUENCE)


@attrs.frozen
class RecordRun:
    """A run of consecutive RECORDs of one partition, or of DIRECT-RECORDs to one `requestor`.

    Not a command: it stands for as many messages as it has records, and is what the batch encoder takes and
    the batch decoder gives, so that nothing above the wire handles records one by one.
    """

    batch: RecordBatch
    requestor: str | None = None


_WithoutContent: TypeAlias = Fetch | Ack | Head | DirectHead | GetHeads | ConsumerHello | StoreHello | DirectEarliest
Message: TypeAlias = Record | DirectRecord | _WithoutContent
BatchedMessage: TypeAlias = RecordRun | _WithoutContent
"""What the batch decoder gives and the batch encoder takes: records come and go as runs."""

MESSAGES: tuple[type[Message], ...] = (
    Record,
    DirectRecord,
    Fetch,
    Ack,
    Head,
    DirectHead,
    GetHeads,
    ConsumerHello,
    StoreHello,
    DirectEarliest,
)
