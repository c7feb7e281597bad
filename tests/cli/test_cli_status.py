"""`dafka status` in real processes, and its page; `dafka cluster` and `dafka topic` with several brokers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from contextlib import AsyncExitStack, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import attrs
import pytest
import trio
from click.testing import CliRunner, Result

from dafka.broker.core.acls import Acl, AclEffect, Operation, ResourceType
from dafka.broker.core.client_quotas import EntityType, make_entity
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, encode_broker
from dafka.broker.core.metadata.commands import AlterClientQuota, AlterGroupSettings, CreateAcls, SetScramCredential
from dafka.broker.core.metadata.features import SUPPORTED, FeatureLevels, FeatureSupport
from dafka.broker.core.metadata.restoring import take_restored
from dafka.broker.core.scram_credentials import ScramMechanism
from dafka.cli import main
from dafka.cli.kafka import cluster_backup
from dafka.cli.kafka.cluster_verify import find_differing
from dafka.cli.status import ClusterBrokers, broker_faults, read_brokers
from dafka.cli.status_output import BrokerView, Shown, print_survey, survey_to_json
from dafka.config import Config
from dafka.errors import NoControllerError
from dafka.protocol import ClusterSurvey, NodeView, PartitionView
from dafka.protocol.observer.cluster_survey import HolderView, NodeState, Sighting, TopicView, TowerView
from dafka.records import Partition, RecordBatch, new_address
from dafka.roles import Reader
from dafka.storage import open_storage
from dafka.testing import open_cluster
from tests.broker.core.metadata.test_restoring import make_credential
from tests.cli.harness import DEADLINE_S, Dafka, Running, open_terminal, wait_for
from tests.cli.programs import take_program
from tests.http.api.test_brokers import FAST, KILLED, create
from tests.http.running import RunningWeb, open_webs
from tests.waiting import wait_until

status_module: Any = import_module("dafka.cli.status")  # `dafka.cli.status` as an attribute may be the command
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "status.md"


FORGOTTEN_S = 5.0
LEVEL = SUPPORTED.levels.highest
"""Seconds after which a tower has forgotten the node of an earlier command."""


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def shape_of_text(text: str) -> list[str]:
    for pattern, name in (
        (r"\b[0-9A-F]{32}\b", "ADDRESS"),
        (r"\d{4}-\d\d-\d\dT[0-9:]+Z", "TIME"),
        (r":\d+\b", ":PORT"),
        (r"[0-9.]+ s ago", "AGO"),
        (r" +", " "),
    ):
        text = re.sub(pattern, name, text)
    return [line.strip() for line in text.splitlines()]


def shape_of_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape_of_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape_of_json(each) for each in value[:1]]
    return type(value).__name__


def feed(producer: Running, count: int) -> None:
    assert producer.process.stdin is not None
    producer.process.stdin.write(b"".join(b"%d\n" % number for number in range(count)))
    producer.process.stdin.flush()


def test_page_shows_the_real_output(dafka: Dafka) -> None:
    """The page's cluster has a store, a producer that is gone, one that runs, and a consumer."""
    dafka.start_up("--storage", "memory:")
    assert dafka.node("produce", "orders", stdin=b"0\n" * 1000).status == 0
    payments = dafka.start_node("produce", "payments", stdin=subprocess.PIPE)
    feed(payments, 250)
    dafka.start_consumer("orders", "refunds")

    def look() -> dict[str, Any] | None:
        ended = dafka.node("status", "--json", "--max-lag", "0", "--timeout", f"{DEADLINE_S}s")
        assert ended.errors == ""
        seen: dict[str, Any] = json.loads(ended.output)
        assert ended.status == (1 if seen["faults"] else 0)
        for name in ("topics", "partitions"):  # the page shows one topic
            seen[name] = [each for each in seen[name] if each["topic"] == "payments"]
        is_stored = [(each["head"], each["lag"]) for each in seen["partitions"]] == [(249, 0)]
        has_left = len(seen["nodes"]) == 3  # the producer of orders
        return seen if has_left and is_stored and not seen["faults"] and seen["topics"][0]["stored"] else None

    found = wait_for(look, lambda: payments.errors)
    example = json.loads(block("json"))
    for each in (found, example):
        # The page shows the store alone.
        each["nodes"] = [node for node in each["nodes"] if node["roles"] == ["store"]]
    assert shape_of_json(found) == shape_of_json(example)
    assert found["topics"] == example["topics"]
    (partition,) = found["partitions"]
    assert (partition["lag"], len(partition["stores"])) == (0, 1)
    assert abs(found["time"] / 1000 - time.time()) < 7 * 86_400  # its unit, whatever the wall clock does meanwhile

    def look_at_text() -> str | None:
        ended = dafka.node("status")
        assert (ended.status, ended.errors) == (0, "")
        text = ended.output.decode()
        if ": 3 nodes, " in text:
            return text
        time.sleep(FORGOTTEN_S)
        return None

    assert shape_of_text(wait_for(look_at_text, lambda: payments.errors)) == shape_of_text(block("text"))


