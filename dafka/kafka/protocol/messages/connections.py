"""ApiVersions, SaslHandshake and SaslAuthenticate: how a connection begins."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Boolean, Bytes, Int16, Int32, Int64, Request, Response, String, Struct, field


class ApiVersionsRequest(Request, key=ApiKey.API_VERSIONS, versions="0-4", flexible="3+"):
    """Ask for the versions of each API that a broker knows."""

    client_software_name: String = field("3+", default="")
    client_software_version: String = field("3+", default="")


class ApiVersion(Struct):
    """An item of `ApiVersionsResponse.api_keys`."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Struct):
    """An item of `ApiVersionsResponse.supported_features`."""

    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Struct):
    """An item of `ApiVersionsResponse.finalized_features`."""

    name: String
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Response, key=ApiKey.API_VERSIONS, versions="0-4", flexible="3+"):
    """The versions of each API that a broker knows."""

    error_code: Int16
    api_keys: list[ApiVersion]
    throttle_time_ms: Int32 = field("1+", default=0)
    supported_features: list[SupportedFeatureKey] = field("3+", tag=0, default=[])
    finalized_features_epoch: Int64 = field("3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = field("3+", tag=2, default=[])
    zk_migration_ready: Boolean = field("3+", tag=3, default=False)


class SaslHandshakeRequest(Request, key=ApiKey.SASL_HANDSHAKE, versions="0-1"):
    """Choose the mechanism of authentication."""

    mechanism: String


class SaslHandshakeResponse(Response, key=ApiKey.SASL_HANDSHAKE, versions="0-1"):
    """The mechanisms that a broker knows."""

    error_code: Int16
    mechanisms: list[String]


class SaslAuthenticateRequest(Request, key=ApiKey.SASL_AUTHENTICATE, versions="0-2", flexible="2+"):
    """Send a client's message of the authentication."""

    auth_bytes: Bytes


class SaslAuthenticateResponse(Response, key=ApiKey.SASL_AUTHENTICATE, versions="0-2", flexible="2+"):
    """The broker's message of the authentication."""

    error_code: Int16
    error_message: String | None
    auth_bytes: Bytes
    session_lifetime_ms: Int64 = field("1+", default=0)
