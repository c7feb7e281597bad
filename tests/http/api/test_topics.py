"""Topics over HTTP."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import trio

from dafka import open_producer
from tests.http.running import DEADLINE_S, open_web


async def test_a_topic_is_created_described_changed_and_deleted() -> None:
    async with open_web() as web:
        created = await web.request("POST", "/topics", document={"name": "orders", "log_count": 2})
        assert created.status == 201
        assert created.headers["Location"] == "/topics/orders"
        described = await web.get("/topics/orders?times=true")
        empty = {"start_offset": 0, "end_offset": 0, "bytes": 0, "last_timestamp": None}
        place = {"leader": 0, "leader_epoch": 0, "replicas": [0], "in_sync": [0]}
        assert described.document["logs"] == [{"log": number, **empty, **place} for number in range(2)]
        changed = await web.request(
            "PATCH", "/topics/orders", document={"log_count": 3, "settings": {"retention.ms": "1000"}}
        )
        assert changed.document["log_count"] == 3
        settings = {each["name"]: each for each in changed.document["settings"]}
        assert settings["retention.ms"] == {"name": "retention.ms", "value": "1000", "is_own": True}
        reset = await web.request("PATCH", "/topics/orders", document={"settings": {"retention.ms": None}})
        assert not any(each["is_own"] for each in reset.document["settings"])
        assert (await web.request("DELETE", "/topics/orders")).status == 204
        assert (await web.get("/topics/orders")).code == "topic_not_found"


@pytest.mark.parametrize("name", ["<script>", "a/b", "€ %2F", "..", "a b?c=d#e"])
async def test_topics_whose_names_only_nodes_can_use_are_listed_without_logs(name: str) -> None:
    async with open_web() as web:
        path = f"/topics/{quote(name, safe='')}"
        with trio.fail_after(DEADLINE_S):
            async with open_producer(name, web.config) as producer:
                await producer.send(b"x")
                await producer.wait_acknowledged()
        (listed,) = (await web.get("/topics?sizes=true")).document["topics"]
        assert (listed["name"], listed["log_count"], listed["record_count"], listed["bytes"]) == (name, 0, 1, 1)
        described = (await web.get(path)).document
        assert (described["name"], described["logs"], described["record_count"]) == (name, [], 1)
        (partition,) = (await web.get(f"{path}/partitions")).document["partitions"]
        assert (partition["end_sequence"], partition["head_sequence"], partition["lag"]) == (1, 1, 0)
        refused = await web.get(f"{path}/records")
        assert refused.code == "topic_not_found"
        assert "has no logs" in refused.document["error"]["message"]
        for method, target in (("PATCH", path), ("DELETE", path), ("POST", f"{path}/records")):
            answer = await web.request(method, target, b"{}", Content_Type="application/json")
            assert answer.code in {"topic_not_found", "bad_request"}


async def test_records_of_native_producers_are_read_in_their_log() -> None:
    async with open_web() as web:
        with trio.fail_after(DEADLINE_S):
            async with open_producer("orders", web.config) as producer:
                await producer.send(b"native", key=b"k")
                await producer.wait_acknowledged()
            while b"native" not in (await web.get("/topics/orders/records")).body:
                pass
        assert (await web.request("POST", "/topics/orders/records", b"http")).document["offsets"][0]["offset"] == 1
        partitions = (await web.get("/topics/orders/partitions")).document["partitions"]
        assert sorted(each["is_own"] for each in partitions) == [False, True]
