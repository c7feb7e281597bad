"""Counters of the server for HTTP and WebSocket."""

from __future__ import annotations

from collections import Counter


class HttpCounters:
    """The counters of a server since it started.

    Attributes:
        disconnected: Clients that were disconnected, by reason.
        received_bytes: Bytes received from HTTP clients.
        sent_bytes: Bytes sent to HTTP clients.
        responses: Responses, by status.
        requests: Requests, by method and route.
        produced: Records that clients have published, by topic.
        consumed: Records that were sent to clients, by topic.
        websocket_connections: The number of open WebSocket connections.
    """

    def __init__(self) -> None:
        self.disconnected: Counter[str] = Counter()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.responses: Counter[int] = Counter()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.produced: Counter[str] = Counter()
        self.consumed: Counter[str] = Counter()
        self.websocket_connections = 0
