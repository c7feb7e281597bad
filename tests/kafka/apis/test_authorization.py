"""Who may call which API of Kafka, on what: a table written from the documentation, and the broker held against it.

Each row is called in each version that the broker offers. The user has exactly what the row needs, then everything but
one part of that, also under names that look alike. All calls are on one connection, so a permission that was taken away
is missed there at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import pytest

from dafka.batches import encode_batch
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.config import Config
from dafka.kafka.apis import OFFERED
from dafka.kafka.apis.shared.registry import AUTHORIZATIONS, HANDLERS
from dafka.kafka.protocol.apis import REQUESTS, RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import decode_response
from dafka.kafka.protocol.tables import NIL
from tests.kafka.apis.door import Client, Door, Log, build, logs_in, of_logs, open_door, plain
from tests.kafka.apis.fake_cluster import OWN, THIRD, FakeCluster

KINDS = ("read", "write", "admin", "groups", "transactions")
EVERYTHING = Permissions(*[("*",)] * 5)
NOTHING = Permissions()

Values = dict[str, Any]


class Names(NamedTuple):
    topic: str
    group: str
    transaction: str


# All have the same length, so that answers about them can be compared.
EXISTING = Names("topic-1", "group-1", "trans-1")
ABSENT = Names("topic-9", "group-9", "trans-9")
BESIDE = Names("besides", "besideg", "besidex")


class Need(NamedTuple):
    """One of these permissions for a resource that a call names: a field of `Names`, or the cluster."""

    permissions: tuple[str, ...]
    resource: str
    error: ErrorCode

    def name_in(self, names: Names) -> str:
        return "*" if self.resource == "cluster" else str(getattr(names, self.resource))


READ = Need(("read",), "topic", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
WRITE = Need(("write",), "topic", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
ADMIN = Need(("admin",), "topic", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
SEE = Need(("read", "write", "admin"), "topic", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
GROUP = Need(("groups",), "group", ErrorCode.GROUP_AUTHORIZATION_FAILED)
TRANSACTION = Need(("transactions",), "transaction", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
CLUSTER = Need(("admin",), "cluster", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
REFUSALS = {each.error for each in (READ, GROUP, TRANSACTION, CLUSTER)}


class Each(NamedTuple):
    """A list that has an item for each of the names of a call."""

    item: Any


def fill(template: Any, names: list[Names]) -> Any:
    """Return a template with names instead of the fields of `Names`, which begin with a dot."""
    if isinstance(template, Each):
        return [fill(template.item, [each]) for each in names]
    if isinstance(template, dict):
        return {key: fill(each, names) for key, each in template.items()}
    if isinstance(template, list):
        return [fill(each, names) for each in template]
    return getattr(names[0], template[1:]) if isinstance(template, str) and template.startswith(".") else template


def versions(first: int, last: int) -> range:
    return range(first, last + 1)


class Call(NamedTuple):
    """A row: a request with what it names, and what a user needs for it. The first missing need is answered.

    Attributes:
        granted: The names that may be used without spoiling anything when it is permitted.
        silent: The versions whose response has no place for the error: it is empty.
        is_atomic: Whether all resources are permitted or none, though the request can name several.
        needs_session: Whether only a member with a share session learns which topics exist, and which it may read.
    """

    api: ApiKey
    versions: range
    needs: tuple[Need, ...]
    template: Values
    granted: Names = EXISTING
    silent: range = range(0)
    is_atomic: bool = False
    needs_session: bool = False

    def values(self, names: list[Names]) -> Values:
        found: Values = fill(self.template, names)
        return found

    def error_without(self, need: Need) -> ErrorCode:
        """Return the answer to a user without a need."""
        is_untold = self.needs_session and need.resource == "topic"
        return ErrorCode.SHARE_SESSION_NOT_FOUND if is_untold else need.error

    @property
    def is_list(self) -> bool:
        """Whether the request can name several resources of the last need, which are decided one by one."""
        return not self.is_atomic and self.values([EXISTING, BESIDE]) != self.values([EXISTING])


def row(called: str, needs: tuple[Need, ...], template: Values, **others: Any) -> Call:
    """Return a row for an API and its versions, such as `FETCH 0-12`."""
    api, _, several = called.partition(" ")
    first, last = map(int, several.split("-"))
    return Call(ApiKey[api], versions(first, last), needs, template, **others)


def topics(key: str = "topics", name: str = "name", **fields: Any) -> Values:
    return {key: Each({name: ".topic", **fields})}


def part(**fields: Any) -> Values:
    return {"partitions": [fields]}


def resources(**fields: Any) -> Values:
    return {"resources": Each({"resource_type": TOPIC_TYPE, "resource_name": ".topic", **fields})}


def of_groups(**fields: Any) -> Values:
    return {"resources": Each({"resource_type": GROUP_TYPE, "resource_name": ".group", **fields})}


def of_broker(**fields: Any) -> Values:
    return {"resources": [{"resource_type": BROKER_TYPE, "resource_name": "0", **fields}]}


TOPIC_TYPE, BROKER_TYPE, GROUP_TYPE = 2, 4, 32
RECORDS = [{"index": 0, "records": encode_batch(0, [b"x"], timestamps=1)}]
PRODUCED = {**topics("topic_data", partition_data=RECORDS), "acks": -1, "timeout_ms": 10**4}
FETCHED = topics(name="topic", **part(partition=0, fetch_offset=0, partition_max_bytes=10**6))
IN_GROUP, IN_TRANSACTION = {"group_id": ".group"}, {"transactional_id": ".transaction"}
COMMITTED = IN_GROUP | topics(**part(partition_index=0, committed_offset=0, committed_metadata=""))
INDEXES = topics(partition_indexes=[0])
PRODUCER = {**IN_TRANSACTION, "producer_id": 7, "producer_epoch": 0}
ADDED = {f"v3_and_below_{key}": each for key, each in (PRODUCER | topics(partitions=[0])).items()}
METRICS = {
    "client_instance_id": uuid.UUID(int=7),
    "subscription_id": 1,
    "terminating": False,
    "compression_type": 0,
    "metrics": b"",
}
CREATED = topics(num_partitions=1, replication_factor=1, assignments=[], configs=[])
SETTING = [{"name": "retention.ms", "value": "60000"}]
CHANGE = [{"name": "retention.ms", "value": "60000", "config_operation": 0}]
PROTOCOLS = {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
MEMBER = {**IN_GROUP, "generation_id": 1, "member_id": "m"}
AUTHORIZED = {"include_authorized_operations": False}
JOINED = {
    **IN_GROUP,
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1000,
    "subscribed_topic_names": Each(".topic"),
    "topic_partitions": [],
}
ACL = {
    "resource_type": TOPIC_TYPE,
    "resource_name": "t",
    "principal": "User:nobody",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ACL_FILTER = {
    "resource_type_filter": TOPIC_TYPE,
    "resource_name_filter": "unused",
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
SALTED = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}
QUOTA = {
    "entries": [
        {
            "entity": [{"entity_type": "user", "entity_name": "nobody"}],
            "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
        }
    ],
    "validate_only": False,
}
CREDENTIALS: Values = {"deletions": [], "upsertions": [{"name": "nobody", **SALTED}]}
SHARED = {**IN_GROUP, "member_id": "m", "member_epoch": 0, "subscribed_topic_names": Each(".topic")}
SHARING = EXISTING._replace(group="share-1")
SHARES = IN_GROUP | {"member_id": "m", "forgotten_topics_data": []}
BEGUN = {"share_session_epoch": 0, "max_wait_ms": 0, "min_bytes": 1, "max_records": 1, "batch_size": 1}
ACCEPTED = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
ACKNOWLEDGED = {
    **IN_GROUP,
    "member_id": "without a session",
    "share_session_epoch": 1,
    **topics(**part(partition_index=0, acknowledgement_batches=ACCEPTED)),
}
LEVEL = {"feature": "metadata.version", "max_version_level": 1}
SOON, DONE = {"timeout_ms": 1000}, {"validate_only": False}

CALLS = [
    row("PRODUCE 0-12", (WRITE,), PRODUCED),
    row("PRODUCE 3-12", (TRANSACTION, WRITE), PRODUCED | IN_TRANSACTION),
    row("FETCH 0-12", (READ,), {**FETCHED, "max_wait_ms": 10**7, "min_bytes": 1}),
    row("LIST_OFFSETS 1-11", (SEE,), {**topics(**part(partition_index=0, timestamp=-1)), "replica_id": -1}),
    row("METADATA 0-13", (SEE,), topics()),
    row("OFFSET_COMMIT 1-9", (GROUP, READ), COMMITTED),
    row("OFFSET_FETCH 1-7", (GROUP, SEE), IN_GROUP | INDEXES),
    row("OFFSET_FETCH 8-9", (GROUP, SEE), {"groups": [IN_GROUP | INDEXES]}),
    row("OFFSET_FETCH 2-7", (GROUP,), {**IN_GROUP, "topics": None}),
    row("OFFSET_FETCH 8-9", (GROUP,), {"groups": Each({**IN_GROUP, "topics": None})}),
    row("FIND_COORDINATOR 0-3", (GROUP,), {"key": ".group", "key_type": 0}),
    row("FIND_COORDINATOR 4-6", (GROUP,), {"coordinator_keys": Each(".group"), "key_type": 0}),
    row("FIND_COORDINATOR 6-6", (GROUP,), {"coordinator_keys": Each(".group"), "key_type": 2}),
    row("FIND_COORDINATOR 1-3", (TRANSACTION,), {"key": ".transaction", "key_type": 1}),
    row("FIND_COORDINATOR 4-6", (TRANSACTION,), {"coordinator_keys": Each(".transaction"), "key_type": 1}),
    row("JOIN_GROUP 0-9", (GROUP,), {**IN_GROUP, "member_id": "", "session_timeout_ms": 1, **PROTOCOLS}),
    row("HEARTBEAT 0-4", (GROUP,), MEMBER),
    row("LEAVE_GROUP 0-2", (GROUP,), {**IN_GROUP, "member_id": "m"}),
    row("LEAVE_GROUP 3-5", (GROUP,), {**IN_GROUP, "members": [{"member_id": "m"}]}),
    row("SYNC_GROUP 0-5", (GROUP,), {**MEMBER, "assignments": []}),
    row("DESCRIBE_GROUPS 0-6", (GROUP,), {"groups": Each(".group")}),
    row(
        "CONSUMER_GROUP_HEARTBEAT 0-1", (GROUP, READ), JOINED, granted=ABSENT._replace(topic="topic-1"), is_atomic=True
    ),
    row("CONSUMER_GROUP_DESCRIBE 0-1", (GROUP,), {"group_ids": Each(".group"), **AUTHORIZED}),
    row("SHARE_GROUP_HEARTBEAT 1-1", (GROUP, READ), SHARED, granted=SHARING, is_atomic=True),
    row("SHARE_GROUP_DESCRIBE 1-1", (GROUP,), {"group_ids": Each(".group"), **AUTHORIZED}),
    row(
        "DESCRIBE_SHARE_GROUP_OFFSETS 0-1",
        (GROUP, SEE),
        {"groups": [IN_GROUP | topics(name="topic_name", partitions=[0])]},
        granted=SHARING,
    ),
    row(
        "ALTER_SHARE_GROUP_OFFSETS 0-0",
        (GROUP, READ),
        IN_GROUP | topics(name="topic_name", **part(partition_index=0, start_offset=0)),
    ),
    row("DELETE_SHARE_GROUP_OFFSETS 0-0", (GROUP, READ), IN_GROUP | topics(name="topic_name")),
    row("DELETE_GROUPS 0-2", (GROUP,), {"groups_names": Each(".group")}, granted=ABSENT),
    row(
        "OFFSET_DELETE 0-0",
        (GROUP, READ),
        IN_GROUP | topics(**part(partition_index=0)),
        granted=EXISTING._replace(topic="topic-9"),
    ),
    row("CREATE_TOPICS 0-7", (ADMIN,), CREATED),
    row("DELETE_TOPICS 0-5", (ADMIN,), {"topic_names": Each(".topic"), **SOON}, granted=ABSENT),
    row("DELETE_TOPICS 6-6", (ADMIN,), topics(topic_id=NIL) | SOON, granted=ABSENT),
    row("DELETE_RECORDS 0-2", (ADMIN,), topics(**part(partition_index=0, offset=-1)) | SOON, granted=ABSENT),
    row("CREATE_PARTITIONS 0-3", (ADMIN,), topics(count=3, assignments=None) | SOON | DONE, granted=ABSENT),
    row("DESCRIBE_CONFIGS 0-4", (SEE,), resources(configuration_keys=None)),
    row("DESCRIBE_CONFIGS 0-4", (CLUSTER,), of_broker(configuration_keys=None)),
    row("DESCRIBE_CONFIGS 0-4", (GROUP,), of_groups(configuration_keys=None)),
    row("ALTER_CONFIGS 0-2", (GROUP,), of_groups(configs=[]) | DONE),
    row("INCREMENTAL_ALTER_CONFIGS 0-1", (GROUP,), of_groups(configs=[]) | DONE),
    row("ALTER_CONFIGS 0-2", (ADMIN,), resources(configs=SETTING) | DONE, granted=ABSENT),
    row("ALTER_CONFIGS 0-2", (CLUSTER,), of_broker(configs=SETTING) | DONE),
    row("INCREMENTAL_ALTER_CONFIGS 0-1", (ADMIN,), resources(configs=CHANGE) | DONE, granted=ABSENT),
    row("INCREMENTAL_ALTER_CONFIGS 0-1", (CLUSTER,), of_broker(configs=CHANGE) | DONE),
    row("ALTER_PARTITION_REASSIGNMENTS 0-1", (ADMIN,), topics(**part(partition_index=0, replicas=[0]))),
    row("ELECT_LEADERS 0-2", (ADMIN,), topics("topic_partitions", "topic", partitions=[0])),
    row("ELECT_LEADERS 0-2", (CLUSTER,), {"topic_partitions": None}, silent=versions(0, 0)),
    row("DESCRIBE_LOG_DIRS 0-5", (CLUSTER,), {"topics": None}, silent=versions(0, 2)),
    row("DESCRIBE_QUORUM 0-2", (CLUSTER,), {"topics": []}),
    row("UPDATE_FEATURES 0-2", (CLUSTER,), {"feature_updates": [LEVEL], **SOON}),
    row("UNREGISTER_BROKER 0-0", (CLUSTER,), {"broker_id": 7}),
    row("OFFSET_FOR_LEADER_EPOCH 0-4", (SEE,), topics(name="topic", **part(partition=0, leader_epoch=0))),
    row("INIT_PRODUCER_ID 0-5", (TRANSACTION,), {**IN_TRANSACTION, "transaction_timeout_ms": 1000}),
    row("ADD_OFFSETS_TO_TXN 0-4", (TRANSACTION, GROUP), PRODUCER | IN_GROUP),
    row("END_TXN 0-5", (TRANSACTION,), {**PRODUCER, "committed": True}),
    row("TXN_OFFSET_COMMIT 0-5", (TRANSACTION, GROUP, READ), COMMITTED | PRODUCER),
    row("ADD_PARTITIONS_TO_TXN 0-3", (TRANSACTION, WRITE), ADDED, is_atomic=True),
    row("DESCRIBE_PRODUCERS 0-0", (READ,), INDEXES),
    row("DESCRIBE_TRANSACTIONS 0-0", (TRANSACTION,), {"transactional_ids": Each(".transaction")}),
    row("DESCRIBE_TOPIC_PARTITIONS 0-0", (SEE,), topics()),
    row("DESCRIBE_ACLS 0-3", (CLUSTER,), ACL_FILTER),
    row("CREATE_ACLS 0-3", (CLUSTER,), {"creations": [ACL]}),
    row("DELETE_ACLS 0-3", (CLUSTER,), {"filters": [ACL_FILTER]}),
    row("DESCRIBE_CLIENT_QUOTAS 0-1", (CLUSTER,), {"components": [], "strict": False}),
    row("ALTER_CLIENT_QUOTAS 0-1", (CLUSTER,), QUOTA),
    row("DESCRIBE_USER_SCRAM_CREDENTIALS 0-0", (CLUSTER,), {"users": None}),
    row("ALTER_USER_SCRAM_CREDENTIALS 0-0", (CLUSTER,), CREDENTIALS),
]

BY_ID = [
    row("PRODUCE 13-13", (WRITE,), PRODUCED),
    row("PRODUCE 13-13", (TRANSACTION, WRITE), PRODUCED | IN_TRANSACTION),
    row("FETCH 13-18", (READ,), {**FETCHED, "max_wait_ms": 10**7, "min_bytes": 1}),
    row("SHARE_FETCH 1-2", (GROUP, READ), SHARES | BEGUN | topics(**part(partition_index=0))),
    row("SHARE_ACKNOWLEDGE 1-2", (GROUP, READ), ACKNOWLEDGED, needs_session=True),
    row("OFFSET_COMMIT 10-10", (GROUP, READ), COMMITTED),
    row("OFFSET_FETCH 10-10", (GROUP, SEE), {"groups": [IN_GROUP | INDEXES]}),
    row("OFFSET_FETCH 10-10", (GROUP,), {"groups": Each({**IN_GROUP, "topics": None})}),
]
"""Requests that name topics by id."""


class Listing(NamedTuple):
    """A row: a request that everybody may send, and whose response leaves out what a user may not see."""

    api: ApiKey
    versions: range
    need: Need
    values: Values


LISTINGS = [
    Listing(ApiKey.METADATA, versions(0, 0), SEE, {"topics": []}),
    Listing(ApiKey.METADATA, versions(1, 13), SEE, {"topics": None}),
    Listing(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions(0, 0), SEE, {"topics": []}),
    Listing(ApiKey.LIST_CONFIG_RESOURCES, versions(1, 1), SEE, {}),
    Listing(ApiKey.LIST_GROUPS, versions(0, 5), GROUP, {}),
    Listing(ApiKey.LIST_TRANSACTIONS, versions(0, 2), TRANSACTION, {"state_filters": [], "producer_id_filters": []}),
]

FOR_EVERYBODY: dict[ApiKey, tuple[range, Values]] = {
    ApiKey.DESCRIBE_CLUSTER: (versions(0, 2), {"include_cluster_authorized_operations": False}),
    # There are no metrics of clients, so that nothing is listed in version 0.
    ApiKey.LIST_CONFIG_RESOURCES: (versions(0, 0), {}),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (versions(0, 0), {"topics": None}),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (versions(0, 0), {"client_instance_id": NIL}),
    ApiKey.PUSH_TELEMETRY: (versions(0, 0), METRICS),
    ApiKey.API_VERSIONS: (versions(0, 4), {"client_software_name": "x", "client_software_version": "1.0"}),
}
BEFORE_LOGIN = {
    ApiKey.API_VERSIONS: versions(0, 4),
    ApiKey.SASL_HANDSHAKE: versions(0, 1),
    ApiKey.SASL_AUTHENTICATE: versions(0, 2),
}


def test_every_api_and_version_is_in_the_table() -> None:
    rows = [(each.api, each.versions) for each in (*CALLS, *BY_ID)] + [(each.api, each.versions) for each in LISTINGS]
    rows += [(api, each) for api, (each, _) in FOR_EVERYBODY.items()] + list(BEFORE_LOGIN.items())
    written = {(api, version) for api, several in rows for version in several}
    offered = {(key, version) for key, each in OFFERED.items() for version in versions(each.first, each.last)}
    assert written == offered
    assert AUTHORIZATIONS.keys() == {ApiKey(key) for key in OFFERED} - BEFORE_LOGIN.keys()
    assert HANDLERS.keys() == AUTHORIZATIONS.keys() - {ApiKey.PRODUCE}


def create_existing(client: Client) -> None:
    """Create the topics, groups and transactional ids that exist from the beginning."""
    wanted = {ApiKey.CREATE_TOPICS: 4, ApiKey.PRODUCE: 7, ApiKey.OFFSET_COMMIT: 5, ApiKey.INIT_PRODUCER_ID: 1}
    calls = {each.api: each for each in first_calls()}
    for names, (api, version) in product((EXISTING, BESIDE), wanted.items()):
        assert errors_in(client.ask(api, version, **calls[api].values([names]))) == set()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    path = tmp_path_factory.mktemp("door") / "users"
    # A connection that should have ended would stay open for a while.
    config = Config().with_kafka(auto_create_topics="off").with_clients(login_ms=600_000)
    with open_door(config, users=path) as found:
        yield found


@pytest.fixture(scope="module")
def client(door: Door) -> Iterator[Client]:
    """A connection of a user whose permissions change; with what exists already."""
    door.permit(anne=EVERYTHING)
    with door.connect("anne") as found:
        create_existing(found)
        yield found


def errors_in(answer: Any) -> set[int]:
    """Return all error codes in a response that are not `NONE`."""
    found: set[int] = set()
    if isinstance(answer, dict):
        for name, value in answer.items():
            found |= {value} - {ErrorCode.NONE} if name.endswith("error_code") else errors_in(value)
    elif isinstance(answer, list):
        found = set().union(*map(errors_in, answer))
    return found


NOTHING_TOLD = {
    **dict.fromkeys(("base_offset", "high_watermark", "low_watermark", "committed_offset", "offset", "end_offset"), -1),
    **dict.fromkeys(("producer_id", "producer_epoch", "transaction_start_time_ms"), -1),
    "metadata": "",
}
"""The values of fields in answers to what is refused."""

NO_BROKER = {"node_id": -1, "port": -1}
"""The same, in the item with the error."""


def told_in(answer: Any) -> set[tuple[str, Any]]:
    """Return what an answer says, of the fields in `NOTHING_TOLD` and `NO_BROKER`."""
    if isinstance(answer, list):
        return set().union(*map(told_in, answer))
    if not isinstance(answer, dict):
        return set()
    names = {*NOTHING_TOLD, *(NO_BROKER if answer.get("error_code") else ())}
    own = {(name, value) for name, value in answer.items() if name in names}
    return own.union(*map(told_in, answer.values()))


def state_of(door: Door) -> Any:
    """Return what requests could have changed."""
    broker = door.broker.broker

    def find() -> Any:
        logs = {
            name: (topic, [(log.index.start_offset, log.index.end_offset) for log in broker.node.logs(name)])
            for name, topic in broker.node.topics.items()
        }
        groups = {
            each.group_id: (each.state, offsets)
            for coordinator in broker.groups.coordinators()
            for each in coordinator.list_groups()
            if (offsets := coordinator.fetch_offsets(each.group_id, None))
        }
        transactions = {each.transactional_id: each.producer_epoch for each in broker.transactions.known()}
        return logs, groups, transactions

    return door.call(find)


def exactly(needs: tuple[Need, ...], chosen: tuple[str, ...], *all_names: Names) -> Permissions:
    """Return nothing but what is needed for names, with the chosen one of the permissions that suffice for each."""
    found: dict[str, tuple[str, ...]] = {}
    for need, permission in zip(needs, chosen, strict=True):
        found[permission] = (*found.get(permission, ()), *(need.name_in(each) for each in all_names))
    return Permissions(**found)


def all_but(need: Need, *all_names: Names) -> Permissions:
    """Return everything but one need, which is permitted for names that look alike."""
    alike: tuple[str, ...] = ("t*", "**", "0")
    if need.resource != "cluster":
        names = [need.name_in(each) for each in all_names]
        alike = tuple(text for each in names for text in (each[:-1], f"{each}x", f"x{each}", each.upper(), f"{each}?*"))
        alike += (need.name_in(BESIDE), "")
    return Permissions(**{kind: alike if kind in need.permissions else ("*",) for kind in KINDS})


def named(rows: list[Any]) -> list[Any]:
    return [pytest.param(row, id=f"{row.api.name}-{number}") for number, row in enumerate(rows)]


@pytest.mark.parametrize("call", named(CALLS))
def test_a_call_needs_each_of_its_permissions_and_no_other(door: Door, client: Client, call: Call) -> None:
    for version, chosen in product(call.versions, product(*(need.permissions for need in call.needs))):
        door.permit(anne=exactly(call.needs, chosen, call.granted))
        frame = client.exchange(call.api, version, **call.values([call.granted]))
        assert not errors_in(plain(decode_response(frame, RESPONSES[call.api], version))) & REFUSALS, version
        assert not call.is_list or call.needs[-1].name_in(call.granted).encode() in frame
    before = state_of(door)
    for need in call.needs:
        door.permit(anne=all_but(need, EXISTING, ABSENT))
        kind = "topic" if need.resource == "cluster" else need.resource
        one, other = getattr(EXISTING, kind), getattr(ABSENT, kind)
        for version in call.versions:
            frames = [
                client.exchange(call.api, version, **call.values([EXISTING._replace(**{kind: name})]))
                for name in (one, other)
            ]
            expected = {need.error} if version not in call.silent else set()
            answer = plain(decode_response(frames[0], RESPONSES[call.api], version))
            assert errors_in(answer) == expected, version
            assert told_in(answer) <= {**NOTHING_TOLD, **NO_BROKER}.items(), version
            assert frames[0].replace(one.encode(), other.encode()) == frames[1], "the answer reveals what exists"
    door.permit(anne=NOTHING)
    for version in call.versions:
        errors = errors_in(client.ask(call.api, version, **call.values([EXISTING])))
        assert errors == ({call.needs[0].error} if version not in call.silent else set()), version
    assert state_of(door) == before


@pytest.mark.parametrize("call", named([each for each in CALLS if each.is_list]))
def test_what_is_refused_beside_what_is_permitted_affects_only_itself(door: Door, client: Client, call: Call) -> None:
    need, granted = call.needs[-1], call.granted
    beside = granted._replace(**{need.resource: need.name_in(BESIDE)})
    door.permit(anne=exactly(call.needs, tuple(each.permissions[0] for each in call.needs), granted))
    before = state_of(door)[0].get(beside.topic)
    for version in call.versions:
        alone = []
        for asked in ([granted], [beside, granted], [granted, beside]):
            items = items_in(client.ask(call.api, version, **call.values(asked)))
            refused = [each for each in items if need.name_in(beside) in each.values()]
            (other,) = (each for each in items if need.name_in(granted) in each.values())
            assert [errors_in(each) for each in refused] == [{need.error}] * (len(asked) - 1), version
            alone.append(errors_in(other))
        assert alone == [alone[0]] * 3
        assert need.error not in alone[0]
    assert state_of(door)[0].get(beside.topic) == before


def identify(values: Any, ids: dict[str, UUID]) -> Any:
    """Return the values of a request with the ids of its topics instead of their names."""
    if isinstance(values, list):
        return [identify(each, ids) for each in values]
    if not isinstance(values, dict):
        return values
    found = {key: identify(each, ids) for key, each in values.items()}
    names = found.keys() & {"name", "topic"}
    return found | {"topic_id": ids[found.pop(names.pop())]} if names else found


def ids_of_topics(door: Door, client: Client) -> dict[str, UUID]:
    door.permit(anne=EVERYTHING)
    return {each["name"]: each["topic_id"] for each in client.ask(ApiKey.METADATA, 12, topics=None)["topics"]}


@pytest.mark.parametrize("call", named(BY_ID))
def test_topic_that_is_named_by_its_id_needs_the_same_permissions(door: Door, client: Client, call: Call) -> None:
    ids = {**ids_of_topics(door, client), ABSENT.topic: UUID(int=1)}

    def errors(version: int, *all_names: Names) -> set[int]:
        return errors_in(client.ask(call.api, version, **identify(call.values([*all_names]), ids)))

    for version in call.versions:
        for chosen in product(*(need.permissions for need in call.needs)):
            door.permit(anne=exactly(call.needs, chosen, EXISTING))
            assert not errors(version, EXISTING) & REFUSALS, version
        before = state_of(door)
        for need in call.needs:
            door.permit(anne=all_but(need, EXISTING))
            assert errors(version, EXISTING) == {call.error_without(need)}, version
            if need.resource == "topic" and not call.needs_session:
                unknown = {ErrorCode.UNKNOWN_TOPIC_ID}
                assert errors(version, EXISTING._replace(topic=ABSENT.topic)) == unknown, version
        assert state_of(door) == before


def items_in(answer: Values) -> list[Values]:
    """Return the items of the lists of a response; those of topics in groups, too."""
    lists = [
        each for name, each in answer.items() if isinstance(each, list) and name not in {"brokers", "node_endpoints"}
    ]
    found = [item for each in lists for item in each]
    inner = [topic for item in found if "group_id" in item for topic in item.get("topics", ())]
    return inner or found


@pytest.mark.parametrize("row", named(LISTINGS))
def test_a_list_shows_what_is_permitted_and_nothing_else(door: Door, client: Client, row: Listing) -> None:
    permitted = [(exactly((row.need,), (each,), EXISTING), (True, False)) for each in row.need.permissions]
    permitted += [(all_but(row.need, EXISTING), (False, True)), (NOTHING, (False, False))]
    for permissions, expected in permitted:
        door.permit(anne=permissions)
        for version in row.versions:
            frame = client.exchange(row.api, version, **row.values)
            shown = tuple(row.need.name_in(each).encode() in frame for each in (EXISTING, BESIDE))
            assert shown == expected, version
            assert not errors_in(plain(decode_response(frame, RESPONSES[row.api], version)))


def test_all_offsets_of_a_group_are_those_of_visible_topics(door: Door, client: Client) -> None:
    group = {"group_id": EXISTING.group, "topics": None}
    shown = (EXISTING.topic.encode(), ids_of_topics(door, client)[EXISTING.topic].bytes)
    permitted = [(exactly((GROUP, SEE), ("groups", each), EXISTING), True) for each in SEE.permissions]
    for permissions, expected in (*permitted, (all_but(SEE, EXISTING), False)):
        door.permit(anne=permissions)
        for version in versions(2, 10):
            frame = client.exchange(ApiKey.OFFSET_FETCH, version, **(group if version < 8 else {"groups": [group]}))
            assert any(each in frame for each in shown) is expected, version


def test_a_pattern_matches_only_topics_that_the_user_may_read_and_groups_hide_them_from_others(
    door: Door, client: Client
) -> None:
    ids = ids_of_topics(door, client)
    api, group = ApiKey.CONSUMER_GROUP_HEARTBEAT, EXISTING._replace(group="patterns").group
    values = {"group_id": group, "member_id": "m", "rebalance_timeout_ms": 1000, "topic_partitions": []}
    readers = Permissions(groups=("*",), read=(EXISTING.topic,), write=("*",), admin=("*",))
    door.permit(anne=readers)
    answer = client.ask(api, 1, member_epoch=0, subscribed_topic_regex=".*", **values)
    assert {each["topic_id"] for each in answer["assignment"]["topic_partitions"]} == {ids[EXISTING.topic]}
    door.permit(anne=attrs.evolve(readers, read=(BESIDE.topic, EXISTING.topic)))
    stays = {"group_id": group, "member_id": "m", "rebalance_timeout_ms": -1, "topic_partitions": None}
    answer = client.ask(api, 1, member_epoch=answer["member_epoch"], **stays)
    found = {each["topic_id"] for each in answer["assignment"]["topic_partitions"]}
    assert found == {ids[EXISTING.topic], ids[BESIDE.topic]}, "permissions have changed, but no topic"
    described = {}
    for user in (readers, Permissions(groups=("*",), read=(BESIDE.topic,))):
        door.permit(anne=user)
        (found,) = client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group], **AUTHORIZED)["groups"]
        described[found["error_code"]] = [each["member_id"] for each in found["members"]]
    assert described == {ErrorCode.NONE: ["m"], SEE.error: []}
    client.ask(api, 1, **values | {"member_epoch": -1})


@pytest.mark.parametrize("api", FOR_EVERYBODY)
def test_what_is_for_everybody_needs_no_permission(door: Door, client: Client, api: ApiKey) -> None:
    door.permit(anne=NOTHING)
    several, values = FOR_EVERYBODY[api]
    for version in several:
        assert errors_in(client.ask(api, version, **values)) == set()


def test_settings_of_brokers_are_listed_to_administrators(door: Door, client: Client) -> None:
    for permissions, expected in ((all_but(CLUSTER), False), (exactly((CLUSTER,), ("admin",), EXISTING), True)):
        door.permit(anne=permissions)
        found = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[BROKER_TYPE])
        assert bool(found["config_resources"]) is expected


async def test_moves_are_listed_of_visible_topics() -> None:
    cluster = FakeCluster()
    await cluster.broker.change_replicas(cluster.log, (OWN, THIRD))
    context = cluster.client(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0)
    request = build(REQUESTS[ApiKey.LIST_PARTITION_REASSIGNMENTS], {"topics": None})
    shown = []
    for user in (*(Permissions(**{each: ("t",)}) for each in KINDS), all_but(SEE, EXISTING._replace(topic="t"))):
        patch = AUTHORIZATIONS[request.API_KEY](user, context, request)
        response = await HANDLERS[request.API_KEY](context, request)
        assert callable(patch)
        patch(response)
        shown.append(len(plain(response)["topics"]))
    assert shown == [1, 1, 1, 0, 0, 0]


def test_idempotence_needs_the_permission_to_write_anywhere(door: Door, client: Client) -> None:
    values = {"transactional_id": None, "transaction_timeout_ms": 1000}
    for permissions, expected in (
        (Permissions(write=("unrelated",)), set[ErrorCode]()),
        (Permissions(**{kind: ("*",) for kind in KINDS if kind != "write"}), {CLUSTER.error}),
    ):
        door.permit(anne=permissions)
        for version in versions(0, 5):
            assert errors_in(client.ask(ApiKey.INIT_PRODUCER_ID, version, **values)) == expected


def test_a_transaction_gets_all_of_its_topics_or_none(door: Door, client: Client) -> None:
    call = next(each for each in CALLS if each.api is ApiKey.ADD_PARTITIONS_TO_TXN)
    door.permit(anne=exactly(call.needs, ("transactions", "write"), EXISTING))
    for version in call.versions:
        answer = client.ask(call.api, version, **call.values([EXISTING, BESIDE]))
        found = {each["name"]: errors_in(each) for each in answer["results_by_topic_v3_and_below"]}
        assert found == {EXISTING.topic: {ErrorCode.OPERATION_NOT_ATTEMPTED}, BESIDE.topic: {WRITE.error}}


def test_topic_that_is_asked_by_an_id_is_hidden_like_one_that_does_not_exist(door: Door, client: Client) -> None:
    topic_id = ids_of_topics(door, client)[EXISTING.topic]
    other_id = type(topic_id)(int=topic_id.int ^ 1)
    before = state_of(door)
    door.permit(anne=all_but(SEE, EXISTING))
    for version in versions(12, 13):
        frames = [
            client.exchange(ApiKey.METADATA, version, topics=[{"topic_id": each, "name": None}])
            for each in (topic_id, other_id)
        ]
        assert frames[0].replace(topic_id.bytes, other_id.bytes) == frames[1]
        assert EXISTING.topic.encode() not in frames[0]
    door.permit(anne=all_but(ADMIN, EXISTING))
    for each, error in ((topic_id, ADMIN.error), (other_id, ErrorCode.UNKNOWN_TOPIC_ID)):
        values = {"topics": [{"name": None, "topic_id": each}], "timeout_ms": 1000}
        assert errors_in(client.ask(ApiKey.DELETE_TOPICS, 6, **values)) == {error}
    assert state_of(door) == before


def first_calls() -> list[Call]:
    return list({each.api: each for each in reversed(CALLS)}.values())


def test_topic_is_created_by_asking_only_for_those_who_may_write_to_it_or_administer_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with open_door(users=tmp_path_factory.mktemp("creating") / "users") as door:
        door.permit(anne=NOTHING)
        with door.connect("anne") as client:
            for number, (kinds, is_created) in enumerate(
                [(("read",), False), (("groups", "transactions"), False), (("write",), True), (("admin",), True)]
            ):
                for version in (3, 13):
                    name = f"new-{number}-{version}"
                    door.permit(anne=Permissions(**dict.fromkeys(kinds, (name,))))
                    client.ask(ApiKey.METADATA, version, topics=[{"name": name}])
                    assert (name in state_of(door)[0]) is is_created
            door.permit(anne=Permissions(write=("mine",), read=("theirs",)))
            client.ask(ApiKey.METADATA, 13, topics=[{"name": "mine"}, {"name": "theirs"}])
            assert "theirs" not in state_of(door)[0]


def fetch(client: Client, *all_names: Names, version: int = 11, **session: int) -> tuple[Values, Values]:
    """Return the response to Fetch; and from it the error of each log, and whether it has records."""
    logs: dict[Log, Values] = {(each.topic, 0): {} for each in all_names}
    answer = client.ask(ApiKey.FETCH, version, **of_logs(ApiKey.FETCH, logs, min_bytes=10**6, **session))
    found = logs_in(ApiKey.FETCH, answer)
    return answer, {topic: (each["error_code"], bool(each["records"])) for (topic, _), each in found.items()}


GRANTED, REFUSED = (ErrorCode.NONE, True), (READ.error, False)


def test_fetch_with_a_refused_topic_does_not_wait_for_records(door: Door, client: Client) -> None:
    door.permit(anne=exactly((READ,), ("read",), EXISTING))
    _, found = fetch(client, BESIDE, EXISTING, version=4, max_wait_ms=10**7)
    assert found == {EXISTING.topic: GRANTED, BESIDE.topic: REFUSED}


def test_session_of_fetches_has_only_what_is_permitted_at_each_request(door: Door, client: Client) -> None:
    door.permit(anne=EVERYTHING)
    other = fetch(client, BESIDE, session_epoch=0)[0]["session_id"]
    door.permit(anne=exactly((READ,), ("read",), EXISTING))
    assert fetch(client, EXISTING, BESIDE, session_epoch=0)[0]["session_id"] == 0
    begun = fetch(client, EXISTING, session_epoch=0)[0]["session_id"]
    assert begun > 0
    added, _ = fetch(client, BESIDE, session_epoch=1, session_id=begun)
    assert (added["error_code"], added["responses"]) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    _, found = fetch(client, session_epoch=1, session_id=other)
    assert found == {BESIDE.topic: REFUSED}, "the session is somebody else's"
    assert fetch(client, session_epoch=1, session_id=begun)[1] == {EXISTING.topic: GRANTED}
    door.permit(anne=exactly((READ,), ("read",), BESIDE))
    _, found = fetch(client, session_epoch=2, session_id=begun)
    assert found == {EXISTING.topic: REFUSED}, "the permission was taken away"
