"""Which quota counts for a client: Kafka's order of precedence, held against a search that tries it level by level."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import TypeAlias

import pytest

from dafka.broker.core.client_quotas import (
    EntityType,
    Limit,
    QuotaKey,
    find_entity_problem,
    find_limit_problem,
    make_entity,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata import quota_table
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import AlterClientQuota, Order
from dafka.broker.core.metadata.outcome import DONE
from tests.seeds import each_seed

USER, CLIENT, IP = EntityType.USER, EntityType.CLIENT_ID, EntityType.IP
LEVELS = [
    ({USER: True, CLIENT: True}, "user and client"),
    ({USER: True, CLIENT: False}, "user and client"),
    ({USER: True}, "user"),
    ({USER: False, CLIENT: True}, "user and client"),
    ({USER: False, CLIENT: False}, "user and client"),
    ({USER: False}, "user"),
    ({CLIENT: True}, "client"),
    ({CLIENT: False}, "client"),
]
"""Which names an entity has, from the first that counts to the last, and between whose connections it is shared."""

ENTITIES = [
    {kind: name for kind, name in ((USER, user), (CLIENT, client)) if name != "absent"}
    for user, client in product(("a", "b", None, "absent"), repeat=2)
    if (user, client) != ("absent", "absent")
]


Model: TypeAlias = dict[tuple[tuple[EntityType, str | None], ...], dict[str, str]]


def find(model: Model, key: str, user: str, client: str) -> Limit | None:
    """Return the limit that counts, as Kafka's documentation describes it."""
    names = {USER: user, CLIENT: client}
    for named, shared in LEVELS:
        entity = tuple((kind, names[kind] if is_named else None) for kind, is_named in named.items())
        if key in model.get(entity, {}):
            sharing = user if "user" in shared else "", client if "client" in shared else ""
            return Limit(*sharing, float(model[entity][key]))
    return None


@each_seed(20)
def test_the_most_specific_quota_counts_for_each_limit_by_itself(seed: int) -> None:
    draw, state = Random(seed), ClusterState()
    model: Model = {}
    keys = [QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE]
    for _ in range(25):
        parts = draw.choice(ENTITIES)
        limits = {each.value: str(draw.randint(1, 9)) for each in draw.sample(keys, draw.randint(0, 2))}
        removed = tuple(each.value for each in draw.sample(keys, draw.randint(0, 2)) if each.value not in limits)
        entity, version, before = tuple(parts.items()), state.quotas.version, dict(model)
        assert state.apply(Order(AlterClientQuota(make_entity(parts), limits, removed))) == DONE
        kept = {key: each for key, each in model.get(entity, {}).items() if key not in removed}
        model[entity] = kept | limits
        if not model[entity]:
            del model[entity]
        assert (state.quotas.version != version) == (model != before)
        if draw.random() < 0.2:
            records = dict(state.records)
            state = ClusterState()
            state.restore(records)
        assert bool(state.quotas) == bool(model)
        for key, user, client in product(keys, "abc", ("a", "b", "c", "")):
            assert state.quotas.find_limit(key, user, client) == find(model, key.value, user, client)


def test_an_address_has_its_own_rate_or_that_of_all_others() -> None:
    state = ClusterState()

    def rates() -> list[float | None]:
        return [state.quotas.find_connection_rate(each) for each in ("::1", "10.0.0.1")]

    key = QuotaKey.CONNECTION_CREATION_RATE.value
    found = [rates()]
    for command in (
        AlterClientQuota(make_entity({USER: "::1"}), {QuotaKey.PRODUCER_BYTE_RATE.value: "1"}),
        AlterClientQuota(make_entity({IP: None}), {key: "5"}),
        AlterClientQuota(make_entity({IP: "::1"}), {key: "2"}),
        AlterClientQuota(make_entity({IP: None}), removed=(key,)),
    ):
        state.apply(Order(command))
        found.append(rates())
    assert found == [[None, None], [None, None], [5, 5], [2, 5], [2, None]]


@pytest.mark.parametrize(
    ("parts", "key", "value", "reason"),
    [
        ({USER: "a"}, "producer_byte_rate", 1024.0, ""),
        ({USER: None, CLIENT: None}, "consumer_byte_rate", 0.5, ""),
        ({CLIENT: "a"}, "controller_mutation_rate", 1.0, ""),
        ({IP: None}, "connection_creation_rate", 1.0, ""),
        ({IP: None}, "connection_creation_rate", 0.5, "expected a whole number"),
        ({IP: None}, "connection_creation_rate", 1.5, "expected a whole number"),
        ({}, "producer_byte_rate", 1.0, "the entity is empty"),
        ({IP: "::1", USER: "a"}, "connection_creation_rate", 1.0, "for no user"),
        ({USER: ""}, "producer_byte_rate", 1.0, "the name of the user is empty"),
        ({USER: "a"}, "connection_creation_rate", 1.0, "for users and client-ids: expected producer_byte_rate,"),
        ({IP: "::1"}, "producer_byte_rate", 1.0, "for an ip: expected connection_creation_rate"),
        ({USER: "a"}, "request_percentage", 1.0, "cannot be measured here"),
        ({USER: "a"}, "leader.replication.throttled.rate", 1.0, "there is no quota"),
        ({USER: "a"}, "producer_byte_rate", 0.0, "expected a number above 0"),
        ({USER: "a"}, "producer_byte_rate", float("nan"), "expected a number above 0"),
        ({USER: "a"}, "producer_byte_rate", float("inf"), "expected a number above 0"),
    ],
)
def test_what_is_no_quota_is_explained(
    parts: dict[EntityType, str | None], key: str, value: float, reason: str
) -> None:
    entity = make_entity(parts)
    found = find_entity_problem(entity) or find_limit_problem(entity, key, value)
    assert (reason in found) if reason else not found


def test_quotas_of_a_limited_number_of_entities_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_table, "ENTITIES_MAX", 2)
    state = ClusterState()
    outcomes = [
        state.apply(Order(AlterClientQuota(make_entity({USER: user}), limits))).error
        for user, limits in (("a", {"x": "1"}), ("b", {"x": "1"}), ("c", {"x": "1"}), ("a", {"x": "2"}), ("d", {}))
    ]
    none, refused = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION
    assert outcomes == [none, none, refused, none, none]
