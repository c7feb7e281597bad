"""Topics, their settings and the brokers that keep them: each request has its error, and affects no other entry."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from dafka import Config
from dafka.broker.core.cluster_status import MetadataQuorum
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.topics import LOGS_MAX, Topic
from dafka.kafka.apis.reassignments import elect_leaders
from dafka.kafka.protocol.apis import REQUESTS
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, build, open_door, plain
from tests.kafka.apis.fake_cluster import ENDPOINT, OWN, SECOND, THIRD, FakeCluster

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
SETTINGS = {"retention.ms": "60000", "max.message.bytes": "5000"}
DEFAULT_LOGS = 3
INVALID, TIMED = ErrorCode.INVALID_PARTITIONS, {"timeout_ms": 1, "validate_only": False}


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door(Config().with_kafka(auto_create_topics="off", log_count=DEFAULT_LOGS)) as found:
        yield found


@pytest.fixture
def client(door: Door) -> Iterator[Client]:
    """A connection; there are the topics `one` and `two`, with one and two logs, and nothing else."""
    with door.connect() as found:
        names = list(topics_of(door))
        found.ask(ApiKey.DELETE_TOPICS, 3, topic_names=names, timeout_ms=60_000)
        asked = [topic("one", settings=SETTINGS), topic("two", 2)]
        assert [each["error_code"] for each in create(found, *asked)] == [0, 0]
        yield found


def topics_of(door: Door) -> dict[str, tuple[int, dict[str, str]]]:
    node = door.broker.node
    return door.call(lambda: {name: (each.log_count, dict(each.settings)) for name, each in node.topics.items()})


def topic(
    name: str, logs: int = 1, replicas: int = 1, placed: dict[int, list[int]] | None = None, **others: Any
) -> dict[str, Any]:
    settings: dict[str, str | None] = others.get("settings", {})
    return {
        "name": name,
        "num_partitions": logs,
        "replication_factor": replicas,
        "assignments": [{"partition_index": index, "broker_ids": each} for index, each in (placed or {}).items()],
        "configs": [{"name": each, "value": value} for each, value in settings.items()],
    }


def create(client: Client, *topics: dict[str, Any], version: int = 7, **others: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.ask(ApiKey.CREATE_TOPICS, version, topics=list(topics), **others)["topics"]
    assert [each["name"] for each in found] == [each["name"] for each in topics]
    return found


CREATED = [
    (topic("n"), NONE, 1),
    (topic("n" * 249), NONE, 1),
    (topic("n", 5), NONE, 5),
    (topic("n", -1, -1), NONE, DEFAULT_LOGS),
    (topic("n", -1, -1, {0: [0], 1: [0]}), NONE, 2),
    (topic("n", settings={"retention.ms": "1000"}), NONE, 1),
    (topic("n", settings={"retention.ms": None}), NONE, 1),
    (topic("n" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    *((topic(name), ErrorCode.INVALID_TOPIC_EXCEPTION, 0) for name in ("", ".", "..", "a/b", "ä", "a b", "$n")),
    (topic("one"), ErrorCode.TOPIC_ALREADY_EXISTS, 0),
    *((topic("n", count), ErrorCode.INVALID_PARTITIONS, 0) for count in (0, -2, LOGS_MAX + 1)),
    *((topic("n", 1, count), ErrorCode.INVALID_REPLICATION_FACTOR, 0) for count in (0, 2, -2)),
    (topic("n", -1, -1, {0: [7]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, 0),  # the tests of placement have more
    (topic("n", settings={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG, 0),
    (topic("n", settings={"unknown": "1"}), ErrorCode.INVALID_CONFIG, 0),
]


@pytest.mark.parametrize(("asked", "error", "logs"), CREATED, ids=range(len(CREATED)))
def test_topics_are_created_beside_those_that_are_refused(
    door: Door, client: Client, asked: dict[str, Any], error: ErrorCode, logs: int
) -> None:
    before = topics_of(door)
    trial = create(client, topic("before"), asked, topic("after"), validate_only=True)
    assert topics_of(door) == before, "a trial changes nothing"
    found = create(client, topic("before"), asked, topic("after"))
    assert [each["error_code"] for each in trial] == [each["error_code"] for each in found] == [0, error, 0]
    assert bool(found[1]["error_message"]) is bool(error)
    after = topics_of(door)
    assert after.keys() - before.keys() == {"before", "after"} | ({asked["name"]} if not error else set())
    assert all(after[name] == each for name, each in before.items())
    if not error:
        settings = {each["name"]: each["value"] for each in asked["configs"] if each["value"] is not None}
        assert after[asked["name"]] == (logs, settings)
        assert [(each["num_partitions"], each["replication_factor"]) for each in (trial[1], found[1])] == [
            (logs, 1)
        ] * 2
        shown = {each["name"]: (each["value"], each["config_source"]) for each in found[1]["configs"]}
        assert {name: value for name, (value, source) in shown.items() if source == 1} == settings


def test_topics_are_deleted_by_name_and_by_id(door: Door, client: Client) -> None:
    known = {each["name"]: each["topic_id"] for each in client.ask(ApiKey.METADATA, 12, topics=None)["topics"]}
    other_id = type(known["one"])(int=known["one"].int ^ 1)
    nil = type(other_id)(int=0)
    asked = [
        {"name": None, "topic_id": other_id},
        {"name": "unknown", "topic_id": nil},
        {"name": None, "topic_id": known["one"]},
    ]
    found = client.ask(ApiKey.DELETE_TOPICS, 6, topics=asked, timeout_ms=60_000)["responses"]
    assert [(each["name"], each["topic_id"], each["error_code"]) for each in found] == [
        (None, other_id, ErrorCode.UNKNOWN_TOPIC_ID),
        ("unknown", nil, UNKNOWN),
        ("one", known["one"], NONE),
    ]
    assert topics_of(door).keys() == {"two"}
    found = client.ask(ApiKey.DELETE_TOPICS, 5, topic_names=["one", "two"], timeout_ms=60_000)["responses"]
    assert [each["error_code"] for each in found] == [UNKNOWN, NONE]
    assert not topics_of(door)


@pytest.mark.parametrize(
    ("name", "count", "placed", "error", "logs"),
    [
        ("two", 3, None, NONE, 3),
        ("two", 4, [[0], [0]], NONE, 4),
        ("two", 2, None, ErrorCode.INVALID_PARTITIONS, 2),
        ("two", 1, None, ErrorCode.INVALID_PARTITIONS, 2),
        ("two", -1, None, ErrorCode.INVALID_PARTITIONS, 2),
        ("two", LOGS_MAX + 1, None, ErrorCode.INVALID_PARTITIONS, 2),
        ("two", 3, [[0], [0]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, 2),
        ("unknown", 3, None, UNKNOWN, 0),
    ],
)
def test_logs_are_added_beside_what_is_refused(
    door: Door, client: Client, name: str, count: int, placed: list[list[int]] | None, error: ErrorCode, logs: int
) -> None:
    assignments = None if placed is None else [{"broker_ids": each} for each in placed]
    asked = [
        {"name": name, "count": count, "assignments": assignments},
        {"name": "one", "count": 2, "assignments": None},
    ]
    for is_trial, expected in ((True, 1), (False, 2)):
        values = {"topics": asked, "timeout_ms": 60_000, "validate_only": is_trial}
        found = client.ask(ApiKey.CREATE_PARTITIONS, 3, **values)["results"]
        assert [(each["name"], each["error_code"]) for each in found] == [(name, error), ("one", NONE)]
        assert topics_of(door)["one"] == (expected, SETTINGS), "settings stay"
        assert is_trial or topics_of(door).get(name, (0, {}))[0] == logs


def resource(name: str, kind: int = TOPIC, /, **changes: Any) -> dict[str, Any]:
    """Return a resource with its settings; for a change, the operation and the value."""
    configs = [
        {"name": each.replace("_", "."), "value": change}
        if not isinstance(change, tuple)
        else {"name": each.replace("_", "."), "config_operation": change[0], "value": change[1]}
        for each, change in changes.items()
    ]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


UNLIMITED = "leader.replication.throttled.rate"
"""A setting of brokers that Kafka's tools delete when a reassignment has ended."""

