"""The routes of the HTTP API. Each module registers its own."""

from dafka.http.api import (  # noqa: F401 (their routes register themselves)
    brokers,
    cluster,
    console,
    groups,
    nodes,
    openapi,
    overview,
    queues,
    records,
    removal,
    session,
    settings,
    storage,
    streams,
    topics,
)
from dafka.http.api.registry import ROUTES, RequiredPermission, Route, answer_request, is_websocket_route

__all__ = ["ROUTES", "RequiredPermission", "Route", "answer_request", "is_websocket_route"]
