"""What an embedding program may want to know of who is let in, and who is not."""

from __future__ import annotations

from typing import TypeAlias

import attrs


@attrs.frozen
class PeerRefused:
    """Somebody tried to connect to this node or tower, and was let have nothing.

    Attributes:
        host: the IP address that it came from; empty where it did not get as far as showing a key.
        key: the public key that it showed; may be empty.
        reason: `key not authorized`, `no key`, or `another key expected`.
        list: the file or folder of those who are let in.
    """

    host: str
    key: str
    reason: str
    list: str

    def __str__(self) -> str:
        if self.key:
            return f"Refused {self.host}: its public key {self.key} is not authorized here"
        if self.reason == "no key":
            return "Refused a connection without a key"
        return "Refused a connection that expects another public key than this node's"


@attrs.frozen
class RefusedByPeer:
    """This node does not get into somebody else's: a tower or a node, at `endpoint`. It is tried again.

    Attributes:
        endpoint: where it was to connect to.
        own_key: this node's public key; empty in a plain cluster.
        reason: `key not authorized`, `no key`, `another key expected`, or `unknown`.
    """

    endpoint: str
    own_key: str
    reason: str

    @property
    def is_certain(self) -> bool:
        """Has it been said why? Who ends a handshake without a word may also be on its way up or down."""
        return self.reason != "unknown"

    def __str__(self) -> str:
        begin = f"{self.endpoint} refuses this node's connection"
        if self.reason == "key not authorized":
            return f"{begin}: its key is not authorized there"
        if not self.own_key:
            what = "it requires a key" if self.is_certain else "it requires a key, or is neither a tower nor a node"
            return f"{begin}: {what}, and this node has no key"
        if self.reason == "no key":
            return f"{begin}: only one of the two has a key"
        return f"{begin}: it may have another public key than the expected one"


@attrs.frozen
class PeerNotAuthorized:
    """A node was discovered whose key is not authorized here: it is not connected to until it is."""

    endpoint: str
    key: str
    list: str

    def __str__(self) -> str:
        return f"Not connecting to {self.endpoint}: its public key {self.key} is not authorized here"


@attrs.frozen
class AddressConflict:
    """A node uses the address of another one, which has shown itself with another key: it is ignored."""

    address: str
    endpoint: str

    def __str__(self) -> str:
        return f"Ignoring a node at {self.endpoint}: its address {self.address} is that of a node with another key"


@attrs.frozen
class AuthorizedKeysUnreadable:
    """The authorized keys changed and cannot be read; those read before stay in force."""

    reason: str

    def __str__(self) -> str:
        return f"Keeping the former authorized keys: {self.reason}"


@attrs.frozen
class EndpointsExposed:
    """Sockets are open to whoever reaches this machine: there are no keys."""

    endpoints: tuple[str, ...]

    def __str__(self) -> str:
        where = " and ".join(self.endpoints)
        return f"Without keys, anyone who can reach {where} can read and write everything"


@attrs.frozen
class LoopbackOnly:
    """The node listens where only this machine reaches it, and its tower is on another one."""

    endpoint: str
    tower: str

    def __str__(self) -> str:
        return f"Nodes on other machines cannot connect to {self.endpoint}, but the tower at {self.tower} may be on one"


TrustEvent: TypeAlias = (
    PeerRefused
    | RefusedByPeer
    | PeerNotAuthorized
    | AddressConflict
    | AuthorizedKeysUnreadable
    | EndpointsExposed
    | LoopbackOnly
)
