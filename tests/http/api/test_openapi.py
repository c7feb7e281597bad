"""The OpenAPI description is valid, and holds for every route, parameter and answer."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from dafka import Config
from dafka.http.api import ROUTES, Route
from dafka.http.api.openapi import describe_api, error_codes
from dafka.http.server.errors import STATUSES
from tests.http.running import Answer, open_web

API = json.loads(json.dumps(describe_api(ROUTES)))


def operation_of(route: Route) -> dict[str, Any]:
    """Return the description of a route."""
    found: dict[str, Any] = API["paths"][route.path.replace("...}", "}")][route.method.lower()]
    return found


@functools.cache
def make_validator(schema: str) -> jsonschema.Draft202012Validator:
    """Return what validates documents of a schema, which is in JSON."""
    return jsonschema.Draft202012Validator({**json.loads(schema), "components": API["components"]})


def check_answer(method: str, path: str, answer: Answer) -> None:
    """Check an answer against the description: its status, its type, and every line or document in it."""
    path = path.replace("...", "")
    described = API["paths"][path][method.lower()]["responses"]
    assert str(answer.status) in described, f"{method} {path} has answered {answer.status}"
    contents = described[str(answer.status)].get("content", {})
    if not contents:
        assert answer.body == b""
        return
    content_type = answer.headers["Content-Type"].partition(";")[0]
    schema = contents.get(content_type, contents.get("*/*"))
    assert schema is not None, f"{method} {path} has answered {content_type}"
    if "json" not in content_type:
        return
    validator = make_validator(json.dumps(schema["schema"]))
    lines = answer.body.splitlines() if content_type == "application/x-ndjson" else [answer.body]
    for line in lines:
        validator.validate(json.loads(line))


def test_the_description_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(API).validate()


def test_every_route_is_described_once() -> None:
    described = [(method.upper(), path) for path, each in API["paths"].items() for method in each]
    assert sorted(described) == sorted((each.method, each.path.replace("...}", "}")) for each in ROUTES)
    names = [operation_of(each)["operationId"] for each in ROUTES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_says_what_it_does_and_how_it_fails(route: Route) -> None:
    operation = operation_of(route)
    assert operation["summary"]
    names = [each["name"] for each in operation["parameters"]]
    assert names == [*route.argument_names, *(each.name for each in route.parameters)]
    assert all(each["description"] for each in operation["parameters"])
    for code in error_codes(route):
        assert f"`{code}`" in operation["responses"][str(STATUSES[code])]["description"]


LINES = {"Content_Type": "application/x-ndjson"}
REST = {"Content_Type": "application/vnd.kafka.binary.v2+json"}
TOPIC, RECORDS, GROUP = "/topics/orders", "/topics/orders/records", "/groups/billing"
REPLICAS, OFFSETS = "/topics/orders/logs/{}/replicas", "/groups/billing/offsets"
BODY = b'{"value": "a", "headers": [["name", "v"], ["none", null]]}\n{"value": null, "key_base64": "/w=="}'

REQUESTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("POST", "/topics", "/topics", {"document": {"name": "orders", "log_count": 2}}),
    ("POST", "/topics", "/topics", {"document": {"name": "a/b"}}),
    ("POST", "/topics", "/topics", {"document": {"name": "returns", "settings": {"retention.ms": "5"}}}),
    ("POST", "/topics", "/topics", {"body": b"{}", "Content_Type": "text/plain"}),
    ("POST", "/topics/{topic}/records", f"{RECORDS}?key=anne", {"body": b"\xff"}),
    ("POST", "/topics/{topic}/records", f"{RECORDS}?log=1", {"body": BODY, **LINES}),
    ("POST", "/topics/{topic}/records", f"{RECORDS}?log=7", {"body": BODY, **LINES}),
    ("POST", "/topics/{topic}/records", RECORDS, {"body": b'{"records": [{"value": "YQ=="}]}', **REST}),
    ("GET", "/topics/{topic}/records", RECORDS, {}),
    ("GET", "/topics/{topic}/records", f"{RECORDS}?log=1&from=1&to=latest&limit=1", {}),
    ("GET", "/topics/{topic}/records", f"{RECORDS}?from=99&log=0", {}),
    ("GET", "/topics/{topic}/records", "/topics/none/records", {}),
    ("GET", "/topics", "/topics?limit=0", {}),
    ("GET", "/topics/{topic}", f"{TOPIC}?times=true", {}),
    ("GET", "/topics/{topic}", "/topics/none", {}),
    ("GET", "/topics/{topic}/partitions", f"{TOPIC}/partitions", {}),
    ("PATCH", "/topics/{topic}", TOPIC, {"document": {"log_count": 1}}),
    ("POST", "/brokers/{number}/drain", "/brokers/7/drain", {}),
    ("GET", "/topics/{topic}/epochs", f"{TOPIC}/epochs", {}),
    ("GET", "/topics/{topic}/epochs", "/topics/none/epochs", {}),
    ("PUT", "/topics/{topic}/logs/{log}/replicas", REPLICAS.format(0), {"document": {"replicas": [7]}}),
    ("PUT", "/topics/{topic}/logs/{log}/replicas", REPLICAS.format(9), {"document": {"replicas": [0]}}),
    ("PUT", "/groups/{group}/offsets", OFFSETS, {"document": {"topic": "orders", "to": "latest"}}),
    ("PUT", "/groups/{group}/offsets", OFFSETS, {"document": {"topic": "none", "to": "latest"}}),
    ("GET", "/groups/{group}", GROUP, {}),
    ("GET", "/groups/{group}", "/groups/none", {}),
    ("DELETE", "/groups/{group}", "/groups/none", {}),
    ("DELETE", "/topics/{topic}/records", f"{RECORDS}?log=1&before=1", {}),
    ("DELETE", "/topics/{topic}/records", f"{RECORDS}?log=1&before=9", {}),
    ("DELETE", "/topics/{topic}", "/topics/none", {}),
    ("POST", "/session", "/session", {"document": {"user": "anne", "password": "right"}}),
    ("POST", "/storage/verification", "/storage/verification", {}),
    ("GET", "/storage/verification", "/storage/verification", {}),
    ("GET", "/console/{path}", "/console/main.js", {}),
]
"""Requests whose answers have something in them, or are errors. `test_permissions` has each route once."""


async def test_answers_look_as_they_are_described(tmp_path: Path) -> None:
    async with open_web(f"filelog:{tmp_path}/log", Config().with_http(body_bytes_max=5000)) as web:
        for method, path, target, sent in REQUESTS:
            check_answer(method, path, await web.request(method, target, **sent))
        assert (await web.get("/openapi.json")).document == API