def test_of_many_topics_the_first_are_shown_unless_all_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    topics = [f"topic-{number:02}" for number in range(30)]
    partitions = [
        PartitionView(Partition(topic, new_address()), False, 2, (HolderView("S", 2, 0),)) for topic in topics
    ]
    views = [TopicView(topic, 1, False) for topic in topics]
    store = NodeView("S", "tcp://10.0.0.1:7000", ("store",), NodeState.UP, 0.0, 0.0, (), has_answered=True)
    survey = ClusterSurvey(5.0, (), (store,), tuple(views), tuple(partitions), ())
    print_survey(survey, [], Shown())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": 1 node, 1 store, 30 topics, 30 partitions; largest lag 0")
    assert [line.split() for line in lines if line.startswith("topic-")] == [
        [topic, "stored", "1", "2", "0"] for topic in topics[:20]
    ]
    assert "... and 10 more topics: --all shows them" in lines
    assert max(map(len, lines)) <= 80
    print_survey(survey, [], Shown(is_all=True, has_partitions=True))
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if re.match(r"topic-\d\d +stored ", line)]) == 30
    assert len([line for line in lines if re.match(r"topic-\d\d +[0-9A-F]{32} +gone +1 +1 of 1 +0$", line)]) == 30
    assert "--all" not in "".join(lines)
    print_survey(attrs.evolve(survey, topics=survey.topics[:20]), [], Shown())
    assert "--all" not in capsys.readouterr().out


@pytest.mark.parametrize("has_partitions", [True, False])
def test_what_a_cluster_does_not_have_has_no_table(capsys: pytest.CaptureFixture[str], has_partitions: bool) -> None:
    """Notes are printed if no limit for faults was given; otherwise only the faults are printed, if there are any."""
    towers_seen = TowerView("tcp://a:1", True, 0), TowerView("tcp://b:1", False, 2)
    survey = ClusterSurvey(5.0, towers_seen, (), (), (), ("a limit",))
    towers = [[], ["tower", "state", "nodes"], ["tcp://b:1", "not", "heard", "2"], ["tcp://a:1", "heard", "0"]]
    for faults, sentences in ((None, [["note:", "a", "limit"]]), (["x"], [["fault:", "x"]]), ([], [])):
        print_survey(survey, faults, Shown(has_partitions=has_partitions))
        summary, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
        assert " ".join(summary[1:]) == "0 nodes, 0 stores, 0 topics, 0 partitions; largest lag -"
        assert rows == [*sentences, *towers]


def node_view(
    address: str, role: str, state: NodeState, *, has_answered: bool | None = None, towers: tuple[Sighting, ...] = ()
) -> NodeView:
    roles = (role,) if role else ()
    return NodeView(address, f"tcp://{address}:1", roles, state, 1.0, 2.0, towers, has_answered=has_answered)


def survey_of_all_kinds() -> ClusterSurvey:
    """Return a survey with a row of each kind."""
    nodes = (
        node_view("A", "store", NodeState.UP, has_answered=True),
        node_view("B", "store", NodeState.UP, has_answered=False),
        node_view("C", "consumer", NodeState.UNCONNECTED),
        node_view("D", "", NodeState.SILENT),
        node_view("E", "gateway", NodeState.UP),
        node_view("F", "observer", NodeState.UP, towers=(Sighting("tcp://t:1", "tcp://F:2", 1.5, 1.75),)),
    )
    partitions = (
        PartitionView(Partition("behind", "P"), True, 10, (HolderView("A", 7, 3), HolderView("B", 10, 0))),
        PartitionView(Partition("behind", "Q"), False, 5, (HolderView("A", 5, 0),)),
        PartitionView(Partition("far-behind", "P"), True, 2000, (HolderView("A", 0, 2000),)),
        PartitionView(Partition("nowhere", "P"), True, None, ()),
        PartitionView(Partition("stored", "P"), True, 1000, (HolderView("A", 1000, 0),)),
        PartitionView(Partition("unknown", "P"), True, 2, (HolderView("A", 0, 2), HolderView("B", None, None))),
    )
    topics = (
        *(TopicView(name, 1, False) for name in dict.fromkeys(each.partition.topic for each in partitions)),
        TopicView("listed", 0, False, is_stored=True),
        TopicView("wanted", 0, True),
    )
    return ClusterSurvey(5.0, (TowerView("tcp://t:1", True, 6),), nodes, topics, partitions, ())


