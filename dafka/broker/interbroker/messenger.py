"""Messages between brokers: records of the topic `$messages`, of which each broker has a partition that all read.

Brokers need no credentials of each other for these messages, no addresses of servers and no other protocol: every node
that may publish in the cluster can send. A message is for one incarnation of one broker. A broker ignores messages that
were sent to an earlier incarnation; their senders get no answer and repeat them if needed. Messages from one broker to
another arrive in order, each once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import attrs

from dafka.broker.core.typed_json import convert, encode_json

MESSAGE_VERSION = 1
"""The version of the messages."""

WAITING_MAX = 10_000
"""How many messages wait for a broker whose incarnation is unknown. More messages are dropped."""


@attrs.frozen
class Message:
    """A message between brokers.

    `convert` says which types its fields can have.
    """

    KIND: ClassVar[str]
    """The name of the type of message."""


AnyMessage = TypeVar("AnyMessage", bound=Message)


@attrs.frozen
class _Incarnation(Message):
    """Announces the sender's current incarnation."""

    KIND = "incarnation"
    incarnation: int


@attrs.frozen
class _IncarnationRequest(_Incarnation):
    """Announces the sender's current incarnation, and requests the receiver's."""

    KIND = "incarnation?"


@attrs.define
class _Peer:
    """Another broker. Messages wait until its current incarnation is known."""

    incarnation: int | None = None
    waiting: list[Message] = attrs.field(factory=list)


class BrokerMessenger:
    """The messages that a broker sends and receives. It does no I/O.

    `publish` publishes a record in the broker's partition of `$messages`. Malformed records of other brokers are
    `discarded` and counted.
    """

    def __init__(self, address: str, publish: Callable[[bytes], None]) -> None:
        self.address = address
        self._publish = publish
        self._incarnation = secrets.randbits(63)
        self._peers: dict[str, _Peer] = {}
        self._handlers: dict[str, tuple[type[Message], Callable[[str, Any], None]]] = {}
        self.discarded = 0
        self.on(_Incarnation, self._meet)
        self.on(_IncarnationRequest, self._meet)

    def on(self, message: type[AnyMessage], handler: Callable[[str, AnyMessage], None]) -> None:
        """Set the handler of a type of message. It receives the sender's address and a well-formed message."""
        self._handlers[message.KIND] = message, handler

    def introduce(self) -> None:
        """Announce this broker's new incarnation to all brokers."""
        self._put("", None, _Incarnation(self._incarnation))

    def send(self, address: str, message: Message) -> None:
        """Send a message to another broker."""
        peer = self._peers.setdefault(address, _Peer())
        if peer.incarnation is not None:
            self._put(address, peer.incarnation, message)
        elif len(peer.waiting) < WAITING_MAX:
            if not peer.waiting:
                self._put(address, None, _IncarnationRequest(self._incarnation))
            peer.waiting.append(message)

    def receive(self, sender: str, value: bytes | None) -> None:
        """Handle a record of another broker's partition. Malformed records are discarded and counted."""
        try:
            found = self._read(value or b"")
        except (ValueError, KeyError, TypeError, RecursionError):
            self.discarded += 1
            return
        if found is not None:
            message, handler = found
            handler(sender, message)

    def _read(self, value: bytes) -> tuple[Message, Callable[[str, Any], None]] | None:
        """Return a message and its handler; None if it is for another broker or incarnation, or of a newer version."""
        envelope = json.loads(value)
        version, to = convert(int, envelope["version"]), convert(str, envelope["to"])
        kind = convert(str, envelope["kind"])
        if version > MESSAGE_VERSION or to not in {"", self.address} or kind not in self._handlers:
            return None
        message, handler = self._handlers[kind]
        if not issubclass(message, _Incarnation) and convert(int, envelope["incarnation"]) != self._incarnation:
            return None
        return convert(message, envelope["fields"]), handler

    def _meet(self, sender: str, message: _Incarnation) -> None:
        peer = self._peers.setdefault(sender, _Peer())
        peer.incarnation, waiting, peer.waiting = message.incarnation, peer.waiting, []
        if isinstance(message, _IncarnationRequest):
            self._put(sender, None, _Incarnation(self._incarnation))
        for each in waiting:
            self._put(sender, peer.incarnation, each)

    def _put(self, to: str, incarnation: int | None, message: Message) -> None:
        envelope = {
            "version": MESSAGE_VERSION,
            "to": to,
            "incarnation": incarnation,
            "kind": message.KIND,
            "fields": message,
        }
        self._publish(encode_json(envelope))
