"""The commands of RFC 46 as values, and the table that describes them.

A message is checked when it is made, so that every existing message can be sent. Each class declares its fields in the
order of the header. The type of a field (`TopicName`, `SequenceNumber`) says what it means, and how it is written. The
codec, the documentation and the tests use these declarations. The ZeroMQ topic frame carries the field of type
`Recipient`, `FetchedPartition` or `AskedTopic`. Without one, it carries the subject, which the header carries, too, and
both must agree.

RFC 46 does not have the commands that name a document, or erratum 26 or 27. They are sent only to nodes that subscribe
to them.

Addresses are those of nodes; the address of a producer is also the name of its partition. Making a message raises
`EncodingError` for a value that the grammar cannot carry: a text of more than 255 bytes, a number out of range, a
content that is not bytes.
"""

# `from __future__ import annotations` would hide the types of the fields from the base class.

from typing import ClassVar, TypeAlias, get_args

import attrs

from dafka.records import RecordBatch
from dafka.wire.commands import Command
from dafka.wire.fields import (
    AskedTopic,
    Content,
    Count,
    DescribedMessage,
    FetchedPartition,
    FieldType,
    Milliseconds,
    NodeAddress,
    PartitionName,
    Recipient,
    SequenceNumber,
    TopicName,
    TopicNames,
    add_checks,
    as_tuple,
)


@attrs.frozen(field_transformer=add_checks)
class Record(DescribedMessage):
    """RECORD: a producer publishes one record (RFC 46, "The RECORD Command")."""

    COMMAND: ClassVar = Command.RECORD

    address: PartitionName
    subject: TopicName
    sequence: SequenceNumber
    content: Content


@attrs.frozen(field_transformer=add_checks)
class DirectRecord(DescribedMessage):
    """DIRECT-RECORD: a stored record, sent to the node that fetched it (RFC 46, "The DIRECT-RECORD Command")."""

    COMMAND: ClassVar = Command.DIRECT_RECORD

    requestor: Recipient
    address: PartitionName
    subject: TopicName
    sequence: SequenceNumber
    content: Content


@attrs.frozen(field_transformer=add_checks)
class RecordBatchMessage(DescribedMessage):
    """RECORD-BATCH: a producer publishes consecutive records (docs/spec/record-batches.md)."""

    COMMAND: ClassVar = Command.RECORD_BATCH

    address: PartitionName
    subject: TopicName
    content: Content


@attrs.frozen(field_transformer=add_checks)
class DirectRecordBatchMessage(DescribedMessage):
    """DIRECT-RECORD-BATCH: stored records, sent to the node that fetched them (docs/spec/record-batches.md)."""

    COMMAND: ClassVar = Command.DIRECT_RECORD_BATCH

    requestor: Recipient
    address: PartitionName
    subject: TopicName
    content: Content


@attrs.frozen(field_transformer=add_checks)
class Fetch(DescribedMessage):
    """FETCH: a node asks for records of a partition (RFC 46, "The FETCH Command").

    The ZeroMQ topic is the partition, not the address of the consumer as the prose of RFC 46 says (erratum 3).

    Attributes:
        sequence: The first record to send.
        count: The number of records to send.
    """

    COMMAND: ClassVar = Command.FETCH

    partition: FetchedPartition
    address: NodeAddress
    subject: TopicName
    sequence: SequenceNumber
    count: Count


@attrs.frozen(field_transformer=add_checks)
class Ack(DescribedMessage):
    """ACK: a store has made all records up to a sequence durable (RFC 46, "The ACK Command").

    Attributes:
        sequence: The sequence of the last durable record.
        address: The address of the store (erratum 7); empty in the libdafka dialect, which has no such field.
    """

    COMMAND: ClassVar = Command.ACK
    FIELDS: ClassVar = (("address", FieldType.STRING), ("subject", FieldType.STRING), ("sequence", FieldType.NUMBER_8))

    partition: FetchedPartition
    subject: TopicName
    sequence: SequenceNumber
    address: NodeAddress = ""


@attrs.frozen(field_transformer=add_checks)
class Head(DescribedMessage):
    """HEAD: a producer announces its last published record (RFC 46, "The HEAD Command").

    Attributes:
        sequence: The sequence of the last published record.
    """

    COMMAND: ClassVar = Command.HEAD

    address: PartitionName
    subject: TopicName
    sequence: SequenceNumber


@attrs.frozen(field_transformer=add_checks)
class DirectHead(DescribedMessage):
    """DIRECT-HEAD: the head of a partition, sent to the node that asked (RFC 46, "The DIRECT-HEAD Command").

    Attributes:
        sequence: The sequence of the last record.
    """

    COMMAND: ClassVar = Command.DIRECT_HEAD

    requestor: Recipient
    address: PartitionName
    subject: TopicName
    sequence: SequenceNumber