def test_each_row_says_what_is_known_and_the_worst_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_survey(survey_of_all_kinds(), None, Shown(has_partitions=True))
    summary, *tables = capsys.readouterr().out.split("\n\n")
    assert summary == "1970-01-01T00:00:05Z: 6 nodes, 2 stores, 7 topics, 6 partitions; largest lag 2,000"
    assert [[re.split("  +", line) for line in table.splitlines()] for table in tables] == [
        [
            ["topic", "state", "partitions", "records", "lag"],
            ["unknown", "lag unknown", "1", "2", "?"],
            ["listed", "stored, not reported", "0", "?", "?"],
            ["nowhere", "lag unknown", "1", "0", "?"],
            ["far-behind", "stores behind", "1", "2,000", "2,000"],
            ["behind", "stores behind", "2", "15", "3"],
            ["stored", "stored", "1", "1,000", "0"],
            ["wanted", "no records", "0", "-", "-"],
        ],
        [
            ["topic", "partition", "producer", "head", "stores", "lag"],
            ["unknown", "P", "up", "1", "0 of 2", "?"],
            ["nowhere", "P", "up", "?", "0 of 0", "?"],
            ["far-behind", "P", "up", "1999", "0 of 1", "2,000"],
            ["behind", "P", "up", "9", "1 of 2", "3"],
            ["behind", "Q", "gone", "4", "1 of 1", "0"],
            ["stored", "P", "up", "999", "1 of 1", "0"],
        ],
        [
            ["role", "node", "endpoint", "state"],
            ["store", "B", "B:1", "up, no answer"],
            ["?", "D", "D:1", "silent for 3 s"],
            ["consumer", "C", "C:1", "unconnected"],
            ["store", "A", "A:1", "up"],
            ["observer", "F", "F:1, F:2", "up"],
            ["gateway", "E", "E:1", "up"],
        ],
        [["tower", "state", "nodes"], ["tcp://t:1", "heard", "6"]],
    ]


def test_programs_get_all_that_is_known() -> None:
    """Numbers that nobody has reported are null, and times are milliseconds."""
    survey = survey_of_all_kinds()
    shown = survey_to_json(survey, None)
    assert (shown["time"], shown["brokers"], shown["limits"], shown["faults"]) == (5000, [], [], None)
    assert shown["towers"] == [{"endpoint": "tcp://t:1", "heard": True, "nodes": 6, "refusal": None}]
    known = {"node": "F", "endpoint": "tcp://F:1", "roles": ["observer"], "state": "up"}
    unknown = dict.fromkeys(("answered", "lists_topics", "topics", "partitions"))
    assert shown["nodes"][5] == {
        **known,
        **unknown,
        "first_seen": 1000,
        "last_seen": 2000,
        "towers": [{"tower": "tcp://t:1", "endpoint": "tcp://F:2", "first_seen": 1500, "last_seen": 1750}],
    }
    assert [each["answered"] for each in shown["nodes"]] == [True, False, None, None, None, None]
    assert [each["state"] for each in shown["nodes"][1:4]] == ["up", "unconnected", "silent"]
    assert shown["topics"][-2:] == [
        {"topic": "listed", "partitions": 0, "wanted": False, "stored": True},
        {"topic": "wanted", "partitions": 0, "wanted": True, "stored": False},
    ]
    assert shown["partitions"][-1] == {
        "topic": "unknown",
        "partition": "P",
        "producer": True,
        "head": 1,
        "lag": 2,
        "stores": [{"store": "A", "head": None, "lag": 2}, {"store": "B", "head": None, "lag": None}],
    }
    assert [(each["head"], each["producer"]) for each in shown["partitions"][1:4]] == [
        (4, False),
        (1999, True),
        (None, True),
    ]
    refusing = attrs.evolve(survey, towers=(TowerView("tcp://t:1", False, 0, "it refuses"),), limits=("a limit",))
    shown = survey_to_json(refusing, ["a fault"])
    assert (shown["towers"][0]["heard"], shown["towers"][0]["refusal"]) == (False, "it refuses")
    assert (shown["limits"], shown["faults"]) == (["a limit"], ["a fault"])


