"""What a server measures and finds out: rates, the storage, the nodes of the cluster, and its metrics."""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import astuple

from dafka import Config
from dafka.errors import StorageError
from dafka.http.server.http_server import HttpCounters
from dafka.http.server.metrics import COUNTERS, GAUGES, HttpMetrics
from dafka.http.server.storage_state import USAGE_S, StorageMeter, StorageVerification, describe_damage
from dafka.http.server.survey_cache import SurveyCache
from dafka.http.server.throughput import GAP_S, INTERVAL_S, SAMPLES_MAX, Throughput, Totals
from dafka.operations.metrics import TopicLabels
from dafka.protocol.observer.cluster_survey import ClusterSurvey, HolderView, PartitionView
from dafka.records import Partition
from dafka.roles import Observer, open_observer
from dafka.storage import StorageStatistics
from dafka.storage.base import Damage
from tests.cli.harness import Dafka
from tests.http.running import DEADLINE_S, open_web, publish_as_node, wait_answer
from tests.seeds import each_seed

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "http.md"


def test_rates_are_those_of_the_last_readings_whatever_the_wall_clock_shows() -> None:
    """Random readings against a plain list: each gives rates since the one before, unless nobody asked for long."""
    for seed in range(2):
        random, throughput, kept = Random(seed), Throughput(), list[tuple[float, ...]]()
        totals, now_s, wait_s = [0] * 4, 0.0, math.inf
        for _ in range(2 * SAMPLES_MAX):
            assert throughput.is_due(now_s) == (wait_s >= INTERVAL_S)
            before, wall_ms = totals, random.randrange(10**12)
            totals = [each + random.randrange(3) for each in totals]
            throughput.add(Totals(*totals), now_s, wall_ms)
            rates = (round((new - old) / wait_s, 1) for new, old in zip(totals, before, strict=True))
            kept = [*kept, (wall_ms, *rates)][-SAMPLES_MAX:] if wait_s <= GAP_S else []
            assert [astuple(each) for each in throughput.history()] == kept
            assert throughput.newest == (throughput.history()[-1] if kept else None)
            wait_s = random.choice([0.25, 0.75, 1, 4, GAP_S] * 99 + [GAP_S + 1])
            now_s += wait_s


async def test_the_observer_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = trio.Event()

    @asynccontextmanager
    async def open_watched(topics: tuple[str, ...], config: Config) -> AsyncIterator[Observer]:
        async with open_observer(topics, config) as observer:
            yield observer
        ended.set()

    monkeypatch.setattr("dafka.http.server.survey_cache.open_observer", open_watched)
    async with open_web() as web:
        await wait_answer(lambda: web.get("/nodes"), lambda found: found["is_complete"])
        with monkeypatch.context() as patch, trio.fail_after(DEADLINE_S):
            patch.setattr("dafka.http.server.survey_cache.UNASKED_S", 0.5)
            await ended.wait()
        assert not (await web.get("/nodes")).document["is_complete"], "what was found before is out of date"
        await wait_answer(lambda: web.get("/nodes"), lambda found: found["is_complete"])


async def test_other_stores_have_parts_of_a_topic_as_the_newest_survey_says() -> None:
    holders = {
        ("one", "P"): (HolderView("B", 7, 2), HolderView("X", 9, 0)),
        ("two", "P"): (HolderView("B", 6, 3),),
        ("two", "L"): (HolderView("B", 9, 0),),
    }
    cache = SurveyCache(Config())
    assert (cache.holders("two", "B"), cache.problem) == ({}, "")
    partitions = [PartitionView(Partition(*place), True, 9, views) for place, views in holders.items()]
    cache._newest = ClusterSurvey(0, (), (), (), tuple(partitions), ())
    assert cache.holders("two", "X") == {"P": [HolderView("B", 6, 3)], "L": [HolderView("B", 9, 0)]}
    assert cache.holders("one", "B") == {"P": [HolderView("X", 9, 0)]}, "a broker is no other store than itself"
    unseen = SurveyCache(Config().with_node(discovery="beacon"))
    await unseen.run()
    assert "does not find them through towers" in unseen.problem


