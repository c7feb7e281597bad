"""The peers of a plain cluster that are on probation, and the ends of their probations.

A peer that sends too many messages to discard is put on probation, and so is every new peer of its host for a while. It
leaves probation when it has sent no messages to discard for a while.
"""

from __future__ import annotations

import attrs

from dafka.protocol.token_bucket import TokenBucket

PROBATION_TOLERATED_PER_S = 2
"""Discarded messages from one peer on probation that are tolerated per second in the long run."""

PROBATION_TOLERATED_BURST = 20
"""Discarded messages from one peer on probation that are tolerated at once."""

PROBATION_S = 5.0
"""Seconds of probation the first time. They double each time that a peer of the same host is put on probation."""

PROBATION_MAX_S = 300.0
"""The longest probation, in seconds."""

NEWCOMER_MAX_S = 30.0
"""The longest probation of a new peer that has sent no messages to discard, in seconds."""

HOSTS_MAX = 1024
"""The maximum number of remembered hosts of peers on probation."""

HOSTS_MANY = 4
"""The number of hosts of peers on probation from which new peers of all hosts begin on probation."""


@attrs.define
class _Probation:
    """The probation of one peer."""

    seconds: float
    until: float
    bucket: TokenBucket


@attrs.define
class _Host:
    """A host with peers that misbehaved."""

    seconds: float
    until: float


class SuspectPeers:
    """The peers on probation, by endpoint, and the hosts whose new peers begin on probation."""

    def __init__(self) -> None:
        self._probations: dict[str, _Probation] = {}
        self._hosts: dict[str, _Host] = {}

    def __len__(self) -> int:
        """Return the number of peers on probation."""
        return len(self._probations)

    def __contains__(self, endpoint: str) -> bool:
        """Return whether a peer is on probation."""
        return endpoint in self._probations

    def begin_newcomer(self, endpoint: str, now: float) -> bool:
        """Put a new peer on probation if its host, or many hosts, misbehave. Return whether it is on probation."""
        self._forgive_hosts(now)
        host = self._hosts.get(_host(endpoint))
        if host is None and len(self._hosts) < HOSTS_MANY:
            return False
        self._begin(endpoint, min(PROBATION_S if host is None else host.seconds, NEWCOMER_MAX_S), now)
        return True

    def begin_offender(self, endpoint: str, now: float) -> None:
        """Put a peer that misbehaved on probation, for longer each time that a peer of its host misbehaves."""
        self._forgive_hosts(now)
        name = _host(endpoint)
        host = self._hosts.get(name)
        seconds = PROBATION_S if host is None else min(2 * host.seconds, PROBATION_MAX_S)
        if host is not None or len(self._hosts) < HOSTS_MAX:
            self._hosts[name] = _Host(seconds, now + 2 * seconds)
        self._begin(endpoint, seconds, now)

    def report_discards(self, endpoint: str, count: int, now: float) -> None:
        """Begin the probation of a peer again if it sends too many messages to discard."""
        probation = self._probations[endpoint]
        if count and probation.bucket.spend(now, count) <= 0:
            probation.until = now + probation.seconds
            host = self._hosts.get(_host(endpoint))
            if host is not None:
                host.until = max(host.until, now + 2 * host.seconds)

    def forget_peer(self, endpoint: str) -> None:
        """Forget a peer that was disconnected. Its host is remembered."""
        self._probations.pop(endpoint, None)

    def end_due(self, now: float) -> list[str]:
        """End the probations that are over, and return their peers."""
        ended = [endpoint for endpoint, probation in self._probations.items() if probation.until <= now]
        for endpoint in ended:
            del self._probations[endpoint]
        return ended

    def _forgive_hosts(self, now: float) -> None:
        for name in [name for name, host in self._hosts.items() if host.until <= now]:
            del self._hosts[name]

    def _begin(self, endpoint: str, seconds: float, now: float) -> None:
        bucket = TokenBucket(PROBATION_TOLERATED_PER_S, PROBATION_TOLERATED_BURST, now)
        self._probations[endpoint] = _Probation(seconds, now + seconds, bucket)


def _host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0]