@pytest.mark.parametrize(
    ("store", "largest"),
    [
        (node_view("A", "store", NodeState.UP, has_answered=True), "-"),
        (node_view("A", "store", NodeState.UP), "-"),  # a store of libdafka, which cannot report it
        (node_view("A", "store", NodeState.UP, has_answered=False), "?"),
        (attrs.evolve(node_view("A", "store", NodeState.UP, has_answered=True), lists_topics=False), "?"),
    ],
)
def test_a_cluster_without_records_has_no_lag_if_all_stores_say_so(
    store: NodeView, largest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_survey(ClusterSurvey(5.0, (), (store,), (), (), ()), None, Shown())
    assert capsys.readouterr().out.splitlines()[0].endswith(f"; largest lag {largest}")


def broker_view(
    number: int, count: int, *, address: str = "", is_alive: bool = True, is_draining: bool = False
) -> BrokerView:
    address = address or f"B{number}"
    return BrokerView(
        number=number, address=address, is_alive=is_alive, is_draining=is_draining, under_replicated_logs=count
    )


def test_brokers_that_lead_under_replicated_logs_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = [broker_view(1, 0, is_draining=True), broker_view(2, 1), broker_view(3, 9, is_alive=False)]
    faults = list(broker_faults(brokers))
    assert faults == ["broker 2 leads 1 log of which fewer brokers have all records than should", "broker 3 is dead"]
    survey = survey_of_all_kinds()
    print_survey(survey, faults, Shown(), brokers)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    start = rows.index(["broker", "node", "state", "under-replicated", "logs"])
    assert rows[start + 1 : start + 4] == [
        ["3", "B3", "dead", "?"],
        ["2", "B2", "alive", "1"],
        ["1", "B1", "draining", "0"],
    ]
    shown = survey_to_json(survey, faults, brokers)["brokers"]
    assert [(each["broker"], each["under_replicated_logs"]) for each in shown] == [(1, 0), (2, 1), (3, None)]


@pytest.mark.parametrize(("variable", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_shows_problems_in_colour(
    dafka: Dafka, tower: list[str], monkeypatch: pytest.MonkeyPatch, variable: dict[str, str], is_coloured: bool
) -> None:
    def environment(_: object = None) -> dict[str, str]:
        return {**os.environ, "TERM": "xterm", **variable}

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(dafka, "environment", environment)
    nowhere = "tcp://127.0.0.1:9"
    towers = [*tower, "--tower-sub", nowhere, "--tower-pub", nowhere]
    with open_terminal(dafka, "status", *towers, "--max-lag", "0") as terminal:
        assert terminal.wait() == 1
        assert f"fault: no message from the tower at {nowhere}".encode() in terminal.seen
        assert (b"\x1b[31m" in terminal.seen) is is_coloured


# `dafka cluster`, and the commands of `dafka topic` and `dafka group` with several brokers


async def run(*arguments: str) -> Result:
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, arguments))


async def lines(*arguments: str) -> list[Any]:
    result = await run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def described_lines(topic: str, web: RunningWeb) -> list[Any]:
    """Describe a topic as one broker does, again while a log has no leader: the machine may be busy."""
    with trio.fail_after(DEADLINE_S):
        while (result := await run("topic", "describe", topic, *kafka(web), "--json")).exit_code:
            assert "no leader at present" in result.output
            await trio.sleep(0.1)
    return [json.loads(line) for line in result.stdout.splitlines()]


def kafka(web: RunningWeb) -> tuple[str, str]:
    return "--kafka", web.broker.bootstrap_servers


def http(web: RunningWeb) -> tuple[str, str]:
    return "--http", web.broker.url


async def test_a_lost_broker_is_forgotten() -> None:
    async with open_webs(4, KILLED.with_broker(replicas=3)) as webs:
        answer = await webs[0].request("POST", "/topics", document={"name": "orders", "replica_count": 4})
        assert answer.status == 201, answer.body
        lost = webs[3].broker.node
        number = str(lost.brokers.own.number)
        result = await run("cluster", "forget", number, "--yes", *http(webs[0]))
        assert result.stderr == f"Error: broker {number} is alive: drain it, and stop it before it is forgotten\n"
        dry = await run("cluster", "forget", number, "--dry-run", *http(webs[0]))
        assert (dry.exit_code, dry.stderr, "orders" in dry.stdout) == (2, result.stderr, True)
        dry = await run("topic", "recover", "orders", "--log", "0", "--from", number, "--dry-run", *http(webs[0]))
        assert (dry.exit_code, dry.stderr) == (
            2,
            "Error: log 0 of orders has a quorum, so it continues without a recovery\n",
        )
        listed = await run("cluster", "drain", number, "--dry-run", *http(webs[0]))
        assert "orders" in listed.stdout
        assert not lost.brokers.own.is_draining
        webs[3].kill()
        await wait_until(lambda: not any(web.broker.node.brokers.is_alive(lost.address) for web in webs[:3]))
        listed = await run("cluster", "forget", number, "--dry-run", *http(webs[0]))
        assert "has a quorum" in listed.stdout
        assert (listed.exit_code, listed.stderr) == (0, f"broker {number} would be forgotten\n")
        result = await run("cluster", "forget", number, "--yes", *http(webs[1]))
        while "is alive" in result.stderr:  # the controller has heard it a moment later
            result = await run("cluster", "forget", number, "--yes", *http(webs[1]))
        assert (result.exit_code, result.stderr) == (0, f"broker {number} is forgotten\n")
        await wait_until(lambda: all(len(web.broker.node.brokers.all()) == 3 for web in webs[:3]))
        result = await run("cluster", "forget", number, "--yes", *http(webs[0]))
        assert (result.exit_code, result.stderr.rpartition(": ")[0]) == (2, f"Error: there is no broker '{number}'")


async def test_the_status_of_a_cluster_says_what_is_wrong() -> None:
    async with open_webs(3, KILLED) as webs:
        await create(webs, "orders", 2)
        await wait_until(lambda: all(len(web.broker.node.logs("orders")[0].leadership.replicas) == 3 for web in webs))
        killed, controller = webs[2].broker.node.brokers.own, webs[0].broker.node.controller_address
        numbers = {web.broker.node.address: web.broker.node.brokers.own.number for web in webs}
        cluster_id = webs[0].broker.node.cluster_id
        result = await run("cluster", "status", *http(webs[0]))
        first, level, voters, *_ = result.stdout.splitlines()
        assert level == f"feature level: {LEVEL}"
        assert first == f"cluster {cluster_id}: open, broker {numbers[controller]} is the controller"
        assert voters == f"voters on metadata: {numbers[controller]}; changes need 1 of 1"
        webs[2].kill()
        await wait_until(lambda: not any(web.broker.node.brokers.is_alive(killed.address) for web in webs[:2]))
        logs = [log for web in webs[:2] for log in web.broker.node.logs("orders")]
        await wait_until(lambda: all(log.leadership.leader not in {killed.address, ""} for log in logs))
        results = [await run("cluster", "status", "--json", *http(web)) for web in webs[:2]]
        assert [each.exit_code for each in results] == [1, 1]
        for found in [json.loads(each.stdout) for each in results]:
            assert [each["number"] for each in found["brokers"] if not each["is_alive"]] == [killed.number]
            reasons = [each["reason"] for each in found["under_replicated"] if each["topic"] == "orders"]
            assert len(reasons) == 2
            assert all(f"broker {killed.number} is not heard" in each for each in reasons)
        text = (await run("cluster", "status", *http(webs[1]))).stdout
        assert f"3 brokers, 1 dead ({killed.number}); " in text


async def test_the_feature_level_is_raised_when_all_brokers_support_another_one() -> None:
    async with open_webs(2, FAST) as webs:
        for options, status, output in [
            ("--dry-run", 0, f"the cluster has the feature level {LEVEL} already"),
            (
                f"--to={LEVEL + 1} --dry-run",
                2,
                f"the feature level {LEVEL + 1} is not supported by broker 0, broker 1: ",
            ),
            (f"--to={LEVEL + 1} --yes", 2, f"the feature level {LEVEL + 1} is not supported by broker 0, broker 1: "),
        ]:
            result = await run("cluster", "upgrade", *options.split(), *http(webs[0]))
            assert (result.exit_code, output in result.stderr) == (status, True), result.stderr
        for web in webs:  # as if a later version had registered itself
            members = web.broker.node.tables.state.members
            members.support = FeatureSupport(FeatureLevels(1, LEVEL + 1))
            for store_id, each in members.registered.items():
                members.registered[store_id] = attrs.evolve(each, features=FeatureLevels(1, LEVEL + 1))
        result = await run("cluster", "status", *http(webs[0]))
        raised = f"all brokers support {LEVEL + 1}: `dafka cluster upgrade` raises it"
        assert f"feature level: {LEVEL} ({raised})" in result.stdout
        result = await run("cluster", "upgrade", "--dry-run", *http(webs[1]))
        assert f"would be raised from {LEVEL} to {LEVEL + 1}" in result.stderr
        assert result.stdout.count(f"1 to {LEVEL + 1}") == 2
        result = await run("cluster", "upgrade", "--yes", *http(webs[1]))
        assert (result.exit_code, f"has the feature level {LEVEL + 1}" in result.stderr) == (0, True), result.stderr
        await wait_until(lambda: all(web.broker.node.tables.state.members.feature_level == LEVEL + 1 for web in webs))
        assert f"feature level: {LEVEL + 1}\n" in (await run("cluster", "status", *http(webs[0]))).stdout


async def test_the_log_of_a_cluster_says_who_has_changed_what() -> None:
    async with open_webs(2, FAST) as webs:
        await create(webs, "orders", 2)
        changes = {each["description"]: each for each in await lines("cluster", "log", *http(webs[1]))}
        found = changes["create topic orders, logs: 2"]
        assert (found["ordered_by"], found["is_done"], found["kind"]) == ("127.0.0.1", True, "create-topic")
        assert changes["open the cluster for clients"]["ordered_by"] == "controller, broker 0"
        (last,) = await lines("cluster", "log", "--limit", "1", *http(webs[0]))
        (before,) = await lines("cluster", "log", "--limit", "1", "--before", str(last["offset"]), *http(webs[0]))
        assert before["offset"] == last["offset"] - 1
        text = (await run("cluster", "log", *http(webs[0]))).stdout.splitlines()
        assert text[0].split() == ["offset", "time", "ordered", "by", "change"]
        assert any("create topic orders, logs: 2" in each for each in text)


async def test_the_metadata_of_a_cluster_is_restored_into_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_backup, "_REQUEST_RECORDS", 2)  # so that it takes several requests
    file = tmp_path / "metadata"
    async with open_webs(1) as (web,):
        settings = {"retention.ms": "60000", "availability": "branch"}
        orders = {"name": "orders", "log_count": 3, "replica_count": 2, "settings": settings}
        assert (await web.request("POST", "/topics", document=orders)).status == 201
        await run("topic", "create", "visits", *kafka(web))
        before = [await described_lines(each, web) for each in ("orders", "visits")]
        restored = await change_access(web)
        result = await run("cluster", "snapshot", str(file), *http(web))
        assert (result.exit_code, file.stat().st_mode & 0o777) == (0, 0o600), result.output
        result = await run("cluster", "snapshot", str(file), *http(web))
        assert (result.exit_code, result.stderr.endswith("give --overwrite\n")) == (2, True)
        result = await run("cluster", "restore", str(file), "--yes", *http(web))
        assert (result.exit_code, "this cluster has topics" in result.stderr) == (2, True)
        file.chmod(0o644)
        result = await run("cluster", "snapshot", str(file), "--overwrite", *http(web))
        assert (result.exit_code, file.stat().st_mode & 0o777) == (0, 0o600), result.output
    async with open_webs(1) as (web,):
        result = await run("cluster", "restore", str(file), *http(web))
        assert (result.exit_code, "expected --yes" in result.stderr) == (2, True)
        result = await run("cluster", "restore", str(file), "--yes", *http(web))
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith(
            "this restores 1 user, 2 ACLs, 1 quota and the settings of 1 group, and creates 2 topics with 4 logs, all "
        )
        assert dict(take_restored(web.broker.node.tables.state.records)) == restored
        assert [await described_lines(each, web) for each in ("orders", "visits")] == before
        assert web.broker.node.topics["orders"].replica_count == 2
        for key, value in (("topic/1D", {}), ("acl/x", {"host": "*"}), ("scram/1/bob", "secret")):
            records = [{"key": key, "value": value}]
            refused = await web.request("POST", "/cluster/restored-records", document={"records": records})
            assert (refused.status, refused.code, b"secret" in refused.body) == (400, "bad_request", False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(web.broker.node.admin, "change", AsyncMock(side_effect=NoControllerError("none is heard")))
            records = [{"key": key.decode(), "value": json.loads(value)} for key, value in restored.items()]
            refused = await web.request("POST", "/cluster/restored-records", document={"records": records})
            assert (refused.status, refused.code) == (503, "controller_unavailable")
        file.write_text(file.read_text("utf-8").replace("visits", "visit5"), "utf-8")
        file.chmod(0o644)
        result = await run("cluster", "restore", str(file), "--yes", *http(web))
        assert (result.exit_code, "it has another checksum" in result.stderr) == (2, True)
        assert "run chmod 600" in result.stderr


async def change_access(web: RunningWeb) -> dict[bytes, bytes]:
    """Add a user, ACLs, a quota and settings of a group. Return them as a snapshot has them."""
    admin = web.broker.node.admin
    acls = (
        Acl(ResourceType.TOPIC, "orders", "User:bob", Operation.READ),
        Acl(ResourceType.TOPIC, "visits", "User:*", Operation.ALL, effect=AclEffect.DENY),
    )
    quota = AlterClientQuota(make_entity({EntityType.USER: None}), {"consumer_byte_rate": "1000"})
    group = AlterGroupSettings("readers", {"share.delivery.count.limit": "2"})
    for command in (CreateAcls(acls), quota, group):
        await admin.change(command)
    for mechanism in ScramMechanism:
        await admin.change(SetScramCredential(make_credential("bob", mechanism)))
    return dict(take_restored(web.broker.node.tables.state.records))


async def verify(web: RunningWeb, *arguments: str) -> Any:
    """Return the result of a comparison of three brokers: one that is not heard for a moment is left out."""
    with trio.fail_after(60):
        while True:
            result = await run("cluster", "verify", *arguments, *http(web))
            if "at the brokers 0, 1, 2: " in result.stderr:
                return result


async def test_a_disk_whose_records_differ_is_found(tmp_path: Path) -> None:
    async with open_webs(3, FAST) as webs:
        await create(webs, "orders", 1)
        await wait_until(lambda: len(webs[0].broker.node.logs("orders")[0].leadership.replicas) == 3)
        for number in range(20):
            answer = await webs[0].request("POST", "/topics/orders/records", b"%d" % number)
            assert answer.status == 200, answer.body
        storages = [web.broker.node.storage.storage for web in webs]
        (partition,) = await storages[0].partitions("orders")
        await wait_until(lambda: all(web.broker.node.storage.durable_end(partition) == 20 for web in webs))
        result = await verify(webs[1])
        assert (result.exit_code, result.stdout) == (0, ""), result.output
        assert result.stderr == "compared 20 records of 1 partition at the brokers 0, 1, 2: 0 differences\n"
        number = webs[2].broker.node.brokers.own.number
        read = storages[2].read

        async def read_spoiled(read_from: Partition, *arguments: Any, **options: Any) -> RecordBatch | None:
            found = await read(read_from, *arguments, **options)
            if found is None or read_from != partition or not found.first_sequence <= 13 < found.end_sequence:
                return found
            values = list(found.values)
            values[13 - found.first_sequence] = b"spoiled"
            return attrs.evolve(found, values=values, encoded=())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storages[2], "read", read_spoiled)
            result = await verify(webs[1], "orders", "--json")
        (found,) = map(json.loads, result.stdout.splitlines())
        assert (result.exit_code, found["brokers"], found["first_sequence"]) == (1, [number], 13)


