"""What travels on the connection between two brokers, as bytes: hellos, which open it, and sealed frames.

See docs/spec/broker-messages.md.
"""

from __future__ import annotations

import attrs

from dafka.errors import EncodingError, WireError
from dafka.wire.primitives import NUMBER_8, FrameReader, write_string

LINK_VERSION = 1
"""The version of the connections. Brokers of different versions do not connect."""

NONCE_BYTES = 16
MAC_BYTES = 32
SESSION_BYTES = 8

_HELLO, _FRAME = b"H", b"F"
_EMPTY_MAC = bytes(MAC_BYTES)
_EMPTY_NONCE = bytes(NONCE_BYTES)


@attrs.frozen
class LinkIdentity:
    """What one end of a connection says of itself.

    Attributes:
        address: The address of the broker, which is the id of its store.
        cluster_id: The id of its cluster; empty if it belongs to none yet.
        number: Its number; -1 if it has none yet.
        start: The number of its start; empty if it belongs to no cluster yet.
    """

    address: str
    cluster_id: str = ""
    number: int = -1
    start: str = ""

    def encode(self) -> bytes:
        """Return all fields in a form that no other identity has."""
        texts = (self.address, self.cluster_id, str(self.number), self.start)
        return b"".join(write_string(each, "identity") for each in texts)


@attrs.frozen
class Hello:
    """Opens a connection, or answers such a hello.

    Attributes:
        sender: Who sends it.
        receiver: The address of the broker that it is for.
        nonce: Random bytes of the sender for this connection.
        echo: The nonce of the receiver that it answers; zeros if it answers none.
        proof: Proves that the sender knows the secret of the receiver, and has received its nonce; zeros without one.
    """

    sender: LinkIdentity
    receiver: str
    nonce: bytes
    echo: bytes = _EMPTY_NONCE
    proof: bytes = _EMPTY_MAC

    @property
    def is_answer(self) -> bool:
        """Whether it answers a nonce of the receiver."""
        return self.echo != _EMPTY_NONCE


@attrs.frozen
class Frame:
    """A sealed message.

    Attributes:
        session: The connection that it belongs to.
        number: How many frames its sender has sent on this connection, with this one.
        mac: The code that shows that nobody has changed it.
        payload: The message.
    """

    session: bytes
    number: int
    mac: bytes
    payload: bytes


def encode(message: Hello | Frame) -> bytes:
    """Return a message as bytes."""
    if isinstance(message, Frame):
        return b"".join((_FRAME, message.session, NUMBER_8.pack(message.number), message.mac, message.payload))
    receiver = write_string(message.receiver, "receiver")
    fields = (receiver, message.nonce, message.echo, message.proof, message.sender.encode())
    return b"".join((_HELLO, bytes((LINK_VERSION,)), *fields))


def decode(data: bytes) -> Hello | Frame | None:
    """Return what was sent; None if it is malformed, or of another version."""
    try:
        return _read_frame(data) if data[:1] == _FRAME else _read_hello(data)
    except (WireError, EncodingError, ValueError):
        return None


def _read_frame(data: bytes) -> Frame:
    reader = FrameReader(data, 1)
    session, number = reader.read_bytes(SESSION_BYTES, "session"), reader.read_number_8("number")
    mac = reader.read_bytes(MAC_BYTES, "mac")
    return Frame(session, number, mac, data[reader.offset :])


def _read_hello(data: bytes) -> Hello:
    reader = FrameReader(data)
    reader.expect_bytes(_HELLO + bytes((LINK_VERSION,)), "version")
    receiver = reader.read_string("receiver")
    nonce, echo = reader.read_bytes(NONCE_BYTES, "nonce"), reader.read_bytes(NONCE_BYTES, "echo")
    proof = reader.read_bytes(MAC_BYTES, "proof")
    address, cluster_id, number, start = (reader.read_string("identity") for _ in range(4))
    reader.expect_end()
    sender = LinkIdentity(address, cluster_id, int(number), start)
    if sender.encode() != data[len(data) - len(sender.encode()) :]:  # such as a number with zeros before it
        raise WireError("identity", "its only form")
    return Hello(sender, receiver, nonce, echo, proof)
