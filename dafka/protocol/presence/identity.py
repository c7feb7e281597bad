"""Checks that a message comes from the node that it names.

In a closed cluster, each connection belongs to the holder of a known key, and an address belongs to the first key that
uses it, as long as that key is authorized (`KeyIdentity`). In a plain cluster, discovery reports the endpoint of each
node. If the transport knows the endpoint that a message came from, and discovery has found its sender at another
endpoint, the message is discarded (`EndpointIdentity`).

A node can have more partitions than the one of its address. Their addresses begin with its address and a slash.

DIRECT-RECORD and DIRECT-HEAD name the partition's producer, not the store that sends them, so they are not checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

from dafka import wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol.events import PeerJoined, PeerLeft
from dafka.protocol.trust import AddressConflict

FORMER_NODES_MAX = 100_000
"""The maximum number of nodes that have left and still own their address; beyond it, the oldest are forgotten."""

WRONG_SENDER = "wrong sender"


class KeyIdentity:
    """The key that each node address belongs to, in a closed cluster.

    `is_authorized` returns whether a public key is authorized now. `report` is called when discovery finds a node with
    another node's address.
    """

    def __init__(
        self, is_authorized: Callable[[str], bool], report: Callable[[AddressConflict], None] = lambda _: None
    ) -> None:
        self.discarded: Counter[str] = Counter()
        self._is_authorized = is_authorized
        self._report = report
        self._keys: dict[str, str] = {}
        self._present: Counter[str] = Counter()
        self._nameless_keys: set[str] = set()

    def claim_address(self, address: str, key: str) -> bool:
        """Assign an address to a key. Return False if it belongs to another key that is still authorized."""
        if not address:
            self._nameless_keys.add(key)
            return True
        holder = self._keys.get(address)
        if holder is not None and holder != key and self._is_authorized(holder):
            return False
        self._keys.pop(address, None)
        self._keys[address] = key
        while len(self._keys) - len(self._present) > FORMER_NODES_MAX:
            del self._keys[next(each for each in self._keys if each not in self._present)]
        return True

    def add_node(self, address: str, key: str) -> bool:
        """Assign an address to a key until `remove_node`. Return False as `claim_address` does."""
        if not self.claim_address(address, key):
            return False
        if address:
            self._present[address] += 1
        return True

    def remove_node(self, address: str, key: str) -> bool:
        """Record that a node left; it keeps its address. Return False if the address is not this key's."""
        if address and self._keys.get(address) != key:
            return False
        self._present[address] -= 1
        if self._present[address] <= 0:
            del self._present[address]
        return True

    def accept_change(self, change: PeerJoined | PeerLeft) -> bool:
        """Record that a node joined or left. Return False for a node with another node's address, and report it."""
        peer = change.endpoint
        if isinstance(change, PeerLeft):
            return self.remove_node(change.address, peer.key)
        if self.add_node(change.address, peer.key):
            return True
        self._report(AddressConflict(change.address, peer.endpoint))
        return False

    def verify_messages(
        self, messages: Iterable[wire.BatchedMessage], source: PeerEndpoint
    ) -> list[wire.BatchedMessage]:
        """Return the messages that name their real sender, identified by its key. Count the others in `discarded`."""
        keys, key = self._keys, source.key
        allowed: list[wire.BatchedMessage] = []
        for message in messages:
            address = _sender(message)
            if address not in keys:
                address = owner_of(address)
            # The key may be that of a node that discovery found without its address.
            is_claimed = not address or keys.get(address) == key
            if is_claimed or (key in self._nameless_keys and self.claim_address(address, key)):
                allowed.append(message)
            else:
                self.discarded[WRONG_SENDER] += _records_in(message)
        return allowed


class EndpointIdentity:
    """The endpoint that each node address belongs to, in a plain cluster."""

    def __init__(self) -> None:
        self.discarded: Counter[str] = Counter()
        self._endpoints: dict[str, str] = {}

    def accept_change(self, change: PeerJoined | PeerLeft) -> bool:
        """Record that a node joined or left, and return True: every change is accepted."""
        address, endpoint = change.address, change.endpoint.endpoint
        if isinstance(change, PeerJoined):
            if address:
                self._endpoints[address] = endpoint
        elif self._endpoints.get(address) == endpoint:
            del self._endpoints[address]
        return True

    def verify_messages(self, messages: list[wire.BatchedMessage], source: PeerEndpoint) -> list[wire.BatchedMessage]:
        """Return the messages that name their real sender, identified by its endpoint, if that is known.

        Count the others in `discarded`.
        """
        endpoint = source.endpoint
        if not endpoint:
            return messages
        allowed: list[wire.BatchedMessage] = []
        for message in messages:
            address = _sender(message)
            if address not in self._endpoints:
                address = owner_of(address)
            if self._endpoints.get(address, endpoint) == endpoint:
                allowed.append(message)
            else:
                self.discarded[WRONG_SENDER] += _records_in(message)
        return allowed


PeerIdentity: TypeAlias = KeyIdentity | EndpointIdentity
"""Checks what discovery reports and what peers send against the identities of peers."""


def owner_of(address: str) -> str:
    """Return the address of the node that a partition belongs to: `NODE` for `NODE/NAME` and `NODE`."""
    return address.partition("/")[0]


def _sender(message: wire.BatchedMessage) -> str:
    """Return the address of the node that a message names as its sender; empty if it names none."""
    if isinstance(message, wire.RecordRun):
        return message.batch.partition.address if message.requestor is None else ""
    return "" if isinstance(message, wire.DirectHead) else message.address


def _records_in(message: wire.BatchedMessage) -> int:
    return len(message.batch) if isinstance(message, wire.RecordRun) else 1