@pytest.mark.parametrize(
    ("checksums", "differing"),
    [("aaa", []), ("aba", [1]), ("ab", [0, 1]), ("abc", [0, 1, 2]), ("aabb", [0, 1, 2, 3]), ("aaabb", [3, 4])],
)
def test_the_disks_that_differ_from_most_are_named(checksums: str, differing: list[int]) -> None:
    assert find_differing(dict(enumerate(checksums))) == differing


async def test_topics_are_described_whichever_broker_is_asked() -> None:
    async with open_webs(3, FAST) as webs:
        result = await run("topic", "create", "orders", "--logs", "4", "--replicas", "2", *kafka(webs[0]))
        assert result.exit_code == 0, result.output
        await create(webs, "other", 1)
        for number in range(4):
            answer = await webs[0].request("POST", f"/topics/orders/records?log={number}", b"v")
            assert answer.status == 200, answer.body
        described = [(await described_lines("orders", web))[0] for web in webs]
        for found in described:
            assert [each["end_offset"] for each in found["logs"]] == [1, 1, 1, 1]
            assert all(len(each["replicas"]) == 2 and each["leader"] in each["replicas"] for each in found["logs"])
        found = await lines("topic", "epochs", "orders", *http(webs[2]))
        assert [(each["log"], len(each["epochs"])) for each in found] == [(n, 1) for n in range(4)]
        result = await run("topic", "epochs", "orders", *http(webs[2]))
        assert result.stdout.splitlines()[0].split()[:3] == ["flags", "log", "epoch"]
        assert result.stdout.splitlines()[1].split()[:2] == ["first", "latest"]


