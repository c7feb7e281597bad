"""What the console's own routes say about a broker: overview, nodes, storage and settings."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trio

from dafka import Config, open_producer, serve_store
from dafka.broker.access.permissions import Permissions
from dafka.http.api.nodes import Connection, find_connections
from dafka.http.api.overview import LAG_MAX, find_survey_problems
from dafka.http.api.settings import describe_config
from dafka.http.api.storage import hide_password
from dafka.http.server.throughput import GAP_MS, INTERVAL_MS, SAMPLES_MAX, Throughput, Totals
from dafka.protocol.observer.cluster_survey import (
    ClusterSurvey,
    HolderView,
    NodeState,
    NodeView,
    PartitionView,
    TowerView,
)
from dafka.records import Partition
from dafka.roles import Observer, open_observer
from tests.http.running import Answer, RunningWeb, open_web
from tests.kafka.server.secured import PASSWORD, write_user_file

DEADLINE_S = 60


async def wait_answer(ask: Callable[[], Awaitable[Answer]], accept: Callable[[Any], bool]) -> Any:
    """Ask until an answer is accepted."""
    with trio.fail_after(DEADLINE_S):
        while True:
            answer = await ask()
            assert answer.status == 200, answer.body
            if accept(answer.document):
                return answer.document
            await trio.sleep(0.1)


async def publish(web: RunningWeb, topic: str, count: int) -> None:
    """Publish records as a node."""
    async with open_producer(topic, web.config) as producer:
        for number in range(count):
            await producer.send(f"record {number}".encode())
        with trio.fail_after(DEADLINE_S):
            await producer.wait_stored()


def test_rates_are_the_difference_of_two_readings() -> None:
    activity = Throughput()
    assert activity.is_due(0)
    activity.add(Totals(100, 1000, 10, 50), 5000)
    assert activity.newest is None
    assert not activity.is_due(5000 + INTERVAL_MS - 1)
    assert activity.is_due(5000 + INTERVAL_MS)
    activity.add(Totals(300, 2000, 10, 90), 7000)
    assert activity.newest is not None
    assert msgspec.structs.astuple(activity.newest) == (7000, 100.0, 500.0, 0.0, 20.0)


def test_rates_begin_again_after_a_time_without_questions_and_are_limited() -> None:
    activity = Throughput()
    for number in range(SAMPLES_MAX + 10):
        activity.add(Totals(number, 0, 0, 0), number * 1000)
    assert len(activity.history()) == SAMPLES_MAX
    activity.add(Totals(9999, 0, 0, 0), activity.history()[-1].time + GAP_MS + 1)
    assert activity.history() == []
    activity.add(Totals(0, 0, 0, 0), 0)  # the clock was set back
    assert activity.history() == []


async def test_the_overview_counts_what_the_broker_has_and_does() -> None:
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "orders", "log_count": 3})
        first = (await web.get("/overview")).document
        assert first["counts"]["topics"] == 1
        assert first["counts"]["logs"] == 3
        assert first["rates"] is None
        assert first["storage"]["free_bytes"] is None
        assert "history" not in first
        await publish(web, "orders", 50)
        found = await wait_answer(
            lambda: web.get("/overview?history=true"),
            lambda found: any(each["records_in_per_s"] > 0 for each in found["history"]),
        )
        assert any(each["bytes_in_per_s"] > 0 for each in found["history"])
        assert found["counts"]["clients"] >= 1
        assert found["broker"]["address"] == web.broker.node.address


async def test_nodes_appear_with_whose_records_they_store(tmp_path: Path) -> None:
    async with open_web() as web, trio.open_nursery() as nursery:
        first = (await web.get("/nodes")).document
        assert [each["is_self"] for each in first["nodes"]] == [True]
        store = await nursery.start(serve_store, web.config.with_store(storage="memory:"))
        async with open_producer("orders", web.config) as producer:
            await producer.send(b"record")
            own = web.broker.node.address
            wanted = {(producer.partition.address, own), (producer.partition.address, store.address)}

            def accept(found: Any) -> bool:
                pairs = {(each["from"], each["to"]) for each in found["connections"] if each["kind"] == "stored"}
                return found["is_complete"] and wanted <= pairs

            found = await wait_answer(lambda: web.get("/nodes"), accept)
        roles = {each["address"]: each["roles"] for each in found["nodes"]}
        assert roles[own] == ["broker"]
        assert roles[store.address] == ["store"]
        assert all("observer" not in each for each in roles.values())
        assert [each["is_heard"] for each in found["towers"]] == [True]
        nursery.cancel_scope.cancel()


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
        await wait_answer(lambda: web.get("/nodes"), lambda found: found["is_complete"])


def _node(address: str, role: str, state: NodeState = NodeState.UP) -> NodeView:
    return NodeView(address, f"tcp://host:{address}", (role,), state, 0, 0, ())


def test_connections_add_up_the_partitions_of_a_node() -> None:
    nodes = (_node("B", "store"), _node("C", "consumer"), _node("O", "observer"), _node("P", "producer"))
    partitions = (
        PartitionView(Partition("one", "P"), True, 9, (HolderView("B", 7, 2), HolderView("X", 9, 0))),
        PartitionView(Partition("two", "P"), True, 9, (HolderView("B", 6, 3),)),
        PartitionView(Partition("three", "P"), True, 9, (HolderView("B", None, None),)),
        PartitionView(Partition("two", "L"), True, 9, (HolderView("B", 9, 0),)),
    )
    survey = ClusterSurvey(0, (), nodes, (), partitions, ())
    assert find_connections(survey, "B", {"L": "B"}) == [
        Connection("P", "B", "stored", 2, 5),
        Connection("B", "C", "connected", 0, 0),
    ]


def test_problems_are_towers_and_stores_that_are_gone_or_behind() -> None:
    nodes = (
        _node("B", "store"),
        _node("C", "consumer", NodeState.SILENT),
        _node("L", "store"),
        _node("P", "producer", NodeState.SILENT),
        _node("S", "store", NodeState.SILENT),
        attrs.evolve(_node("U", "", NodeState.UNCONNECTED), roles=()),
    )
    towers = (TowerView("tcp://tower:1", True, 6), TowerView("tcp://tower:2", False, 0))
    behind = (HolderView("B", 0, 5000), HolderView("L", 0, LAG_MAX), HolderView("S", 0, 5000))
    first = PartitionView(Partition("one", "P"), True, 5000, behind)
    second = PartitionView(Partition("two", "P"), True, 5000, (HolderView("L", 4999, 1),))
    survey = ClusterSurvey(0, towers, nodes, (), (first,), ())
    expected = [
        "no message from the tower at tcp://tower:2",
        r"the store at tcp://host:S went silent \d+ s ago",
        "the node at tcp://host:U has not connected, .*",
    ]
    for found, wanted in zip(find_survey_problems(survey, "B"), expected, strict=True):
        assert re.fullmatch(wanted, found)
    *_, last = find_survey_problems(attrs.evolve(survey, partitions=(first, second)), "B")
    assert last == f"the store at tcp://host:L is {LAG_MAX + 1} records behind"


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


async def test_the_cold_tier_is_described(tmp_path: Path) -> None:
    config = Config().with_cold(
        storage=f"file://{tmp_path}/bucket", local_retention_bytes=100, segment_bytes=1000, interval_ms=50
    )
    async with open_web(f"filelog:{tmp_path}/log", config) as web:
        await publish(web, "orders", 200)
        found = await wait_answer(lambda: web.get("/storage"), lambda found: bool(found["cold"]["objects"]))
        assert found["cold"]["place"] == f"file://{tmp_path}/bucket"
        assert found["cold"]["records"] > 0
        assert (found["cold"]["damaged"], found["cold"]["trouble"]) == (0, "")


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


async def test_settings_have_their_values_and_descriptions() -> None:
    async with open_web(config=Config().with_node(peers_max=77)) as web:
        found = (await web.get("/settings")).document["sections"]
    node = {each["name"]: each for each in next(each for each in found if each["name"] == "node")["settings"]}
    assert (node["peers_max"]["value"], node["peers_max"]["is_default"]) == (77, False)
    assert (node["linger_ms"]["value"], node["linger_ms"]["is_default"]) == (1000, True)
    assert node["peers_max"]["description"].startswith("How many peers")


def test_passwords_in_settings_are_hidden() -> None:
    assert hide_password("postgres://ada:s3cret@host/db") == "postgres://ada:***@host/db"
    assert hide_password("filelog:/var/lib/dafka") == "filelog:/var/lib/dafka"
    config = Config().with_store(storage="postgres://ada:s3cret@host/db")
    assert "s3cret" not in str(describe_config(config))


async def test_what_concerns_the_broker_is_for_administrators(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    write_user_file(users, ada=Permissions(read=("orders*",), groups=("mine",)))
    basic: dict[str, Any] = {"Authorization": "Basic " + b64encode(f"ada:{PASSWORD}".encode()).decode()}
    async with open_web(config=Config().with_clients(users=str(users))) as web:
        for path in ("/nodes", "/storage", "/storage/verification", "/settings"):
            assert (await web.get(path)).code == "unauthenticated"
            assert (await web.get(path, **basic)).code == "forbidden"
        assert (await web.request("POST", "/storage/verification", **basic)).code == "forbidden"
        await web.broker.node.create_topic("orders-1").wait()
        await web.broker.node.create_topic("secret").wait()
        found = (await web.get("/overview", **basic)).document
        assert found["counts"]["topics"] == 1
        assert (found["storage"], found["problems"]) == (None, None)


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
