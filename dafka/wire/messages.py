"""The commands of RFC 46 as values, and the table that describes them.

A message is checked when it is made, so that every existing message can be sent. Each class declares the field that the
ZeroMQ topic frame carries (`TOPIC`) and the fields that follow in order (`FIELDS`). The codec, the documentation and
the tests use these two. If the topic is also a field (the subject of RECORD and HEAD), both must agree.

Addresses are those of nodes; the address of a producer is also the name of its partition. Making a message raises
`EncodingError` for a value that the grammar cannot carry: a text of more than 255 bytes, a number out of range, a
content that is not bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, ClassVar, TypeAlias

import attrs

from dafka.errors import EncodingError
from dafka.records import RecordBatch, encode_text
from dafka.wire.constants import NUMBER_4_MAX, NUMBER_8_MAX, Command


class FieldType(enum.Enum):
    """The encoding of a field: a rule of the grammar, or a separate frame."""

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
            raise EncodingError(attribute.name, f"a number from 0 to {maximum}, not {value!r}")

    return check


def _check_content(_: Any, attribute: attrs.Attribute[bytes], value: bytes) -> None:
    if not isinstance(value, bytes):
        raise EncodingError(attribute.name, f"bytes, not {type(value).__name__}")


def _as_tuple(values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise EncodingError("subjects", "several topics, not one text")
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
_BATCH_FIELDS = (("address", FieldType.STRING), ("subject", FieldType.STRING), ("content", FieldType.FRAME))


@attrs.frozen
class Record:
    """RECORD: a producer publishes one record (RFC 46, "The RECORD Command").

    Attributes:
        address: The address of the producer, which is the name of the partition.
        subject: The topic of the partition.
        sequence: The sequence of the record in its partition, from 0.
        content: The content of the record.
    """

    COMMAND: ClassVar = Command.RECORD
    TOPIC: ClassVar = "subject"
    FIELDS: ClassVar = _RECORD_FIELDS

    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)
    content: bytes = attrs.field(validator=_check_content)


@attrs.frozen
class DirectRecord:
    """DIRECT-RECORD: a stored record, sent to the node that fetched it (RFC 46, "The DIRECT-RECORD Command").

    Attributes:
        requestor: The address of the node that fetched it.
        address: The name of the partition.
        subject: The topic of the partition.
        sequence: The sequence of the record in its partition.
        content: The content of the record.
    """

    COMMAND: ClassVar = Command.DIRECT_RECORD
    TOPIC: ClassVar = "requestor"
    FIELDS: ClassVar = _RECORD_FIELDS

    requestor: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)
    content: bytes = attrs.field(validator=_check_content)


@attrs.frozen
class RecordBatchMessage:
    """RECORD-BATCH: a producer publishes consecutive records (docs/spec/record-batches.md).

    RFC 46 has no such command. It is sent only to nodes that subscribe to it.

    Attributes:
        address: The address of the producer, which is the name of the partition.
        subject: The topic of the partition.
        content: A record batch of Kafka's format, version 2. Its base offset is the sequence of its first record.
    """

    COMMAND: ClassVar = Command.RECORD_BATCH
    TOPIC: ClassVar = "subject"
    FIELDS: ClassVar = _BATCH_FIELDS

    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    content: bytes = attrs.field(validator=_check_content)


@attrs.frozen
class DirectRecordBatchMessage:
    """DIRECT-RECORD-BATCH: stored records, sent to the node that fetched them (docs/spec/record-batches.md).

    RFC 46 has no such command. It is sent only to nodes that subscribe to it with their address.

    Attributes:
        requestor: The address of the node that fetched them.
        address: The name of the partition.
        subject: The topic of the partition.
        content: A record batch of Kafka's format, version 2. Its base offset is the sequence of its first record.
    """

    COMMAND: ClassVar = Command.DIRECT_RECORD_BATCH
    TOPIC: ClassVar = "requestor"
    FIELDS: ClassVar = _BATCH_FIELDS

    requestor: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    content: bytes = attrs.field(validator=_check_content)


@attrs.frozen
class Fetch:
    """FETCH: a node asks for records of a partition (RFC 46, "The FETCH Command").

    The ZeroMQ topic is the partition, not the address of the consumer as the prose of RFC 46 says (erratum 3).

    Attributes:
        partition: The name of the partition.
        address: The address of the node that asks.
        subject: The topic of the partition.
        sequence: The first record to send.
        count: The number of records to send.
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
    """ACK: a store has made all records up to a sequence durable (RFC 46, "The ACK Command").

    Attributes:
        partition: The name of the partition.
        subject: The topic of the partition.
        sequence: The sequence of the last durable record.
        address: The address of the store (erratum 7); empty in the libdafka dialect, which has no such field.
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
    """HEAD: a producer announces its last published record (RFC 46, "The HEAD Command").

    Attributes:
        address: The address of the producer.
        subject: The topic of the partition.
        sequence: The sequence of the last published record.
    """

    COMMAND: ClassVar = Command.HEAD
    TOPIC: ClassVar = "subject"
    FIELDS: ClassVar = _HEAD_FIELDS

    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)


@attrs.frozen
class DirectHead:
    """DIRECT-HEAD: the head of a partition, sent to the node that asked (RFC 46, "The DIRECT-HEAD Command").

    Attributes:
        requestor: The address of the node that asked.
        address: The name of the partition.
        subject: The topic of the partition.
        sequence: The sequence of the last record.
    """

    COMMAND: ClassVar = Command.DIRECT_HEAD
    TOPIC: ClassVar = "requestor"
    FIELDS: ClassVar = _HEAD_FIELDS

    requestor: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)


@attrs.frozen
class GetHeads:
    """GET-HEADS: a node asks for the heads of all partitions of a topic (RFC 46, "The GET-HEADS Command").

    Attributes:
        subject: The topic.
        address: The address of the node that asks.
    """

    COMMAND: ClassVar = Command.GET_HEADS
    TOPIC: ClassVar = "subject"
    FIELDS: ClassVar = (("address", FieldType.STRING),)

    subject: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)


@attrs.frozen
class ConsumerHello:
    """CONSUMER-HELLO: a consumer greets a store (RFC 46, "The CONSUMER-HELLO Command").

    Attributes:
        store: The address of the store.
        address: The address of the consumer.
        subjects: The topics that the consumer is subscribed to.
    """

    COMMAND: ClassVar = Command.CONSUMER_HELLO
    TOPIC: ClassVar = "store"
    FIELDS: ClassVar = (("address", FieldType.STRING), ("subjects", FieldType.STRINGS))

    store: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    subjects: tuple[str, ...] = attrs.field(converter=_as_tuple, validator=_check_texts)


@attrs.frozen
class StoreHello:
    """STORE-HELLO: a store greets a consumer (RFC 46, "The STORE-HELLO Command").

    Attributes:
        consumer: The address of the consumer.
        address: The address of the store.
    """

    COMMAND: ClassVar = Command.STORE_HELLO
    TOPIC: ClassVar = "consumer"
    FIELDS: ClassVar = (("address", FieldType.STRING),)

    consumer: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)


@attrs.frozen
class DirectEarliest:
    """DIRECT-EARLIEST: a node does not have the record that was fetched (erratum 26).

    RFC 46 has no such command. It is sent only to nodes that subscribe to it.

    Attributes:
        requestor: The address of the node that fetched.
        address: The address of the node that answers.
        partition: The name of the partition.
        subject: The topic of the partition.
        sequence: The first record that the answering node holds; `NUMBER_8_MAX` if it holds none.
        unrecoverable_end: Records before this sequence are unrecoverable as far as the answering node knows: they were
            dropped, and not merely missed.
    """

    COMMAND: ClassVar = Command.DIRECT_EARLIEST
    TOPIC: ClassVar = "requestor"
    FIELDS: ClassVar = (
        ("address", FieldType.STRING),
        ("partition", FieldType.STRING),
        ("subject", FieldType.STRING),
        ("sequence", FieldType.NUMBER_8),
        ("unrecoverable_end", FieldType.NUMBER_8),
    )

    requestor: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    partition: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)
    unrecoverable_end: int = attrs.field(validator=_CHECK_SEQUENCE)


@attrs.frozen
class GetTopics:
    """GET-TOPICS: a node asks a store for the topics that it holds (erratum 27).

    RFC 46 has no such command. It is sent only to stores that subscribe to it with their address.

    Attributes:
        store: The address of the store.
        address: The address of the node that asks.
        after: The last topic of the previous page; empty for the first page.
    """

    COMMAND: ClassVar = Command.GET_TOPICS
    TOPIC: ClassVar = "store"
    FIELDS: ClassVar = (("address", FieldType.STRING), ("after", FieldType.STRING))

    store: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    after: str = attrs.field(validator=_check_text)


@attrs.frozen
class DirectTopics:
    """DIRECT-TOPICS: one page of the topics that a store holds, sent to the node that asked (erratum 27).

    RFC 46 has no such command. It is sent only to nodes that subscribe to it with their address.

    Attributes:
        requestor: The address of the node that asked.
        address: The address of the store.
        after: The topic after which the page begins, as in the question.
        subjects: The topics of the page, in the store's order.
        remaining: The number of topics after this page; 0 on the last page.
        partitions: The number of partitions that the store holds, of all topics.
    """

    COMMAND: ClassVar = Command.DIRECT_TOPICS
    TOPIC: ClassVar = "requestor"
    FIELDS: ClassVar = (
        ("address", FieldType.STRING),
        ("after", FieldType.STRING),
        ("subjects", FieldType.STRINGS),
        ("remaining", FieldType.NUMBER_4),
        ("partitions", FieldType.NUMBER_4),
    )

    requestor: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    after: str = attrs.field(validator=_check_text)
    subjects: tuple[str, ...] = attrs.field(converter=_as_tuple, validator=_check_texts)
    remaining: int = attrs.field(validator=_CHECK_COUNT)
    partitions: int = attrs.field(validator=_CHECK_COUNT)


@attrs.frozen
class GetPosition:
    """GET-POSITION: a node asks a store for a partition's position at a time (docs/spec/positions-by-time.md).

    RFC 46 has no such command. It is sent only to stores that subscribe to it with their address.

    Attributes:
        store: The address of the store.
        address: The address of the node that asks.
        partition: The name of the partition.
        subject: The topic of the partition.
        time: The time, in milliseconds since 1970 UTC.
    """

    COMMAND: ClassVar = Command.GET_POSITION
    TOPIC: ClassVar = "store"
    FIELDS: ClassVar = (
        ("address", FieldType.STRING),
        ("partition", FieldType.STRING),
        ("subject", FieldType.STRING),
        ("time", FieldType.NUMBER_8),
    )

    store: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    partition: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    time: int = attrs.field(validator=_CHECK_SEQUENCE)


@attrs.frozen
class DirectPosition:
    """DIRECT-POSITION: the first record of a partition that was made at a time or later, sent to the node that asked.

    RFC 46 has no such command (docs/spec/positions-by-time.md). It is sent only to nodes that subscribe to it.

    Attributes:
        requestor: The address of the node that asked.
        address: The address of the store.
        partition: The name of the partition.
        subject: The topic of the partition.
        time: The time, as in the question.
        sequence: The first record that was made at this time or later; `NUMBER_8_MAX` if the store holds none.
        end: The sequence after the last record that the store holds; 0 if it never held any.
    """

    COMMAND: ClassVar = Command.DIRECT_POSITION
    TOPIC: ClassVar = "requestor"
    FIELDS: ClassVar = (
        ("address", FieldType.STRING),
        ("partition", FieldType.STRING),
        ("subject", FieldType.STRING),
        ("time", FieldType.NUMBER_8),
        ("sequence", FieldType.NUMBER_8),
        ("end", FieldType.NUMBER_8),
    )

    requestor: str = attrs.field(validator=_check_text)
    address: str = attrs.field(validator=_check_text)
    partition: str = attrs.field(validator=_check_text)
    subject: str = attrs.field(validator=_check_text)
    time: int = attrs.field(validator=_CHECK_SEQUENCE)
    sequence: int = attrs.field(validator=_CHECK_SEQUENCE)
    end: int = attrs.field(validator=_CHECK_SEQUENCE)


@attrs.frozen
class RecordRun:
    """Consecutive RECORDs of one partition, or DIRECT-RECORDs to one requestor.

    This is not a command. It represents as many messages as it has records; the batch codec uses it so that higher
    layers need not handle records one by one.

    Attributes:
        batch: The records.
        requestor: The address of the node that fetched them; None for RECORDs.
    """

    batch: RecordBatch
    requestor: str | None = None


_WithoutContent: TypeAlias = (
    Fetch
    | Ack
    | Head
    | DirectHead
    | GetHeads
    | ConsumerHello
    | StoreHello
    | DirectEarliest
    | GetTopics
    | DirectTopics
    | GetPosition
    | DirectPosition
)
WithContent: TypeAlias = Record | DirectRecord | RecordBatchMessage | DirectRecordBatchMessage
Message: TypeAlias = WithContent | _WithoutContent
"""A command of the protocol."""

BatchedMessage: TypeAlias = RecordRun | _WithoutContent
"""A message as `BatchDecoder` returns it and `BatchEncoder` takes it: records form runs, other messages are single."""

MESSAGES: tuple[type[Message], ...] = (
    Record,
    DirectRecord,
    RecordBatchMessage,
    DirectRecordBatchMessage,
    Fetch,
    Ack,
    Head,
    DirectHead,
    GetHeads,
    ConsumerHello,
    StoreHello,
    DirectEarliest,
    GetTopics,
    DirectTopics,
    GetPosition,
    DirectPosition,
)
"""The classes of all commands."""
