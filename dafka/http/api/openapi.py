"""Describes the HTTP API as OpenAPI 3.1, from the routes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import msgspec

from dafka.http.api.registry import ROUTES, Answer, Parameter, RequiredPermission, Route
from dafka.http.server.authentication import COOKIE
from dafka.http.server.documents import Document, doc, encode_document
from dafka.http.server.errors import STATUSES
from dafka.http.server.messages import JSON, AnyResponse, Request, Response


class ErrorDetails(Document):
    """What is wrong."""

    code: Annotated[
        str,
        doc("What kind of error it is. WebSocket has the same codes.", enum=STATUSES),
    ]
    message: Annotated[str, doc("What is wrong, and what would be right.")]


class Error(Document):
    """The answer to a refused request."""

    error: ErrorDetails


_ARGUMENTS = {
    "topic": "The name of the topic.",
    "log": "The number of the log.",
    "group": "The name of the group.",
    "queue": "The name of the queue, which is a share group.",
    "number": "The number of the broker.",
    "path": "The path of the file.",
}

_PREFACE = """\
Records of Dafka's topics over HTTP, for programs in any language. Names in paths are percent-encoded. Errors are \
answered with a status and a JSON object with a code and a message."""


def describe_api(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of routes."""
    described = list(routes)
    kinds = [Error, *(kind for each in described for kind in _kinds(each))]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(id, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in described:
        operations = paths.setdefault(each.path.replace("...}", "}"), {})
        operations[each.method.lower()] = _describe_operation(each, schema_of)
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
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token, of `dafka user token` or an issuer.",
                },
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


def _describe_operation(route: Route, schemas: Mapping[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"{route.description}\n\n{route.needs.value}".strip(),
        "tags": [route.tag],
        "parameters": [_describe_argument(name) for name in route.argument_names]
        + [_describe_parameter(each, schemas) for each in route.parameters],
        "responses": _describe_answers(route, schemas),
    }
    if route.needs is RequiredPermission.NOTHING:
        found["security"] = []
    if route.document is not None:
        found["requestBody"] = {"required": True, "content": _describe_contents({JSON: route.document}, schemas)}
    if route.body is not None:
        contents = _describe_contents(route.body.content_types, schemas)
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


def _describe_parameter(parameter: Parameter, schemas: Mapping[int, Any]) -> dict[str, Any]:
    schema = dict(schemas[id(parameter.kind)])
    found: dict[str, Any] = {"name": parameter.name, "in": "query", "required": parameter.is_required}
    if "description" in schema:
        found["description"] = schema.pop("description")
    if parameter.default is not None:
        schema["default"] = parameter.default
    if parameter.example is not None:
        found["example"] = parameter.example
    return {**found, "schema": schema}


def _describe_answers(route: Route, schemas: Mapping[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, answer in route.answers.items():
        found[str(status)] = {"description": answer.description}
        if answer.contents:
            found[str(status)]["content"] = _describe_contents(answer.contents, schemas)
    by_status: dict[int, list[str]] = {}
    for code in error_codes(route):
        by_status.setdefault(STATUSES[code], []).append(code)
    for status, codes in sorted(by_status.items()):
        found[str(status)] = {
            "description": " or ".join(f"`{code}`" for code in codes),
            "content": _describe_contents({JSON: Error}, schemas),
        }
    return found


def _describe_contents(contents: Mapping[str, Any], schemas: Mapping[int, Any]) -> dict[str, Any]:
    return {content_type: {"schema": schemas[id(kind)]} for content_type, kind in contents.items()}


def _kinds(route: Route) -> Iterator[Any]:
    """Yield the types of a route's parameters and bodies."""
    yield from (each.kind for each in route.parameters)
    if route.document is not None:
        yield route.document
    if route.body is not None:
        yield from route.body.content_types.values()
    for answer in route.answers.values():
        yield from answer.contents.values()


@Route(
    "GET /openapi.json",
    RequiredPermission.NOTHING,
    name="describeApi",
    tag="Description",
    answers={200: Answer("The description.", Annotated[dict[str, Any], doc("An OpenAPI document.")])},
)
async def describe(_request: Request) -> AnyResponse:
    """Describe this API as OpenAPI 3.1."""
    return Response(200, _encode(), JSON)


@cache
def _encode() -> bytes:
    return encode_document(describe_api(ROUTES))
