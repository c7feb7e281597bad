"""Endpoints: checks of their form, and the endpoint of a peer with the public key expected there."""

from __future__ import annotations

import ipaddress
import re

import attrs

_Z85_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
HOST_LENGTH_MAX = 255
"""The longest host name that is accepted, in characters."""

TOWER_SUB_PORT = 5556
"""The port at which a tower receives beacons, unless another one is given."""

TOWER_EXPECTED = "a tower as HOST, HOST:SUB_PORT or HOST:SUB_PORT:PUB_PORT, such as 10.0.0.1 or [fd00::1]:5556"

_TOWER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5})(?::([0-9]{1,5}))?)?")
_HOST = re.compile(r"\[[0-9A-Za-z:.%]+\]|[A-Za-z0-9._-]+")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_TCP_ENDPOINT = re.compile(r"tcp://(\[[^\]/]+\]|[^:/\[\]]+):([0-9]+)")
_Z85_KEY = re.compile(f"[{re.escape(_Z85_DIGITS)}]{{40}}")


@attrs.frozen
class PeerEndpoint:
    """A peer's endpoint and the public key expected there.

    As text, in the configuration and in log lines, the key follows the endpoint after a space.

    Attributes:
        endpoint: The ZeroMQ endpoint, such as `tcp://10.0.0.1:7001`.
        key: The peer's public key, 40 characters of Z85. Empty in a plain cluster.
    """

    endpoint: str
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> PeerEndpoint:
        """Split `ENDPOINT` or `ENDPOINT KEY`. Neither part is checked."""
        endpoint, _, key = text.strip().partition(" ")
        return cls(endpoint, key.strip())

    def __str__(self) -> str:
        return f"{self.endpoint} {self.key}" if self.key else self.endpoint


@attrs.frozen
class ConnectionChange:
    """A connection of this node to a peer was made, for the first time or again, or was lost."""

    peer: PeerEndpoint
    is_made: bool


def is_host(text: str) -> bool:
    """Return whether a text is a host name, an IPv4 address, or an IPv6 address in brackets."""
    return len(text) <= HOST_LENGTH_MAX and _HOST.fullmatch(text) is not None


def is_address(host: str) -> bool:
    """Return whether a host is an IPv4 address, or an IPv6 address in brackets, and not a name."""
    return host.startswith("[") or re.fullmatch(r"[0-9.]+", host) is not None


def is_port(text: str) -> bool:
    """Return whether a text is a port number from 1 to 65535 in decimal digits, without leading zeros."""
    return _PORT.fullmatch(text) is not None and int(text) <= 65535


def split_tcp_endpoint(text: str) -> tuple[str, str] | None:
    """Split `tcp://HOST:PORT`. The two parts are not checked. Return None if the text has another form."""
    match = _TCP_ENDPOINT.fullmatch(text)
    return None if match is None else (match[1], match[2])


def is_local(endpoint: str) -> bool:
    """Return whether only this machine can reach an endpoint, since it is on a loopback address, or not tcp.

    The host of tcp may be a wildcard or a network interface.
    """
    scheme, _, rest = endpoint.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    return scheme != "tcp" or host == "lo" or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, which only this machine can reach."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped_address = getattr(address, "ipv4_mapped", None)
    return (mapped_address or address).is_loopback


def is_ipv6_endpoint(text: str) -> bool:
    """Return whether a text is a tcp endpoint with an IPv6 address in brackets: `tcp://[::1]:5556`."""
    return text.startswith("tcp://[")


def parse_tower(text: str) -> tuple[str, str]:
    """Return the SUB and the PUB endpoint of `HOST`, `HOST:SUB_PORT` or `HOST:SUB_PORT:PUB_PORT`.

    The default ports are 5556 and 5557. If only the SUB port is given, the PUB port is the next one. An IPv6 address is
    in brackets. Raise `ValueError` if the text has another form.
    """
    match = _TOWER.fullmatch(text.strip())
    if match is None or len(match[1]) > HOST_LENGTH_MAX:
        raise ValueError(f"expected {TOWER_EXPECTED}, not {text!r}")
    sub_port = int(match[2] or TOWER_SUB_PORT)
    pub_port = int(match[3] or sub_port + 1)
    if not (0 < sub_port < 65536 and 0 < pub_port < 65536) or sub_port == pub_port:
        raise ValueError(f"expected two ports from 1 to 65535, not {sub_port} and {pub_port}, in {text!r}")
    return f"tcp://{match[1]}:{sub_port}", f"tcp://{match[1]}:{pub_port}"


def is_peer_endpoint(text: str) -> bool:
    """Return whether a text is an endpoint that beacons may carry: `tcp://HOST:PORT`."""
    parts = split_tcp_endpoint(text)
    return parts is not None and is_host(parts[0]) and is_port(parts[1])


def is_endpoint(text: str) -> bool:
    """Return whether a text has the form of a ZeroMQ endpoint to bind or connect: tcp, ipc or inproc.

    Hosts of tcp can be wildcards or network interfaces, which only ZeroMQ can check.
    """
    scheme, separator, rest = text.partition("://")
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        return bool(host) and (port in {"*", "0"} or is_port(port))
    return bool(separator and scheme in ("ipc", "inproc") and rest)


def is_key(text: str) -> bool:
    """Return whether a text is a CURVE key in Z85 (ZeroMQ RFC 32): 40 characters that encode 32 bytes."""
    if not _Z85_KEY.fullmatch(text):
        return False
    # Five characters can express more than four bytes can hold.
    return all(_value(text[start : start + 5]) < 2**32 for start in range(0, 40, 5))


def _value(group: str) -> int:
    value = 0
    for character in group:
        value = value * 85 + _Z85_DIGITS.index(character)
    return value


@attrs.frozen
class MessageSource:
    """The connection on which a message was received.

    Attributes:
        host: The IP address of the other side; empty if unknown.
        key: The public key that the sender has proven to hold; empty in a plain cluster.
        connection: A number that identifies the connection while it exists: its file descriptor. -1 if it has none.
    """

    host: str
    key: str
    connection: int