async def test_a_plugin_that_fails_does_not_end_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [RuntimeError("a mistake"), StorageError("the disk is gone")]
    observers: list[Any] = [lambda *_: 1 / 0, open_observer]

    def observe(*given: Any) -> Any:
        return observers[0](*given)

    async def fail(*_: object, **__: object) -> None:
        raise failures[0]

    monkeypatch.setattr("dafka.http.server.storage_state.verify_storage", fail)
    monkeypatch.setattr("dafka.http.server.survey_cache.open_observer", observe)
    monkeypatch.setattr("dafka.http.server.survey_cache.RETRY_S", 0.01)
    async with open_web() as web:
        for error in ("the broker's log has the reason", "the disk is gone"):
            assert (await web.request("POST", "/storage/verification")).status == 202
            done = await wait_answer(lambda: web.get("/storage/verification"), lambda found: found["state"] == "failed")
            assert (done["error"], done["finished_at"] is None) == (error, False)
            failures.pop(0)
        found = await wait_answer(lambda: web.get("/nodes"), lambda found: bool(found["note"]))
        assert [each["is_self"] for each in found["nodes"]] == [True]
        observers.pop(0)
        found = await wait_answer(lambda: web.get("/nodes"), lambda found: bool(found["towers"]))
        assert found["note"] == "", "it is observed again"


async def test_the_storage_is_described_and_verified_and_damage_is_named_in_the_overview(tmp_path: Path) -> None:
    async with open_web(f"filelog:{tmp_path}/log") as web:

        async def verify() -> Any:
            started = await web.request("POST", "/storage/verification")
            assert (started.status, started.document["state"]) == (202, "running")
            return await wait_answer(lambda: web.get("/storage/verification"), lambda found: found["state"] == "done")

        await publish_as_node(web, "orders", 20)
        (partition,) = (await web.get("/topics/orders/partitions")).document["partitions"]

        async def check(first: int, count: int) -> Any:
            query = f"topic=orders&partition={partition['address']}&first={first}&count={count}"
            return (await web.get(f"/storage/checksum?{query}")).document

        sums = [await check(first, count) for first, count in ((0, 20), (0, 5), (5, 3), (18, 9), (30, 1))]
        assert [(each["first_sequence"], each["end_sequence"]) for each in sums] == [
            (0, 20),
            (0, 5),
            (5, 8),
            (18, 20),
            (30, 30),
        ]
        assert len({each["checksum"] for each in sums}) == len(sums)
        found = (await web.get("/storage")).document
        assert (found["stored_bytes"] > 0, found["cold"]) == (True, None)
        assert 0 < found["free_bytes"] <= found["total_bytes"]
        assert next(each for each in found["topics"] if each["name"] == "orders")["records"] == 20
        assert (await web.get("/storage/verification")).document["state"] == "none"
        done = await verify()
        assert (done["damages"], done["error"], done["partitions"]) == ([], "", found["partitions"])
        assert done["records_read"] >= 20
        assert done["finished_at"] >= done["started_at"]
        for path in (each for each in (tmp_path / "log").rglob("*") if each.is_file()):
            content = path.read_bytes()
            if b"record 7" in content:
                path.write_bytes(content.replace(b"record 7", b"record X"))
        assert [each["topic"] for each in (await verify())["damages"]] == ["orders"]
        assert any("damaged" in each for each in (await web.get("/overview")).document["problems"])
        damaged = await check(0, 20)
        assert (damaged["checksum"], bool(damaged["error"])) == ("", True)
        web.server.verification.report.state = "running"
        assert (await web.request("POST", "/storage/verification")).code == "conflict", "one runs at a time"


# Metrics


def test_the_page_names_every_metric_with_its_labels() -> None:
    rows = dict(re.findall(r"^\| `(dafka_http_\w+)` \| ([^|]*) ?\|", PAGE.read_text("utf-8"), re.MULTILINE))
    described = {f"{name}_total": help_ for name, help_ in COUNTERS.items()} | GAUGES
    assert {name: labels.strip() for name, labels in rows.items()} == {
        name: ", ".join(f"`{label}`" for label in help_.labels) for name, help_ in described.items()
    }


@each_seed(20)
def test_metrics_are_the_counters_of_the_server(seed: int) -> None:
    draw = Random(seed)
    numbers = [draw.randrange(100) for _ in range(9)]
    counters = HttpCounters(received_bytes=numbers[0], sent_bytes=numbers[1], websocket_connections=numbers[2])
    expected: dict[tuple[str, ...], int] = {
        ("accepted_connections_total",): numbers[3],
        ("refused_connections_total",): numbers[4],
        ("bytes_total", "received"): numbers[0],
        ("bytes_total", "sent"): numbers[1],
        ("logins_total", "succeeded"): numbers[5],
        ("logins_total", "failed"): numbers[6],
        ("connections",): numbers[7],
        ("websocket_connections",): numbers[2],
        ("receiving_bytes",): numbers[8],
    }
    labelled: list[tuple[str, Any, list[Any]]] = [
        ("requests_total", counters.requests, [("GET", "/topics"), ("POST", "/topics")]),
        ("responses_total", counters.responses, [200, 404]),
        ("disconnected_clients_total", counters.disconnected, ["gone", "idle"]),
    ]
    for name, counter, keys in labelled:
        for key in keys:
            counter[key] = draw.randrange(9)
            expected[name, *(key if isinstance(key, tuple) else (str(key),))] = counter[key]
    topics_max = draw.randrange(3)
    for direction, by_topic in (("produced", counters.produced), ("consumed", counters.consumed)):
        for number, topic in enumerate(("a", "b", "c")):
            by_topic[topic] = draw.randrange(9)
            label = topic if number < topics_max else "other"
            if topics_max:
                expected["records_total", direction, label] = (
                    expected.get(("records_total", direction, label), 0) + by_topic[topic]
                )

    class Quotas(SimpleNamespace):
        def __len__(self) -> int:
            return numbers[7]

    web: Any = SimpleNamespace(
        counters=counters,
        quotas=Quotas(admitted=numbers[3], refused=numbers[4]),
        authenticator=SimpleNamespace(logins=numbers[5], failed_logins=numbers[6]),
        receiving=SimpleNamespace(taken_bytes=numbers[8]),
    )
    found = {
        (sample.name.removeprefix("dafka_http_"), *sample.labels.values()): sample.value
        for metric in HttpMetrics(web).read(TopicLabels(topics_max))
        for sample in metric.samples
    }
    assert found == expected