REPLACED: list[tuple[dict[str, Any], ErrorCode, dict[str, str]]] = [
    (resource("one", retention_ms="7"), NONE, {"retention.ms": "7"}),
    (resource("one"), NONE, {}),
    (resource("one", retention_ms=None), NONE, {}),
    (resource("one", retention_ms="7", unknown="1"), ErrorCode.INVALID_CONFIG, SETTINGS),
    (resource("one", retention_ms="soon"), ErrorCode.INVALID_CONFIG, SETTINGS),
    (resource("one", **{"retention_ms": "7", "retention.ms": "8"}), ErrorCode.INVALID_REQUEST, SETTINGS),
    (resource("unknown", retention_ms="7"), UNKNOWN, SETTINGS),
    (resource("0", BROKER, retention_ms="7"), ErrorCode.INVALID_REQUEST, SETTINGS),
    (resource("0", BROKER, retention_ms=None), NONE, SETTINGS),
    (resource("7", BROKER), ErrorCode.INVALID_REQUEST, SETTINGS),
    (resource("one", GROUP, retention_ms="7"), ErrorCode.INVALID_CONFIG, SETTINGS),
]
CHANGED: list[tuple[dict[str, Any], ErrorCode, dict[str, str]]] = [
    (resource("one", retention_ms=(SET, "7")), NONE, {**SETTINGS, "retention.ms": "7"}),
    (resource("one", min_insync_replicas=(SET, "1")), NONE, {**SETTINGS, "min.insync.replicas": "1"}),
    (resource("one", retention_ms=(DELETE, None)), NONE, {"max.message.bytes": "5000"}),
    (resource("one", retention_bytes=(DELETE, None)), NONE, SETTINGS),
    (resource("one"), NONE, SETTINGS),
    (resource("one", retention_ms=(SET, None)), ErrorCode.INVALID_CONFIG, SETTINGS),
    (resource("one", retention_ms=(APPEND, "7")), ErrorCode.INVALID_CONFIG, SETTINGS),
    (resource("one", retention_ms=(SUBTRACT, "7")), ErrorCode.INVALID_CONFIG, SETTINGS),
    (resource("one", retention_ms=(DELETE, None), unknown=(SET, "1")), ErrorCode.INVALID_CONFIG, SETTINGS),
    (resource("one", segment_bytes=(SET, "2097152")), NONE, {**SETTINGS, "segment.bytes": "2097152"}),
    (resource("one", segment_bytes=(SET, "5")), ErrorCode.INVALID_CONFIG, SETTINGS),
    (
        resource("one", **{"retention_ms": (SET, "7"), "retention.ms": (DELETE, None)}),
        ErrorCode.INVALID_REQUEST,
        SETTINGS,
    ),
    (resource("one", cleanup_policy=(APPEND, "compact")), NONE, {**SETTINGS, "cleanup.policy": "delete,compact"}),
    (resource("one", cleanup_policy=(APPEND, "delete")), NONE, {**SETTINGS, "cleanup.policy": "delete"}),
    (resource("one", cleanup_policy=(SUBTRACT, "compact")), NONE, {**SETTINGS, "cleanup.policy": "delete"}),
    (resource("one", cleanup_policy=(SUBTRACT, "delete")), NONE, {**SETTINGS, "cleanup.policy": ""}),
    (resource("one", cleanup_policy=(APPEND, None)), ErrorCode.INVALID_CONFIG, SETTINGS),
    (resource("unknown", retention_ms=(SET, "7")), UNKNOWN, SETTINGS),
    (resource("0", BROKER, retention_ms=(SET, "7")), ErrorCode.INVALID_REQUEST, SETTINGS),
    *((resource(each, BROKER, **{UNLIMITED: (DELETE, None)}), NONE, SETTINGS) for each in ("0", "")),
    (resource("0", BROKER, **{UNLIMITED: (DELETE, None), "x": (SET, "1")}), ErrorCode.INVALID_REQUEST, SETTINGS),
    (resource("0", BROKER, **{UNLIMITED: (SUBTRACT, "1")}), ErrorCode.INVALID_REQUEST, SETTINGS),
    (resource("7", BROKER, **{UNLIMITED: (DELETE, None)}), ErrorCode.INVALID_REQUEST, SETTINGS),
    (resource("0", CLIENT_METRICS, **{UNLIMITED: (DELETE, None)}), ErrorCode.INVALID_REQUEST, SETTINGS),
]


