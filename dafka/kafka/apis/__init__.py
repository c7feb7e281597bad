"""The handlers of requests, with what each API asks of authorization.

A handler takes a request, calls the broker and the coordinators, and returns the response.
"""

from collections.abc import Mapping
from types import MappingProxyType

from dafka.kafka.apis import (  # noqa: F401 (they register their handlers)
    configs,
    descriptions,
    fetch,
    groups,
    metadata,
    offset_commit,
    offsets,
    reassignments,
    topics,
    transactions,
)
from dafka.kafka.apis.produce import ProduceRefusedError, begin_produce
from dafka.kafka.apis.shared.registry import AUTHORIZATIONS, HANDLERS, Decision, RequestContext, ResponsePatch
from dafka.kafka.protocol import ADVERTISED, ApiKey
from dafka.kafka.protocol.tables import Versions

SERVED = frozenset((*HANDLERS, ApiKey.PRODUCE, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE))
"""The APIs that the broker serves."""

OFFERED: Mapping[int, Versions] = MappingProxyType({key: ADVERTISED[key] for key in SERVED})
"""The advertised versions of each API. Requests of other versions are not decoded."""

__all__ = [
    "AUTHORIZATIONS",
    "HANDLERS",
    "OFFERED",
    "SERVED",
    "Decision",
    "ProduceRefusedError",
    "RequestContext",
    "ResponsePatch",
    "begin_produce",
]