@attrs.frozen(field_transformer=add_checks)
class GetHeads(DescribedMessage):
    """GET-HEADS: a node asks for the heads of all partitions of a topic (RFC 46, "The GET-HEADS Command")."""

    COMMAND: ClassVar = Command.GET_HEADS

    subject: AskedTopic
    address: NodeAddress


@attrs.frozen(field_transformer=add_checks)
class ConsumerHello(DescribedMessage):
    """CONSUMER-HELLO: a consumer greets a store (RFC 46, "The CONSUMER-HELLO Command").

    Attributes:
        subjects: The topics that the consumer is subscribed to.
    """

    COMMAND: ClassVar = Command.CONSUMER_HELLO

    store: Recipient
    address: NodeAddress
    subjects: TopicNames = attrs.field(converter=as_tuple)


@attrs.frozen(field_transformer=add_checks)
class StoreHello(DescribedMessage):
    """STORE-HELLO: a store greets a consumer (RFC 46, "The STORE-HELLO Command")."""

    COMMAND: ClassVar = Command.STORE_HELLO

    consumer: Recipient
    address: NodeAddress


@attrs.frozen(field_transformer=add_checks)
class DirectEarliest(DescribedMessage):
    """DIRECT-EARLIEST: a node does not have the record that was fetched (erratum 26).

    Attributes:
        sequence: The first record that the answering node holds; `NUMBER_8_MAX` if it holds none.
        unrecoverable_end: Records before this sequence are unrecoverable as far as the answering node knows: they were
            dropped, and not merely missed.
    """

    COMMAND: ClassVar = Command.DIRECT_EARLIEST

    requestor: Recipient
    address: NodeAddress
    partition: PartitionName
    subject: TopicName
    sequence: SequenceNumber
    unrecoverable_end: SequenceNumber


@attrs.frozen(field_transformer=add_checks)
class GetTopics(DescribedMessage):
    """GET-TOPICS: a node asks a store for the topics that it holds (erratum 27).

    Attributes:
        after: The last topic of the previous page; empty for the first page.
    """

    COMMAND: ClassVar = Command.GET_TOPICS

    store: Recipient
    address: NodeAddress
    after: TopicName


@attrs.frozen(field_transformer=add_checks)
class DirectTopics(DescribedMessage):
    """DIRECT-TOPICS: one page of the topics that a store holds, sent to the node that asked (erratum 27).

    Attributes:
        after: The topic after which the page begins, as in the question.
        subjects: The topics of the page, in the store's order.
        remaining: The number of topics after this page; 0 on the last page.
        partitions: The number of partitions that the store holds, of all topics.
    """

    COMMAND: ClassVar = Command.DIRECT_TOPICS

    requestor: Recipient
    address: NodeAddress
    after: TopicName
    subjects: TopicNames = attrs.field(converter=as_tuple)
    remaining: Count
    partitions: Count


@attrs.frozen(field_transformer=add_checks)
class GetPosition(DescribedMessage):
    """GET-POSITION: a node asks a store for a partition's position at a time (docs/spec/positions-by-time.md)."""

    COMMAND: ClassVar = Command.GET_POSITION

    store: Recipient
    address: NodeAddress
    partition: PartitionName
    subject: TopicName
    time: Milliseconds


@attrs.frozen(field_transformer=add_checks)
class DirectPosition(DescribedMessage):
    """DIRECT-POSITION: the first record of a partition that was made at a time or later, sent to the node that asked.

    See docs/spec/positions-by-time.md.

    Attributes:
        time: The time, as in the question.
        sequence: The first record that was made at this time or later; `NUMBER_8_MAX` if the store holds none.
        end: The sequence after the last record that the store holds; 0 if it never held any.
    """

    COMMAND: ClassVar = Command.DIRECT_POSITION

    requestor: Recipient
    address: NodeAddress
    partition: PartitionName
    subject: TopicName
    time: Milliseconds
    sequence: SequenceNumber
    end: SequenceNumber


@attrs.frozen(field_transformer=add_checks)
class BrokerMessage(DescribedMessage):
    """BROKER-MESSAGE: a message of the connection between two brokers (docs/spec/broker-messages.md)."""

    COMMAND: ClassVar = Command.BROKER_MESSAGE

    receiver: Recipient
    address: NodeAddress
    content: Content


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


_WithoutRecords: TypeAlias = (
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
    | BrokerMessage
)
WithRecords: TypeAlias = Record | DirectRecord | RecordBatchMessage | DirectRecordBatchMessage
WithContent: TypeAlias = WithRecords | BrokerMessage
Message: TypeAlias = WithRecords | _WithoutRecords
"""A command of the protocol."""

BatchedMessage: TypeAlias = RecordRun | _WithoutRecords
"""A message as `BatchDecoder` returns it and `BatchEncoder` takes it: records form runs, other messages are single."""

MESSAGES: tuple[type[Message], ...] = get_args(Message)
"""The classes of all commands."""
