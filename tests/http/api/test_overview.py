"""What the console's own routes say about a broker: overview, nodes, storage and settings."""

from __future__ import annotations

import gzip
import http.client
import re
from collections import Counter
from contextlib import closing
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import attrs
import trio
from msgspec.structs import astuple

from dafka import Config, open_producer, serve_store
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.cluster_status import MetadataQuorum
from dafka.http.api.cluster import find_metadata_problems
from dafka.http.api.console import FOLDER
from dafka.http.api.nodes import Connection, find_connections
from dafka.http.api.overview import LAG_MAX, _find_problems, describe_overview, find_survey_problems
from dafka.http.api.settings import describe_config
from dafka.http.api.storage import ColdTier, hide_password
from dafka.http.server.storage_state import StorageUsage
from dafka.http.server.throughput import Totals
from dafka.protocol.observer import cluster_survey as survey
from dafka.protocol.observer.cluster_survey import HolderView, NodeState, NodeView, PartitionView, TowerView
from dafka.records import Partition
from dafka.storage import HasColdTier
from tests.http.api.test_brokers import make_request
from tests.http.running import DEADLINE_S, SharedWeb, open_web, publish_as_node, wait_answer


async def test_the_overview_counts_what_the_broker_has_and_does() -> None:
    async with open_web() as web:
        await web.request("POST", "/topics", document={"name": "orders", "log_count": 3})
        first = (await web.get("/overview")).document
        assert (first["counts"]["topics"], first["counts"]["logs"]) == (1, 3)
        assert (first["rates"], first["storage"]["free_bytes"], "history" in first) == (None, None, False)
        await publish_as_node(web, "orders", 50)
        found = await wait_answer(
            lambda: web.get("/overview?history=true"),
            lambda found: any(each["records_in_per_s"] > 0 for each in found["history"]),
        )
        assert any(each["bytes_in_per_s"] > 0 for each in found["history"])
        assert found["counts"]["clients"] >= 1
        assert found["broker"]["address"] == web.broker.node.address


async def test_throughput_is_that_of_the_storage_and_of_the_clients_of_all_listeners() -> None:
    request: Any = make_request(["up"], [], query={"history": False})
    seen, used = Permissions(read=("seen",), groups=("used",)), SimpleNamespace(group_id="used")
    request.principal = SimpleNamespace(permissions=seen)
    listener = SimpleNamespace(counters=SimpleNamespace(consumed=Counter(a=4, b=1), sent_bytes=7), quotas=range(6))
    request.broker.listeners = [listener, listener]
    coordinator = SimpleNamespace(list_groups=lambda: [used, SimpleNamespace(group_id="unused")])
    request.broker.groups = SimpleNamespace(coordinators=lambda: [coordinator, coordinator])
    node, throughput = request.broker.node, SimpleNamespace(is_due=lambda _now: True, add=Mock(), newest=None)
    topics = [SimpleNamespace(name=name, log_count=3) for name in ("seen", "unseen")]
    node.topics = {each.name: each for each in topics}
    statistics = SimpleNamespace(records_stored=1, bytes_stored=2, peers=8)
    node.store = SimpleNamespace(endpoint="here", statistics=lambda: statistics)
    request.web = SimpleNamespace(throughput=throughput, started_at=5)
    found = await describe_overview(request)
    assert throughput.add.call_args.args[0] == Totals(1, 2, 10, 14)
    assert astuple(found.counts) == (1, 3, 2, 12, 8)
    assert (found.broker.started_at, found.storage, found.problems) == (5, None, None)


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
            partitions = await wait_answer(
                lambda: web.get("/topics/orders/partitions"),
                lambda found: any(each["stores"] for each in found["partitions"]),
            )
        [partition] = [each for each in partitions["partitions"] if each["address"] == producer.partition.address]
        assert [each["store"] for each in partition["stores"]] == [store.address]
        (listed,) = (await web.get("/topics?sizes=true")).document["topics"]
        assert (listed["name"], listed["bytes"] > 0, listed["last_stored_at"] > 0) == ("orders", True, True)
        roles = {each["address"]: each["roles"] for each in found["nodes"]}
        assert (roles[own], roles[store.address]) == (["broker"], ["store"])
        assert all("observer" not in each for each in roles.values())
        assert [each["is_heard"] for each in found["towers"]] == [True]
        nursery.cancel_scope.cancel()


