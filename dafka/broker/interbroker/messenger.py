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
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import attrs

MESSAGE_VERSION = 1
"""The version of the messages."""

WAITING_MAX = 10_000
"""How many messages wait for a broker whose incarnation is unknown. More messages are dropped."""


@attrs.frozen
class Message:
    """A message between brokers.

    Its fields are integers, strings, booleans, named tuples and other attrs classes, or tuples of one of these.
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
        version, to = _check(int, envelope["version"]), _check(str, envelope["to"])
        kind = _check(str, envelope["kind"])
        if version > MESSAGE_VERSION or to not in {"", self.address} or kind not in self._handlers:
            return None
        message, handler = self._handlers[kind]
        if not issubclass(message, _Incarnation) and _check(int, envelope["incarnation"]) != self._incarnation:
            return None
        return _check(message, envelope["fields"]), handler

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
        self._publish(json.dumps(envelope, default=_fields, separators=(",", ":")).encode())


def _fields(found: Any) -> dict[str, Any]:
    return attrs.asdict(found, recurse=False)


def _check(kind: Any, value: Any) -> Any:
    """Convert a JSON value to a type. Raises `TypeError`, `ValueError` or `KeyError` if it does not match."""
    if attrs.has(kind):
        return kind(**{name: _check(each, value[name]) for name, each in _hints(kind).items()})
    is_named = hasattr(kind, "_fields")
    if is_named or get_origin(kind) is tuple:
        if type(value) is not list:
            raise TypeError(value)
        if is_named:
            return kind(*(_check(*each) for each in zip(_hints(kind).values(), value, strict=True)))
        return tuple(_check(get_args(kind)[0], each) for each in value)
    if type(value) is not (int if issubclass(kind, IntEnum) else kind):
        raise TypeError(value)
    if kind is int and not -(2**63) <= value < 2**63:
        raise ValueError(value)
    return kind(value)


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the types of the fields of an attrs class or a named tuple."""
    return {name: each for name, each in get_type_hints(kind).items() if get_origin(each) is not ClassVar}
