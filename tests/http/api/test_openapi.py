"""The OpenAPI description is valid, and holds for every route, parameter and answer."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from dafka import Config
from dafka.broker import node as broker_node
from dafka.broker.core.cluster_status import MetadataQuorum
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.features import SUPPORTED
from dafka.errors import ConfigError, NoControllerError, RefusedChangeError, StorageError
from dafka.http.api import ROUTES, Route
from dafka.http.api.openapi import describe_api, error_codes
from dafka.http.api.registry import DOCUMENT_BYTES_MAX, find_route
from dafka.http.server.errors import STATUSES, WebError
from tests.http.running import Answer, SharedWeb, open_web

API = json.loads(json.dumps(describe_api(ROUTES)))
LEVEL = SUPPORTED.levels.highest


def operation_of(route: Route) -> dict[str, Any]:
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


def test_the_description_is_valid_openapi_and_describes_every_route_once() -> None:
    OpenAPIV31SpecValidator(API).validate()
    described = [(method.upper(), path) for path, each in API["paths"].items() for method in each]
    assert sorted(described) == sorted((each.method, each.path.replace("...}", "}")) for each in ROUTES)
    operations = [operation_of(each) for each in ROUTES]
    assert len({each["operationId"] for each in operations}) == len(operations)
    for route, operation in zip(ROUTES, operations, strict=True):
        assert operation["summary"]
        names = [each["name"] for each in operation["parameters"]]
        assert names == [*route.argument_names, *(each.name for each in route.parameters)]
        assert all(each["description"] for each in operation["parameters"])
        for code in error_codes(route):
            assert f"`{code}`" in operation["responses"][str(STATUSES[code])]["description"]


KAFKA_BINARY, KAFKA_JSON = (f"application/vnd.kafka.{each}.v2+json" for each in ("binary", "json"))
JSON_LINES, NO_LINES = (
    "application/x-ndjson",
    [b"", b"\n\n", b'{"value": "a"}\n{"value": ', b'{"value": "a"}{"value": "b"}'],
)
NO_RANGES = ["from=1", "from=yesterday", "from=offsets:0=a", "from=time:9999999999999999999", "log=-1", "wait_ms=60001"]
NO_OFFSETS = ["from=99&log=0", "from=offsets:0=7", f"log=0&from={2**63}"]
RECORDS, OFFSETS = "/topics/orders/records", "PUT /groups/billing/offsets"
LINES: list[dict[str, Any]] = [
    {"value": "a", "headers": [["name", "v"], ["none", None]]},
    {"value": None, "key_base64": "/w=="},
]
RETENTION = {"name": "retention.ms", "value": "5", "is_own": True}
EMPTY = {"start_offset": 0, "end_offset": 0, "bytes": 0, "last_timestamp": None}
PLACE = {"leader": 0, "leader_epoch": 0, "replicas": [0], "in_sync": [0]}
REST_RECORDS = [
    {"partition": 1, "value": {"a": [1, None]}},
    {"partition": 0, "key": "k", "value": "b"},
    {"partition": 0, "value": "x" * 500},
    {"partition": 7, "value": "c"},
    {"partition": 1, "value": None},
]
"""Each log gets those for it, unless one of them is too large."""

REST_OFFSETS = [
    {"partition": log, "offset": offset, "error_code": error_code}
    for log, offset, error_code in ((1, 0, None), (0, None, 1), (0, None, 1), (7, None, 1), (1, 1, None))
]
REST_HEADERS = [{"name": "source", "value": "c2hvcA=="}, {"key": "none", "value": None}]
NO_REST_HEADERS = [{"a": 1}, [1], [{}], [{"name": "a", "value": "?"}], [{"name": "a", "more": 1}]]
WITH_HEADERS = {"key": "key", "value_base64": "/w==", "headers": [["source", "shop"], ["none", None]]}

ANSWERS: list[tuple[str, Any, int, Any]] = [
    ("POST /topics", {"name": "orders", "log_count": 2}, 201, {"name": "orders", "log_count": 2}),
    ("GET /topics/orders?times=true", None, 200, {"logs": [{"log": log, **EMPTY, **PLACE} for log in (0, 1)]}),
    ("POST /topics", {"name": "orders"}, 409, "topic_exists"),
    *(("POST /topics", {"name": each}, 400, "bad_request") for each in ("a/b", "..", "<script>", "", "a\0")),
    *(("POST /topics", {"name": "a", "log_count": each}, 400, "bad_request") for each in (0, 10001, 1.5, True)),
    *(("POST /topics", {"name": "a", "settings": {each: "x"}}, 400, "bad_request") for each in ("x", "retention.ms")),
    ("GET /topics/a", None, 404, "topic_not_found"),
    ("POST /topics", {"name": "returns", "settings": {"retention.ms": "5"}}, 201, {"record_count": 0}),
    *(("POST /topics", (each, b"{}"), 415, "unsupported") for each in ("text/plain", "application/jsonx", "")),
    ("POST /topics", ("Application/JSON ; charset=utf-8", b'{"name": "typed"}'), 201, None),
    ("POST /topics", ("application/json", b"{}".ljust(DOCUMENT_BYTES_MAX + 1)), 413, "too_large"),
    ("POST /topics", ("application/json", b'{"name": "large"}'.ljust(DOCUMENT_BYTES_MAX)), 201, None),
    ("PATCH /topics/returns", {"log_count": 3, "settings": {"retention.bytes": "9"}}, 200, {"log_count": 3}),
    ("PATCH /topics/returns", {"log_count": 2}, 400, "bad_request"),
    ("PATCH /topics/returns", {"settings": {"none": None}}, 400, "bad_request"),
    ("PATCH /topics/none", {}, 404, "topic_not_found"),
    *(
        (f"GET /topics?{each}", None, 400, "bad_request")
        for each in ("limit=0", "limit=x", "limit=", "limit=2&limit=2", "limit=1e3", "limit=-1", "limit=%d9%a1")
    ),
    *((each, None, 400, "bad_request") for each in ("GET /topics?sizes=1", "GET /topics?x=1", "GET /moves?limit=1")),
    *(("POST /topics/none/records", each, 404, "topic_not_found") for each in (b"x", LINES)),
    ("POST /topics/none/records", (KAFKA_JSON, b'{"records": [{"value": "a"}]}'), 404, "topic_not_found"),
    ("PATCH /topics/returns", {"settings": {"retention.bytes": "x"}}, 400, "bad_request"),
    ("GET /topics/none/partitions", None, 404, "topic_not_found"),
    ("GET /topics?prefix=ret", None, 200, {"topics": [{"name": "returns", "log_count": 3}], "topic_count": 1}),
    (f"POST {RECORDS}?log=0", b"\xff", 200, {"offsets": [{"log": 0, "offset": 0, "count": 1}]}),
    (f"POST {RECORDS}?log=1", LINES, 200, {"offsets": [{"log": 1, "offset": 0, "count": 2}]}),
    (f"POST {RECORDS}?key=a", LINES, 400, "bad_request"),
    *((f"POST {RECORDS}?key=a", (each, b'{"value": "x"}'), 400, "bad_request") for each in (KAFKA_BINARY, KAFKA_JSON)),
    (f"POST {RECORDS}?log=7", LINES, 404, "log_not_found"),
    (f"GET {RECORDS}", None, 200, [{"value_base64": "/w=="}, {"log": 1, **LINES[0]}, {"offset": 1, **LINES[1]}]),
    (f"GET {RECORDS}?log=1&from=1&to=latest&limit=1", None, 200, [LINES[1]]),
    *((f"GET {RECORDS}?{each}", None, 400, "offset_out_of_range") for each in NO_OFFSETS),
    *((f"GET {RECORDS}?{each}", None, 404, "log_not_found") for each in ("log=3", "from=offsets:3=0", f"log={2**63}")),
    (f"GET {RECORDS}?log=0&from=offsets:1=0", None, 404, "log_not_found"),
    *((f"GET {RECORDS}?{each}", None, 400, "bad_request") for each in NO_RANGES),
    ("GET /topics/orders/offsets?time=NaN", None, 400, "bad_request"),
    *(("POST /topics/none/records", (JSON_LINES, each), 400, "bad_request") for each in NO_LINES),
    ("POST /topics/none/records", (KAFKA_JSON, b'{"records": [{"value": "a"}, 5]}'), 400, "bad_request"),
    ("GET /topics/none/records", None, 404, "topic_not_found"),
    ("GET /topics/none", None, 404, "topic_not_found"),
    ("GET /topics/orders/partitions", None, 200, None),
    ("POST /brokers/7/drain", None, 404, "broker_not_found"),
    ("GET /brokers/0/logs", None, 200, None),
    ("GET /brokers/7/logs", None, 404, "broker_not_found"),
    ("POST /cluster/feature-level", {"level": LEVEL + 1}, 400, "bad_request"),
    ("POST /cluster/feature-level", {"level": LEVEL, "dry_run": True}, 200, {"feature_level": LEVEL}),
    ("POST /brokers/7/forget", {}, 404, "broker_not_found"),
    ("POST /brokers/0/forget", {"accept_loss": True, "dry_run": True}, 400, "bad_request"),
    ("GET /topics/orders/epochs", None, 200, {"logs": [{"log": 0}, {"log": 1}]}),
    ("POST /topics/orders/logs/0/recover", {"broker": 0, "dry_run": True}, 400, "bad_request"),
    ("POST /topics/orders/logs/0/recover", {"broker": 7}, 404, "broker_not_found"),
    ("POST /topics/$coordinators/logs/0/recover", {"broker": 7}, 404, "broker_not_found"),
    ("POST /topics/$metadata/logs/0/recover", {"broker": 0}, 404, "topic_not_found"),
    *((f"DELETE /topics/$metadata{each}", None, 404, "topic_not_found") for each in ("", "/records?log=0&before=1")),
    ("POST /topics/$metadata/records", b"x", 404, "topic_not_found"),
    ("GET /topics/none/epochs", None, 404, "topic_not_found"),
    ("PUT /topics/orders/logs/0/replicas", {"replicas": [7]}, 404, "broker_not_found"),
    ("PUT /topics/orders/logs/9/replicas", {"replicas": [0]}, 404, "log_not_found"),
    (OFFSETS, {"topic": "orders", "to": "latest"}, 200, {"lag": 0, "offsets": [{"offset": 1}, {"offset": 2}]}),
    (OFFSETS, {"topic": "none", "to": "latest"}, 404, "topic_not_found"),
    (OFFSETS, {"topic": "orders"}, 400, "bad_request"),
    (OFFSETS, {"topic": "orders", "to": "earliest", "offsets": {"0": 1}}, 400, "bad_request"),
    (OFFSETS, {"topic": "orders", "to": "yesterday"}, 400, "bad_request"),
    *((OFFSETS, {"topic": "orders", "offsets": each}, 400, "bad_request") for each in ({"one": 1}, {"0": -1})),
    (OFFSETS, {"topic": "orders", "offsets": {"0": 7}}, 400, "offset_out_of_range"),
    (OFFSETS, {"topic": "orders", "offsets": {"7": 0}}, 404, "log_not_found"),
    ("GET /groups/billing", None, 200, {"state": "Empty", "members": [], "offsets": [{"offset": 1}, {"offset": 2}]}),
    ("DELETE /groups/billing", None, 204, None),
    ("GET /groups/billing", None, 404, "group_not_found"),
    ("DELETE /groups/billing", None, 404, "group_not_found"),
    (f"DELETE {RECORDS}?log=1&before=9", None, 400, "offset_out_of_range"),
    (f"DELETE {RECORDS}?log=3&before=1", None, 404, "log_not_found"),
    *((f"DELETE {RECORDS}?{each}", None, 400, "bad_request") for each in ("before=1", "log=0")),
    *((f"DELETE {RECORDS}?log=1&before={each}", None, 200, {"log": 1, "start_offset": 1}) for each in (1, 0)),
    (f"DELETE {RECORDS}?log=1&before=latest", None, 200, {"log": 1, "start_offset": 2}),
    ("DELETE /topics/none", None, 404, "topic_not_found"),
    ("DELETE /topics/orders", None, 204, None),
    ("GET /topics/orders", None, 404, "topic_not_found"),
    ("GET /topics/orders/records", None, 404, "topic_not_found"),
    ("GET /topics?prefix=orders", None, 200, {"topics": []}),
    ("PATCH /topics/returns", {"settings": {"retention.bytes": None}}, 200, {"settings": [RETENTION]}),
    ("DELETE /topics/returns", None, 204, None),
    ("GET /topics/returns", None, 404, "topic_not_found"),
    ("POST /session", {"user": "anne", "password": "right"}, 400, "bad_request"),
    ("POST /storage/verification", None, 202, {"state": "running"}),
    ("GET /storage/verification", None, 200, None),
    ("GET /console/main.js", None, 200, None),
    # As Kafka's REST proxy
    ("POST /topics", {"name": "orders", "log_count": 2, "settings": {"max.message.bytes": "500"}}, 201, None),
    (f"POST {RECORDS}", (KAFKA_JSON, json.dumps({"records": REST_RECORDS}).encode()), 200, {"offsets": REST_OFFSETS}),
    (f"GET {RECORDS}?log=1", None, 200, [{"value": '{"a":[1,null]}'}, {"value": None}]),
    (
        f"POST {RECORDS}?log=0",
        (
            f"{KAFKA_BINARY}; charset=utf-8",
            b'{"records": [{"key": "a2V5", "value": "/w==", "headers": %b}, {"value": "eA=="}]}'
            % json.dumps(REST_HEADERS).encode(),
        ),
        200,
        None,
    ),
    (f"GET {RECORDS}?log=0", None, 200, [WITH_HEADERS, {"value": "x"}]),
    *(
        (
            f"POST {RECORDS}",
            (KAFKA_BINARY, json.dumps({"records": [{"value": "eA==", "headers": each}]}).encode()),
            400,
            "bad_request",
        )
        for each in NO_REST_HEADERS
    ),
]
"""Requests in their order, their bodies (documents, lines, or bytes with or without a type), and their answers: the
code of an error, or a part of a document or of lines. `test_permissions` has each route once."""


def includes(found: Any, expected: Any) -> bool:
    """Return whether a value has at least what is expected. Of settings, those of a topic itself count."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(includes(found.get(name), each) for name, each in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        compared = [each for each in found if not isinstance(each, dict) or each.get("is_own", True)]
        return len(compared) == len(expected) and all(map(includes, compared, expected))
    return bool(found == expected)


