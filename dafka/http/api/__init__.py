"""The routes of the HTTP API. Each module registers its own."""

from dafka.http.api import (  # noqa: F401 (their routes register themselves)
    brokers,
    console,
    description,
    groups,
    nodes,
    overview,
    records,
    session,
    settings,
    storage,
    streams,
    topics,
    websocket,
)
from dafka.http.api.dispatch import answer_get, answer_request
from dafka.http.api.registry import (
    ROUTES,
    Answer,
    Body,
    Parameter,
    RequiredPermission,
    Route,
    find_route,
    is_websocket_route,
    route,
)

__all__ = [
    "ROUTES",
    "Answer",
    "Body",
    "Parameter",
    "RequiredPermission",
    "Route",
    "answer_get",
    "answer_request",
    "find_route",
    "is_websocket_route",
    "route",
]
