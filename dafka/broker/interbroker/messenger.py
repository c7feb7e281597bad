"""Messages between brokers: each pair of brokers has a connection, which carries them in both directions.

Messages from one broker to another arrive in order, each at most once. They are lost if the connection breaks, or if
the other broker starts again; their senders repeat them if needed. See `Link` for how brokers authenticate.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import attrs

from dafka.broker.core.typed_json import convert, encode_json
from dafka.broker.interbroker.link import Link, Refusal
from dafka.broker.interbroker.link_frames import Frame, Hello, LinkIdentity, decode

_LOGGER = logging.getLogger("dafka.broker")

WAITING_MAX = 10_000
"""How many messages wait for a connection to a broker. More messages are dropped."""

WAIT_TICKS = 40
"""How many ticks messages wait for a connection."""

LINKS_MAX = 1000
"""The maximum number of connections, including the ones that others have begun."""


@attrs.frozen
class Message:
    """A message between brokers.

    `convert` says which types its fields can have.
    """

    KIND: ClassVar[str]
    """The name of the type of message."""


AnyMessage = TypeVar("AnyMessage", bound=Message)


@attrs.define(eq=False)
class _Peer:
    """Another broker. Messages wait until there is a connection to it, each with the tick in which it was sent."""

    link: Link
    waiting: deque[tuple[int, bytes]] = attrs.field(factory=deque)
    has_greeted: bool = False
    has_other_secret: bool = False


class BrokerMessenger:
    """The messages that a broker sends and receives. It does no I/O.

    `send_bytes` sends bytes to the broker with an address; they can be lost. Whatever is `refused` is counted by
    reason, and has no other effect.
    """

    def __init__(self, address: str, send_bytes: Callable[[str, bytes], None], secret: str = "") -> None:
        self.address = address
        self._identity = LinkIdentity(address)
        self._send_bytes = send_bytes
        self._secret = secret.encode()
        self._peers: dict[str, _Peer] = {}
        self._handlers: dict[str, tuple[type[Message], Callable[[str, Any], None]]] = {}
        self._ticks = 0
        self._reported: set[tuple[str, Refusal]] = set()
        self.refused: Counter[str] = Counter({each.value: 0 for each in Refusal})

    def on(self, message: type[AnyMessage], handler: Callable[[str, AnyMessage], None]) -> None:
        """Set the handler of a type of message. It receives the sender's address and a well-formed message."""
        self._handlers[message.KIND] = message, handler

    def identify(self, identity: LinkIdentity) -> None:
        """Set what this broker says of itself. If it has changed, connections are opened again."""
        if identity == self._identity:
            return
        self._identity = identity
        self._reported.clear()
        for address, peer in list(self._peers.items()):
            peer.link.restart(identity)
            self._greet(address, peer)

    def send(self, address: str, message: Message) -> None:
        """Send a message to another broker."""
        payload = encode_json({"kind": message.KIND, "fields": message})
        peer = self._find_peer(address)
        if peer.link.is_open:
            self._send_bytes(address, peer.link.seal(payload))
            return
        if len(peer.waiting) < WAITING_MAX:
            peer.waiting.append((self._ticks, payload))
        if not peer.has_greeted:
            self._greet(address, peer)

    def connect(self, address: str) -> None:
        """Open a connection to another broker without sending a message, if there is none."""
        peer = self._find_peer(address)
        if not peer.link.is_open and not peer.has_greeted:
            self._greet(address, peer)

    def has_other_secret(self, address: str) -> bool | None:
        """Return whether another broker has another secret; None if it has not answered a hello."""
        peer = self._peers.get(address)
        if peer is None or not (peer.link.is_open or peer.has_other_secret):
            return None
        return peer.has_other_secret

    def tick(self) -> None:
        """Repeat hellos that were not answered while messages wait. Call this a few times a second."""
        self._ticks += 1
        for address, peer in list(self._peers.items()):
            peer.has_greeted = False
            while peer.waiting and peer.waiting[0][0] < self._ticks - WAIT_TICKS:
                peer.waiting.popleft()
            if peer.waiting:
                self._greet(address, peer)

    def receive(self, sender: str, data: bytes) -> None:
        """Process what another broker has sent."""
        received = decode(data)
        if sender == self.address:
            return
        if isinstance(received, Hello):
            self._receive_hello(sender, received)
        elif isinstance(received, Frame):
            self._receive_frame(sender, received)
        else:
            self._refuse(sender, Refusal.MALFORMED)

    def _receive_hello(self, sender: str, hello: Hello) -> None:
        if hello.sender.address != sender or hello.receiver != self.address:
            self._refuse(sender, Refusal.MALFORMED)
            return
        peer = self._find_peer(sender)
        answer = peer.link.receive_hello(hello)
        peer.has_other_secret = not peer.link.is_open and (peer.has_other_secret or answer is Refusal.OTHER_SECRET)
        if isinstance(answer, Refusal):
            self._refuse(sender, answer, hello.sender)
        elif answer is not None:
            self._send_bytes(sender, answer)
        while peer.link.is_open and peer.waiting:
            self._send_bytes(sender, peer.link.seal(peer.waiting.popleft()[1]))

    def _receive_frame(self, sender: str, frame: Frame) -> None:
        peer = self._find_peer(sender)
        payload = peer.link.receive_frame(frame)
        if payload is Refusal.NOT_CONNECTED and not peer.has_greeted:  # one of both has started again
            self._greet(sender, peer)
        if isinstance(payload, Refusal):
            self._refuse(sender, payload)
        else:
            self.process(sender, payload)

    def process(self, sender: str, payload: bytes) -> None:
        """Process a message that has arrived on the connection to another broker."""
        try:
            found = self._read(payload)
        except (ValueError, KeyError, TypeError, RecursionError):
            self._refuse(sender, Refusal.MALFORMED)
            return
        if found is not None:
            message, handler = found
            handler(sender, message)

    def _read(self, payload: bytes) -> tuple[Message, Callable[[str, Any], None]] | None:
        """Return a message and its handler; None if only newer versions know it."""
        envelope = json.loads(payload)
        kind = convert(str, envelope["kind"])
        if kind not in self._handlers:
            return None
        message, handler = self._handlers[kind]
        return convert(message, envelope["fields"]), handler

    def _find_peer(self, address: str) -> _Peer:
        found = self._peers.get(address)
        if found is None:
            if len(self._peers) >= LINKS_MAX:
                idle = (name for name, each in self._peers.items() if not each.link.is_open and not each.waiting)
                del self._peers[next(idle, next(iter(self._peers)))]
            found = self._peers[address] = _Peer(Link(self._secret, self._identity, address))
        return found

    def _greet(self, address: str, peer: _Peer) -> None:
        peer.has_greeted = True
        self._send_bytes(address, peer.link.hello())

    def _refuse(self, sender: str, reason: Refusal, identity: LinkIdentity | None = None) -> None:
        self.refused[reason.value] += 1
        if identity is None or (sender, reason) in self._reported or len(self._reported) >= LINKS_MAX:
            return
        self._reported.add((sender, reason))
        name = f"the broker {identity.number} ({sender})" if identity.number >= 0 else f"the broker {sender}"
        if reason is Refusal.OTHER_CLUSTER:
            _LOGGER.warning(
                "%s is refused: it belongs to the cluster %s, and this broker to %s; start it in a network of its own",
                name,
                identity.cluster_id,
                self._identity.cluster_id,
            )
        else:
            _LOGGER.warning(
                "%s is refused: it does not know the secret of this broker; all brokers of a cluster need the same "
                "[broker] secret_file",
                name,
            )
