"""Meters what clients use, by the quotas of the cluster. Each broker meters for itself, as in Kafka."""

from __future__ import annotations

import math
from collections import OrderedDict

from dafka.broker.core.acls import normalize_host
from dafka.broker.core.client_quotas import ANONYMOUS, Limit, QuotaKey
from dafka.broker.core.metadata.quota_table import QuotaTable
from dafka.protocol.token_bucket import TokenBucket

WINDOW_S = 10.0
"""For how many seconds of its rate a client can save up what it does not use, as much as Kafka's window is long."""

BUCKETS_MAX = 10_000
"""How many users, client ids and pairs of both are metered. The least recently used one is forgotten."""

CLIENT_ID_CHARACTERS_MAX = 255
"""How many characters of a client id are compared, so that long ones take little memory."""


class _Meter:
    """What the clients that share a limit have used, and how long they must wait."""

    def __init__(self, per_second: float, now: float) -> None:
        self.per_second = per_second
        self._bucket = TokenBucket(per_second, max(per_second * WINDOW_S, 1.0), now)

    def spend(self, now: float, amount: float) -> float:
        """Use an amount. Return how many seconds the client must wait then."""
        return max(-self._bucket.spend(now, amount) / self.per_second, 0.0)

    def is_exhausted(self, now: float) -> bool:
        """Return whether more was used than is allowed."""
        return not self._bucket.try_take(now, 0.0)

    def try_take(self, now: float) -> bool:
        """Use one if that is allowed now. Return whether it was."""
        return self._bucket.try_take(now)


class QuotaMeter:
    """Meters the clients of one broker. Times are in seconds, on one steady clock."""

    def __init__(self, quotas: QuotaTable) -> None:
        self._quotas = quotas
        self._version = quotas.version
        self._limits: dict[tuple[QuotaKey, str, str], Limit | None] = {}
        self._meters: OrderedDict[tuple[QuotaKey, str, str], _Meter] = OrderedDict()

    @property
    def version(self) -> int:
        """The version of the quotas."""
        return self._quotas.version

    def spend(self, key: QuotaKey, user: str, client_id: str | None, amount: float, now: float) -> float:
        """Charge a client for what it has used. Return how many seconds it must wait. The user is empty if unknown."""
        meter = self._find(key, user, client_id, now)
        return 0.0 if meter is None else meter.spend(now, amount)

    def spend_unless_exhausted(
        self, key: QuotaKey, user: str, client_id: str | None, amount: float, now: float
    ) -> tuple[bool, float]:
        """Charge a client unless it has used too much before. Return whether it was, and how long it must wait."""
        meter = self._find(key, user, client_id, now)
        if meter is None:
            return True, 0.0
        if meter.is_exhausted(now):
            return False, meter.spend(now, 0.0)
        return True, meter.spend(now, amount)

    def find_window(self, key: QuotaKey, user: str, client_id: str | None, now: float) -> float:
        """Return how much a client that was idle can use without waiting; infinite if it has no quota."""
        meter = self._find(key, user, client_id, now)
        return math.inf if meter is None else meter.per_second * WINDOW_S

    def find_refusal(self, host: str, now: float) -> float | None:
        """Count a new connection of an address. Return None if it is allowed, or after how many seconds to close it.

        One that is refused does not count, so that the address can open another one as soon as its rate allows.
        """
        address = normalize_host(host) if self._quotas else ""
        rate = self._quotas.find_connection_rate(address)
        if rate is None:
            return None
        meter = self._meter(QuotaKey.CONNECTION_CREATION_RATE, address, "", rate, now)
        return None if meter.try_take(now) else 1 / rate

    def _find(self, key: QuotaKey, user: str, client_id: str | None, now: float) -> _Meter | None:
        if not self._quotas:
            return None
        if self._version != self._quotas.version or len(self._limits) > BUCKETS_MAX:
            self._version = self._quotas.version
            self._limits.clear()
        asked = key, user or ANONYMOUS, (client_id or "")[:CLIENT_ID_CHARACTERS_MAX]
        if asked not in self._limits:
            self._limits[asked] = self._quotas.find_limit(*asked)
        found = self._limits[asked]
        return None if found is None else self._meter(key, found.user, found.client_id, found.per_second, now)

    def _meter(self, key: QuotaKey, user: str, client_id: str, per_second: float, now: float) -> _Meter:
        shared = key, user, client_id
        found = self._meters.get(shared)
        if found is None or found.per_second != per_second:
            found = self._meters[shared] = _Meter(per_second, now)
        self._meters.move_to_end(shared)
        if len(self._meters) > BUCKETS_MAX:
            self._meters.popitem(last=False)
        return found
