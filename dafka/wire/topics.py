"""ZeroMQ topics: the prefixes that nodes subscribe to, and the subscription frames that an XPUB receives.

Every subscription is a command id, alone ("all RECORDs") or followed by a topic. ZeroMQ matches prefixes, so
`hello` also brings `hello2`: whoever receives compares the subject (RFC 46, "ZeroMQ Subscriptions").
"""

from __future__ import annotations

import attrs

from dafka.records import TEXT_BYTES_MAX, decode_text, encode_text
from dafka.wire.constants import Command

_BY_ID = {command.value: command for command in Command}


def subscription_prefix(command: Command, topic: str = "") -> bytes:
    """The prefix to subscribe to for one command and one topic; without a topic, for all of them."""
    return command.value + encode_text(topic, "topic")


@attrs.frozen
class Subscription:
    """What a peer subscribed to, or (`active` false) no longer wants."""

    command: Command
    topic: str
    active: bool = True
    _prefix: bytes = attrs.field(init=False, repr=False, eq=False)

    @_prefix.default
    def _encode_topic(self) -> bytes:
        return self.topic.encode("utf-8", "surrogateescape")

    def covers(self, command: Command, topic: str) -> bool:
        """Does a message with this command and topic reach the subscriber?"""
        return self.command is command and encode_text(topic).startswith(self._prefix)


def decode_subscription(frame: bytes) -> Subscription | None:
    """Reads an XPUB's subscription frame; None for what no Dafka node subscribes to."""
    command, topic = _BY_ID.get(frame[1:2]), frame[2:]
    if frame[:1] not in (b"\0", b"\1") or command is None or len(topic) > TEXT_BYTES_MAX:
        return None
    return Subscription(command, decode_text(topic), active=frame[:1] == b"\1")
