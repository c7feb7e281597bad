"""Counters of the listener for HTTP and WebSocket."""

from __future__ import annotations

from collections import Counter


class WebCounters:
    """What a listener has done since it started.

    Attributes:
        disconnected: Clients that were disconnected, by reason.
        received_bytes: Bytes that clients of HTTP have sent.
        sent_bytes: Bytes that were sent to clients of HTTP.
        responses: Responses, by status.
        requests: Requests, by method and route.
        produced: Records that clients have published, by topic.
        consumed: Records that were sent to clients, by topic.
        websocket_connections: Connections of WebSocket that there are.
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