@pytest.mark.parametrize(
    ("api", "asked", "error", "settings"),
    [
        *((ApiKey.ALTER_CONFIGS, *each) for each in REPLACED),
        *((ApiKey.INCREMENTAL_ALTER_CONFIGS, *each) for each in CHANGED),
    ],
)
def test_settings_are_changed_beside_what_is_refused(
    door: Door, client: Client, api: ApiKey, asked: dict[str, Any], error: ErrorCode, settings: dict[str, str]
) -> None:
    other = resource("two", retention_ms=(SET, "9") if api is ApiKey.INCREMENTAL_ALTER_CONFIGS else "9")
    before = topics_of(door)
    for is_trial in (True, False):
        found = client.ask(api, 1, resources=[asked, other], validate_only=is_trial)["responses"]
        assert [(each["error_code"], each["resource_type"], each["resource_name"]) for each in found] == [
            (error, asked["resource_type"], asked["resource_name"]),
            (NONE, TOPIC, "two"),
        ]
        assert [bool(each["error_message"]) for each in found] == [error not in {NONE, UNKNOWN}, False]
        expected = {"one": (1, settings), "two": (2, {"retention.ms": "9"})}
        assert topics_of(door) == (before if is_trial else expected)


def test_spaces_around_values_and_the_case_of_flags_are_ignored_as_in_kafka(client: Client) -> None:
    def described(kind: int, name: str) -> dict[str, str]:
        asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        (found,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked])["results"]
        return {each["name"]: each["value"] for each in found["configs"] if each["config_source"] in {1, 8}}

    given = {"preallocate": "True", "retention.ms": " 5000", "message.timestamp.type": "LogAppendTime\n"}
    kept = {"preallocate": "true", "retention.ms": "5000", "message.timestamp.type": "LogAppendTime"}
    (created,) = create(client, topic("n", settings=dict(given)))
    assert (created["error_code"], described(TOPIC, "n")) == (NONE, kept)
    names = {name: name.replace(".", "_") for name in given}
    replaced = resource("one", **{names[name]: value for name, value in given.items()})
    changed = resource("two", **{names[name]: (SET, value) for name, value in given.items()})
    flag = "share_renew_acknowledge_enable"
    for api, resources in (
        (ApiKey.ALTER_CONFIGS, [replaced, resource("g", GROUP, **{flag: "FALSE "})]),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, [changed, resource("h", GROUP, **{flag: (SET, "False")})]),
    ):
        found = client.ask(api, 1, resources=resources, validate_only=False)["responses"]
        assert [each["error_code"] for each in found] == [NONE, NONE]
    assert described(TOPIC, "one") == described(TOPIC, "two") == kept
    assert described(GROUP, "g") == described(GROUP, "h") == {flag.replace("_", "."): "false"}
    wrong = resource("one", compression_type=(SET, "Snappy"), preallocate=(SET, "yes"))
    (refused,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[wrong], validate_only=False)["responses"]
    assert refused["error_code"] == ErrorCode.INVALID_CONFIG
    client.ask(ApiKey.ALTER_CONFIGS, 1, resources=[resource("g", GROUP), resource("h", GROUP)], validate_only=False)


