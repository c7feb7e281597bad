"""Registers the routes of the HTTP API, with all data that their OpenAPI description needs."""

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
    """A query parameter.

    Attributes:
        name: The name.
        schema: The schema of its value.
        default: The value if it is missing.
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
    """A response of a route, except an error.

    Attributes:
        description: A description of the content.
        schema: The schema of its JSON document; None if it has none.
        others: Other content types of its body, each with the schema.
    """

    description: str
    schema: Schema | None = None
    others: Mapping[str, Schema] = attrs.field(factory=dict)

    @property
    def contents(self) -> dict[str, Schema]:
        """The schema of the body by content type; empty without a body."""
        return {**({} if self.schema is None else {JSON: self.schema}), **self.others}


@attrs.frozen
class Body:
    """A request body that is not a JSON document.

    Attributes:
        description: A description of the content.
        content_types: The content types that it can have, each with the schema.
    """

    description: str
    content_types: Mapping[str, Schema]


@attrs.frozen
class Route:
    """A route.

    Attributes:
        method: The method.
        path: The path, with names of segments in braces. The last one can be `{name...}`: all remaining segments.
        handler: Answers a request.
        needs: The permission that it needs.
        tag: The group of routes in which it is described.
        parameters: The query parameters.
        document: The schema of its JSON request document; None if it takes none.
        body: Its request body, if that is not a JSON document.
        answers: Its responses, by status.
        errors: Its error codes, in addition to those of every route.
        is_websocket: Whether the connection is upgraded to WebSocket.
        changes_topics: Whether it creates, changes or deletes topics or moves logs. It is then handled when the broker
            knows what others have done with topics.
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
    changes_topics: bool = False
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
        _CHECKS[self.needs](principal, arguments)

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
    changes_topics: bool = False,
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
                changes_topics,
            )
        )
        return handler

    return register


def find_route(method: str, segments: Sequence[str]) -> tuple[Route, dict[str, str]]:
    """Return the route of a request, and the arguments in its path.

    Args:
        method: The method. HEAD uses the routes of GET.
        segments: The segments of the path.

    Returns:
        The route and the arguments.

    Raises:
        WebError: There is no such route.
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
    """Return whether a request is for a route that is upgraded to WebSocket."""
    return head.method == "GET" and any(each.is_websocket and each.match(head.segments) == {} for each in ROUTES)
