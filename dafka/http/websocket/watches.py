"""Watches resources of the HTTP API: a client gets the response to GET, and again whenever it has changed."""

from __future__ import annotations

import trio

from dafka.http.api.dispatch import answer_get
from dafka.http.server.errors import WebError
from dafka.http.server.messages import JSON, Request, Response
from dafka.http.websocket.connection import Connection
from dafka.http.websocket.messages import encode_view


class WatchedResource:
    """A resource that a client watches.

    Args:
        identifier: The id of the watch.
        path: The path and the query.
        interval_ms: How often the resource is checked, in milliseconds.
        request: The request of the connection's handshake.
        connection: The connection.

    Attributes:
        ended: Set when nothing else will be sent.
    """

    def __init__(self, identifier: int, path: str, interval_ms: int, request: Request, connection: Connection) -> None:
        self.ended = trio.Event()
        self._id = identifier
        self._path = path
        self._interval_s = interval_ms / 1000
        self._request = request
        self._connection = connection
        self._waiting = trio.CancelScope()
        self._is_stopping = False

    def stop(self) -> None:
        """End the watch after the current message; then `ended` is set."""
        self._is_stopping = True
        self._waiting.cancel()

    async def run(self) -> None:
        """Send the resource whenever it has changed, until `stop` is called. Raises `WebError` if it is not JSON."""
        last: tuple[int, bytes] | None = None
        try:
            while not self._is_stopping:
                found = await self._get()
                if found is not None and found != last:
                    last = found
                    await self._connection.send_text(encode_view(self._id, *found))
                with trio.CancelScope() as self._waiting:
                    if not self._is_stopping:
                        await trio.sleep(self._interval_s)
        finally:
            self.ended.set()

    async def _get(self) -> tuple[int, bytes] | None:
        """Return the status and the body; None if the watch must end."""
        with trio.CancelScope() as self._waiting:
            response = await answer_get(self._request, self._path, self._request.principal)
            if not isinstance(response, Response) or response.content_type not in {JSON, ""}:
                raise WebError("unsupported", f"watch: expected a resource that is a JSON document, not {self._path!r}")
            return int(response.status), response.body
        return None