def test_settings_are_described_by_name(client: Client) -> None:
    def describe(kind: int, name: str, names: list[str] | None) -> tuple[int, dict[str, tuple[Any, ...]]]:
        asked = {"resource_type": kind, "resource_name": name, "configuration_keys": names}
        oldest, found = (client.ask(ApiKey.DESCRIBE_CONFIGS, each, resources=[asked])["results"][0] for each in (0, 4))
        assert (found["resource_type"], found["resource_name"]) == (kind, name)
        assert [each["is_default"] for each in oldest["configs"]] == [
            each["config_source"] == 5 for each in found["configs"]
        ]
        configs = {each["name"]: (each["value"], each["config_source"], each["read_only"]) for each in found["configs"]}
        types.update({each["name"]: each["config_type"] for each in found["configs"]})
        return found["error_code"], configs

    types: dict[str, int] = {}
    known = {"retention.ms": ("60000", 1, False), "retention.bytes": ("-1", 5, False)}
    assert describe(TOPIC, "one", [*known, "unknown"]) == (NONE, known)
    assert describe(TOPIC, "unknown", None) == (UNKNOWN, {})
    assert describe(BROKER, "0", ["broker.id"]) == (NONE, {"broker.id": ("0", 4, True)})
    for kind, name in ((BROKER, "7"), (CLIENT_METRICS, "one"), (CLIENT_METRICS, "0"), (CLIENT_METRICS, "")):
        assert describe(kind, name, None) == (ErrorCode.INVALID_REQUEST, {})
    _, everything = describe(TOPIC, "one", None)
    assert describe(TOPIC, "one", []) == (NONE, everything)
    assert {name: value for name, (value, source, _) in everything.items() if source == 1} == SETTINGS
    assert len(everything) > len(SETTINGS)
    assert describe(BROKER, "", ["num.partitions"]) == (NONE, {"num.partitions": (str(DEFAULT_LOGS), 4, True)})
    kinds = {"cleanup.policy": 7, "min.insync.replicas": 3, "retention.ms": 5, "broker.id": 3}
    assert {name: types.get(name) for name in kinds} == kinds


def test_settings_are_described_with_their_defaults_and_texts(client: Client) -> None:
    names = ["retention.ms", "segment.ms"]
    asked = {"resource_type": TOPIC, "resource_name": "one", "configuration_keys": names}
    plain = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked])["results"][0]["configs"]
    assert all((each["synonyms"], each["documentation"]) == ([], None) for each in plain)
    full = {"include_synonyms": True, "include_documentation": True}
    own, kept = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked], **full)["results"][0]["configs"]
    assert [(each["value"], each["source"]) for each in own["synonyms"]] == [("60000", 1), ("-1", 5)]
    assert [(each["name"], each["value"], each["source"]) for each in kept["synonyms"]] == [
        ("log.roll.ms", "604800000", 5)
    ]
    assert own["documentation"].startswith("How long records are kept")
    assert kept["documentation"].startswith("No effect. ")