async def test_a_verification_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    async def verify(_storage: object, progress: Callable[[int, int], None]) -> None:
        progress(3, 10)
        await trio.sleep_forever()

    monkeypatch.setattr("dafka.http.server.storage_state.verify_storage", verify)
    storage: Any = None
    verification = StorageVerification(storage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(verification.run)
        assert [verification.start(), verification.start()] == [True, False]
        await trio.testing.wait_all_tasks_blocked()
        report = verification.report
        assert (report.state, report.records_read, report.records_total) == ("running", 3, 10)
        nursery.cancel_scope.cancel()


def test_damage_is_described_with_the_records_that_it_affects() -> None:
    found = [
        astuple(describe_damage(each))
        for each in (Damage("a file", "it is torn", Partition("orders", "P"), 5, 9), Damage("a file", "it is torn"))
    ]
    assert found == [("a file", "it is torn", "orders", "P", 5, 9), ("a file", "it is torn", "", "", 0, 0)]


async def test_the_storage_is_measured_again_after_a_while(autojump_clock: trio.testing.MockClock) -> None:
    statistics = StorageStatistics(partitions=1, records=2, content_bytes=3, stored_bytes=4)
    measured: list[float] = []

    async def measure() -> StorageStatistics:
        await trio.lowlevel.checkpoint()
        measured.append(trio.current_time())
        return statistics

    storage: Any = SimpleNamespace(statistics=measure)
    meter, begun = StorageMeter(storage, "memory:"), trio.current_time()
    for _ in range(3):
        for wait_s in (0.0, USAGE_S - 0.5, 0.5):
            await trio.sleep(wait_s)
            usage = await meter.measure()
            assert (usage.partitions, usage.records, usage.content_bytes, usage.stored_bytes) == (1, 2, 3, 4)
            assert (usage.free_bytes, usage.total_bytes) == (None, None)
    assert measured == [begun + USAGE_S * number for number in range(4)]


async def test_metrics_count_what_clients_do() -> None:
    async with open_web() as web:
        for value in (b"a", b"bb"):
            assert (await web.request("POST", "/topics/orders/records", value)).status == 200
        await web.get("/topics/orders/records")
        await web.get("/topics/none")
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for metric in HttpMetrics(web.server).read(TopicLabels(10))
            for sample in metric.samples
        }
        assert found["dafka_http_requests_total", "POST", "/topics/{topic}/records"] == 2
        assert found["dafka_http_responses_total", "404"] == 1
        assert found["dafka_http_records_total", "produced", "orders"] == 2
        assert found["dafka_http_records_total", "consumed", "orders"] == 2
        assert found["dafka_http_accepted_connections_total",] == 4
        sent = b"GET /topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer, counters = await web.exchange(sent), web.server.counters
        received = found["dafka_http_bytes_total", "received"], found["dafka_http_bytes_total", "sent"]
        assert (counters.received_bytes, counters.sent_bytes) == (received[0] + len(sent), received[1] + len(answer))


def test_a_broker_serves_them_beside_its_other_metrics(dafka: Dafka) -> None:
    up = dafka.start_up("--http", "127.0.0.1:0", "--storage", "memory:", "--metrics-listen", "127.0.0.1:0")
    lines = up.wait_output(4)
    url, metrics = (next(line.split()[-1] for line in lines if word in line) for word in ("HTTP", "metrics"))
    urllib.request.urlopen(f"{url}/topics", timeout=30).close()
    with urllib.request.urlopen(metrics, timeout=30) as answer:
        text = answer.read().decode()
    assert re.search(r'^dafka_http_requests_total\{.*route="/topics".*\} 1', text, re.MULTILINE), text
