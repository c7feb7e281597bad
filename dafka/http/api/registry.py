"""Registers the routes of the HTTP API, with all data that their description needs, and answers requests by them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar, get_type_hints

import attrs
import msgspec

from dafka.broker.core.error_codes import ErrorCode
from dafka.errors import ConfigError, NoControllerError, RefusedChangeError, StorageError
from dafka.http.server.documents import Document, decode_document, describe_problem, parse_document
from dafka.http.server.errors import WebError, refused_request
from dafka.http.server.messages import JSON, AnyResponse, Request, Response, respond, respond_error
from dafka.http.server.principal import Principal
from dafka.http1.head import Head, RequestError, parse_target

DOCUMENT_BYTES_MAX = 2**20
"""The maximum size of a JSON request document. Records can be larger."""

_LOGGER = logging.getLogger("dafka.http")

Handler: TypeAlias = Callable[..., Awaitable[AnyResponse | Document]]

_H = TypeVar("_H", bound=Handler)


class RequiredPermission(Enum):
    """The permission that a route needs, for the topic or the group in its path; with its description."""

    NOTHING = "Anybody may do this."
    USER = "Any user may do this. The answer has what the user may see."
    SEE = "The user needs any permission for the topic."
    READ = "The user needs the permission `read` for the topic."
    WRITE = "The user needs the permission `write` for the topic."
    ADMIN = "The user needs the permission `admin` for the topic."
    GROUP = "The user needs the permission `groups` for the group."
    QUEUE = "The user needs the permissions `read` for the topic and `groups` for the queue, which is a group."
    ADMINISTRATOR = "The user needs the permission `admin` for `*`."

    def check(self, principal: Principal, arguments: Mapping[str, str]) -> None:
        """Raise `WebError` if the principal does not have the permission, for what the path names."""
        _CHECKS[self](principal, arguments)


def _check_queue(principal: Principal, arguments: Mapping[str, str]) -> None:
    principal.check_read(arguments["topic"])
    principal.check_group(arguments["queue"])


_CHECKS: dict[RequiredPermission, Callable[[Principal, Mapping[str, str]], object]] = {
    RequiredPermission.NOTHING: lambda _access, _arguments: None,
    RequiredPermission.USER: lambda principal, _: principal.permissions,
    RequiredPermission.SEE: lambda principal, arguments: principal.check_see(arguments["topic"]),
    RequiredPermission.READ: lambda principal, arguments: principal.check_read(arguments["topic"]),
    RequiredPermission.WRITE: lambda principal, arguments: principal.check_write(arguments["topic"]),
    RequiredPermission.ADMIN: lambda principal, arguments: principal.check_admin(arguments["topic"]),
    RequiredPermission.GROUP: lambda principal, arguments: principal.check_group(arguments["group"]),
    RequiredPermission.QUEUE: _check_queue,
    RequiredPermission.ADMINISTRATOR: lambda principal, _: principal.check_administrator(),
}


@attrs.frozen
class Parameter:
    """A query parameter. The type of its value has a description, and the example is for the API's description."""

    name: str
    kind: Any
    default: Any = None
    is_required: bool = False
    example: Any = None
    _json_type: str = attrs.field(init=False)

    @_json_type.default
    def _find_json_type(self) -> str:
        return str(msgspec.json.schema(self.kind).get("type", "string"))

    def parse(self, text: str) -> Any:
        """Parse a value: a text as it is, a number or a truth value as in JSON. Raises `WebError`."""
        where = f"the parameter {self.name!r}"
        try:
            if self._json_type == "string":
                return msgspec.convert(text, self.kind)
            return msgspec.json.decode(text, type=self.kind)
        except msgspec.ValidationError as error:
            problem = describe_problem(where, error)
        except msgspec.DecodeError:
            problem = f"{where}: expected `{self._json_type}`"
        raise WebError("bad_request", f"{problem}, not {text[:100]!r}")


