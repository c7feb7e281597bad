"""Makes the reference page about HTTP from the routes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from dafka.http.api import ROUTES, Route
from dafka.http.api.openapi import PERMISSIONS
from dafka.http.api.schemas import Array, Object, Schema, find_objects
from dafka.http.server.errors import STATUSES

PREFACE = """\
# HTTP

`docs/generate.py` makes this page from the broker's routes. A running broker describes them at `GET /openapi.json`, as
OpenAPI 3.1. See [Use HTTP](../how-to/http.md) for examples.

Names in paths are percent-encoded in UTF-8. A parameter that a route does not have is refused. `HEAD` has the routes of
`GET`. JSON documents are in UTF-8, and a request with one has the header `Content-Type: application/json`.
"""

ERRORS = """
## Errors

An error has a status and a JSON document:

```json
{"error": {"code": "topic_not_found", "message": "there is no topic 'orders'"}}
```

Every route can answer with `bad_request`, `forbidden`, `request_timeout`, `internal_error` and `storage_failed`.

| code | status |
| --- | --- |
"""


def http_page() -> str:
    """Return the page with every route."""
    parts = [PREFACE]
    described = sorted(ROUTES, key=lambda each: (each.tag, each.path))
    for tag, routes in groupby(described, key=lambda each: each.tag):
        parts.append(f"\n## {tag}\n")
        for each in routes:
            parts += _describe_route(each)
    parts.append(ERRORS)
    parts += [f"| `{code}` | {status} |\n" for code, status in sorted(STATUSES.items())]
    parts.append("\n## Documents\n")
    objects: dict[str, Object] = {}
    for each in ROUTES:
        for schema in _schemas(each):
            objects.update(find_objects(schema))
    for name in sorted(objects):
        parts += _describe_object(objects[name])
    return "".join(parts)


def _schemas(route: Route) -> Iterator[Schema]:
    if route.document is not None:
        yield route.document
    if route.body is not None:
        yield from route.body.content_types.values()
    for answer in route.answers.values():
        yield from answer.contents.values()


def _describe_route(route: Route) -> Iterator[str]:
    yield f"\n### `{route.method} {route.path.replace('...}', '}')}`\n\n{route.summary}."
    yield f" {' '.join(route.description.split())}" if route.description else ""
    yield f" {PERMISSIONS[route.needs]}\n"
    if route.parameters:
        yield "\n| parameter | default | meaning |\n| --- | --- | --- |\n"
        for each in route.parameters:
            default = "required" if each.is_required else _show_default(each.default)
            yield f"| `{each.name}` | {default} | {each.schema.description} |\n"
    if route.document is not None:
        yield f"\nBody: {_link(route.document)}.\n"
    if route.body is not None:
        yield "\n| type of the body | content |\n| --- | --- |\n"
        for content_type, schema in route.body.content_types.items():
            yield f"| `{content_type}` | {_link(schema) or schema.description} |\n"
    yield "\n| answer | |\n| --- | --- |\n"
    for status, answer in route.answers.items():
        contents = [
            f"`{kind}`: {_link(each) or each.description}".removesuffix(": ") for kind, each in answer.contents.items()
        ]
        yield f"| {status} | {'. '.join([answer.description.rstrip('.'), *filter(None, contents)])} |\n"
    for code in route.errors:
        yield f"| {STATUSES[code]} | `{code}` |\n"


def _show_default(default: object) -> str:
    if default is None or default == "":
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _link(schema: Schema) -> str:
    """Return a link to the description of an object; empty if the schema is none."""
    if isinstance(schema, Array):
        return f"list of {_link(schema.item)}" if _link(schema.item) else ""
    return f"[{schema.name}](#{schema.name.lower()})" if isinstance(schema, Object) else ""


def _describe_object(schema: Object) -> Iterator[str]:
    yield f"\n### {schema.name}\n\n"
    if schema.description:
        yield f"{schema.description}\n\n"
    yield "| field | type | meaning |\n| --- | --- | --- |\n"
    for name, each in schema.fields.items():
        optional = ", optional" if name in schema.optional else ""
        yield f"| `{name}` | {_type_of(each)}{optional} | {each.description} |\n"


def _type_of(schema: Schema) -> str:
    if _link(schema):
        return _link(schema)
    described = schema.describe()
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in described:
        inner = described["anyOf"][0].get("$ref", "").rpartition("/")[2]
        return f"[{inner}](#{inner.lower()}) or null" if inner else "any"
    found = described.get("type", "any")
    if "enum" in described:
        return " or ".join(f"`{each}`" for each in described["enum"])
    if isinstance(found, list):
        found = " or ".join(found)
    if found == "array" and isinstance(schema, Array):
        return f"list of {_type_of(schema.item)}"
    return str(found)
