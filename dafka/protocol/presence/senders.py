"""In a plain cluster: whose word it is, where the transport knows by which connection it came.

Discovery tells which node is at which endpoint. A message that names a node which is known to be elsewhere is not from
it. Names of which nothing is known are let be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dafka import wire
from dafka.protocol.presence.claims import WRONG_SENDER, sender


class SenderCheck:
    """Attributes:
    discarded: messages of which another node is the sender, by reason.
    """

    def __init__(self) -> None:
        self.discarded: Counter[str] = Counter()
        self._endpoints: dict[str, str] = {}

    def joined(self, address: str, endpoint: str) -> None:
        """Discovery found a node there."""
        if address:
            self._endpoints[address] = endpoint

    def left(self, address: str, endpoint: str) -> None:
        """Discovery lost it."""
        if self._endpoints.get(address) == endpoint:
            del self._endpoints[address]

    def check(self, messages: Iterable[wire.BatchedMessage], endpoint: str) -> list[wire.BatchedMessage]:
        """Of what came from who is at this endpoint, what may be its own."""
        allowed: list[wire.BatchedMessage] = []
        for message in messages:
            if self._endpoints.get(sender(message), endpoint) == endpoint:
                allowed.append(message)
            else:
                self.discarded[WRONG_SENDER] += len(message.batch) if isinstance(message, wire.RecordRun) else 1
        return allowed
