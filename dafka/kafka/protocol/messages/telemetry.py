"""GetTelemetrySubscriptions and PushTelemetry: the metrics that clients send."""

from __future__ import annotations

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import (
    Boolean,
    Bytes,
    Int8,
    Int16,
    Int32,
    Request,
    Response,
    String,
    Uuid,
    field,
)


class GetTelemetrySubscriptionsRequest(Request, key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions="0", flexible="0+"):
    """Ask which metrics the broker wants. The first request of a client has no id."""

    client_instance_id: Uuid


class GetTelemetrySubscriptionsResponse(Response, key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions="0", flexible="0+"):
    """The metrics that the broker wants, and how often."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
    client_instance_id: Uuid
    subscription_id: Int32
    accepted_compression_types: list[Int8]
    push_interval_ms: Int32
    telemetry_max_bytes: Int32
    delta_temporality: Boolean
    requested_metrics: list[String]


class PushTelemetryRequest(Request, key=ApiKey.PUSH_TELEMETRY, versions="0", flexible="0+"):
    """Send metrics."""

    client_instance_id: Uuid
    subscription_id: Int32
    terminating: Boolean
    compression_type: Int8
    metrics: Bytes


class PushTelemetryResponse(Response, key=ApiKey.PUSH_TELEMETRY, versions="0", flexible="0+"):
    """Whether the metrics were accepted."""

    throttle_time_ms: Int32 = field(default=0)
    error_code: Int16
