"""What nodes and towers say to each other (RFC 46, "Node Discovery and Presence").

node to tower     [B] [uuid] [host, may be empty] [port, decimal digits]
tower to node     [B] [uuid] [tcp://host:port]
tower, greeting   [W]

In a closed cluster a fourth frame of what towers send is the node's public key, which it has proven to the tower.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from dafka.endpoints import PeerEndpoint, is_key
from dafka.errors import WireError
from dafka.records import decode_text, encode_text

BEACON = b"B"
WELCOME = b"W"

_HOST_BYTES_MAX = 255
_PORT = re.compile(rb"[1-9][0-9]{0,4}")
_HOST = re.compile(rb"\[[0-9A-Fa-f:.%A-Za-z0-9]+\]|[A-Za-z0-9._-]+")
_ENDPOINT = re.compile(rb"tcp://(?P<host>\[[^\]/]+\]|[^:/\[\]]+):(?P<port>[0-9]+)")


def _check_host(host: bytes, offset_field: str) -> str:
    if len(host) > _HOST_BYTES_MAX or not _HOST.fullmatch(host):
        raise WireError(offset_field, "a host name or address")
    return host.decode("ascii")


def _check_port(port: bytes) -> int:
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise WireError("port", "decimal digits from 1 to 65535")
    return int(port)


@attrs.frozen
class NodeBeacon:
    """A node's sign of life: its address, and where peers reach it (an empty host: where the tower sees it)."""

    address: str
    host: str
    port: int

    def encode(self) -> list[bytes]:
        """The beacon's frames."""
        return [BEACON, encode_text(self.address, "uuid"), self.host.encode("ascii"), b"%d" % self.port]

    @classmethod
    def decode(cls, frames: Sequence[bytes]) -> NodeBeacon:
        """Raises `WireError` for anything but a node's beacon."""
        _check_frames(frames, 4)
        host = _check_host(frames[2], "host") if frames[2] else ""
        return cls(_check_uuid(frames[1]), host, _check_port(frames[3]))


@attrs.frozen
class TowerBeacon:
    """A node's sign of life as the tower passes it on: its address and its endpoint, in a closed cluster its key."""

    address: str
    endpoint: str
    key: str = ""

    @property
    def peer_endpoint(self) -> PeerEndpoint:
        """The node's endpoint with the key to expect there."""
        return PeerEndpoint(self.endpoint, self.key)

    def encode(self) -> list[bytes]:
        """The beacon's frames."""
        frames = [BEACON, encode_text(self.address, "uuid"), self.endpoint.encode("ascii")]
        return [*frames, self.key.encode("ascii")] if self.key else frames

    @classmethod
    def decode(cls, frames: Sequence[bytes], *, has_key: bool = False) -> TowerBeacon:
        """Raises `WireError` for anything but a tower's beacon, with a key or without."""
        _check_frames(frames, 4 if has_key else 3)
        key = _check_key(frames[3]) if has_key else ""
        return cls(_check_uuid(frames[1]), check_endpoint(frames[2]), key)


def check_endpoint(endpoint: bytes) -> str:
    """The endpoint as text. Raises `WireError` unless it is `tcp://host:port`, with nothing behind it."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None:
        raise WireError("endpoint", "tcp://host:port")
    _check_host(match["host"], "endpoint")
    _check_port(match["port"])
    return endpoint.decode("ascii")


def _check_frames(frames: Sequence[bytes], count: int) -> None:
    if len(frames) != count:
        raise WireError("frames", f"{count}, not {len(frames)}")
    if frames[0] != BEACON:
        raise WireError("type", "B", 0)


def _check_key(octets: bytes) -> str:
    key = octets.decode("ascii", "replace")
    if not is_key(key):
        raise WireError("key", "40 characters of Z85")
    return key


def _check_uuid(octets: bytes) -> str:
    if not 0 < len(octets) <= 255:
        raise WireError("uuid", f"1 to 255 octets, not {len(octets)}")
    return decode_text(octets)
