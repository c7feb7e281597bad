"""The requests that routes handle, and their responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import trio

from dafka.broker.core.metadata.commands import name_requester
from dafka.exceptions import unwrap_group
from dafka.http.server.documents import encode_document
from dafka.http.server.errors import WebError
from dafka.http.server.origins import Origins
from dafka.http.server.principal import Principal
from dafka.http1.connection import Send
from dafka.http1.head import Head

if TYPE_CHECKING:
    from dafka.broker.broker import Broker
    from dafka.http.logs.group_access import GroupAccess
    from dafka.http.logs.log_access import LogAccess
    from dafka.http.logs.publishing import Publisher
    from dafka.http.queues.queue_access import QueueAccess
    from dafka.http.server.http_server import HttpServer

JSON = "application/json"
JSON_LINES = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"


async def read_nothing(_bytes_max: int | None = None) -> bytes:
    """Read the body of a request that has none."""
    return b""


@attrs.define(eq=False)
class Request:
    """A request. A route gets its arguments and its query parsed."""

    web: HttpServer
    head: Head
    principal: Principal
    host: str = ""
    """The address of the client."""
    is_private: bool = False
    """Whether the connection is encrypted or local."""
    read_body: Callable[[int | None], Awaitable[bytes]] = read_nothing
    """Reads the body, up to a size or up to `[http] body_bytes_max`. Raises `WebError` if it is too large."""
    wait_end: Callable[[], Awaitable[None]] = trio.sleep_forever
    """Waits until the client has closed its side, usually because it has disconnected."""
    has_left: Callable[[], bool] = lambda: False
    """Returns whether the client has closed its side."""
    arguments: Mapping[str, str] = attrs.field(factory=dict)
    """The values of the names in the route's path."""
    query: Mapping[str, Any] = attrs.field(factory=dict)
    """The values of the route's query parameters; missing ones have their default."""
    mark_served: Callable[[], None] = lambda: None
    """Must be called when the client has authenticated, so that its connection is not replaced."""
    buffered_bytes: int = 0
    """The approximate memory that the response takes until the client has read it."""

    @property
    def broker(self) -> Broker:
        """The broker that answers."""
        return self.web.broker

    @property
    def source(self) -> str:
        """Who sends it, for limits: the user, or the address of the client."""
        return self.principal.user or self.host

    @property
    def requester(self) -> str:
        """Who sends it, in the log of metadata: the user and the address of the client."""
        return name_requester(self.principal.user, self.host)

    @property
    def is_forwarded(self) -> bool:
        """Whether another broker has forwarded the request. It is not forwarded again."""
        return self.principal.is_broker

    @property
    def logs(self) -> LogAccess:
        """Access to the logs."""
        return self.web.own_logs if self.is_forwarded else self.web.logs

    @property
    def queues(self) -> QueueAccess:
        """Access to the queues."""
        return self.web.own_queues if self.is_forwarded else self.web.queues

    @property
    def groups(self) -> GroupAccess:
        """Access to the groups."""
        return self.web.own_groups if self.is_forwarded else self.web.groups

    @property
    def publisher(self) -> Publisher:
        """Publishes records."""
        return self.web.own_publisher if self.is_forwarded else self.web.publisher

    async def prepare_publishing(self, topic: str) -> None:
        """Wait until records can be published to a topic, which is created if the user may; see `Publisher.prepare`."""
        is_missing = self.broker.node.find_topic(topic) is None
        may_create = is_missing and self.principal.permissions.may_create_by_use(topic)
        await self.publisher.prepare(topic, may_create=may_create)

    async def wait_while_connected(self, wait: Callable[[], Awaitable[object]], timeout_s: float) -> bool:
        """Wait for an event, up to a time and while the client is connected. Return whether it is connected.

        Raise the errors of the wait.
        """
        is_connected = True

        async def wait_end() -> None:
            nonlocal is_connected
            await self.wait_end()
            is_connected = False
            nursery.cancel_scope.cancel()

        with unwrap_group():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_end)
                with trio.move_on_after(timeout_s):
                    await wait()
                nursery.cancel_scope.cancel()
        return is_connected

    @property
    def content_type(self) -> str:
        """The type of the body, without its parameters."""
        return self.head.headers.get("content-type", "").partition(";")[0].strip().lower()

    def prefers(self, content_type: str) -> bool:
        """Return whether the client's header Accept contains a type."""
        accepted = self.head.headers.get("accept", "").lower().split(",")
        return any(each.partition(";")[0].strip() == content_type for each in accepted)


@attrs.frozen
class Response:
    """A response. The content type is empty if it has no body."""

    status: int = HTTPStatus.OK
    body: bytes = b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@attrs.frozen
class StreamedResponse:
    """A response whose body is sent while it is produced. A slow client delays no other client.

    If it is endless, its body ends only with the connection: `produce` is cancelled when the client disconnects.
    """

    produce: Callable[[Send], Awaitable[None]]
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()
    status: int = HTTPStatus.OK
    is_endless: bool = False


AnyResponse: TypeAlias = Response | StreamedResponse


def respond(value: Any, status: int = HTTPStatus.OK, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return a response with a JSON document."""
    return Response(status, encode_document(value), JSON, headers)


def respond_error(error: WebError) -> Response:
    """Return the response for an error."""
    return respond({"error": error.describe()}, error.status, error.headers)


_ALWAYS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)
_CHALLENGES = ('Basic realm="dafka", charset="UTF-8"', 'Bearer realm="dafka"')
_ALLOWED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_ALLOWED_HEADERS = "authorization, content-type, last-event-id"
_PREFLIGHT_S = 600


def response_headers(head: Head | None, response: AnyResponse, origins: Origins) -> list[tuple[str, str]]:
    """Return the headers of a response, except those of its length. The head is None if it was malformed."""
    given = {name.lower() for name, _ in response.headers}
    headers = [("Date", formatdate(usegmt=True)), *_ALWAYS, *response.headers]
    if response.content_type:
        headers.append(("Content-Type", response.content_type))
    if "cache-control" not in given:
        headers.append(("Cache-Control", "no-store"))
    if head is None:
        return headers
    if response.status == 401 and "www-authenticate" not in given:
        # On a Basic challenge, a browser would show its own dialog in front of the page's form.
        is_script = "sec-fetch-mode" in head.headers
        headers += [("WWW-Authenticate", each) for each in (_CHALLENGES[1:] if is_script else _CHALLENGES)]
    origin = head.headers.get("origin")
    if origin is not None:
        headers.append(("Vary", "Origin"))
        if origins.allow(origin):
            headers.append(("Access-Control-Allow-Origin", origin))
            if head.method == "OPTIONS":
                headers += [
                    ("Access-Control-Allow-Methods", _ALLOWED_METHODS),
                    ("Access-Control-Allow-Headers", _ALLOWED_HEADERS),
                    ("Access-Control-Max-Age", str(_PREFLIGHT_S)),
                ]
    return headers
