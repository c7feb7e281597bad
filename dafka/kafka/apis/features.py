"""UpdateFeatures, and the features in responses to ApiVersions: the feature level of the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dafka.broker.core.acls import Operation
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.features import (
    CLIENT_ACCESS,
    CONSUMER_GROUPS,
    DEAD_LETTERS,
    FEATURE,
    SHARE_GROUPS,
    TRANSACTIONS,
)
from dafka.kafka.apis.shared.authorization import require_cluster
from dafka.kafka.apis.shared.changes import make_change, requester_of
from dafka.kafka.apis.shared.registry import RequestContext, handles
from dafka.kafka.protocol.apis import advertise
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.connections import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from dafka.kafka.protocol.messages.features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

RESULTS_VERSION = 1
"""The last version of UpdateFeatures that answers about each feature."""

UPGRADE = 1
"""The type of an update that raises a level."""

TRANSACTION_FEATURE, SHARE_FEATURE = "transaction.version", "share.version"
"""The features by which clients know how transactions work, and whether there are share groups and dead letters."""

FOLLOWING: Mapping[str, Mapping[int, int]] = MappingProxyType(
    {TRANSACTION_FEATURE: {TRANSACTIONS: 2}, SHARE_FEATURE: {SHARE_GROUPS: 1, DEAD_LETTERS: 2}}
)
"""The features that follow the level of the cluster: by level, their versions from then on."""

_ZERO_VERSION = 4
"""The first version of ApiVersions whose clients accept features that begin with 0."""

FIRST_LEVELS: Mapping[ApiKey, int] = MappingProxyType(
    dict.fromkeys((ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE), CONSUMER_GROUPS)
    | dict.fromkeys(
        (
            ApiKey.DESCRIBE_ACLS,
            ApiKey.CREATE_ACLS,
            ApiKey.DELETE_ACLS,
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            ApiKey.ALTER_CLIENT_QUOTAS,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ),
        CLIENT_ACCESS,
    )
    | dict.fromkeys((each for each in ApiKey if "SHARE" in each.name), SHARE_GROUPS)
)
"""The first feature level with an API. APIs that are missing here belong to the first level."""


_SOFTWARE_VERSION = 3
"""The first version of ApiVersions with the name and the version of the client's software."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def answer_versions(
    context: RequestContext, request: ApiVersionsRequest, served: Iterable[ApiKey]
) -> ApiVersionsResponse:
    """Answer a client that begins a connection. Its software must have a name and a version (KIP-511)."""
    names = (request.client_software_name, request.client_software_version)
    if context.header.api_version >= _SOFTWARE_VERSION and not all(map(_SOFTWARE.fullmatch, names)):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    return describe_versions(context, served)


def describe_versions(context: RequestContext, served: Iterable[ApiKey]) -> ApiVersionsResponse:
    """Return the versions of the APIs that the broker serves at the feature level of the cluster, and the levels."""
    state = context.broker.node.tables.state
    levels, level = state.members.support.levels, state.members.feature_level
    response = advertise(each for each in served if level >= FIRST_LEVELS.get(each, 0))
    supported = {FEATURE: (levels.lowest, levels.highest)}
    if context.header.api_version >= _ZERO_VERSION:
        supported |= {name: (0, max(versions.values())) for name, versions in FOLLOWING.items()}
    response.supported_features = [
        SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
        for name, (lowest, highest) in supported.items()
    ]
    if level:
        response.finalized_features_epoch = state.applied
        finalized = {FEATURE: level, **following_versions(level)}
        response.finalized_features = [
            FinalizedFeatureKey(name=name, max_version_level=version, min_version_level=version)
            for name, version in finalized.items()
        ]
    return response


def following_versions(level: int) -> dict[str, int]:
    """Return the versions of the features that follow the level of the cluster."""
    reached = {
        name: [version for first, version in versions.items() if level >= first] for name, versions in FOLLOWING.items()
    }
    return {name: max(versions) for name, versions in reached.items() if versions}


@handles(
    UpdateFeaturesRequest,
    require_cluster(Operation.ALTER, UpdateFeaturesResponse, error_message=None),
)
async def update_features(context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Raise the feature level of the cluster, or only check whether it can be raised."""
    error, message = ErrorCode.NONE, None
    for each in request.feature_updates:
        if error is ErrorCode.NONE:
            error, message = await _update(context, each, request)
    if context.header.api_version > RESULTS_VERSION:
        return UpdateFeaturesResponse(error_code=error, error_message=message)
    results = [
        UpdatableFeatureResult(feature=each.feature, error_code=error, error_message=message)
        for each in request.feature_updates
    ]
    return UpdateFeaturesResponse(error_code=ErrorCode.NONE, error_message=None, results=results)


async def _update(
    context: RequestContext, update: FeatureUpdateKey, request: UpdateFeaturesRequest
) -> tuple[ErrorCode, str | None]:
    if update.feature != FEATURE:
        follows = ", which the others follow" if update.feature == TRANSACTION_FEATURE else ""
        message = f"only the feature {FEATURE} can be changed{follows}, not {update.feature[:100]!r}"
        return ErrorCode.INVALID_UPDATE_VERSION, message
    if update.allow_downgrade or update.upgrade_type != UPGRADE:
        return ErrorCode.INVALID_UPDATE_VERSION, "the feature level of a cluster is never lowered"
    change = context.broker.node.admin.set_feature_level(
        update.max_version_level, is_dry_run=request.validate_only, ordered_by=requester_of(context)
    )
    return await make_change(change, request.timeout_ms)