def body_of(sent: Any) -> dict[str, Any]:
    """Return the body of a request of the table, with its type."""
    if isinstance(sent, dict):
        return {"document": sent}
    if isinstance(sent, list):
        sent = JSON_LINES, b"\n".join(json.dumps(each).encode() for each in sent)
    return {"Content_Type": sent[0], "body": sent[1]} if isinstance(sent, tuple) else {"body": sent}


def path_of(method: str, target: str) -> str:
    for each in ROUTES:
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(each.path.replace("...", "")))
        if each.method == method and re.fullmatch(pattern, target.partition("?")[0]):
            return each.path
    raise AssertionError(target)


async def test_answers_are_as_expected_and_look_as_they_are_described(tmp_path: Path) -> None:
    config = Config().with_http(body_bytes_max=DOCUMENT_BYTES_MAX + 5000).with_kafka(auto_create_topics="off")
    async with open_web(f"filelog:{tmp_path}/log", config) as web:
        for request, sent, status, expected in ANSWERS:
            method, _, target = request.partition(" ")
            answer = await web.request(method, target, **body_of(sent))
            assert answer.status == status, (request, sent, answer.body)
            check_answer(method, path_of(method, target), answer)
            lines = answer.body.splitlines() if isinstance(expected, list) else []
            found: Any = [json.loads(line) for line in lines]
            if isinstance(expected, (str, dict)):
                found = answer.code if isinstance(expected, str) else answer.document
            assert expected is None or includes(found, expected), (request, sent, found)
        assert (await web.get("/openapi.json")).document == API


