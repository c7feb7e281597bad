"""The APIs: which classes their requests and responses have, and which versions a broker advertises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages import (  # noqa: F401 (their classes register themselves)
    access,
    cluster,
    configs,
    connections,
    consumer_groups,
    features,
    groups,
    logs,
    membership,
    offsets,
    quorum,
    quotas,
    reassignments,
    share_groups,
    share_offsets,
    share_records,
    telemetry,
    topics,
    transactions,
)
from dafka.kafka.protocol.messages.connections import ApiVersion, ApiVersionsResponse
from dafka.kafka.protocol.tables import VERSION_MAX, Request, Response, Versions

REQUESTS: Mapping[int, type[Request]] = MappingProxyType({each.API_KEY: each for each in Request.__subclasses__()})
"""The request of each API."""

RESPONSES: Mapping[int, type[Response]] = MappingProxyType({each.API_KEY: each for each in Response.__subclasses__()})
"""The response of each API."""

DESCRIBED: Mapping[int, Versions] = MappingProxyType({key: each.VERSIONS for key, each in REQUESTS.items()})
"""The versions of the request of each API that the tables describe."""

ADVERTISED: Mapping[ApiKey, Versions] = MappingProxyType(
    {
        # From 0 on, or librdkafka does not compress (confluentinc/librdkafka#5130).
        ApiKey.PRODUCE: Versions(0, 13),
        ApiKey.FETCH: Versions(0, 18),
        ApiKey.LIST_OFFSETS: Versions(1, 11),
        ApiKey.METADATA: Versions(0, 13),
        ApiKey.OFFSET_COMMIT: Versions(1, 10),
        ApiKey.OFFSET_FETCH: Versions(1, 10),
        ApiKey.FIND_COORDINATOR: Versions(0, 6),
        ApiKey.JOIN_GROUP: Versions(0, 9),
        ApiKey.HEARTBEAT: Versions(0, 4),
        ApiKey.LEAVE_GROUP: Versions(0, 5),
        ApiKey.SYNC_GROUP: Versions(0, 5),
        ApiKey.DESCRIBE_GROUPS: Versions(0, 6),
        ApiKey.LIST_GROUPS: Versions(0, 5),
        ApiKey.SASL_HANDSHAKE: Versions(0, 1),  # after version 0, authentication has no headers: see encode_token
        ApiKey.API_VERSIONS: Versions(0, 4),
        ApiKey.CREATE_TOPICS: Versions(0, 7),
        ApiKey.DELETE_TOPICS: Versions(0, 6),
        ApiKey.DELETE_RECORDS: Versions(0, 2),
        ApiKey.INIT_PRODUCER_ID: Versions(0, 5),  # 6 is for transactions in two phases
        ApiKey.OFFSET_FOR_LEADER_EPOCH: Versions(0, 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: Versions(0, 3),  # from 4 on, brokers ask each other
        ApiKey.ADD_OFFSETS_TO_TXN: Versions(0, 4),
        ApiKey.END_TXN: Versions(0, 5),
        ApiKey.TXN_OFFSET_COMMIT: Versions(0, 5),
        ApiKey.DESCRIBE_ACLS: Versions(0, 3),
        ApiKey.CREATE_ACLS: Versions(0, 3),
        ApiKey.DELETE_ACLS: Versions(0, 3),
        ApiKey.DESCRIBE_CONFIGS: Versions(0, 4),
        ApiKey.ALTER_CONFIGS: Versions(0, 2),
        ApiKey.DESCRIBE_LOG_DIRS: Versions(0, 5),
        ApiKey.SASL_AUTHENTICATE: Versions(0, 2),
        ApiKey.CREATE_PARTITIONS: Versions(0, 3),
        ApiKey.DELETE_GROUPS: Versions(0, 2),
        ApiKey.ELECT_LEADERS: Versions(0, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: Versions(0, 1),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: Versions(0, 0),
        ApiKey.OFFSET_DELETE: Versions(0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: Versions(0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: Versions(0, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Versions(0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Versions(0, 0),
        ApiKey.DESCRIBE_QUORUM: Versions(0, 2),
        ApiKey.UPDATE_FEATURES: Versions(0, 2),
        ApiKey.DESCRIBE_CLUSTER: Versions(0, 2),
        ApiKey.DESCRIBE_PRODUCERS: Versions(0, 0),
        ApiKey.UNREGISTER_BROKER: Versions(0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: Versions(0, 0),
        ApiKey.LIST_TRANSACTIONS: Versions(0, 2),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: Versions(0, 1),
        ApiKey.CONSUMER_GROUP_DESCRIBE: Versions(0, 1),
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Versions(0, 0),
        ApiKey.PUSH_TELEMETRY: Versions(0, 0),
        ApiKey.LIST_CONFIG_RESOURCES: Versions(0, 1),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: Versions(0, 0),
        ApiKey.SHARE_GROUP_HEARTBEAT: Versions(1, 1),
        ApiKey.SHARE_GROUP_DESCRIBE: Versions(1, 1),
        ApiKey.SHARE_FETCH: Versions(1, 2),
        ApiKey.SHARE_ACKNOWLEDGE: Versions(1, 2),
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Versions(0, 1),
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: Versions(0, 0),
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: Versions(0, 0),
    }
)
"""The versions of each API that a broker advertises if it serves the API, and the only ones that it answers.

librdkafka 2.6.0 sends Fetch 12 whatever is advertised, so this version stays among them.
"""

TOPIC_ID_VERSIONS: Mapping[ApiKey, int] = MappingProxyType(
    {ApiKey.PRODUCE: 13, ApiKey.FETCH: 13, ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10}
)
"""The first version of each request that names topics by id instead of by name (KIP-516)."""


def uses_topic_ids(api_key: ApiKey, api_version: int) -> bool:
    """Return whether requests of an API in a version name topics by id."""
    return api_version >= TOPIC_ID_VERSIONS.get(api_key, VERSION_MAX)


def advertise(served: Iterable[ApiKey], error_code: int = ErrorCode.NONE) -> ApiVersionsResponse:
    """Return the response to an ApiVersions request: the advertised versions of the APIs that the broker serves."""
    versions = {key: ADVERTISED[key] for key in served}
    keys = [ApiVersion(api_key=key, min_version=each.first, max_version=each.last) for key, each in versions.items()]
    return ApiVersionsResponse(error_code=error_code, api_keys=keys)
