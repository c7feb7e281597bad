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
            return (
                f"refused {self.host}: its public key {self.key} is not authorized here; "
                f"if it is to be let in: dafka keys authorize '{self.key}' --authorized-keys {self.list}"
            )
        if self.reason == "no key":
            return "refused a connection without a key: whoever it is needs one, and [security] settings"
        return "refused a connection that expected another public key here: `dafka keys show` tells the right one"


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
        begin = f"{self.endpoint} does not take this node's connection"
        if self.reason == "key not authorized":
            return f"{begin}: its key is not authorized there; on that side: dafka keys authorize '{self.own_key}'"
        if not self.own_key:
            what = "closed to nodes" if self.is_certain else "no tower or node at all, or closed to those"
            return f"{begin}: it is {what} without a key ([security], --key-file and --authorized-keys)"
        if self.reason == "no key":
            return f"{begin}: one has a key and the other has none; see that both have [security] settings"
        return f"{begin}: the public key expected there may be another's; `dafka keys show` there tells the right one"


@attrs.frozen
class PeerNotAuthorized:
    """A node was discovered whose key is not authorized here: it is not connected to until it is."""

    endpoint: str
    key: str
    list: str

    def __str__(self) -> str:
        return (
            f"not connecting to {self.endpoint}: its public key {self.key} is not authorized here; "
            f"if it is to be let in: dafka keys authorize '{self.key}' --authorized-keys {self.list}"
        )


@attrs.frozen
class AddressConflict:
    """A node uses the address of another one, which has shown itself with another key: it is ignored."""

    address: str
    endpoint: str

    def __str__(self) -> str:
        return f"ignoring a node at {self.endpoint}: its address {self.address} is that of a node with another key"


@attrs.frozen
class AuthorizedKeysUnreadable:
    """The authorized keys changed and cannot be read; those read before stay in force."""

    reason: str

    def __str__(self) -> str:
        return f"the authorized keys are left as they were: {self.reason}"


@attrs.frozen
class EndpointsExposed:
    """Sockets are open to whoever reaches this machine: there are no keys."""

    endpoints: tuple[str, ...]

    def __str__(self) -> str:
        where = " and ".join(self.endpoints)
        return (
            f"whoever reaches {where} can read and write everything: "
            "listen at 127.0.0.1, or close the cluster with keys ([security], docs/how-to/security.md)"
        )


@attrs.frozen
class LoopbackOnly:
    """The node listens where only this machine reaches it, and its tower is on another one."""

    endpoint: str
    tower: str

    def __str__(self) -> str:
        return (
            f"nodes on other machines cannot connect to {self.endpoint}, and the tower at {self.tower} may be on one:"
            " set [node] bind (--bind 'tcp://*:*')"
        )


TrustEvent: TypeAlias = (
    PeerRefused
    | RefusedByPeer
    | PeerNotAuthorized
    | AddressConflict
    | AuthorizedKeysUnreadable
    | EndpointsExposed
    | LoopbackOnly
)
