"""Messages between brokers: records of the topic `$messages`, of which each broker has a partition that all read.

Brokers need no credentials of each other for that, no addresses of listeners and no further protocol: whoever may
publish in the cluster may send. A message is for one life of one broker. What was sent to it before it has started
again reaches it, but does not count: its sender does not know what has become of it, and sends it again if needed.
Messages from one broker to another arrive in their order, each once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

MESSAGE_VERSION = 1
"""The version of the messages."""

WAITING_MAX = 10_000
"""How many messages wait for a broker that has not said that it lives. Further ones are dropped."""

Handler: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Handles a message: the address of its sender, and its fields."""


@attrs.define
class _Peer:
    """Another broker.

    Attributes:
        life: The number of its present life; None if it is not known.
        waiting: What is sent when it is known.
    """

    life: int | None = None
    waiting: list[dict[str, Any]] = attrs.field(factory=list)


class Post:
    """The messages that a broker sends and receives. It does no I/O.

    Args:
        address: The address of the broker.
        publish: Publishes a record in the broker's own partition of `$messages`.
    """

    def __init__(self, address: str, publish: Callable[[bytes], None]) -> None:
        self._address = address
        self._publish = publish
        self._life = secrets.randbits(63)
        self._peers: dict[str, _Peer] = {}
        self._handlers: dict[str, Handler] = {}
        self.discarded = 0

    def on(self, kind: str, handler: Handler) -> None:
        """Set what handles messages of a kind."""
        self._handlers[kind] = handler

    def introduce(self) -> None:
        """Tell all brokers that this one has begun a new life."""
        self._put("", None, "life", {"life": self._life})

    def send(self, address: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Send a message.

        Args:
            address: The address of another broker.
            kind: What handles it there.
            fields: What it says.
        """
        peer = self._peers.setdefault(address, _Peer())
        if peer.life is not None:
            self._put(address, peer.life, kind, fields)
        elif len(peer.waiting) < WAITING_MAX:
            if not peer.waiting:
                self._put(address, None, "life?", {"life": self._life})
            peer.waiting.append({"kind": kind, "fields": fields})

    def receive(self, sender: str, value: bytes | None) -> None:
        """Take a record of another broker's partition. What cannot be read is discarded and counted."""
        try:
            message = json.loads(value or b"")
            to, life, kind, fields = message["to"], message["life"], message["kind"], message["fields"]
            if message["version"] > MESSAGE_VERSION or to not in {"", self._address}:
                return
            if kind in {"life", "life?"}:
                self._meet(sender, int(fields["life"]), is_asked=kind == "life?")
            elif life == self._life and kind in self._handlers:
                self._handlers[kind](sender, fields)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            self.discarded += 1

    def _meet(self, sender: str, life: int, *, is_asked: bool) -> None:
        peer = self._peers.setdefault(sender, _Peer())
        peer.life, waiting, peer.waiting = life, peer.waiting, []
        if is_asked:
            self._put(sender, None, "life", {"life": self._life})
        for each in waiting:
            self._put(sender, life, each["kind"], each["fields"])

    def _put(self, to: str, life: int | None, kind: str, fields: Mapping[str, Any]) -> None:
        message = {"version": MESSAGE_VERSION, "to": to, "life": life, "kind": kind, "fields": fields}
        self._publish(json.dumps(message, separators=(",", ":")).encode())