def _node(address: str, role: str, state: NodeState = NodeState.UP) -> NodeView:
    return NodeView(address, f"tcp://host:{address}", (role,), state, 0, 0, ())


def test_connections_add_up_the_partitions_of_a_node() -> None:
    nodes = (_node("B", "store"), _node("C", "consumer"), _node("O", "observer"), _node("P", "producer"))
    holders = {
        ("one", "P"): (HolderView("B", 7, 2), HolderView("X", 9, 0)),
        ("two", "P"): (HolderView("B", 6, 3),),
        ("three", "P"): (HolderView("B", None, None),),
        ("two", "L"): (HolderView("B", 9, 0),),
    }
    partitions = [PartitionView(Partition(*place), True, 9, views) for place, views in holders.items()]
    found = survey.ClusterSurvey(0, (), nodes, (), tuple(partitions), ())
    connections = [Connection("P", "B", "stored", 2, 5), Connection("B", "C", "connected", 0, 0)]
    assert find_connections(found, "B", {"L": "B"}) == connections


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
    found = survey.ClusterSurvey(90, towers, nodes, (), (first,), ())
    expected = [
        "no message from the tower at tcp://tower:2",
        r"the store at tcp://host:S went silent 90 s ago",
        "the node at tcp://host:U has not connected, .*",
    ]
    for problem, wanted in zip(find_survey_problems(found, "B"), expected, strict=True):
        assert re.fullmatch(wanted, problem)
    *_, last = find_survey_problems(attrs.evolve(found, partitions=(first, second)), "B")
    assert last == f"the store at tcp://host:L is {LAG_MAX + 1} records behind"


SURVEYS = SimpleNamespace(newest=lambda: None)


def test_the_overview_names_what_is_wrong_with_the_broker() -> None:
    problems: list[tuple[dict[str, Any], str]] = [
        ({"lag": {"a": LAG_MAX, "b": 0}, "free": 5}, ""),
        ({"trouble": "restart me", "unready": "later"}, "restart me"),
        ({"unready": "later"}, "later"),
        ({"is_full": True}, "the storage takes no further records"),
        ({"free": 4}, "the disk of the storage is almost full: 4 % are free"),
        ({"free": None}, ""),
        ({"damages": [1, 2]}, "the verification of the storage has found 2 damaged places"),
        ({"lag": {"a": LAG_MAX, "b": 1}}, "this broker is 1,001 records behind the producers of 2 partitions"),
    ]
    request: Any = make_request(["up"], [])
    request.broker.node.quorum = MetadataQuorum("", {"a": True, "b": False, "c": False})
    assert list(find_metadata_problems(request.broker.node)) == [
        "the cluster has no controller (1 of the 3 brokers that vote on metadata are heard, 2 are needed): topics, "
        "replicas and brokers cannot be changed"
    ]
    for given, expected in problems:
        values = SimpleNamespace(**{"lag": {}, "is_full": False, "damages": [], "trouble": "", "unready": ""} | given)
        request = make_request(["up"], [])
        request.broker.node.store = SimpleNamespace(health=lambda values=values: values)
        request.web = SimpleNamespace(verification=SimpleNamespace(report=values), survey_cache=SURVEYS)
        request.broker.node.inventory.orphans = request.broker.node.replicator.reassigner.under_replicated = dict
        usage = StorageUsage(0, 0, 0, 0, given.get("free", 50), 100)
        assert [*_find_problems(request, cast(Any, values), usage)] == [expected] * bool(expected)