ROUTED: list[tuple[str, str, str, dict[str, str]]] = [
    ("GET", "/topics", "GET /topics", {}),
    ("HEAD", "/topics/a", "GET /topics/{topic}", {"topic": "a"}),
    ("PUT", "/topics/a/logs/0/replicas", "PUT /topics/{topic}/logs/{log}/replicas", {"topic": "a", "log": "0"}),
    *(("GET", f"/console/{each}", "GET /console/{path...}", {"path": each}) for each in ("", "a", "a/b", "a//")),
    ("PUT", "/topics", "method_not_allowed", {"Allow": "GET, HEAD, POST"}),
    ("HEAD", "/topics/a/logs/0/replicas", "method_not_allowed", {"Allow": "PUT"}),
    *(("GET", each, "not_found", {}) for each in ("/none", "/topics/", "/topics//records", "/topics/a/b", "/console")),
]


def test_a_route_is_found_by_its_method_and_path() -> None:
    for method, path, expected, details in ROUTED:
        try:
            route, arguments = find_route(method, path[1:].split("/"))
            found = route.endpoint, arguments
        except WebError as error:
            found = error.code, dict(error.headers)
        assert found == (expected, details), (method, path)


def test_a_handler_that_fails_gives_away_only_what_clients_can_act_on(
    web: SharedWeb, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    route = next(each for each in ROUTES if each.endpoint == "GET /moves")
    before = web.server.counters.requests["GET", "/moves"]
    for error, status, code, is_told in (
        (WebError("conflict", "my words"), 409, "conflict", True),
        (ConfigError("my words"), 400, "bad_request", True),
        (StorageError("my words"), 503, "storage_failed", True),
        (NoControllerError("my words"), 503, "controller_unavailable", True),
        (RefusedChangeError("my words", ErrorCode.TOPIC_ALREADY_EXISTS), 409, "topic_exists", True),
        (RefusedChangeError("my words", ErrorCode.INVALID_REQUEST), 400, "bad_request", True),
        (RuntimeError("my words"), 500, "internal_error", False),
    ):
        monkeypatch.setattr(route, "handler", AsyncMock(side_effect=error))
        answer = web.ask("GET", "/moves")
        assert (answer.status, answer.code, b"my words" in answer.body) == (status, code, is_told)
    assert [each.levelname for each in caplog.records if each.name == "dafka.http"] == ["WARNING", "ERROR"]
    assert web.server.counters.requests["GET", "/moves"] == before + 7


CHANGES = {
    ("POST", "/topics"): {"name": "made"},
    ("PATCH", "/topics/known"): {},
    ("DELETE", "/topics/known"): None,
    ("PUT", "/topics/known/logs/0/replicas"): {"replicas": [0]},
    ("POST", "/topics/known/logs/0/recover"): {"broker": 0},
}


def test_topics_and_logs_are_changed_by_a_broker_that_knows_what_others_have_changed(
    web: SharedWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.create("known")
    quorum = MetadataQuorum("", {"a": True, "b": False, "c": False})
    wait = AsyncMock(side_effect=NoControllerError("1 of the 3 brokers"))
    for owner, name, value in (
        (broker_node, "describe_quorum", lambda *_: quorum),
        (web.broker.node.leases, "wait_metadata", wait),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            for (method, target), document in CHANGES.items():
                answer = web.ask(method, target, document=document)
                assert (answer.code, b"1 of the 3 brokers" in answer.body) == ("controller_unavailable", True), target
    assert web.ask("GET", "/topics/known").status == 200
