"""The quotas that clients change: a part of the cluster's state."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dafka.broker.core.client_quotas import (
    ClientQuota,
    EntityType,
    Limit,
    QuotaEntity,
    QuotaKey,
    list_candidates,
    make_entity,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import AlterClientQuota
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.state_records import QUOTA, StateRecords, decode_records

ENTITIES_MAX = 100_000
"""How many entities have quotas at most."""


class QuotaTable:
    """The quotas of a cluster. `version` rises with each change."""

    def __init__(self, records: StateRecords | None = None) -> None:
        self.version = 0
        self._records = records or StateRecords()
        self._limits: dict[QuotaEntity, Mapping[str, str]] = {}

    def __bool__(self) -> bool:
        """Return whether there are quotas."""
        return bool(self._limits)

    def list_quotas(self) -> list[ClientQuota]:
        """Return the quotas of all entities."""
        return [ClientQuota(entity, limits) for entity, limits in self._limits.items()]

    def find_limit(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """Return the limit that applies to a client; None if there is none."""
        for entity, shared_user, shared_client in list_candidates(user, client_id):
            found = self._limits.get(entity, {}).get(key.value)
            if found is not None:
                return Limit(shared_user, shared_client, float(found))
        return None

    def find_connection_rate(self, host: str) -> float | None:
        """Return how many connections an address may open per second; None if there is no limit."""
        key = QuotaKey.CONNECTION_CREATION_RATE.value
        named = (self._limits.get(make_entity({EntityType.IP: each}), {}) for each in (host, None))
        return next((float(each[key]) for each in named if key in each), None)

    def alter(self, command: AlterClientQuota) -> Outcome:
        """Set and remove limits of an entity."""
        present = self._limits.get(command.entity, {})
        kept = {name: each for name, each in present.items() if name not in command.removed}
        limits = kept | dict(command.limits)
        if limits and not present and len(self._limits) >= ENTITIES_MAX:
            return Outcome(ErrorCode.POLICY_VIOLATION, f"{ENTITIES_MAX} entities have quotas: remove some first")
        if limits != present:
            self.version += 1
        if limits:
            self._limits[command.entity] = limits
            self._records.put(_key_of(command.entity), ClientQuota(command.entity, limits))
        elif present:
            del self._limits[command.entity]
            self._records.remove(_key_of(command.entity))
        return DONE

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Replace the quotas by the stored ones."""
        self.version += 1
        self._limits = {each.entity: each.limits for each in decode_records(records.items(), QUOTA, ClientQuota)}


def _key_of(entity: QuotaEntity) -> str:
    return QUOTA + json.dumps([[each.kind.value, each.name, each.is_default] for each in entity.parts])
