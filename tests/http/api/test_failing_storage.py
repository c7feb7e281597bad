"""On a storage that takes nothing, such as a full disk, every request that waits for something durable is answered.

The requests of the tables of permissions are sent: of Kafka, HTTP and WebSocket.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from dafka import Config
from dafka.broker.core.error_codes import ErrorCode
from dafka.errors import StorageError
from dafka.http.api.registry import ROUTES
from dafka.kafka.protocol.constants import ApiKey
from tests.http.api import test_permissions as routes
from tests.http.running import RunningWeb, open_web
from tests.http.websocket import test_permissions as messages
from tests.http.websocket.clients import BINARY, open_client
from tests.kafka.apis import test_authorization as kafka
from tests.kafka.apis.door import Client
from tests.waiting import wait_until

TOPIC, GROUP = routes.TOPIC, routes.GROUP
ANSWER_S = 60
REASON = "the disk is full"
RETRIABLE = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT}
RETRIABLE |= {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE}

APIS = {
    **dict.fromkeys((ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS), TOPIC),
    **dict.fromkeys((ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS), TOPIC),
    **dict.fromkeys((ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_RECORDS, ApiKey.INIT_PRODUCER_ID), TOPIC),
    ApiKey.METADATA: "made-by-asking",
    ApiKey.CREATE_TOPICS: "made",
    ApiKey.DELETE_TOPICS: "deleted",
}
"""The APIs that wait for something durable, and the topic that each request names. Others are only answered."""

WAITING = {
    *("POST /topics", "PATCH /topics/{topic}", "DELETE /topics/{topic}", "POST /topics/{topic}/records"),
    *("DELETE /topics/{topic}/records", "PUT /groups/{group}/offsets", "DELETE /groups/{group}"),
    "POST /cluster/restored-records",
    "PUT /topics/{topic}/queues/{queue}",
}
"""The routes that wait for something durable."""

OTHERS = {
    *("POST /brokers/{number}/drain", "POST /brokers/{number}/undrain"),  # the answer says that it has begun
    *("POST /brokers/{number}/forget", "POST /topics/{topic}/logs/{log}/recover"),  # they are for what is lost
    *(f"POST /topics/{{topic}}/queues/{{queue}}/{each}" for each in ("receive", "acknowledge")),  # there is no queue
    "POST /cluster/feature-level",
    *("PUT /topics/{topic}/logs/{log}/replicas", "POST /storage/verification", "POST /session", "DELETE /session"),
}


def route_uses() -> list[routes.Use]:
    """Return a use of each route that waits; of those that would change what others need, one of another topic."""
    found = {each.endpoint: each for each in reversed(routes.USES) if each.endpoint in WAITING}
    for endpoint, target in (("DELETE /topics/{topic}", ""), ("DELETE /topics/{topic}/records", "?before=1")):
        found[endpoint] = attrs.evolve(found[endpoint], target=target)
    return list(found.values())


def message_uses() -> list[messages.Use]:
    kinds = {"publish", "init_producer", "commit"}
    return [each for each in messages.USES if each.kind in kinds or each.fields.get("create")]


@asynccontextmanager
async def open_disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RunningWeb, trio.Event]]:
    """Run a broker. Its disk is full from the event on until it is replaced; see `fill`."""
    is_full = trio.Event()
    async with open_web(config=Config().with_store(retry_ms=50)) as web:
        for topic in (TOPIC, "deleted"):
            await web.broker.node.admin.create_topic(topic, 1)
        for value in (b"first", b"second"):
            assert (await web.request("POST", f"/topics/{TOPIC}/records", value)).status == 200
        commit = {"topic": TOPIC, "offsets": {"0": 1}}
        assert (await web.request("PUT", f"/groups/{GROUP}/offsets", document=commit)).status == 200
        storage: Any = web.broker.node.storage.storage
        append = storage.append

        async def append_or_fail(batches: Any) -> None:
            if is_full.is_set():
                raise StorageError(REASON)
            await append(batches)

        with monkeypatch.context() as patch:
            patch.setattr("dafka.broker.log.durable_waits.FAILING_S", 0.3)
            patch.setattr("dafka.http.logs.group_access.LEADER_WAIT_S", 0.5)
            patch.setattr(storage, "append", append_or_fail)
            yield web, is_full
        await wait_until(lambda: web.broker.node.storage.can_write)
        assert (await web.request("POST", f"/topics/{TOPIC}/records", b"a")).status == 200, "it takes records again"
        assert (await web.request("PUT", f"/groups/{GROUP}/offsets", document=commit)).status == 200


async def ask(web: RunningWeb, call: kafka.Call, **others: Any) -> set[int]:
    """Return the errors in the answer to a request of Kafka's protocol. Members join another group than `GROUP`."""
    names = kafka.Names(APIS.get(call.api, TOPIC), GROUP if call.api in APIS else "members", "transaction")
    values = {**call.values([names]), **others}

    def exchange() -> Any:
        with Client(web.broker.bootstrap_servers) as client:
            return client.ask(call.api, call.versions[-1], **values)

    with trio.fail_after(ANSWER_S):
        return kafka.errors_in(await trio.to_thread.run_sync(exchange))


