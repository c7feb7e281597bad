"""One end of the connection between two brokers: the handshake, and the frames that it carries. It does no I/O.

Both ends prove in the handshake that they know the secret of the cluster. A proof covers a nonce and the identity of
each end, so that it is valid once. Each frame has a code with a key of this connection and a number that grows, so that
a frame that was changed, or comes again or too late, is refused. Frames can be lost.

Both ends do the same: each answers a hello with its own nonce and a proof, and has a connection as soon as it has
received a valid proof for its own nonce, which it then never uses again. A hello without a valid proof changes nothing.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from enum import StrEnum
from hashlib import sha256

import attrs

from dafka.broker.interbroker.link_frames import (
    NONCE_BYTES,
    SESSION_BYTES,
    Frame,
    Hello,
    LinkIdentity,
    encode,
)
from dafka.wire.primitives import NUMBER_4, NUMBER_8


class Refusal(StrEnum):
    """Why something that another broker has sent is refused."""

    MALFORMED = "malformed"
    OTHER_SECRET = "other secret"
    OTHER_CLUSTER = "other cluster"
    CHANGED = "changed"
    REPEATED = "repeated"
    NOT_CONNECTED = "not connected"


@attrs.define(eq=False)
class _Session:
    """A connection. One key is for the frames that this end sends, the other for what it receives."""

    session_id: bytes
    send_key: bytes
    receive_key: bytes
    sent: int = 0
    received: int = 0


class Link:
    """The connection of this broker to one other. `draw` returns random bytes."""

    def __init__(
        self, secret: bytes, own: LinkIdentity, peer: str, draw: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._secret = secret
        self._peer = peer
        self._draw = draw
        self._session: _Session | None = None
        self.restart(own)

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._session is not None

    def restart(self, own: LinkIdentity) -> None:
        """Close the connection, because the identity of this broker has changed."""
        self._own = own
        self._session = None
        self._nonce = self._draw(NONCE_BYTES)

    def hello(self) -> bytes:
        """Return the hello that opens a connection."""
        return encode(Hello(self._own, self._peer, self._nonce))

    def receive_hello(self, hello: Hello) -> bytes | Refusal | None:
        """Process a hello of the other broker to this one. Return the answer, None without one, or why it is refused.

        If it has a valid proof, there is a new connection now.
        """
        theirs, ours = hello.sender.cluster_id, self._own.cluster_id
        if theirs and ours and theirs != ours:
            return Refusal.OTHER_CLUSTER
        if not hello.is_answer:
            return self._answer(hello)
        if hello.echo != self._nonce:  # the answer to an earlier nonce
            return None
        if not hmac.compare_digest(hello.proof, self._prove(hello.sender, hello.nonce, self._own, self._nonce)):
            return Refusal.OTHER_SECRET
        self._session = self._begin_session(hello)
        answer = self._answer(hello)
        self._nonce = self._draw(NONCE_BYTES)
        return answer

    def seal(self, payload: bytes) -> bytes:
        """Return the frame that carries a message. There must be a connection."""
        session = self._session
        assert session is not None
        session.sent += 1
        mac = _make_code(session.send_key, NUMBER_8.pack(session.sent), payload)
        return encode(Frame(session.session_id, session.sent, mac, payload))

    def receive_frame(self, frame: Frame) -> bytes | Refusal:
        """Return the message in a frame, or why it is refused."""
        session = self._session
        if session is None or session.session_id != frame.session:
            return Refusal.NOT_CONNECTED
        expected = _make_code(session.receive_key, NUMBER_8.pack(frame.number), frame.payload)
        if not hmac.compare_digest(frame.mac, expected):
            return Refusal.CHANGED
        if frame.number <= session.received:
            return Refusal.REPEATED
        session.received = frame.number
        return frame.payload

    def _answer(self, hello: Hello) -> bytes:
        proof = self._prove(self._own, self._nonce, hello.sender, hello.nonce)
        return encode(Hello(self._own, self._peer, self._nonce, hello.nonce, proof))

    def _prove(self, sender: LinkIdentity, sender_nonce: bytes, receiver: LinkIdentity, receiver_nonce: bytes) -> bytes:
        return _make_code(self._secret, b"hello", sender_nonce, receiver_nonce, sender.encode(), receiver.encode())

    def _begin_session(self, hello: Hello) -> _Session:
        ends = (self._own.encode(), self._nonce), (hello.sender.encode(), hello.nonce)
        own, other = ends
        return _Session(
            _make_code(self._secret, b"session", *min(ends), *max(ends))[:SESSION_BYTES],
            _make_code(self._secret, b"frames", *own, *other),
            _make_code(self._secret, b"frames", *other, *own),
        )


def _make_code(key: bytes, *parts: bytes) -> bytes:
    """Return the authentication code of some parts, which other parts do not have."""
    return hmac.digest(key, b"".join(NUMBER_4.pack(len(each)) + each for each in parts), sha256)