FAULTLESS = ClusterSurvey(5.0, (TowerView("tcp://t:1", True, 0),), (), (), (), ())
FAULTY = attrs.evolve(FAULTLESS, towers=(TowerView("tcp://t:1", False, 0),))


def survey_with_brokers(**states: NodeState) -> ClusterSurvey:
    nodes = [node_view(address, "store", state) for address, state in states.items()]
    return ClusterSurvey(5.0, (), tuple(nodes), (TopicView(BROKERS_TOPIC, 1, False),), (), ())


async def test_brokers_are_as_they_have_described_themselves_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose description is of a newer version is not shown.

    One reader serves all surveys. It listens at a port of its own, since that of the options is the observer's.
    """
    opened = Mock(wraps=status_module.open_reader)
    monkeypatch.setattr(status_module, "open_reader", opened)
    url = f"sqlite:{tmp_path / 'store.db'}"
    one, other, newer = (new_address() for _ in range(3))
    first = [encode_broker(BrokerRegistration(address=each)) for each in (one, other)]
    last = {
        one: encode_broker(BrokerRegistration(address=one, number=7)),
        other: encode_broker(BrokerRegistration(address=other, number=3, is_draining=True, under_replicated_logs=2)),
        newer: json.dumps({"version": 99}).encode(),
    }
    async with open_storage(url) as storage:
        for address, value in last.items():
            await storage.append([RecordBatch(Partition(BROKERS_TOPIC, address), 0, [*first, value])])
        await storage.append([RecordBatch(Partition("orders", one), 0, [first[0]])])
    async with open_cluster(storage=url) as cluster, AsyncExitStack() as stack:
        assert cluster.store is not None
        brokers = ClusterBrokers(cluster.config.with_node(bind=cluster.store.endpoint), stack)
        assert await brokers.view(attrs.evolve(FAULTLESS, topics=(TopicView("orders", 1, False),))) == []
        for state in (NodeState.SILENT, NodeState.UP):
            assert await brokers.view(survey_with_brokers(**{one: NodeState.UP, other: state})) == [
                broker_view(3, 2, address=other, is_alive=state is NodeState.UP, is_draining=True),
                broker_view(7, 0, address=one),
            ]
        assert opened.call_count == 1


async def test_a_broker_that_has_not_described_itself_is_not_read() -> None:
    reader = Mock(spec=Reader)
    reader.ends.return_value = {Partition(BROKERS_TOPIC, new_address()): 0}
    assert await read_brokers(reader) == []
    reader.read.assert_not_called()


async def test_brokers_are_left_out_if_no_store_answers_in_time() -> None:
    async with (
        open_cluster(Config().with_node(tower_timeout_ms=100), storage=None) as cluster,
        AsyncExitStack() as stack,
    ):
        assert await ClusterBrokers(cluster.config, stack).view(survey_with_brokers()) == []


class Surveys:
    """An observer that makes some surveys, and no further one."""

    def __init__(self, *surveys: ClusterSurvey) -> None:
        self._surveys = list(surveys)
        self.asked: list[tuple[float, float]] = []

    async def wait_settled(self) -> None:
        await trio.lowlevel.checkpoint()

    async def survey(self, timeout_s: float) -> ClusterSurvey:
        self.asked.append((trio.current_time(), timeout_s))
        if not self._surveys:
            await trio.sleep_forever()
        return self._surveys.pop(0)


@pytest.mark.parametrize("options", [["--json"], []])
@pytest.mark.parametrize(
    ("surveys", "max_lag", "status"),
    [
        ([], ["--max-lag", "0"], None),
        ([FAULTY, FAULTLESS], ["--max-lag", "0"], 0),
        ([FAULTLESS, FAULTY], ["--max-lag", "0"], 1),
        ([FAULTLESS, FAULTY], [], 0),
    ],
)
async def test_a_survey_is_repeated_until_it_is_interrupted(
    surveys: list[ClusterSurvey],
    max_lag: list[str],
    status: int | None,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    autojump_clock: Any,
) -> None:
    """The exit status is that of the last survey. Without one, the job was not done."""
    observer = Surveys(*surveys)
    monkeypatch.setattr(status_module, "open_observer", lambda *_: nullcontext(observer))
    monkeypatch.setattr(status_module, "require_tower", lambda *_: nullcontext())
    taken = take_program("status", "status", "--watch", "5s", "--timeout", "3s", *max_lag, *options)
    started = trio.current_time()
    with trio.move_on_after(60):
        await taken.program()
    assert taken.interrupted() == status
    assert observer.asked == [(started + 5 * number, 3.0) for number in range(len(surveys) + 1)]
    output = capsys.readouterr().out
    if options:
        assert [json.loads(line)["towers"][0]["heard"] for line in output.splitlines()] == [
            survey is FAULTLESS for survey in surveys
        ]
    else:
        assert output.count("0 nodes, ") == len(surveys)
        assert len(re.findall("tcp://t:1 .*\n\n", output)) == len(surveys)


@pytest.mark.parametrize(("survey", "status"), [(FAULTLESS, 0), (FAULTY, 1)])
async def test_one_survey_is_the_status(survey: ClusterSurvey, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "open_observer", lambda *_: nullcontext(Surveys(survey)))
    monkeypatch.setattr(status_module, "require_tower", lambda *_: nullcontext())
    assert await take_program("status", "status", "--max-lag", "0").program() == status
    monkeypatch.setattr(status_module, "open_observer", lambda *_: nullcontext(Surveys(survey)))
    assert await take_program("status", "status").program() == 0
