"""Events about access and keys: refused connections, unauthorized peers, conflicts and exposed endpoints.

`str(event)` states what happened. `dafka.cli.advice` adds what an operator can do about it.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

KEY_NOT_AUTHORIZED = "key not authorized"
NO_KEY = "no key"
WRONG_KEY = "another key expected"
UNKNOWN = "unknown"


@attrs.frozen
class PeerRefused:
    """This node or tower refused a connection from a peer.

    Attributes:
        host: The IP address of the peer; empty if the handshake ended before a key was shown.
        key: The public key that the peer showed; may be empty.
        reason: `key not authorized`, `no key`, or `another key expected`.
        authorized_keys: The file or folder of authorized keys.
    """

    host: str
    key: str
    reason: str
    authorized_keys: str

    def __str__(self) -> str:
        if self.key:
            return f"Refused {self.host}: its public key {self.key} is not authorized here"
        if self.reason == NO_KEY:
            return "Refused a connection without a key"
        return "Refused a connection that expects another public key than this node's"


@attrs.frozen
class RefusedByPeer:
    """A tower or a node refused this node's connection. The connection is tried again.

    Attributes:
        endpoint: The endpoint of the peer.
        own_key: This node's public key; empty in a plain cluster.
        reason: `key not authorized`, `no key`, `another key expected`, or `unknown`.
    """

    endpoint: str
    own_key: str
    reason: str

    @property
    def is_certain(self) -> bool:
        """Whether the peer gave a reason.

        A peer that ends a handshake without a reason may also be starting or stopping.
        """
        return self.reason != UNKNOWN

    def __str__(self) -> str:
        begin = f"{self.endpoint} refuses this node's connection"
        if self.reason == KEY_NOT_AUTHORIZED:
            return f"{begin}: its key is not authorized there"
        if not self.own_key:
            what = "it requires a key" if self.is_certain else "it requires a key, or is neither a tower nor a node"
            return f"{begin}: {what}, and this node has no key"
        if self.reason == NO_KEY:
            return f"{begin}: only one of the two has a key"
        return f"{begin}: it may have another public key than the expected one"


@attrs.frozen
class PeerNotAuthorized:
    """A node was discovered whose key is not authorized here. This node connects to it only after it is authorized.

    Attributes:
        endpoint: The endpoint of the node.
        key: Its public key.
        authorized_keys: The file or folder of authorized keys.
    """

    endpoint: str
    key: str
    authorized_keys: str

    def __str__(self) -> str:
        return f"Not connecting to {self.endpoint}: its public key {self.key} is not authorized here"


@attrs.frozen
class AddressConflict:
    """A node uses the address of a node with another key, and is ignored.

    Attributes:
        address: The address.
        endpoint: The endpoint of the node that is ignored.
    """

    address: str
    endpoint: str

    def __str__(self) -> str:
        return f"Ignoring a node at {self.endpoint}: its address {self.address} is that of a node with another key"


@attrs.frozen
class AuthorizedKeysUnreadable:
    """The authorized keys have changed and cannot be read. The keys read before remain authorized.

    Attributes:
        reason: A description of the problem with the file or folder.
    """

    reason: str

    def __str__(self) -> str:
        return f"Keeping the former authorized keys: {self.reason}"


@attrs.frozen
class EndpointsExposed:
    """Other machines can connect to this node or tower, and there are no keys.

    Attributes:
        endpoints: The endpoints that other machines can reach.
    """

    endpoints: tuple[str, ...]

    def __str__(self) -> str:
        where = " and ".join(self.endpoints)
        return f"Without keys, anyone who can reach {where} can read and write everything"


@attrs.frozen
class LoopbackOnly:
    """The node listens on a loopback address, and its tower may be on another machine.

    Attributes:
        endpoint: The endpoint of the node.
        tower: The endpoint of the tower.
    """

    endpoint: str
    tower: str

    def __str__(self) -> str:
        return f"Nodes on other machines cannot connect to {self.endpoint}, but the tower at {self.tower} may be on one"


@attrs.frozen
class IntroducedAtLoopback:
    """A tower introduces this node at a loopback address, and there are nodes on other machines.

    Attributes:
        endpoint: The endpoint at which the tower introduces this node.
        peer: The endpoint of a node on another machine.
    """

    endpoint: str
    peer: str

    def __str__(self) -> str:
        return (
            f"A tower introduces this node at {self.endpoint}, where nodes on other machines, such as the one at "
            f"{self.peer}, cannot connect to it"
        )


@attrs.frozen
class TowerHostAmbiguous:
    """Nodes reach this tower at several addresses of its machine.

    Attributes:
        own_host: The host at which it introduces the nodes that connect to it over loopback.
        other_host: Another address at which nodes have reached it.
    """

    own_host: str
    other_host: str

    def __str__(self) -> str:
        return (
            f"Nodes reach this tower at {self.own_host} and at {self.other_host}; it introduces nodes that connect to "
            f"it over loopback at {self.own_host}"
        )


TrustEvent: TypeAlias = (
    PeerRefused
    | RefusedByPeer
    | PeerNotAuthorized
    | AddressConflict
    | AuthorizedKeysUnreadable
    | EndpointsExposed
    | LoopbackOnly
    | IntroducedAtLoopback
    | TowerHostAmbiguous
)