async def test_the_cold_tier_is_described(tmp_path: Path) -> None:
    config = Config().with_cold(
        storage=f"file://{tmp_path}/bucket", local_retention_bytes=100, segment_bytes=1000, interval_ms=50
    )
    async with open_web(f"filelog:{tmp_path}/log", config) as web:
        await publish_as_node(web, "orders", 200)
        found = await wait_answer(lambda: web.get("/storage"), lambda found: bool(found["cold"]["objects"]))
        assert found["cold"]["place"] == f"file://{tmp_path}/bucket"
        assert found["cold"]["records"] > 0
        assert (found["cold"]["damaged"], found["cold"]["trouble"]) == (0, "")
        storage = web.broker.node.inventory.storage
        assert isinstance(storage, HasColdTier)
        tier = storage.tier_statistics()
    for request, move in product(("", "unreachable"), ("", "full")):
        troubled = ColdTier.of_tier(attrs.evolve(tier, segments=7, request_error=request, move_error=move))
        assert (troubled.objects, troubled.trouble) == (7, request or move)


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


# The console's files: their types, how long browsers keep them, and what pages may load


TEXTS = {".css": "css", ".html": "html", ".js": "javascript", ".md": "plain", ".LICENSE": "plain"}
TYPES = {ending: f"text/{each}; charset=utf-8" for ending, each in TEXTS.items()}
TYPES |= {".json": "application/json", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = [path for path in sorted(FOLDER.rglob("*")) if path.is_file()]


def test_every_file_is_sent_as_it_is(web: SharedWeb) -> None:
    sent = {f"/console/{path.relative_to(FOLDER).as_posix()}": path for path in FILES}
    sent |= {"/": FOLDER / "index.html", "/dafka.js": FOLDER / "dafka.js"}
    tags: dict[str, bytes] = {}
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=DEADLINE_S)) as connection:
        for target, path in sent.items():
            content = path.read_bytes()
            for accepted in ("identity", "br, gzip;q=0.5"):
                connection.request("GET", target, headers={"Accept-Encoding": accepted})
                answer = connection.getresponse()
                body = answer.read()
                is_compressed = answer.headers.get("Content-Encoding") == "gzip"
                assert answer.status == 200
                assert (gzip.decompress(body) if is_compressed else body) == content, target
                assert is_compressed == (
                    "gzip" in accepted and len(content) > 512 and len(gzip.compress(content)) < 0.9 * len(content)
                )
                assert answer.headers["Content-Type"] == TYPES[path.suffix]
                assert answer.headers["Content-Security-Policy"] == POLICY
                assert answer.headers["Vary"] == "Accept-Encoding"
                pinned = "public, max-age=31536000, immutable" if "/vendor/" in target else "no-cache"
                assert answer.headers["Cache-Control"] == pinned
                assert tags.setdefault(answer.headers["ETag"], content) == content, "a tag is that of one content"


def test_a_file_that_the_browser_has_is_not_sent_again(web: SharedWeb) -> None:
    tag = web.ask("GET", "/").headers["ETag"]
    kept = ["{}", "W/{}", '"a", {}', "*"]
    for given in (*kept, '"a"', "", "{}x"):
        headers: dict[str, Any] = {"If_None_Match": given.format(tag)}
        answer = web.ask("GET", "/", **headers)
        assert (answer.status, answer.body == b"") == ((304, True) if given in kept else (200, False)), given
        assert (answer.headers["ETag"], answer.headers["Content-Security-Policy"]) == (tag, POLICY)


def test_no_other_file_is_sent(web: SharedWeb) -> None:
    climbing = ("../console/main.js", "..%2fapi%2fconsole.py", "%2e%2e/api/console.py")
    for path in ("none.js", *climbing, "", "pages", "/etc/passwd"):
        answer = web.ask("GET", f"/console/{path}")
        assert (answer.status, answer.code) == (404, "not_found"), path
