"""The messages between nodes and towers (RFC 46, "Node Discovery and Presence").

    node to tower     [B] [uuid] [host, may be empty] [port, decimal digits]
    tower to node     [B] [uuid] [tcp://host:port]
    tower, greeting   [W]

In a closed cluster the tower adds a fourth frame: the public key that the node has proven to hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dafka.endpoints import PeerEndpoint, is_host, is_key, is_peer_endpoint, is_port
from dafka.errors import WireError
from dafka.records import TEXT_BYTES_MAX, decode_text, encode_text

BEACON = b"B"
"""The first frame of a beacon."""

WELCOME = b"W"
"""The only frame of a tower's greeting to a new subscriber."""


@attrs.frozen
class NodeBeacon:
    """The beacon that a node sends to its tower.

    Attributes:
        address: The node's address.
        host: The host that peers connect to; empty for the host from which the tower sees the node connect.
        port: The port that peers connect to.
    """

    address: str
    host: str
    port: int

    def encode(self) -> list[bytes]:
        """Return the frames of the beacon."""
        return [BEACON, encode_text(self.address, "uuid"), self.host.encode("ascii"), b"%d" % self.port]

    @classmethod
    def decode(cls, frames: Sequence[bytes]) -> NodeBeacon:
        """Return the beacon that frames carry. Raises `WireError` if they are not a node's beacon."""
        _check_frames(frames, 4)
        host = _decode_host(frames[2]) if frames[2] else ""
        return cls(_decode_uuid(frames[1]), host, _decode_port(frames[3]))


@attrs.frozen
class TowerBeacon:
    """The beacon of a node as the tower passes it on to all nodes.

    Attributes:
        address: The node's address.
        endpoint: The endpoint that peers connect to, `tcp://host:port`.
        key: The node's public key, 40 characters of Z85; empty in a plain cluster.
    """

    address: str
    endpoint: str
    key: str = ""

    @property
    def peer_endpoint(self) -> PeerEndpoint:
        """The node's endpoint with the key to expect there."""
        return PeerEndpoint(self.endpoint, self.key)

    def encode(self) -> list[bytes]:
        """Return the frames of the beacon."""
        frames = [BEACON, encode_text(self.address, "uuid"), self.endpoint.encode("ascii")]
        return [*frames, self.key.encode("ascii")] if self.key else frames

    @classmethod
    def decode(cls, frames: Sequence[bytes], *, has_key: bool = False) -> TowerBeacon:
        """Return the beacon that frames carry, which must have a key in a closed cluster.

        Raises `WireError` if they are not a tower's beacon, or have a key too many or too few.
        """
        _check_frames(frames, 4 if has_key else 3)
        key = _decode_key(frames[3]) if has_key else ""
        return cls(_decode_uuid(frames[1]), _decode_endpoint(frames[2]), key)


def _check_frames(frames: Sequence[bytes], count: int) -> None:
    if len(frames) != count:
        raise WireError("frames", f"{count}, not {len(frames)}")
    if frames[0] != BEACON:
        raise WireError("type", "B", 0)


def _decode_host(data: bytes) -> str:
    host = data.decode("ascii", "replace")
    if not is_host(host):
        raise WireError("host", "a host name or address")
    return host


def _decode_port(data: bytes) -> int:
    port = data.decode("ascii", "replace")
    if not is_port(port):
        raise WireError("port", "decimal digits from 1 to 65535")
    return int(port)


def _decode_endpoint(data: bytes) -> str:
    endpoint = data.decode("ascii", "replace")
    if not is_peer_endpoint(endpoint):
        raise WireError("endpoint", "tcp://host:port")
    return endpoint


def _decode_key(data: bytes) -> str:
    key = data.decode("ascii", "replace")
    if not is_key(key):
        raise WireError("key", "40 characters of Z85")
    return key


def _decode_uuid(data: bytes) -> str:
    if not 0 < len(data) <= TEXT_BYTES_MAX:
        raise WireError("uuid", f"1 to {TEXT_BYTES_MAX} bytes, not {len(data)}")
    return decode_text(data)