@attrs.frozen
class Answer:
    """A response of a route, except an error: the type of its JSON document, and the types of other contents."""

    description: str
    document: Any = None
    others: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def contents(self) -> dict[str, Any]:
        """The type of the body by content type; empty without a body."""
        return {**({} if self.document is None else {JSON: self.document}), **self.others}


@attrs.frozen
class Body:
    """A request body that is not a JSON document, with the type of each content type."""

    description: str
    content_types: Mapping[str, Any]


@attrs.define(eq=False)
class Route:
    """A route: `@Route("GET /path", ...)` registers the function that answers its requests.

    The function gets the request, and a document if it has a parameter of that name: the body, of the parameter's type.
    It returns a document or a response. Names of segments in the path are in braces. The last one can be `{name...}`:
    all remaining segments.
    """

    endpoint: str
    needs: RequiredPermission
    name: str = attrs.field(kw_only=True)
    """Its name for programs, in OpenAPI."""
    tag: str = attrs.field(kw_only=True)
    """The group of routes in which it is described."""
    status: int = HTTPStatus.OK
    answers: Mapping[int, Answer] = attrs.field(factory=dict)
    """Its responses, by status; needed if the handler does not return a document."""
    parameters: Sequence[Parameter] = ()
    body: Body | None = None
    """Its request body, if that is not a JSON document."""
    errors: Sequence[str] = ()
    """Its error codes, besides the codes that every route has."""
    is_websocket: bool = False
    awaits_metadata: bool = False
    """Whether it creates, changes or deletes topics or moves logs.

    It is then handled when the broker knows what others have done with topics.
    """
    handler: Handler = attrs.field(init=False)
    document: type[Document] | None = attrs.field(default=None, init=False)
    """The type of its JSON request document; None if it takes none."""
    method: str = attrs.field(init=False)
    path: str = attrs.field(init=False)
    segments: tuple[str, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.method, _, self.path = self.endpoint.partition(" ")
        self.segments = tuple(self.path[1:].split("/"))
        if "{topic}" in self.segments:
            self.errors = ("topic_not_found", *self.errors)
        if self.awaits_metadata:
            self.errors = (*self.errors, "controller_unavailable")

    def __call__(self, handler: _H) -> _H:
        """Register the function that answers the route's requests."""
        self.handler = handler
        hints = get_type_hints(handler)
        self.document, answer = hints.get("document"), hints["return"]
        if not self.answers:
            self.answers = {self.status: Answer(inspect.getdoc(answer) or "", answer)}
        ROUTES.append(self)
        return handler

    @property
    def argument_names(self) -> list[str]:
        """The names of segments in the path."""
        return [each[1:-1].removesuffix("...") for each in self.segments if each.startswith("{")]

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[0].rstrip(".")

    @property
    def description(self) -> str:
        """The handler's docstring after the first line."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[2].strip()

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Return the arguments in a path; None if the path does not match this route."""
        takes_rest = self.segments[-1].endswith("...}")
        if len(segments) != len(self.segments) and not (takes_rest and len(segments) > len(self.segments)):
            return None
        found: dict[str, str] = {}
        for number, (expected, given) in enumerate(zip(self.segments, segments, strict=False)):
            if expected.endswith("...}"):
                found[expected[1:-4]] = "/".join(segments[number:])
            elif expected.startswith("{"):
                if not given:
                    return None
                found[expected[1:-1]] = given
            elif expected != given:
                return None
        return found

    def check_access(self, principal: Principal, arguments: Mapping[str, str]) -> None:
        """Raise `WebError` if the principal does not have the permission that the route needs."""
        self.needs.check(principal, arguments)

    def parse_query(self, given: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Parse the query parameters. Raises `WebError` if one is unknown, given twice or malformed."""
        known = {each.name: each for each in self.parameters}
        found = {each.name: each.default for each in self.parameters}
        seen = set[str]()
        for name, text in given:
            if name not in known:
                expected = f"expected {', '.join(known)}" if known else "expected none"
                raise WebError("bad_request", f"there is no parameter {name[:100]!r}: {expected}")
            if name in seen:
                raise WebError("bad_request", f"expected the parameter {name!r} once")
            seen.add(name)
            found[name] = known[name].parse(text)
        missing = next((each for each in self.parameters if each.is_required and each.name not in seen), None)
        if missing is not None:
            raise WebError("bad_request", f"expected the parameter {missing.name!r}")
        return found


ROUTES: list[Route] = []
"""All routes."""


def find_route(method: str, segments: Sequence[str]) -> tuple[Route, dict[str, str]]:
    """Return the route of a request, and the arguments in its path. HEAD uses the routes of GET. Raises `WebError`."""
    found = [(each, arguments) for each in ROUTES if (arguments := each.match(segments)) is not None]
    wanted = "GET" if method == "HEAD" else method
    for each, arguments in found:
        if each.method == wanted:
            return each, arguments
    if not found:
        raise WebError("not_found", "there is nothing at this path; GET /openapi.json describes what there is")
    methods = {each.method for each, _ in found}
    allowed = sorted(methods | {"HEAD"} if "GET" in methods else methods)
    raise WebError("method_not_allowed", f"expected {' or '.join(allowed)}", headers=[("Allow", ", ".join(allowed))])


def is_websocket_route(head: Head) -> bool:
    """Return whether a request is for a route that is upgraded to WebSocket."""
    return head.method == "GET" and any(each.is_websocket and each.match(head.segments) == {} for each in ROUTES)


_REFUSED: dict[int, str] = {
    ErrorCode.BROKER_ID_NOT_REGISTERED: "broker_not_found",
    ErrorCode.TOPIC_ALREADY_EXISTS: "topic_exists",
}
"""The errors of changes of the cluster that have a name of their own."""


async def answer_request(request: Request) -> AnyResponse:
    """Return the response to a request; for an error, the response that describes it."""
    try:
        return await _answer(request)
    except WebError as error:
        return respond_error(error)
    except ConfigError as error:
        refused = _REFUSED.get(error.error_code) if isinstance(error, RefusedChangeError) else None
        return respond_error(WebError(refused or "bad_request", str(error)))
    except NoControllerError as error:
        return respond_error(WebError("controller_unavailable", str(error)))
    except StorageError as error:
        _LOGGER.warning("%s %s: %s", request.head.method, request.head.path, error)
        return respond_error(WebError("storage_failed", str(error)))
    except Exception:
        # A bug in this program must not affect other clients.
        _LOGGER.exception("%s %s failed", request.head.method, request.head.path)
        return respond_error(WebError("internal_error", "the request failed; the broker's log has the reason"))


async def answer_get(request: Request, target: str, principal: Principal) -> AnyResponse:
    """Return the response to GET for a client that is connected over another protocol by `request`."""
    try:
        head = parse_target("GET", target, {})
    except RequestError as error:
        return respond_error(refused_request(error))
    return await answer_request(Request(request.web, head, principal, request.host, request.is_private))


async def _answer(request: Request) -> AnyResponse:
    head = request.head
    if head.method == "OPTIONS":
        return Response(204)
    route, request.arguments = find_route(head.method, head.segments)
    request.web.counters.requests[head.method, route.path] += 1
    route.check_access(request.principal, request.arguments)
    request.query = route.parse_query(head.parameters)
    arguments: list[Any] = [request]
    if route.document is not None:
        if request.content_type != JSON:
            raise WebError("unsupported", f"expected the header Content-Type: {JSON}")
        document = decode_document(await request.read_body(DOCUMENT_BYTES_MAX))
        arguments.append(parse_document(document, route.document))
    if route.awaits_metadata:
        was_there = not request.has_left()
        await request.broker.node.leases.wait_metadata()
        if was_there and request.has_left():  # it can have sent the request again, to another broker
            raise NoControllerError("the client has left before the change was begun: nothing is changed")
        if reason := request.broker.node.quorum.outdated_reason:
            raise NoControllerError(reason)
    found = await route.handler(*arguments)
    return respond(found, route.status) if isinstance(found, Document) else found
