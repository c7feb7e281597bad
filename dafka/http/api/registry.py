"""The routes of the HTTP API. A registration has everything that OpenAPI's description of a route needs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

import attrs

from dafka.http.api.schemas import Schema
from dafka.http.server.access import Principal
from dafka.http.server.errors import WebError
from dafka.http.server.head import Head
from dafka.http.server.messages import JSON, AnyResponse, Request

Handler: TypeAlias = Callable[[Request], Awaitable[AnyResponse]]


class RequiredPermission(Enum):
    """The permission that a route needs, for the topic or the group in its path."""

    NOTHING = "nothing"
    USER = "user"
    SEE = "see"
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    GROUP = "group"
    ADMINISTRATOR = "administrator"


_CHECKS: dict[RequiredPermission, Callable[[Principal, Mapping[str, str]], object]] = {
    RequiredPermission.NOTHING: lambda _access, _arguments: None,
    RequiredPermission.USER: lambda principal, _: principal.permissions,
    RequiredPermission.SEE: lambda principal, arguments: principal.check_see(arguments["topic"]),
    RequiredPermission.READ: lambda principal, arguments: principal.check_read(arguments["topic"]),
    RequiredPermission.WRITE: lambda principal, arguments: principal.check_write(arguments["topic"]),
    RequiredPermission.ADMIN: lambda principal, arguments: principal.check_admin(arguments["topic"]),
    RequiredPermission.GROUP: lambda principal, arguments: principal.check_group(arguments["group"]),
    RequiredPermission.ADMINISTRATOR: lambda principal, _: principal.check_administrator(),
}


@attrs.frozen
class Parameter:
    """A parameter in the query.

    Attributes:
        name: The name.
        schema: What its value looks like.
        default: The value if it is not given.
        is_required: Whether it must be given.
        example: A value, for the description.
    """

    name: str
    schema: Schema
    default: Any = None
    is_required: bool = False
    example: Any = None


@attrs.frozen
class Answer:
    """An answer of a route, except an error.

    Attributes:
        description: A description of the content.
        schema: What its JSON document looks like; None if it has none.
        others: Further types that its body can have, each with what the body looks like.
    """

    description: str
    schema: Schema | None = None
    others: Mapping[str, Schema] = attrs.field(factory=dict)

    @property
    def contents(self) -> dict[str, Schema]:
        """What the body looks like, by its type; empty if there is none."""
        return {**({} if self.schema is None else {JSON: self.schema}), **self.others}


@attrs.frozen
class Body:
    """The body that a route takes, which is no JSON document.

    Attributes:
        description: A description of the content.
        content_types: The types that it may have, each with what its content looks like.
    """

    description: str
    content_types: Mapping[str, Schema]


@attrs.frozen
class Route:
    """A route.

    Attributes:
        method: The method.
        path: The path, with names of segments in braces. The last one may be `{name...}`: all other segments.
        handler: Answers a request.
        needs: The permission that it needs.
        tag: The group of routes in which it is described.
        parameters: The parameters in the query.
        document: What the JSON document looks like that it takes; None if it takes none.
        body: The body that it takes, if that is no JSON document.
        answers: Its answers, by status.
        errors: The codes of the errors that it answers with, in addition to those that every route has.
        is_websocket: Whether the connection continues with WebSocket.
    """

    method: str
    path: str
    handler: Handler
    needs: RequiredPermission
    tag: str
    parameters: tuple[Parameter, ...]
    document: Schema | None
    body: Body | None
    answers: Mapping[int, Answer]
    errors: tuple[str, ...]
    is_websocket: bool = False
    segments: tuple[str, ...] = attrs.field(init=False)

    @segments.default
    def _split(self) -> tuple[str, ...]:
        return tuple(self.path[1:].split("/"))

    @property
    def argument_names(self) -> list[str]:
        """The names of segments in the path."""
        return [each[1:-1].removesuffix("...") for each in self.segments if each.startswith("{")]

    @property
    def summary(self) -> str:
        """The first line of what it does."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[0].rstrip(".")

    @property
    def description(self) -> str:
        """What the route does."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[2].strip()

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Return the arguments in a path; None if it is not one of this route."""
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
        """Raise `WebError` if a user has not the permission that the route needs."""
        _CHECKS[self.needs](principal, arguments)

    def parse_query(self, given: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return the values of the parameters. Raises `WebError` if one is unknown, given twice or malformed."""
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
            found[name] = known[name].schema.parse(text, f"the parameter {name!r}")
        missing = next((each for each in self.parameters if each.is_required and each.name not in seen), None)
        if missing is not None:
            raise WebError("bad_request", f"expected the parameter {missing.name!r}")
        return found


ROUTES: list[Route] = []
"""All routes."""


def route(
    method: str,
    path: str,
    *,
    needs: RequiredPermission,
    tag: str,
    answers: Mapping[int, Answer],
    parameters: Sequence[Parameter] = (),
    document: Schema | None = None,
    body: Body | None = None,
    errors: Sequence[str] = (),
    is_websocket: bool = False,
) -> Callable[[Handler], Handler]:
    """Register the function that answers the requests of a route; see `Route`."""

    def register(handler: Handler) -> Handler:
        ROUTES.append(
            Route(
                method,
                path,
                handler,
                needs,
                tag,
                tuple(parameters),
                document,
                body,
                answers,
                tuple(errors),
                is_websocket,
            )
        )
        return handler

    return register


def find_route(method: str, segments: Sequence[str]) -> tuple[Route, dict[str, str]]:
    """Return the route of a request, and the arguments in its path.

    Args:
        method: The method. HEAD has the routes of GET.
        segments: The segments of the path.

    Returns:
        The route and the arguments.

    Raises:
        WebError: There is none.
    """
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
    """Return whether a request is for the route that continues with WebSocket."""
    return head.method == "GET" and any(each.is_websocket and each.match(head.segments) == {} for each in ROUTES)
