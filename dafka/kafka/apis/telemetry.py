"""GetTelemetrySubscriptions and PushTelemetry: this broker wants no metrics of clients.

A client learns its id from the answer, asks again after five minutes, and sends nothing. Later answers repeat the id,
as in Kafka, since clients take over the id of each answer.
"""

from __future__ import annotations

import uuid

import trio

from dafka.batches import Compression
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.shared.authorization import permit_everyone
from dafka.kafka.apis.shared.registry import RequestContext, handles
from dafka.kafka.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from dafka.kafka.protocol.tables import NIL

PUSH_INTERVAL_MS = 300_000
"""How long a client waits until it asks again, as in Kafka."""

TELEMETRY_BYTES_MAX = 2**20
"""The largest size of metrics in a request, as in Kafka. Accepted ones are discarded."""

NO_METRICS = 1
"""The id of the subscription to no metrics, the only one."""


@handles(GetTelemetrySubscriptionsRequest, permit_everyone)
async def get_subscriptions(
    context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Answer that no metrics are wanted, and give a client its id if it has none."""
    await trio.lowlevel.checkpoint()
    compressions = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
    return GetTelemetrySubscriptionsResponse(
        error_code=ErrorCode.NONE,
        client_instance_id=uuid.uuid4() if request.client_instance_id == NIL else request.client_instance_id,
        subscription_id=NO_METRICS,
        accepted_compression_types=[each.value for each in compressions],
        push_interval_ms=PUSH_INTERVAL_MS,
        telemetry_max_bytes=TELEMETRY_BYTES_MAX,
        delta_temporality=True,
        requested_metrics=[],
    )


@handles(PushTelemetryRequest, permit_everyone)
async def push(context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Discard metrics that a client sends nevertheless."""
    await trio.lowlevel.checkpoint()
    error = ErrorCode.NONE
    if request.client_instance_id == NIL:
        error = ErrorCode.INVALID_REQUEST
    elif request.subscription_id != NO_METRICS:
        error = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    elif request.compression_type not in {each.value for each in Compression}:
        error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    elif len(request.metrics) > TELEMETRY_BYTES_MAX:
        error = ErrorCode.TELEMETRY_TOO_LARGE
    return PushTelemetryResponse(error_code=error)
