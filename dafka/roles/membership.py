"""Who is who to a node of a closed cluster: whom it connects to, whose word it takes. In a plain one, everybody's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dafka import wire
from dafka.discovery import DiscoveryEvent
from dafka.protocol import AddressConflict, Event, KeyIdentity, PeerJoined, PeerLeft, SenderCheck
from dafka.transport import Security


class Membership:
    """Holds what discovery finds and what messages say against the keys that were proven."""

    def __init__(self, own_address: str, security: Security | None, report: Callable[[Event], None]) -> None:
        self._report = report
        self._senders = SenderCheck()
        self._claims: KeyIdentity | None = None
        if security is not None:
            self._claims = KeyIdentity(security.authorized.__contains__)
            self._claims.join(own_address, security.pair.public)

    @property
    def discarded(self) -> Counter[str]:
        """Messages thrown away so far, by reason."""
        return self._senders.discarded if self._claims is None else self._claims.discarded

    def admit(self, report: DiscoveryEvent) -> bool:
        """Is the node to act on what discovery reports?"""
        if not isinstance(report, (PeerJoined, PeerLeft)):
            return True
        if self._claims is None:
            note = self._senders.joined if isinstance(report, PeerJoined) else self._senders.left
            note(report.address, report.endpoint.endpoint)
            return True
        endpoint, key = report.endpoint.endpoint, report.endpoint.key
        if isinstance(report, PeerLeft):
            return self._claims.leave(report.address, key)
        if self._claims.join(report.address, key):
            return True
        self._report(AddressConflict(report.address, endpoint))
        return False

    def check(self, messages: list[wire.BatchedMessage], key: str, endpoint: str = "") -> list[wire.BatchedMessage]:
        """Of messages that came from the holder of this key, those that are really from whom they name.

        In a plain cluster, of those that came from this endpoint, if that is known.
        """
        if self._claims is not None:
            return self._claims.check(messages, key)
        return self._senders.check(messages, endpoint) if endpoint else messages
