"""Route for WebSocket. A request without an upgrade is refused."""

from __future__ import annotations

from dafka.http.api.openapi import Error
from dafka.http.api.registry import Answer, RequiredPermission, Route
from dafka.http.server.errors import WebError
from dafka.http.server.messages import AnyResponse, Request


@Route(
    "GET /ws",
    needs=RequiredPermission.NOTHING,
    name="connectWebSocket",
    tag="WebSocket",
    answers={
        101: Answer("The connection continues with WebSocket."),
        426: Answer("The request does not ask for WebSocket.", Error),
    },
    is_websocket=True,
)
async def connect(_request: Request) -> AnyResponse:
    """Upgrade to WebSocket.

    The subprotocols are `dafka.json.v1` and `dafka.binary.v1`. A client that sends no credentials here sends them in
    its first message.
    """
    raise WebError("bad_request", "expected an upgrade to WebSocket", status=426, headers=[("Upgrade", "websocket")])
