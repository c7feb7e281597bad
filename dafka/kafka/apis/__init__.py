"""The handlers of requests, with what each API asks of authorization.

A handler takes a request, calls the broker and the coordinators, and returns the response.
"""

from collections.abc import Mapping
from types import MappingProxyType

from dafka.kafka.apis import (  # noqa: F401 (they register their handlers)
    acls,
    client_quotas,
    configs,
    consumer_groups,
    features,
    fetch,
    groups,
    metadata,
    offset_commit,
    offsets,
    produce,
    quorum,
    reassignments,
    scram_credentials,
    share_groups,
    share_offsets,
    share_records,
    telemetry,
    topics,
    transactions,
)
from dafka.kafka.apis.shared.registry import HANDLERS
from dafka.kafka.protocol.apis import ADVERTISED
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import Versions

SERVED = frozenset((*HANDLERS, ApiKey.PRODUCE, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE))
"""The APIs that the broker serves."""

OFFERED: Mapping[int, Versions] = MappingProxyType({key: ADVERTISED[key] for key in SERVED})
"""The advertised versions of each API. Requests of other versions are not decoded."""