def test_every_route_is_known_to_wait_or_not() -> None:
    """A new route comes here."""
    assert {f"{each.method} {each.path}" for each in ROUTES if each.method != "GET"} == WAITING | OTHERS
    assert {each.endpoint for each in route_uses()} == WAITING


async def use_api(web: RunningWeb, call: kafka.Call) -> tuple[object, bool]:
    """Use an API. Return it, and whether a client would try again."""
    return call.api, bool(await ask(web, call) & RETRIABLE)


async def use_route(web: RunningWeb, use: routes.Use) -> tuple[object, bool]:
    names = {TOPIC: "deleted"} if use.endpoint == "DELETE /topics/{topic}" else {}
    answer = await trio.to_thread.run_sync(use.ask, web, names)
    return use.endpoint, answer.status == 503 and answer.code == "storage_failed"


async def use_message(web: RunningWeb, use: messages.Use) -> tuple[object, bool]:
    async with open_client(web, BINARY) as client:
        _, problem = await messages.ask(client, use, {TOPIC: "described"} if use.kind == "describe" else {})
        return use.kind, problem.partition(":")[0] in {"storage_failed", "conflict"}


DOORS: dict[str, tuple[Callable[[RunningWeb, Any], Awaitable[tuple[object, bool]]], Sequence[Any], set[Any]]] = {
    "Kafka": (use_api, kafka.first_calls(), {*ApiKey} - APIS.keys()),
    "HTTP": (use_route, route_uses(), set()),
    "WebSocket": (use_message, message_uses(), set()),
}
"""For each door, how a request is used, the requests, and those that may be answered otherwise."""


@pytest.mark.parametrize("is_known", [False, True], ids=["begins to fail", "has failed"])
@pytest.mark.parametrize("door", DOORS)
async def test_every_request_is_answered(monkeypatch: pytest.MonkeyPatch, door: str, *, is_known: bool) -> None:
    use, requests, others = DOORS[door]
    found: dict[object, bool] = {}

    async def note(request: Any) -> None:
        place, is_refused = await use(web, request)
        found[place] = is_refused

    async with open_disk(monkeypatch) as (web, is_full):
        is_full.set()
        if is_known:
            answer = await web.request("POST", f"/topics/{TOPIC}/records", b"a")
            assert (answer.status, answer.code) == (503, "storage_failed")
            assert REASON in answer.document["error"]["message"]
        async with trio.open_nursery() as nursery:
            for each in requests:
                nursery.start_soon(note, each)
    others = others if is_known else {*others, "describe"}  # a topic is described before it is durable
    assert {place for place, is_refused in found.items() if not is_refused} <= others


async def test_a_client_without_acknowledgements_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next answers would wait, too."""
    async with open_disk(monkeypatch) as (web, is_full):
        is_full.set()
        with pytest.raises(AssertionError):
            await ask(web, next(each for each in kafka.CALLS if each.api is ApiKey.PRODUCE), acks=0)