async def test_settings_of_a_broker_are_those_of_its_configuration() -> None:
    cluster = FakeCluster()
    numbers: dict[str, Any] = {"rebalance_delay_ms": 1, "session_timeout_min_ms": 2, "message_bytes_max": 3000}
    numbers |= {
        "log_count": 4,
        "consumer_heartbeat_interval_ms": 4,
        "consumer_session_timeout_ms": 5,
        "share_deliveries_max": 6,
    }
    config = Config().with_kafka(**numbers, request_bytes_max=5000).with_broker(replicas=3)
    for created, users, certificate, scheme in (
        ("on", "", "", "PLAINTEXT"),
        ("off", "users", "", "SASL_PLAINTEXT"),
        ("on", "", "file", "SSL"),
        ("on", "users", "file", "SASL_SSL"),
    ):
        config = config.with_kafka(auto_create_topics="on" if created == "on" else "off")
        config = config.with_clients(users=users, tls_certificate=certificate, reauthenticate_ms=6)
        cast(Any, cluster.listener.broker).config = config
        asked = [{"resource_type": BROKER, "resource_name": "0", "configuration_keys": None}]
        (result,) = (await cluster.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=asked))["results"]
        found = {each["name"]: each["value"] for each in result["configs"]}
        assert list(found) == sorted(found)
        expected = {
            "advertised.listeners": f"{scheme}://{ENDPOINT[0]}:{ENDPOINT[1]}",
            "auto.create.topics.enable": "true" if created == "on" else "false",
            "broker.id": "0",
            "broker.rack": "one",
            "connections.max.reauth.ms": "6",
            "default.replication.factor": "3",
            "group.consumer.heartbeat.interval.ms": "4",
            "group.consumer.session.timeout.ms": "5",
            "errors.deadletterqueue.auto.create.topics.enable": "false",
            "errors.deadletterqueue.topic.name.prefix": "dlq.",
            "group.share.assignors": "simple",
            "group.share.delivery.count.limit": "6",
            "group.share.heartbeat.interval.ms": "4",
            "group.share.max.record.lock.duration.ms": "3600000",
            "group.share.max.share.sessions": "2000",
            "group.share.max.size": "200",
            "group.share.min.record.lock.duration.ms": "1000",
            "group.share.session.timeout.ms": "5",
            "group.initial.rebalance.delay.ms": "1",
            "group.min.session.timeout.ms": "2",
            "log.message.timestamp.type": "CreateTime",
            "log.retention.ms": "-1",
            "max.connections.per.ip": str(config.kafka.connections_max),
            "message.max.bytes": "3000",
            "node.id": "0",
            "num.partitions": "4",
            "remote.log.storage.system.enable": "false",
            "socket.request.max.bytes": "5000",
            "transaction.max.timeout.ms": "900000",
        }
        assert {name: found.get(name) for name in expected} == expected
        assert not any(each["documentation"] for each in result["configs"]), "nobody has asked for it"


async def test_logs_and_their_leaders_are_described_alike(cluster: FakeCluster) -> None:
    cluster.broker.log_table.add_topic(Topic("u", "1" * 32, 2))
    cluster.live(THIRD)
    for number in (0, 1):
        cluster.lead(replicas=(OWN, SECOND, THIRD), in_sync=(OWN, THIRD)) if number else cluster.follow(
            "", epoch=7, presumed_leader=SECOND
        )
        cluster.live(*(THIRD,) * number)
        metadata = await cluster.ask(ApiKey.METADATA, 12, topics=None)
        assert [each["node_id"] for each in metadata["brokers"]] == ([0] if number else [0, 1]), "leaders are named"
        topics = (await cluster.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[]))["topics"]
        for each, other in zip(topics, metadata["topics"], strict=True):
            assert (each["name"], each["topic_id"]) == (other["name"], other["topic_id"])
            for part, known in zip(each["partitions"], other["partitions"], strict=True):
                assert {name: part[name] for name in known} == known


async def test_topics_are_changed_when_the_brokers_view_of_them_is_current() -> None:
    """Another broker has created the topic a moment ago, and this one learns of it while the request waits.

    A broker that does not hear most voters does not know what exists.
    """
    late: dict[str, Any] = {"name": "late"}
    change = resource("late", retention_ms="7"), resource("late", retention_ms=(SET, "7"))
    move = {"partitions": [{"partition_index": 0, "replicas": [0]}]}
    for api, version, values, error in (
        (ApiKey.CREATE_TOPICS, 4, {"topics": [topic("late")]}, ErrorCode.TOPIC_ALREADY_EXISTS),
        (ApiKey.METADATA, 4, {"topics": [late], "allow_auto_topic_creation": True}, NONE),
        (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["late"], "timeout_ms": 1}, NONE),
        (ApiKey.CREATE_PARTITIONS, 3, {"topics": [{**late, "count": 1, "assignments": None}], **TIMED}, INVALID),
        (ApiKey.ALTER_CONFIGS, 1, {"resources": [change[0]], "validate_only": True}, NONE),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [change[1]], "validate_only": True}, NONE),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"topics": [late | move]}, NONE),
    ):
        cluster = FakeCluster()

        async def wait_metadata(cluster: FakeCluster = cluster) -> None:
            await trio.lowlevel.checkpoint()
            cluster.broker.log_table.add_topic(Topic("late", "1" * 32, 1))

        async def delete_topic(_name: str, **_options: object) -> None:
            await trio.lowlevel.checkpoint()

        cluster.broker.leases.wait_metadata = wait_metadata
        cast(Any, cluster.listener.broker).delete_topic = delete_topic
        found = await cluster.ask(api, version, **values)
        (each,) = next(each for name, each in found.items() if isinstance(each, list) and name != "brokers")
        errors = [part["error_code"] for part in each.get("partitions", ())] or [each["error_code"]]
        assert (errors, cluster.broker.created) == ([error], []), api
        if api == ApiKey.METADATA:
            continue
        cluster.broker.quorum = MetadataQuorum("", {OWN: True, SECOND: False, THIRD: False})
        outdated = await cluster.ask(api, version, **values)
        (refused,) = next(each for each in outdated.values() if isinstance(each, list))
        for part in refused.get("partitions", (refused,)):
            assert part["error_code"] == ErrorCode.NOT_CONTROLLER, api
            assert "1 of the 3 brokers" in part.get("error_message", "1 of the 3 brokers"), api
        assert "late" in refused.values(), api


