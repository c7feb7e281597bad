"""The commands of RFC 46, its fixed values, and ZeroMQ topics: the prefixes that nodes subscribe to.

A subscription is a command id, alone ("all RECORDs") or followed by a topic. ZeroMQ matches prefixes, so a
subscription to `hello` also brings `hello2`; the receiver compares the subject (RFC 46, "ZeroMQ Subscriptions").
"""

from __future__ import annotations

import enum

import attrs

from dafka.records import TEXT_BYTES_MAX, decode_text, encode_text

SIGNATURE = b"\xaa\xa5"
"""The first two bytes of a header. The prose of RFC 46 also says `AA A0`; its grammar says this (erratum 1)."""

VERSION = 1
"""The protocol version in every header. RFC 46 also says `%x30` once; its grammar says 1 (erratum 2)."""

NUMBER_4_MAX = 2**32 - 1
"""The largest `number-4` of the grammar."""

NUMBER_8_MAX = 2**64 - 1
"""The largest `number-8` of the grammar."""


class Command(enum.Enum):
    """A command. The value is its id: the first byte of the topic frame, and a byte of the header.

    Nine commands are those of RFC 46. Extensions of this project are `DIRECT_EARLIEST` (erratum 26), `GET_TOPICS` and
    `DIRECT_TOPICS` (erratum 27), `RECORD_BATCH` and `DIRECT_RECORD_BATCH` (docs/spec/record-batches.md), `GET_POSITION`
    and `DIRECT_POSITION` (docs/spec/positions-by-time.md), and `BROKER_MESSAGE` (docs/spec/broker-messages.md).
    """

    RECORD = b"M"
    DIRECT_RECORD = b"D"
    FETCH = b"F"
    ACK = b"K"
    HEAD = b"H"
    DIRECT_HEAD = b"E"
    GET_HEADS = b"G"
    CONSUMER_HELLO = b"W"
    STORE_HELLO = b"L"
    DIRECT_EARLIEST = b"T"
    GET_TOPICS = b"Q"
    DIRECT_TOPICS = b"P"
    RECORD_BATCH = b"B"
    DIRECT_RECORD_BATCH = b"C"
    GET_POSITION = b"S"
    DIRECT_POSITION = b"R"
    BROKER_MESSAGE = b"N"


class Dialect(enum.Enum):
    """A way to write messages. Every node reads both dialects, and writes the one of its `wire` setting.

    `RFC46` follows the grammar of RFC 46, `LIBDAFKA` the C implementation (`dafka.wire.codec` shows both).
    """

    RFC46 = "rfc46"
    LIBDAFKA = "libdafka"


_BY_ID = {command.value: command for command in Command}

ADDRESSED_COMMANDS = frozenset(Command) - {
    Command.RECORD,
    Command.RECORD_BATCH,
    Command.FETCH,
    Command.HEAD,
    Command.GET_HEADS,
}
"""The commands that a node subscribes to with its own address."""

BATCH_COMMANDS = {Command.RECORD: Command.RECORD_BATCH, Command.DIRECT_RECORD: Command.DIRECT_RECORD_BATCH}
"""By command with single records, the command with record batches."""


def subscription_prefix(command: Command, topic: str = "") -> bytes:
    """Return the prefix to subscribe to for one command (RFC 46, "ZeroMQ Subscriptions").

    The topic is a subject or an address, depending on the command; empty for all. Raises `EncodingError` if it is
    longer than 255 bytes, or not text that can be encoded.
    """
    return command.value + encode_text(topic, "topic")


def with_batches(prefix: bytes) -> tuple[bytes, ...]:
    """Return the subscriptions to make for this prefix by a node that reads record batches.

    For a command with records, the prefix of the command for batches comes first.
    """
    batch = BATCH_COMMANDS.get(_BY_ID[prefix[:1]]) if prefix[:1] in _BY_ID else None
    return (prefix,) if batch is None else (batch.value + prefix[1:], prefix)


@attrs.frozen
class Subscription:
    """A peer subscribed to something, or unsubscribed.

    Attributes:
        command: The command of the subscription.
        topic: The beginning of the topics to receive; empty for all.
        active: Whether it subscribed; false if it unsubscribed.
    """

    command: Command
    topic: str
    active: bool = True
    _prefix: bytes = attrs.field(init=False, repr=False, eq=False)

    @_prefix.default
    def _encode_topic(self) -> bytes:
        return self.topic.encode("utf-8", "surrogateescape")

    def covers(self, command: Command, topic: str) -> bool:
        """Return whether a message with this command and topic reaches the subscriber."""
        return self.command is command and encode_text(topic).startswith(self._prefix)


def decode_subscription(frame: bytes) -> Subscription | None:
    """Read a subscription frame of an XPUB socket (ZeroMQ RFC 29): `%x01` or `%x00` (unsubscribe), and the prefix.

    Return None if it is not a subscription that a Dafka node makes.
    """
    command, topic = _BY_ID.get(frame[1:2]), frame[2:]
    if frame[:1] not in (b"\0", b"\1") or command is None or len(topic) > TEXT_BYTES_MAX:
        return None
    return Subscription(command, decode_text(topic), active=frame[:1] == b"\1")
