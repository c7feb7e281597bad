"""Generates the OpenAPI 3.1 description of the HTTP API from the routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from dafka.http.api.registry import Parameter, RequiredPermission, Route
from dafka.http.api.schemas import Choice, Object, Schema, Text, find_objects
from dafka.http.server.errors import STATUSES
from dafka.http.server.messages import JSON
from dafka.http.server.sessions import COOKIE

ERROR = Object(
    "Error",
    {
        "error": Object(
            "ErrorDetails",
            {
                "code": Choice(tuple(STATUSES), "What kind of error it is. WebSocket has the same codes."),
                "message": Text("What is wrong, and what would be right."),
            },
        )
    },
)

PERMISSIONS = {
    RequiredPermission.NOTHING: "Anybody may do this.",
    RequiredPermission.USER: "Any user may do this. The answer has what the user may see.",
    RequiredPermission.SEE: "The user needs any permission for the topic.",
    RequiredPermission.READ: "The user needs the permission `read` for the topic.",
    RequiredPermission.WRITE: "The user needs the permission `write` for the topic.",
    RequiredPermission.ADMIN: "The user needs the permission `admin` for the topic.",
    RequiredPermission.GROUP: "The user needs the permission `groups` for the group.",
    RequiredPermission.ADMINISTRATOR: "The user needs the permission `admin` for `*`.",
}
"""The description of each required permission."""

_ARGUMENTS = {
    "topic": "The name of the topic.",
    "log": "The number of the log.",
    "group": "The name of the group.",
    "number": "The number of the broker.",
    "path": "The path of the file.",
}

_PREFACE = """\
Records of Dafka's topics over HTTP, for programs in any language. Names in paths are percent-encoded. Errors are \
answered with a status and a JSON object with a code and a message."""


def describe_api(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the description of routes.

    Args:
        routes: The routes.

    Returns:
        The OpenAPI document.
    """
    described = list(routes)
    paths: dict[str, dict[str, Any]] = {}
    for each in described:
        operations = paths.setdefault(each.path.replace("...}", "}"), {})
        operations[each.method.lower()] = _describe_operation(each)
    objects = {name: each for schema in (ERROR, *_schemas(described)) for name, each in find_objects(schema).items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dafka",
            "version": version("dafka"),
            "description": _PREFACE,
            "license": {"name": "MPL-2.0", "identifier": "MPL-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {name: each.define() for name, each in sorted(objects.items())},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `dafka user token`."},
                "password": {"type": "http", "scheme": "basic", "description": "A user of `dafka user add`."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": "`POST /session` sets it.",
                },
            },
        },
        "security": [{"token": []}, {"password": []}, {"session": []}],
    }


def error_codes(route: Route) -> list[str]:
    """Return the codes of all errors of a route."""
    codes = ["bad_request", *route.errors, "request_timeout", "internal_error", "storage_failed"]
    if route.needs is not RequiredPermission.NOTHING:
        codes += ["unauthenticated", "forbidden"]
    else:
        codes += ["forbidden"]
    if route.document is not None:
        codes += ["unsupported", "too_large"]
    return list(dict.fromkeys(codes))


def _describe_operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "description": f"{route.description}\n\n{PERMISSIONS[route.needs]}".strip(),
        "tags": [route.tag],
        "parameters": [_describe_argument(name) for name in route.argument_names]
        + [_describe_parameter(each) for each in route.parameters],
        "responses": _describe_answers(route),
    }
    if route.needs is RequiredPermission.NOTHING:
        found["security"] = []
    if route.document is not None:
        found["requestBody"] = {"required": True, "content": _describe_contents({JSON: route.document})}
    if route.body is not None:
        contents = _describe_contents(route.body.content_types)
        found["requestBody"] = {"description": route.body.description, "required": True, "content": contents}
    return found


def _describe_argument(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _ARGUMENTS.get(name, ""),
        "schema": {"type": "string"},
    }


def _describe_parameter(parameter: Parameter) -> dict[str, Any]:
    schema = parameter.schema.describe()
    found: dict[str, Any] = {"name": parameter.name, "in": "query", "required": parameter.is_required}
    if "description" in schema:
        found["description"] = schema.pop("description")
    if parameter.default is not None:
        schema["default"] = parameter.default
    if parameter.example is not None:
        found["example"] = parameter.example
    return {**found, "schema": schema}


def _describe_answers(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, answer in route.answers.items():
        found[str(status)] = {"description": answer.description}
        if answer.contents:
            found[str(status)]["content"] = _describe_contents(answer.contents)
    by_status: dict[int, list[str]] = {}
    for code in error_codes(route):
        by_status.setdefault(STATUSES[code], []).append(code)
    for status, codes in sorted(by_status.items()):
        found[str(status)] = {
            "description": " or ".join(f"`{code}`" for code in codes),
            "content": _describe_contents({JSON: ERROR}),
        }
    return found


def _describe_contents(contents: Mapping[str, Schema]) -> dict[str, Any]:
    return {content_type: {"schema": schema.describe()} for content_type, schema in contents.items()}


def _schemas(routes: Iterable[Route]) -> Iterable[Schema]:
    for each in routes:
        if each.document is not None:
            yield each.document
        if each.body is not None:
            yield from each.body.content_types.values()
        for answer in each.answers.values():
            yield from answer.contents.values()
