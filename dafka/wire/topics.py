"""ZeroMQ topics: the prefixes that nodes subscribe to, and the subscription frames that an XPUB socket receives.

A subscription is a command id, alone ("all RECORDs") or followed by a topic. ZeroMQ matches prefixes, so a
subscription to `hello` also brings `hello2`; the receiver compares the subject (RFC 46, "ZeroMQ Subscriptions").
"""

from __future__ import annotations

import attrs

from dafka.records import TEXT_BYTES_MAX, decode_text, encode_text
from dafka.wire.constants import Command

_BY_ID = {command.value: command for command in Command}


def subscription_prefix(command: Command, topic: str = "") -> bytes:
    """Return the prefix to subscribe to for one command (RFC 46, "ZeroMQ Subscriptions").

    Args:
        command: The command to receive.
        topic: The ZeroMQ topic to receive it for: a subject or an address, depending on the command. Empty for all.

    Returns:
        The bytes for ZeroMQ's SUBSCRIBE option.

    Raises:
        EncodingError: The topic is longer than 255 bytes, or not text that can be encoded.
    """
    return command.value + encode_text(topic, "topic")


BATCH_COMMANDS = {
    Command.RECORD: Command.RECORD_BATCH,
    Command.DIRECT_RECORD: Command.DIRECT_RECORD_BATCH,
}
"""By command with single records, the command with record batches."""


def with_batches(prefix: bytes) -> tuple[bytes, ...]:
    """Return the subscriptions of a node that reads record batches; the one for batches comes first.

    Args:
        prefix: The prefix to subscribe to for one command.

    Returns:
        For a command with records, the prefix of the command for batches and this prefix; otherwise this prefix.
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
        """Return whether a message with this command and topic reaches the subscriber.

        Args:
            command: The message's command.
            topic: The message's topic.

        Returns:
            Whether the command is the same, and the topic begins with the subscription's.
        """
        return self.command is command and encode_text(topic).startswith(self._prefix)


def decode_subscription(frame: bytes) -> Subscription | None:
    """Read a subscription frame of an XPUB socket (ZeroMQ RFC 29).

    Args:
        frame: `%x01` (subscribe) or `%x00` (unsubscribe), and the prefix.

    Returns:
        The subscription, or None if it is not one that a Dafka node makes.
    """
    command, topic = _BY_ID.get(frame[1:2]), frame[2:]
    if frame[:1] not in (b"\0", b"\1") or command is None or len(topic) > TEXT_BYTES_MAX:
        return None
    return Subscription(command, decode_text(topic), active=frame[:1] == b"\1")
