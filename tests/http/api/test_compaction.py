"""HTTP reads what compaction has left of a topic: the last record of each key, at its offset."""

from __future__ import annotations

import json
from typing import Any

import trio

from dafka import Config
from dafka.storage import CompactsPartitions
from tests.http.api.events import EventSource
from tests.http.running import DEADLINE_S, RunningWeb, open_web

COUNT, KEYS = 200, 10

LINES = "application/x-ndjson"


async def read_all(web: RunningWeb) -> list[dict[str, Any]]:
    """Return all records of the topic."""
    answer = await web.get("/topics/prices/records?from=0")
    assert answer.status == 200, answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


async def test_last_records_are_read_at_their_offsets() -> None:
    config = Config().with_store(compaction_interval_ms=20, compaction_rate_bytes=0)
    async with open_web("memory:", config) as web:
        settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        created = await web.request("POST", "/topics", document={"name": "prices", "settings": settings})
        assert created.status == 201
        records = [{"key": f"key {number % KEYS}", "value": f"{number}"} for number in range(COUNT)]
        for first in range(0, COUNT, 20):
            body = "".join(json.dumps(each) + "\n" for each in records[first : first + 20])
            answer = await web.request("POST", "/topics/prices/records", body.encode(), Content_Type=LINES)
            assert answer.status == 200, answer.body
        with trio.fail_after(DEADLINE_S):
            while len(found := await read_all(web)) > 2 * KEYS:  # noqa: ASYNC110 (nothing tells when a pass ends)
                await trio.sleep(0.02)
        assert {each["key"]: each["value"] for each in found} == {
            f"key {number % KEYS}": f"{number}" for number in range(COUNT - KEYS, COUNT)
        }
        assert all(each["value"] == str(each["offset"]) for each in found)
        source = EventSource()
        with trio.fail_after(DEADLINE_S):
            async with source.connect(web, "/topics/prices/records?from=0") as stream:
                await source.read(stream, len(found))
        assert [each["offset"] for each in source.records] == [each["offset"] for each in found]


async def no_wait(_count: int) -> None:
    await trio.lowlevel.checkpoint()


async def test_records_that_compaction_removes_are_not_read_for_long() -> None:
    async with open_web("memory:", Config().with_store(compaction_interval_ms=3600_000)) as web:
        settings = {"cleanup.policy": "compact"}
        created = await web.request("POST", "/topics", document={"name": "prices", "settings": settings})
        assert created.status == 201
        body = "".join(json.dumps({"key": "key", "value": f"{number}"}) + "\n" for number in range(KEYS))
        answer = await web.request("POST", "/topics/prices/records", body.encode(), Content_Type=LINES)
        assert answer.status == 200, answer.body
        assert len(await read_all(web)) == KEYS
        storage = web.broker.node.storage.storage
        assert isinstance(storage, CompactsPartitions)
        (partition,) = await storage.partitions("prices")
        await storage.compact(partition, KEYS - 1, lambda batch: b"\1" * (len(batch) - 1) + b"\0", no_wait)
        with trio.fail_after(DEADLINE_S):
            while len(await read_all(web)) > 1:  # noqa: ASYNC110 (reads are shared for a moment)
                await trio.sleep(0.02)
