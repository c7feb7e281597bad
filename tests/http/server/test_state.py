"""What a server measures and finds out: rates, the storage, and the nodes of the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from dafka import Config, open_producer, serve_store
from dafka.http.server.throughput import GAP_S, INTERVAL_S, SAMPLES_MAX, Throughput, Totals
from dafka.roles import Observer, open_observer
from tests.http.polling import publish, wait_answer
from tests.http.running import open_web

DEADLINE_S = 60


def test_rates_are_the_difference_of_two_readings_whatever_the_wall_clock_shows() -> None:
    activity = Throughput()
    assert activity.is_due(5.0)
    activity.add(Totals(100, 1000, 10, 50), 5.0, 10**12)
    assert activity.newest is None
    assert not activity.is_due(5.0 + INTERVAL_S * 0.9)
    assert activity.is_due(5.0 + INTERVAL_S)
    activity.add(Totals(300, 2000, 10, 90), 7.0, 10**12 - 3600_000)
    assert activity.newest is not None
    assert msgspec.structs.astuple(activity.newest) == (10**12 - 3600_000, 100.0, 500.0, 0.0, 20.0)


def test_rates_begin_again_after_a_time_without_questions_and_are_limited() -> None:
    activity = Throughput()
    for number in range(SAMPLES_MAX + 10):
        activity.add(Totals(number, 0, 0, 0), number, number)
    assert len(activity.history()) == SAMPLES_MAX
    last = SAMPLES_MAX + 9
    activity.add(Totals(9999, 0, 0, 0), last + GAP_S, last)
    assert len(activity.history()) == SAMPLES_MAX
    activity.add(Totals(9999, 0, 0, 0), last + 2.001 * GAP_S, last)
    assert activity.history() == []


async def test_the_observer_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = trio.Event()

    @asynccontextmanager
    async def open_watched(topics: tuple[str, ...], config: Config) -> AsyncIterator[Observer]:
        async with open_observer(topics, config) as observer:
            yield observer
        ended.set()

    monkeypatch.setattr("dafka.http.server.survey_cache.UNASKED_S", 0.5)
    monkeypatch.setattr("dafka.http.server.survey_cache.open_observer", open_watched)
    async with open_web() as web:
        await wait_answer(lambda: web.get("/nodes"), lambda found: found["is_complete"])
        with trio.fail_after(DEADLINE_S):
            await ended.wait()
        assert not (await web.get("/nodes")).document["is_complete"], "what was found before is out of date"
        await wait_answer(lambda: web.get("/nodes"), lambda found: found["is_complete"])


async def test_a_plugin_that_fails_does_not_end_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("dafka.http.server.storage_state.verify_storage", fail)
    monkeypatch.setattr("dafka.http.server.survey_cache.open_observer", lambda *_: 1 / 0)
    async with open_web() as web:
        await web.request("POST", "/storage/verification")
        done = await wait_answer(lambda: web.get("/storage/verification"), lambda found: found["state"] == "failed")
        assert done["error"] == "the broker's log has the reason"
        found = await wait_answer(lambda: web.get("/nodes"), lambda found: bool(found["note"]))
        assert [each["is_self"] for each in found["nodes"]] == [True]


async def test_the_storage_is_described_and_verified(tmp_path: Path) -> None:
    async with open_web(f"filelog:{tmp_path}/log") as web:
        await publish(web, "orders", 20)
        found = (await web.get("/storage")).document
        assert found["stored_bytes"] > 0
        assert found["cold"] is None
        assert 0 < found["free_bytes"] <= found["total_bytes"]
        assert next(each for each in found["topics"] if each["name"] == "orders")["records"] == 20
        assert (await web.get("/storage/verification")).document["state"] == "none"
        started = await web.request("POST", "/storage/verification")
        assert started.status == 202
        assert started.document["state"] == "running"
        done = await wait_answer(
            lambda: web.get("/storage/verification"), lambda found: bool(found["state"] != "running")
        )
        assert (done["state"], done["damages"], done["error"]) == ("done", [], "")
        assert done["records_read"] >= 20
        assert done["finished_at"] >= done["started_at"]


async def test_damage_is_found_and_named_in_the_overview(tmp_path: Path) -> None:
    async with open_web(f"filelog:{tmp_path}/log") as web:
        await publish(web, "orders", 20)
        for path in (each for each in (tmp_path / "log").rglob("*") if each.is_file()):
            content = path.read_bytes()
            if b"record 7" in content:
                path.write_bytes(content.replace(b"record 7", b"record X"))
        await web.request("POST", "/storage/verification")
        done = await wait_answer(lambda: web.get("/storage/verification"), lambda found: found["state"] == "done")
        assert [each["topic"] for each in done["damages"]] == ["orders"]
        problems = (await web.get("/overview")).document["problems"]
        assert any("damaged" in each for each in problems)


async def test_one_verification_runs_at_a_time() -> None:
    async with open_web() as web:
        assert web.broker.web is not None
        web.broker.web.verification.report.state = "running"
        assert (await web.request("POST", "/storage/verification")).code == "conflict"


async def test_partitions_name_the_other_stores_that_hold_them() -> None:
    async with open_web() as web, trio.open_nursery() as nursery:
        store = await nursery.start(serve_store, web.config.with_store(storage="memory:"))
        async with open_producer("orders", web.config) as producer:
            await producer.send(b"record")
            await producer.wait_stored()
            await wait_answer(lambda: web.get("/topics"), lambda found: found["topic_count"] == 1)

            def accept(found: Any) -> bool:
                return any(each["stores"] for each in found["partitions"])

            found = await wait_answer(lambda: web.get("/topics/orders/partitions"), accept)
        [partition] = [each for each in found["partitions"] if each["address"] == producer.partition.address]
        assert [each["store"] for each in partition["stores"]] == [store.address]
        listed = (await web.get("/topics?sizes=true")).document["topics"]
        assert [(each["name"], each["bytes"] > 0, each["last_stored_at"] > 0) for each in listed] == [
            ("orders", True, True)
        ]
        nursery.cancel_scope.cancel()
