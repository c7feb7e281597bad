"""Makes the reference page about HTTP from the routes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, TypeAlias

from dafka.http.api import ROUTES, Route
from dafka.http.api.openapi import describe_api
from dafka.http.server.errors import STATUSES

API = describe_api(ROUTES)
Schema: TypeAlias = dict[str, Any]

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
    for name, schema in API["components"]["schemas"].items():
        parts += _describe_object(name, schema)
    return "".join(parts)


def _describe_route(route: Route) -> Iterator[str]:
    path = route.path.replace("...}", "}")
    described = API["paths"][path][route.method.lower()]
    yield f"\n### `{route.method} {path}`\n\n{route.summary}."
    yield f" {' '.join(route.description.split())}" if route.description else ""
    yield f" {route.needs.value}\n"
    if route.parameters:
        yield "\n| parameter | default | meaning |\n| --- | --- | --- |\n"
        for each in described["parameters"]:
            if each["in"] == "query":
                default = "required" if each["required"] else _show_default(each["schema"].get("default"))
                yield f"| `{each['name']}` | {default} | {each['description']} |\n"
    contents = described.get("requestBody", {}).get("content", {})
    if route.document is not None:
        yield f"\nBody: {_content(contents['application/json']['schema'])}.\n"
    if route.body is not None:
        yield "\n| type of the body | content |\n| --- | --- |\n"
        for content_type, each in contents.items():
            yield f"| `{content_type}` | {_content(each['schema'])} |\n"
    yield "\n| answer | |\n| --- | --- |\n"
    for status, answer in route.answers.items():
        found = described["responses"][str(status)].get("content", {})
        shown = [f"`{kind}`: {_content(each['schema'])}".removesuffix(": ") for kind, each in found.items()]
        yield f"| {status} | {'. '.join([answer.description.rstrip('.'), *shown])} |\n"
    for code in route.errors:
        yield f"| {STATUSES[code]} | `{code}` |\n"


def _show_default(default: object) -> str:
    if default is None or default == "":
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _content(schema: Schema) -> str:
    """Return a link to the description of an object; the description of anything else."""
    return _type_of(schema) if "$ref" in schema else schema.get("description", "")


def _describe_object(name: str, schema: Schema) -> Iterator[str]:
    yield f"\n### {name}\n\n{schema['description']}\n\n"
    yield "| field | type | meaning |\n| --- | --- | --- |\n"
    for field, each in schema["properties"].items():
        optional = "" if field in schema["required"] else ", optional"
        yield f"| `{field}` | {_type_of(each)}{optional} | {_description_of(each)} |\n"


def _description_of(schema: Schema) -> str:
    found = next((each["description"] for each in [schema, *schema.get("anyOf", ())] if "description" in each), "")
    return str(found)


def _type_of(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_type_of, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if "prefixItems" in schema:
        return f"list of {', '.join(map(_type_of, schema['prefixItems']))}"
    if schema.get("type") == "array":
        return f"list of {_type_of(schema['items'])}"
    return str(schema.get("type", "any"))
