"""Messages between brokers: records of the topic `$messages`, of which each broker has a partition that all read.

Brokers need no credentials of each other for that, no addresses and no other protocol: each node that can publish in
the cluster can send. A message is for one incarnation of one broker. A message to an earlier incarnation arrives, but does
not count: its sender gets no answer, and sends it again if needed.
Messages from one broker to another arrive in their order, each once.
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
"""How many messages wait for a broker that has not said that it lives. Further ones are dropped."""


@attrs.frozen
class Message:
    """A message between brokers.

    Its fields are numbers, texts, truth values, named tuples and further classes of attrs, or tuples of one of these.

    Attributes:
        KIND: What the message is called.
    """

    KIND: ClassVar[str]


AnyMessage = TypeVar("AnyMessage", bound=Message)


@attrs.frozen
class _Life(Message):
    """Says the number of the sender's present life."""

    KIND = "life"
    life: int


@attrs.frozen
class _LifeAsked(_Life):
    """Says the same, and asks for the number of the receiver's present life."""

    KIND = "life?"


@attrs.define
class _Peer:
    """Another broker.

    Attributes:
        life: The number of its present life; None if it is not known.
        waiting: What is sent when it is known.
    """

    life: int | None = None
    waiting: list[Message] = attrs.field(factory=list)


class BrokerMessenger:
    """The messages that a broker sends and receives. It does no I/O.

    Args:
        address: The address of the broker.
        publish: Publishes a record in the broker's own partition of `$messages`.

    Attributes:
        discarded: How many records of other brokers could not be read.
    """

    def __init__(self, address: str, publish: Callable[[bytes], None]) -> None:
        self._address = address
        self._publish = publish
        self._life = secrets.randbits(63)
        self._peers: dict[str, _Peer] = {}
        self._handlers: dict[str, tuple[type[Message], Callable[[str, Any], None]]] = {}
        self.discarded = 0
        self.on(_Life, self._meet)
        self.on(_LifeAsked, self._meet)

    def on(self, message: type[AnyMessage], handler: Callable[[str, AnyMessage], None]) -> None:
        """Set what handles messages of a kind: it gets the address of the sender, and a message that is well-formed."""
        self._handlers[message.KIND] = message, handler

    def introduce(self) -> None:
        """Inform all brokers of this incarnation."""
        self._put("", None, _Life(self._life))

    def send(self, address: str, message: Message) -> None:
        """Send a message to another broker."""
        peer = self._peers.setdefault(address, _Peer())
        if peer.life is not None:
            self._put(address, peer.life, message)
        elif len(peer.waiting) < WAITING_MAX:
            if not peer.waiting:
                self._put(address, None, _LifeAsked(self._life))
            peer.waiting.append(message)

    def receive(self, sender: str, value: bytes | None) -> None:
        """Take a record of another broker's partition. What cannot be read is discarded and counted."""
        try:
            found = self._read(value or b"")
        except (ValueError, KeyError, TypeError, RecursionError):
            self.discarded += 1
            return
        if found is not None:
            message, handler = found
            handler(sender, message)

    def _read(self, value: bytes) -> tuple[Message, Callable[[str, Any], None]] | None:
        """Return a message and what handles it; None if it is for another broker or life, or of a newer version."""
        envelope = json.loads(value)
        version, to = _check(int, envelope["version"]), _check(str, envelope["to"])
        kind = _check(str, envelope["kind"])
        if version > MESSAGE_VERSION or to not in {"", self._address} or kind not in self._handlers:
            return None
        message, handler = self._handlers[kind]
        if not issubclass(message, _Life) and _check(int, envelope["life"]) != self._life:
            return None
        return _check(message, envelope["fields"]), handler

    def _meet(self, sender: str, message: _Life) -> None:
        peer = self._peers.setdefault(sender, _Peer())
        peer.life, waiting, peer.waiting = message.life, peer.waiting, []
        if isinstance(message, _LifeAsked):
            self._put(sender, None, _Life(self._life))
        for each in waiting:
            self._put(sender, peer.life, each)

    def _put(self, to: str, life: int | None, message: Message) -> None:
        envelope = {"version": MESSAGE_VERSION, "to": to, "life": life, "kind": message.KIND, "fields": message}
        self._publish(json.dumps(envelope, default=_fields, separators=(",", ":")).encode())


def _fields(found: Any) -> dict[str, Any]:
    return attrs.asdict(found, recurse=False)


def _check(kind: Any, value: Any) -> Any:
    """Return what JSON has of a type as that type. Raises `TypeError`, `ValueError` or `KeyError` if it is another."""
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
    """Return the types of the fields of a class of attrs or a named tuple."""
    return {name: each for name, each in get_type_hints(kind).items() if get_origin(each) is not ClassVar}
