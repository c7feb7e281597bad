"""Which key a node's address belongs to: the first that claims it, for as long as that key is authorized.

In a closed cluster every connection is to the holder of a known key. A message names the node that it comes from; here
it is held against the key that it came by. What stores send of others' partitions (DIRECT-RECORD, DIRECT-HEAD) names no
sender, and cannot be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from dafka import wire

FORMER_MAX = 100_000
"""Nodes that have left and whose address stays theirs; of further ones the first are forgotten."""

WRONG_SENDER = "not the sender's"


class KeyIdentity:
    """Attributes:
    discarded: messages of which another node is the sender, by reason.
    """

    def __init__(self, is_authorized: Callable[[str], bool]) -> None:
        self.discarded: Counter[str] = Counter()
        self._is_authorised = is_authorized
        self._keys: dict[str, str] = {}
        self._present: Counter[str] = Counter()
        self._nameless: set[str] = set()

    def claim(self, address: str, key: str) -> bool:
        """A node with this key shows itself. False where the address is another's."""
        if not address:
            self._nameless.add(key)
            return True
        holder = self._keys.get(address)
        if holder is not None and holder != key and self._is_authorised(holder):
            return False
        self._keys.pop(address, None)
        self._keys[address] = key
        while len(self._keys) - len(self._present) > FORMER_MAX:
            del self._keys[next(each for each in self._keys if each not in self._present)]
        return True

    def join(self, address: str, key: str) -> bool:
        """`claim`, and it is here to stay until `leave`."""
        if not self.claim(address, key):
            return False
        if address:
            self._present[address] += 1
        return True

    def leave(self, address: str, key: str) -> bool:
        """It has gone; its address stays its own. False where it never was."""
        if address and self._keys.get(address) != key:
            return False
        self._present[address] -= 1
        if self._present[address] <= 0:
            del self._present[address]
        return True

    def check(self, messages: Iterable[wire.BatchedMessage], key: str) -> list[wire.BatchedMessage]:
        """Of what came from the holder of this key, what it may say."""
        keys = self._keys
        allowed: list[wire.BatchedMessage] = []
        for message in messages:
            address = sender(message)
            if not address or keys.get(address) == key or self._claim_nameless(address, key):
                allowed.append(message)
            else:
                self.discarded[WRONG_SENDER] += len(message.batch) if isinstance(message, wire.RecordRun) else 1
        return allowed

    def _claim_nameless(self, address: str, key: str) -> bool:
        """Of a node that was discovered without its address, the first one it uses is its own."""
        return key in self._nameless and self.claim(address, key)


def sender(message: wire.BatchedMessage) -> str:
    """The node that a message says it is from; empty where it says nothing that could be held against anybody."""
    if isinstance(message, wire.RecordRun):
        return message.batch.partition.address if message.requestor is None else ""
    return "" if isinstance(message, wire.DirectHead) else message.address
