"""Quotas of clients: how much users, client ids and addresses may use. The names are from Kafka's protocol."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum
from typing import NamedTuple

import attrs


class EntityType(StrEnum):
    """What a quota is for."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaKey(Enum):
    """What a quota limits, for one broker, per second: bytes, connections, or logs that are created and deleted."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


REQUEST_PERCENTAGE = "request_percentage"
"""Kafka's quota for the time of its threads. A broker of dafka has one thread for all clients and cannot measure it."""

ANONYMOUS = "ANONYMOUS"
"""The name of clients that do not authenticate, for quotas of users."""


class EntityPart(NamedTuple):
    """A user, a client id or an address. The default, for all without a quota of their own, has an empty name."""

    kind: EntityType
    name: str
    is_default: bool = False


@attrs.frozen
class QuotaEntity:
    """What a quota is for: a user, a client id, a client id of a user, or an address. The parts are ordered by type."""

    parts: tuple[EntityPart, ...]

    @property
    def is_ip(self) -> bool:
        """Whether it is an address."""
        return any(each.kind is EntityType.IP for each in self.parts)


@attrs.frozen
class ClientQuota:
    """The limits of an entity, by the name of what they limit, as texts of numbers."""

    entity: QuotaEntity
    limits: Mapping[str, str]


class Limit(NamedTuple):
    """A limit for all connections with the same user and client id together. An empty name stands for all."""

    user: str
    client_id: str
    per_second: float


def make_entity(parts: Mapping[EntityType, str | None]) -> QuotaEntity:
    """Return the entity with these names. None stands for the default."""
    return QuotaEntity(
        tuple(EntityPart(each, parts[each] or "", parts[each] is None) for each in EntityType if each in parts)
    )


def find_entity_problem(entity: QuotaEntity) -> str:
    """Return why there are no quotas for an entity; empty if there can be."""
    kinds = {each.kind for each in entity.parts}
    if not kinds:
        return "the entity is empty: expected a user, a client-id, both, or an ip"
    if EntityType.IP in kinds and len(kinds) > 1:
        return "a quota for an ip is for no user and no client-id"
    empty = next((each.kind.value for each in entity.parts if not each.name and not each.is_default), "")
    return f"the name of the {empty} is empty: expected one, or null for the default" if empty else ""


def list_limits(entity: QuotaEntity) -> list[str]:
    """Return the names of the limits that an entity can have."""
    return [each.value for each in QuotaKey if (each is QuotaKey.CONNECTION_CREATION_RATE) == entity.is_ip]


def find_limit_problem(entity: QuotaEntity, name: str, value: float) -> str:
    """Return why a limit is not possible; empty if it is."""
    possible = list_limits(entity)
    if name == REQUEST_PERCENTAGE:
        return f"{name} cannot be measured here, as one thread serves all clients: expected {', '.join(possible)}"
    if name not in possible:
        kind = "an ip" if entity.is_ip else "users and client-ids"
        return f"there is no quota {name[:100]!r} for {kind}: expected {', '.join(possible)}"
    if not math.isfinite(value) or value <= 0:
        return f"{name}: expected a number above 0, not {value}"
    if entity.is_ip and not value.is_integer():
        return f"{name}: expected a whole number, not {value}"
    return ""


def list_candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, str, str]]:
    """Yield the entities whose limit can apply to a client, the most specific one first.

    Each comes with the user and the client id whose connections share the limit; an empty name stands for all.
    """
    for named_user in (user, None):
        for named_client in (client_id, None):
            parts = {EntityType.USER: named_user, EntityType.CLIENT_ID: named_client}
            yield make_entity(parts), user, client_id
        yield make_entity({EntityType.USER: named_user}), user, ""
    for named_client in (client_id, None):
        yield make_entity({EntityType.CLIENT_ID: named_client}), "", client_id