async def test_sizes_are_those_of_logs_that_the_broker_keeps(cluster: FakeCluster) -> None:
    async def log_bytes(name: str) -> list[int]:
        await trio.lowlevel.checkpoint()
        return [7] if name == "t" else [8, 9]

    cluster.broker.log_table.add_topic(Topic("u", "1" * 32, 2))
    for log in cluster.broker.logs("u"):
        log.leadership = cluster.log.leadership
    cast(Any, cluster.broker).inventory = SimpleNamespace(log_bytes=log_bytes)
    some = [{"topic": "u", "partitions": [1, 9]}, {"topic": "unknown", "partitions": [0]}]
    for replicas, asked, expected in (
        ((SECOND, OWN), None, {"t": [(0, 7)], "u": [(0, 8), (1, 9)]}),
        ((SECOND, THIRD), None, {"t": [], "u": [(0, 8), (1, 9)]}),
        ((OWN,), some, {"u": [(1, 9)]}),
        ((OWN,), [], {}),
    ):
        cluster.lead(replicas=replicas)
        (result,) = (await cluster.ask(ApiKey.DESCRIBE_LOG_DIRS, 3, topics=asked))["results"]
        found = {each["name"]: each["partitions"] for each in result["topics"]}
        assert {
            name: [(each["partition_index"], each["partition_size"]) for each in parts] for name, parts in found.items()
        } == expected


@pytest.mark.parametrize("storage", ["memory:", "filelog:{}/log", "sqlite:{}/store.db"])
def test_the_size_of_a_storage_is_that_of_its_disk(storage: str, tmp_path: Path) -> None:
    url = storage.format(tmp_path)
    with open_door(storage=url) as door, door.connect() as client:
        for version in (3, 4, 5):
            (found,) = client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)["results"]
            is_known = version >= 4 and url != "memory:"
            total = shutil.disk_usage(tmp_path).total if is_known else -1
            assert (found["log_dir"], found["total_bytes"]) == (url, total)
            assert 0 <= found["usable_bytes"] <= total if is_known else found["usable_bytes"] == -1


def test_metadata_names_what_does_not_exist_and_creates_nothing(door: Door, client: Client) -> None:
    asked = [{"name": each} for each in ("unknown", "one", "a/b")]
    for version in range(14):
        found = client.ask(ApiKey.METADATA, version, topics=asked)["topics"]
        assert {each["name"]: (each["error_code"], len(each["partitions"])) for each in found} == {
            "unknown": (UNKNOWN, 0),
            "one": (NONE, 1),
            "a/b": (ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        }
        everything = client.ask(ApiKey.METADATA, version, topics=None if version else [])
        assert sorted(each["name"] for each in everything["topics"]) == ["one", "two"]
        if version:
            assert client.ask(ApiKey.METADATA, version, topics=[])["topics"] == []
    assert topics_of(door).keys() == {"one", "two"}


def test_logs_are_described_page_by_page(client: Client) -> None:
    for limit in range(-1, 5):
        found, cursor = [], None
        while True:
            page = client.ask(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=limit, cursor=cursor
            )
            logs = [(each["name"], part["partition_index"]) for each in page["topics"] for part in each["partitions"]]
            assert len(logs) <= max(limit, 1)
            found += logs
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == [("one", 0), ("two", 0), ("two", 1)]
    asked = [{"name": each} for each in ("unknown", "two", "one")]
    for start, expected in (
        (("one", 0), [("one", 1), ("two", 2), ("unknown", 0)]),
        (("one", -1), [("one", 1), ("two", 2), ("unknown", 0)]),
        (("one", 1), [("one", 0), ("two", 2), ("unknown", 0)]),
        (("p", 5), [("two", 2), ("unknown", 0)]),
        (("two", 1), [("two", 1), ("unknown", 0)]),
        (("z", 0), []),
    ):
        cursor = {"topic_name": start[0], "partition_index": start[1]}
        page = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=asked, cursor=cursor)
        assert [(each["name"], len(each["partitions"])) for each in page["topics"]] == expected
        assert all(each["error_code"] == (UNKNOWN if each["name"] == "unknown" else 0) for each in page["topics"])


def test_what_has_settings_is_listed_by_type(client: Client) -> None:
    topics, brokers = {(TOPIC, "one"), (TOPIC, "two")}, {(BROKER, "0")}
    for types, expected in (([], topics | brokers), ([TOPIC], topics), ([BROKER], brokers), ([GROUP], set())):
        found = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=types)["config_resources"]
        assert {(each["resource_type"], each["resource_name"]) for each in found} == expected


