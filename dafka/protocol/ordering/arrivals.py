"""Nodes that were found and have not connected yet: until they do, it is not known what they are."""

from __future__ import annotations


class Arrivals:
    """Attributes:
    awaited: the addresses of nodes that discovery has found, and that have subscribed to nothing here so far.
    """

    def __init__(self, peers_max: int) -> None:
        self.awaited: set[str] = set()
        self._connected: set[str] = set()
        self._peers_max = peers_max

    def joined(self, address: str) -> None:
        """Discovery found a node, which will subscribe to something with its address; then it shows what it is."""
        if address and address not in self._connected:
            self.awaited.add(address)

    def left(self, address: str) -> None:
        """Discovery lost a node."""
        self.awaited.discard(address)
        self._connected.discard(address)

    def subscribed(self, topic: str) -> None:
        """Somebody subscribed to this: the node, if it is a node's address, is connected."""
        self.awaited.discard(topic)
        if len(self._connected) < self._peers_max:
            self._connected.add(topic)
