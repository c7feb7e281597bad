"""UpdateFeatures: which features of later versions all brokers of a cluster use."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Boolean, Int8, Int16, Int32, Request, Response, String, Struct, field


class FeatureUpdateKey(Struct):
    """An item of `UpdateFeaturesRequest.feature_updates`."""

    feature: String
    max_version_level: Int16
    allow_downgrade: Boolean = field("0", default=False)
    upgrade_type: Int8 = field("1+", default=1)


class UpdateFeaturesRequest(Request, key=ApiKey.UPDATE_FEATURES, versions="0-2", flexible="0+"):
    """Change the levels of features."""

    timeout_ms: Int32 = field(default=60000)
    feature_updates: list[FeatureUpdateKey]
    validate_only: Boolean = field("1+", default=False)


class UpdatableFeatureResult(Struct):
    """An item of `UpdateFeaturesResponse.results`."""

    feature: String
    error_code: Int16
    error_message: String | None


class UpdateFeaturesResponse(Response, key=ApiKey.UPDATE_FEATURES, versions="0-2", flexible="0+"):
    """Whether the levels were changed."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    error_message: String | None
    results: list[UpdatableFeatureResult] = field("0-1", default=[])
