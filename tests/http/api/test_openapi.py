"""The OpenAPI description is valid, and holds for every route, parameter and answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from dafka import Config
from dafka.http.api import ROUTES, Route
from dafka.http.api.openapi import describe_api, error_codes
from dafka.http.server.errors import STATUSES
from tests.http.running import Answer, RunningWeb, open_web

API = json.loads(json.dumps(describe_api(ROUTES)))


def operation_of(route: Route) -> dict[str, Any]:
    """Return the description of a route."""
    found: dict[str, Any] = API["paths"][route.path.replace("...}", "}")][route.method.lower()]
    return found


def check_answer(method: str, path: str, answer: Answer) -> None:
    """Check an answer against the description: its status, its type, and every line or document in it."""
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
    validator = jsonschema.Draft202012Validator({**schema["schema"], "components": API["components"]})
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


def requests_about_brokers() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield those about brokers, replicas and leader epochs."""
    yield "GET", "/moves", "/moves", {}
    yield "GET", "/brokers", "/brokers", {}
    yield "POST", "/brokers/{number}/drain", "/brokers/0/drain", {}
    yield "POST", "/brokers/{number}/drain", "/brokers/7/drain", {}
    yield "POST", "/brokers/{number}/undrain", "/brokers/0/undrain", {}
    yield "GET", "/topics/{topic}/epochs", "/topics/orders/epochs", {}
    yield "GET", "/topics/{topic}/epochs", "/topics/none/epochs", {}
    replicas = "/topics/{topic}/logs/{log}/replicas"
    yield "PUT", replicas, "/topics/orders/logs/0/replicas", {"document": {"replicas": [7]}}
    yield "PUT", replicas, "/topics/orders/logs/9/replicas", {"document": {"replicas": [0]}}


def requests() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield requests whose answers have something in them: method, route, target and what is sent."""
    lines = {"Content-Type": "application/x-ndjson"}
    rest = {"Content-Type": "application/vnd.kafka.binary.v2+json"}
    records = "/topics/{topic}/records"
    yield "POST", "/topics", "/topics", {"document": {"name": "orders", "log_count": 2}}
    yield "POST", "/topics", "/topics", {"document": {"name": "orders"}}
    yield "POST", "/topics", "/topics", {"document": {"name": "a/b"}}
    yield "POST", "/topics", "/topics", {"document": {"name": "returns", "settings": {"retention.ms": "5"}}}
    yield "POST", "/topics", "/topics", {"body": b"{}", "Content_Type": "text/plain"}
    yield "POST", records, "/topics/orders/records?key=anne", {"body": b"\xff"}
    body = b'{"value": "a", "headers": [["name", "v"], ["none", null]]}\n{"value": null, "key_base64": "/w=="}'
    yield "POST", records, "/topics/orders/records?log=1", {"body": body, **lines}
    yield "POST", records, "/topics/orders/records?log=7", {"body": body, **lines}
    yield "POST", records, "/topics/orders/records", {"body": b'{"records": [{"value": "YQ=="}]}', **rest}
    yield "GET", records, "/topics/orders/records", {}
    yield "GET", records, "/topics/orders/records?log=1&from=1&to=latest&limit=1", {}
    yield "GET", records, "/topics/orders/records?from=99&log=0", {}
    yield "GET", records, "/topics/none/records", {}
    yield "GET", "/topics", "/topics?sizes=true&limit=1", {}
    yield "GET", "/topics", "/topics?limit=0", {}
    yield "GET", "/topics/{topic}", "/topics/orders?times=true", {}
    yield "GET", "/topics/{topic}", "/topics/none", {}
    yield "GET", "/topics/{topic}/offsets", "/topics/orders/offsets?time=0", {}
    yield "GET", "/topics/{topic}/partitions", "/topics/orders/partitions", {}
    yield "PATCH", "/topics/{topic}", "/topics/orders", {"document": {"settings": {"retention.ms": None}}}
    yield "PATCH", "/topics/{topic}", "/topics/orders", {"document": {"log_count": 1}}
    yield from requests_about_brokers()
    yield "PUT", "/groups/{group}/offsets", "/groups/billing/offsets", {"document": {"topic": "orders", "to": "latest"}}
    yield "PUT", "/groups/{group}/offsets", "/groups/billing/offsets", {"document": {"topic": "none", "to": "latest"}}
    yield "GET", "/groups", "/groups", {}
    yield "GET", "/groups/{group}", "/groups/billing", {}
    yield "GET", "/groups/{group}", "/groups/none", {}
    yield "DELETE", "/groups/{group}", "/groups/billing", {}
    yield "DELETE", "/groups/{group}", "/groups/billing", {}
    yield "DELETE", records, "/topics/orders/records?log=1&before=1", {}
    yield "DELETE", records, "/topics/orders/records?log=1&before=9", {}
    yield "DELETE", "/topics/{topic}", "/topics/orders", {}
    yield "DELETE", "/topics/{topic}", "/topics/orders", {}
    yield "GET", "/session", "/session", {}
    yield "POST", "/session", "/session", {"document": {"user": "anne", "password": "right"}}
    yield "DELETE", "/session", "/session", {}
    yield "GET", "/openapi.json", "/openapi.json", {}
    yield "GET", "/ws", "/ws", {}
    for path in ("/overview", "/nodes", "/storage", "/storage/verification", "/settings", "/", "/dafka.js"):
        yield "GET", path, path, {}
    yield "GET", "/overview", "/overview?history=true", {}
    yield "POST", "/storage/verification", "/storage/verification", {}
    yield "GET", "/storage/verification", "/storage/verification", {}
    yield "GET", "/console/{path}", "/console/main.js", {}
    yield "GET", "/console/{path}", "/console/none.js", {}


async def test_answers_look_as_they_are_described(tmp_path: Path) -> None:
    async with open_web(f"filelog:{tmp_path}/log", Config().with_http(body_bytes_max=5000)) as web:
        for method, path, target, sent in requests():
            headers = {name: value for name, value in sent.items() if name not in {"body", "document"}}
            answer = await web.request(
                method, target, sent.get("body"), document=sent.get("document"), **_with_underscores(headers)
            )
            check_answer(method, path, answer)
        await _check_described(web)


def _with_underscores(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in headers.items()}


async def _check_described(web: RunningWeb) -> None:
    """Check that the description that a broker gives is the one of its routes."""
    assert (await web.get("/openapi.json")).document == API


def test_all_routes_are_tried_here() -> None:
    tried = {(method, path) for method, path, _, _ in requests()}
    assert {(each.method, each.path.replace("...", "")) for each in ROUTES} == tried