def test_leaders_are_elected_only_where_that_is_needed(client: Client) -> None:
    not_needed, values = ErrorCode.ELECTION_NOT_NEEDED, {"timeout_ms": 60_000}
    logs = {"two": [1, 0, 1, 2], "unknown": [0], "one": [0]}
    asked = [{"topic": name, "partitions": numbers} for name, numbers in logs.items()]
    expected = {
        "two": [(1, not_needed), (0, not_needed), (2, UNKNOWN)],
        "unknown": [(0, UNKNOWN)],
        "one": [(0, not_needed)],
    }
    for kind in (0, 1):  # preferred leaders, and unclean elections
        found = client.ask(ApiKey.ELECT_LEADERS, 1, election_type=kind, topic_partitions=asked, **values)
        results = {each["topic"]: each["partition_result"] for each in found["replica_election_results"]}
        assert found["error_code"] == NONE
        assert {
            topic: [(part["partition_id"], part["error_code"]) for part in parts] for topic, parts in results.items()
        } == expected
        found = client.ask(ApiKey.ELECT_LEADERS, 1, election_type=kind, topic_partitions=None, **values)
        assert (found["error_code"], found["replica_election_results"]) == (NONE, []), "those of all are left out"


async def test_unclean_elections_are_refused_for_logs_without_a_leader_and_others_have_a_timeout() -> None:
    cluster, asked_for = FakeCluster(), list[tuple[Log, float]]()

    async def elect_preferred(log: Log, timeout_s: float) -> ErrorCode:
        await trio.lowlevel.checkpoint()
        asked_for.append((log, timeout_s))
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE

    cast(Any, cluster.listener.broker).elections = SimpleNamespace(elect_preferred=elect_preferred)
    for timeout_ms in (1500, -1):
        values = {"election_type": 0, "timeout_ms": timeout_ms, "topic_partitions": None}
        (found,) = (await cluster.ask(ApiKey.ELECT_LEADERS, 1, **values))["replica_election_results"]
        (part,) = found["partition_result"]
        assert (part["partition_id"], part["error_code"]) == (0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    assert asked_for == [(cluster.log, 1.5), (cluster.log, 0)]
    asked = build(REQUESTS[ApiKey.ELECT_LEADERS], {"election_type": 1, "topic_partitions": None})
    for leader, expected in (("", [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]), (SECOND, [])):
        cluster.follow(leader)
        found = plain(await elect_leaders(cluster.client(ApiKey.ELECT_LEADERS, 1), asked))  # type: ignore[arg-type]
        parts = [part for each in found["replica_election_results"] for part in each["partition_result"]]
        assert [part["error_code"] for part in parts] == expected


BAD_FACTOR, BAD_ASSIGNMENT = ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT

Assigned = Sequence[tuple[int, list[int]]]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def place(
    cluster: FakeCluster, factor: int = -1, assigned: Assigned = (), *, is_trial: bool = False
) -> dict[str, Any]:
    asked = topic("new", -1 if assigned else 2, factor)
    asked["assignments"] = [{"partition_index": number, "broker_ids": each} for number, each in assigned]
    found = await cluster.ask(ApiKey.CREATE_TOPICS, 7, topics=[asked], validate_only=is_trial)
    (result,) = found["topics"]
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("factor", "assigned", "created"),
    [
        (-1, [], ("new", 2, 0, [])),
        (1, [], ("new", 2, 1, [])),
        (3, [], ("new", 2, 3, [])),
        (-1, [(1, [1, 0]), (0, [2, 1])], ("new", 2, 0, [(THIRD, SECOND), (SECOND, OWN)])),
        *((factor, [], BAD_FACTOR) for factor in (0, -2, 4)),
        (-1, [(0, [])], BAD_ASSIGNMENT),
        (-1, [(0, [1, 1])], BAD_ASSIGNMENT),
        (-1, [(0, [1, 7])], BAD_ASSIGNMENT),
        (-1, [(0, [0]), (1, [0, 1])], BAD_ASSIGNMENT),
        (-1, [(0, [0]), (2, [1])], BAD_ASSIGNMENT),
        (-1, [(0, [0]), (0, [1])], BAD_ASSIGNMENT),
    ],
)
async def test_topics_get_the_replicas_that_are_asked_for_or_an_error(
    cluster: FakeCluster, factor: int, assigned: Assigned, created: tuple[object, ...] | ErrorCode
) -> None:
    found = await place(cluster, factor, assigned)
    error = created if isinstance(created, ErrorCode) else NONE
    assert (found["error_code"], cluster.broker.created) == (error, [] if error else [created])


async def test_dead_brokers_do_not_count(cluster: FakeCluster) -> None:
    cluster.live(SECOND)
    found = await place(cluster, 3)
    expected = "expected a replication factor from 1 to 2, the number of living brokers, not 3"
    assert (found["error_code"], found["error_message"]) == (BAD_FACTOR, expected)


async def test_trials_name_the_replicas_that_there_would_be(cluster: FakeCluster) -> None:
    for factor, expected in ((-1, 2), (3, 3)):
        assert (await place(cluster, factor, is_trial=True))["replication_factor"] == expected
    assert not cluster.broker.created


