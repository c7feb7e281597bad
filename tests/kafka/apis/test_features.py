"""Clients see the feature level of a cluster, and raise it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import Command, OpenCluster, Order, RegisterBroker
from dafka.broker.core.metadata.features import FEATURE, FeatureLevels, FeatureSupport
from dafka.broker.core.positions import Offset
from dafka.broker.log.durable_waits import DurableWaits
from dafka.broker.metadata.admin import ClusterAdmin
from dafka.errors import RefusedChangeError
from dafka.kafka.apis import SERVED
from dafka.kafka.apis.features import FIRST_LEVELS, FOLLOWING, TRANSACTION_FEATURE, describe_versions
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.fake_cluster import OWN, FakeBroker, FakeCluster

LEVELS = FeatureLevels(1, 4)


class UpgradedBroker(FakeBroker):
    """A broker of a later version, in a cluster with the first level."""

    def __init__(self) -> None:
        super().__init__()
        state = ClusterState(FeatureSupport(LEVELS))
        tables: Any = SimpleNamespace(state=state)
        self.tables = tables
        for command in (RegisterBroker(OWN, 0, features=LEVELS), OpenCluster()):
            assert state.apply(Order(command)).error is ErrorCode.NONE
        state.applied = Offset(7)
        has_joined = trio.Event()
        has_joined.set()
        metadata: Any = None
        changes: Any = SimpleNamespace(change=self._change)
        self.admin = ClusterAdmin(tables, DurableWaits(), metadata, changes, has_joined, 1)

    async def _change(self, command: Command, _ordered_by: str) -> None:
        outcome = self.tables.state.apply(Order(command))
        if outcome.error is not ErrorCode.NONE:
            raise RefusedChangeError(outcome.reason, outcome.error)


def features(cluster: FakeCluster) -> list[tuple[int, ...]]:
    """Return the supported and the finalized levels in a response to ApiVersions, and the epoch."""
    found = describe_versions(cluster.client(ApiKey.API_VERSIONS, 4), SERVED)
    level = found.finalized_features[0].max_version_level
    assert {each.api_key for each in found.api_keys} == {each for each in SERVED if FIRST_LEVELS.get(each, 1) <= level}
    supported = {each.name: (each.min_version, each.max_version) for each in found.supported_features}
    finalized = {each.name: (each.min_version_level, each.max_version_level) for each in found.finalized_features}
    for name, versions in FOLLOWING.items():
        assert supported.pop(name) == (0, max(versions.values()))
        reached = max((version for first, version in versions.items() if level >= first), default=None)
        assert finalized.pop(name, None) == (None if reached is None else (reached, reached))
    assert supported.keys() == finalized.keys() == {FEATURE}
    return [supported[FEATURE], finalized[FEATURE], (found.finalized_features_epoch,)]


def test_a_feature_from_zero_on_is_hidden_from_versions_that_do_not_know_it() -> None:
    cluster = FakeCluster(UpgradedBroker())
    for version in range(5):
        found = describe_versions(cluster.client(ApiKey.API_VERSIONS, version), SERVED)
        lowest = {each.name: each.min_version for each in found.supported_features}
        assert lowest == {FEATURE: 1, **(dict.fromkeys(FOLLOWING, 0) if version >= 4 else {})}


async def test_clients_raise_the_feature_level() -> None:
    cluster = FakeCluster(UpgradedBroker())
    assert features(cluster) == [(1, 4), (1, 1), (7,)]
    joining = {"group_id": "g", "member_id": "m", "member_epoch": 0}
    found = await cluster.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **joining)
    assert found["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    assert "this needs 2: `dafka cluster upgrade`" in found["error_message"]
    invalid, update = ErrorCode.INVALID_UPDATE_VERSION, {"feature": FEATURE, "max_version_level": 2}
    asked: list[tuple[int, dict[str, Any], dict[str, Any], ErrorCode, str | None, int]] = [
        (2, {"max_version_level": 5}, {}, invalid, "is not supported by broker 0: update dafka there first", 1),
        (1, {"feature": "group.version"}, {}, invalid, "only the feature metadata.version can be changed, not", 1),
        (1, {"feature": TRANSACTION_FEATURE}, {}, invalid, "can be changed, which the others follow, not", 1),
        (0, {"allow_downgrade": True}, {}, invalid, "never lowered", 1),
        (1, {"upgrade_type": 2}, {}, invalid, "never lowered", 1),
        (2, {"max_version_level": 5}, {"validate_only": True}, invalid, "is not supported by", 1),
        (2, {}, {"validate_only": True}, ErrorCode.NONE, None, 1),
        (1, {}, {}, ErrorCode.NONE, None, 2),
        (2, {"max_version_level": 1}, {}, invalid, "has the feature level 2, and it is never lowered", 2),
        (2, {"max_version_level": 3}, {}, ErrorCode.NONE, None, 3),
        (2, {"max_version_level": 4}, {}, ErrorCode.NONE, None, 4),
    ]
    for version, change, others, error, reason, level in asked:
        found = await cluster.ask(ApiKey.UPDATE_FEATURES, version, feature_updates=[update | change], **others)
        found = found["results"][0] if version < 2 else found
        assert found["error_code"] == error
        assert (found["error_message"] is None) if reason is None else reason in found["error_message"]
        assert features(cluster)[1] == (level, level)
    updates = [update | {"feature": "group.version"}, update | {"max_version_level": 4}]
    found = await cluster.ask(ApiKey.UPDATE_FEATURES, 2, feature_updates=updates, validate_only=True)
    assert found["error_code"] == invalid, "of any of them"
