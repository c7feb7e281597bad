"""Clients that create, change or delete topics wait until the broker's view of the topics is current."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.http.api.registry import answer_request
from dafka.http.server.messages import Request, Response
from dafka.http.server.principal import Principal
from dafka.http1.head import parse_target
from dafka.kafka.apis import metadata
from dafka.kafka.apis.shared.registry import HANDLERS
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.cluster import MetadataRequestTopic, MetadataResponseTopic
from tests.http.running import open_web
from tests.waiting import wait_until

DEADLINE_S = 60

REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/topics", {"document": {"name": "new"}}),
    ("PATCH", "/topics/changed", {"document": {"log_count": 2}}),
    ("DELETE", "/topics/deleted", {}),
    ("PUT", "/topics/changed/logs/0/replicas", {"document": {"replicas": [0]}}),
    ("POST", "/topics/published/records", {"body": b"x"}),
]


async def test_no_request_of_http_changes_topics_before_all_changes_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_web() as web:
        node, are_known = web.broker.node, trio.Event()
        for topic in ("changed", "deleted"):
            await node.admin.create_topic(topic)
        before, waiting = dict(node.topics), 0

        async def wait_metadata() -> None:
            nonlocal waiting
            waiting += 1
            await are_known.wait()

        monkeypatch.setattr(node.leases, "wait_metadata", wait_metadata)
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                for method, target, options in REQUESTS:
                    nursery.start_soon(partial(web.request, method, target, **options))
                await wait_until(lambda: waiting == len(REQUESTS))
                assert node.topics == before
                are_known.set()
        assert node.topics.keys() == {"new", "changed", "published"}


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_change_is_not_made_if_its_http_client_leaves_before_it_is_begun(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    async with open_web() as web:
        await web.broker.node.admin.create_topic("deleted")
        has_left = False

        async def wait_metadata() -> None:
            nonlocal has_left
            has_left = leaves
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr(web.broker.node.leases, "wait_metadata", wait_metadata)
        head = parse_target("DELETE", "/topics/deleted", {})
        found = await answer_request(Request(web.server, head, Principal(None), has_left=lambda: has_left))
        assert isinstance(found, Response)
        assert (found.status, list(web.broker.node.topics)) == ((503, ["deleted"]) if leaves else (204, []))


class AskedError(Exception):
    """The changes of topics are waited for."""


async def test_no_request_of_kafka_changes_topics_or_access_before_all_changes_are_known() -> None:
    async def wait_metadata() -> None:
        raise AskedError

    leases = SimpleNamespace(wait_metadata=wait_metadata)
    context: Any = SimpleNamespace(
        broker=SimpleNamespace(node=SimpleNamespace(leases=leases, topics={})), find_topic=lambda *_: None
    )
    asked = set()
    for key, handle in HANDLERS.items():
        try:
            await handle(context, None)
        except AskedError:
            asked.add(key)
        except (AttributeError, TypeError):
            pass  # it uses the request first
    assert asked == {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        *(ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS),
        *(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS),
        *(ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS),
    }
    with pytest.raises(AskedError):
        await metadata._find(context, MetadataRequestTopic(name="used"), may_create=True)

    leases.wait_metadata = trio.lowlevel.checkpoint
    context.has_left, context.server = lambda: True, SimpleNamespace(counters=SimpleNamespace(late_requests=0))
    assert [await HANDLERS[key](context, None) for key in asked] == [None] * len(asked), "the client has left"
    assert context.server.counters.late_requests == len(asked)
    context.broker.node.find_topic = lambda _: None
    found = await metadata._find(context, MetadataRequestTopic(name="used"), may_create=True)
    assert isinstance(found, MetadataResponseTopic)
    assert found.error_code == ErrorCode.LEADER_NOT_AVAILABLE
