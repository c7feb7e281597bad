"""Prometheus metrics of the server for HTTP and WebSocket, read from its counters at each scrape.

This module needs the extra `dafka[metrics]`.
"""

from __future__ import annotations

from collections import Counter

import attrs
from prometheus_client.core import Metric

from dafka.http.server.http_server import HttpServer
from dafka.operations.metrics import MetricHelp, Samples, TopicLabels, make_families

COUNTERS = {
    "dafka_http_requests": MetricHelp("Requests that were understood, by method and route.", ("method", "route")),
    "dafka_http_responses": MetricHelp("Responses, by status.", ("status",)),
    "dafka_http_accepted_connections": MetricHelp("Connections of HTTP and WebSocket that were accepted."),
    "dafka_http_refused_connections": MetricHelp("Connections that were closed because there were too many."),
    "dafka_http_disconnected_clients": MetricHelp("Clients that have gone, or were disconnected.", ("reason",)),
    "dafka_http_bytes": MetricHelp(
        "Bytes received from clients of HTTP, and sent to them; with TLS, before encryption.", ("direction",)
    ),
    "dafka_http_records": MetricHelp(
        "Records that clients of HTTP and WebSocket published (produced), and that were sent to them (consumed).",
        ("direction", "topic"),
    ),
    "dafka_http_logins": MetricHelp("Passwords and tokens of clients that were checked.", ("result",)),
}

GAUGES = {
    "dafka_http_connections": MetricHelp("Connections of HTTP and WebSocket."),
    "dafka_http_websocket_connections": MetricHelp("Connections of WebSocket."),
    "dafka_http_receiving_bytes": MetricHelp("Size of the large bodies that are being received."),
}


@attrs.frozen(eq=False)
class HttpMetrics:
    """The metrics of an HTTP server."""

    _web: HttpServer

    def read(self, topics: TopicLabels) -> list[Metric]:
        """Return the metrics."""
        return list(make_families(COUNTERS, GAUGES, self._count(topics) | self._measure()))

    def _count(self, topics: TopicLabels) -> Samples:
        counters, quotas, authenticator = self._web.counters, self._web.quotas, self._web.authenticator
        records: Counter[tuple[str, ...]] = Counter()
        if topics.topics_max:
            for direction, by_topic in (("produced", counters.produced), ("consumed", counters.consumed)):
                for topic, count in by_topic.items():
                    records[direction, topics.label(topic)] += count
        return {
            "dafka_http_requests": {(method, path): n for (method, path), n in counters.requests.items()},
            "dafka_http_responses": {(str(status),): count for status, count in counters.responses.items()},
            "dafka_http_accepted_connections": {(): quotas.admitted},
            "dafka_http_refused_connections": {(): quotas.refused},
            "dafka_http_disconnected_clients": {(reason,): n for reason, n in counters.disconnected.items()},
            "dafka_http_bytes": {("received",): counters.received_bytes, ("sent",): counters.sent_bytes},
            "dafka_http_records": dict(records),
            "dafka_http_logins": {
                ("succeeded",): authenticator.logins,
                ("failed",): authenticator.failed_logins,
            },
        }

    def _measure(self) -> Samples:
        return {
            "dafka_http_connections": {(): len(self._web.quotas)},
            "dafka_http_websocket_connections": {(): self._web.counters.websocket_connections},
            "dafka_http_receiving_bytes": {(): self._web.receiving.taken_bytes},
        }