async def test_further_logs_are_placed_on_brokers(cluster: FakeCluster) -> None:
    for assigned, error, log_count in (
        ([[1, 2], [0]], BAD_ASSIGNMENT, 1),
        ([[1, 2]], BAD_ASSIGNMENT, 1),
        ([[1, 2], [0, 1]], NONE, 3),
    ):
        topic = {"name": "t", "count": 3, "assignments": [{"broker_ids": each} for each in assigned]}
        found = await cluster.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[topic], timeout_ms=1000, validate_only=False)
        assert (found["results"][0]["error_code"], cluster.broker.topics["t"].log_count) == (error, log_count)
    assert cluster.broker.added == [[(SECOND, THIRD), (OWN, SECOND)]]


async def reassign(
    cluster: FakeCluster, replicas: list[int] | None, *, number: int = 0, may_change_count: bool = True
) -> int:
    """Have other brokers keep the log, or cancel that. Return the error."""
    topics = [{"name": "t", "partitions": [{"partition_index": number, "replicas": replicas}]}]
    found = await cluster.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, allow_replication_factor_change=may_change_count, topics=topics
    )
    return int(found["responses"][0]["partitions"][0]["error_code"])


async def ongoing(cluster: FakeCluster, *numbers: int) -> list[tuple[list[int], list[int], list[int]]]:
    """Return the replicas of each log that is moving, those that are added, and those that are removed."""
    asked = [{"name": "t", "partition_indexes": list(numbers)}] if numbers else None
    found = await cluster.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=asked)
    moving = [
        (part["replicas"], part["adding_replicas"], part["removing_replicas"])
        for topic in found["topics"]
        for part in topic["partitions"]
    ]
    assert all({*added, *removed} <= {*replicas} for replicas, added, removed in moving), "clients subtract the removed"
    return moving


async def test_logs_are_moved_to_other_brokers(cluster: FakeCluster) -> None:
    assert await reassign(cluster, [2, 0]) == NONE
    assert cluster.broker.moved == [(cluster.log, (THIRD, OWN))]
    assert await ongoing(cluster) == await ongoing(cluster, 0) == [([0, 1, 2], [2], [1])]
    assert await ongoing(cluster, 1) == []
    cluster.lead(replicas=(OWN, SECOND, THIRD))
    assert await ongoing(cluster) == [([0, 1, 2], [2], [1])], "until its leader has made the change"
    cluster.broker.ordered[cluster.log] = cluster.broker.ordered[cluster.log].finish()
    assert await ongoing(cluster) == []


async def test_a_request_is_answered_at_its_time_limit_with_what_is_done(
    cluster: FakeCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not confirmed by then can be made later."""

    def slow(change: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def change_late(what: object, *arguments: Any, **options: Any) -> None:
            await trio.sleep(3 if "late" in str(what) else 1)
            await change(what, *arguments, **options)

        return change_late

    for name in ("create_topic", "change_topic"):
        monkeypatch.setattr(cluster.broker, name, slow(getattr(cluster.broker, name)))
    names = ["soon", "late", "soon-too"]
    limited: dict[str, Any] = {"timeout_ms": 2000, "validate_only": False}
    answer = await cluster.ask(ApiKey.CREATE_TOPICS, 5, topics=[topic(each) for each in names], **limited)
    late = ErrorCode.REQUEST_TIMED_OUT
    assert [each["error_code"] for each in answer["topics"]] == [NONE, late, NONE]
    assert "look whether it was made" in answer["topics"][1]["error_message"]
    assert trio.current_time() == pytest.approx(2)
    more = [{"name": each, "count": 3, "assignments": None} for each in ("soon", "soon-too")]
    answer = await cluster.ask(ApiKey.CREATE_PARTITIONS, 3, topics=more, **limited | {"timeout_ms": 500})
    assert [each["error_code"] for each in answer["results"]] == [late, late]


async def test_moves_are_cancelled_and_forgotten_with_their_topic(cluster: FakeCluster) -> None:
    assert await reassign(cluster, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert [await reassign(cluster, each) for each in ([2, 0], None)] == [NONE, NONE]
    assert cluster.broker.moved[-1] == (cluster.log, ()), "the cluster chooses"
    assert await ongoing(cluster) == []
    await reassign(cluster, [2, 0])
    cluster.broker.log_table.remove_topic("t")
    assert await ongoing(cluster) == []


async def test_impossible_moves_are_refused(cluster: FakeCluster) -> None:
    assert await reassign(cluster, [0, 7]) == BAD_ASSIGNMENT
    assert await reassign(cluster, []) == BAD_ASSIGNMENT
    assert await reassign(cluster, [0], number=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await reassign(cluster, [0], may_change_count=False) == BAD_FACTOR
    assert await reassign(cluster, [0, 1]) == NONE
    assert not cluster.broker.moved, "they are there already"
    assert await reassign(cluster, [0]) == NONE
    assert await reassign(cluster, [0, 1]) == NONE
    assert [replicas for _, replicas in cluster.broker.moved] == [(OWN,), (OWN, SECOND)]
