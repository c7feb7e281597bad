"""Which ACLs each API of Kafka needs: operations written from Kafka's documentation, and the broker held against them.

The calls are those of the table of permissions. The user has no permission in the file, exactly the ACLs that a call
needs, everything but one of them, or all of them with a denial. All calls are on one connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from dafka import Config
from dafka.batches import encode_batch
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    AclEffect,
    Operation,
    PatternType,
    ResourceType,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import Command, CreateAcls, DeleteAcls
from dafka.kafka.protocol.apis import RESPONSES
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import decode_response
from tests.kafka.apis.door import Client, Door, logs_in, of_logs, open_door, plain
from tests.kafka.apis.test_authorization import (
    ADMIN,
    BESIDE,
    BY_ID,
    CALLS,
    CLUSTER,
    EVERYTHING,
    EXISTING,
    GROUP,
    LISTINGS,
    NOTHING,
    READ,
    REFUSALS,
    SEE,
    TRANSACTION,
    WRITE,
    Call,
    Listing,
    Names,
    Need,
    create_existing,
    errors_in,
    identify,
    named,
    state_of,
)
from tests.waiting import poll_until

TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transaction": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.CLUSTER,
}
USUAL = {
    READ: Operation.READ,
    WRITE: Operation.WRITE,
    SEE: Operation.DESCRIBE,
    GROUP: Operation.READ,
    TRANSACTION: Operation.WRITE,
}
"""The operation of each need, unless its API is among the others."""

OTHERS: dict[tuple[Need, Operation], set[str]] = {
    (GROUP, Operation.DESCRIBE): {
        "OFFSET_FETCH",
        "FIND_COORDINATOR",
        "DESCRIBE_GROUPS",
        "CONSUMER_GROUP_DESCRIBE",
        "SHARE_GROUP_DESCRIBE",
        "DESCRIBE_SHARE_GROUP_OFFSETS",
        "LIST_GROUPS",
    },
    (GROUP, Operation.DESCRIBE_CONFIGS): {"DESCRIBE_CONFIGS"},
    (GROUP, Operation.ALTER_CONFIGS): {"ALTER_CONFIGS", "INCREMENTAL_ALTER_CONFIGS"},
    (GROUP, Operation.DELETE): {"DELETE_GROUPS", "OFFSET_DELETE", "DELETE_SHARE_GROUP_OFFSETS"},
    (TRANSACTION, Operation.DESCRIBE): {"FIND_COORDINATOR", "DESCRIBE_TRANSACTIONS", "LIST_TRANSACTIONS"},
    (SEE, Operation.DESCRIBE_CONFIGS): {"DESCRIBE_CONFIGS", "LIST_CONFIG_RESOURCES"},
    (ADMIN, Operation.CREATE): {"CREATE_TOPICS"},
    (ADMIN, Operation.DELETE): {"DELETE_TOPICS", "DELETE_RECORDS"},
    (ADMIN, Operation.ALTER): {"CREATE_PARTITIONS", "ALTER_PARTITION_REASSIGNMENTS", "ELECT_LEADERS"},
    (ADMIN, Operation.ALTER_CONFIGS): {"ALTER_CONFIGS", "INCREMENTAL_ALTER_CONFIGS"},
    (CLUSTER, Operation.ALTER): {
        "ELECT_LEADERS",
        "UPDATE_FEATURES",
        "UNREGISTER_BROKER",
        "CREATE_ACLS",
        "DELETE_ACLS",
        "ALTER_USER_SCRAM_CREDENTIALS",
    },
    (CLUSTER, Operation.DESCRIBE): {
        "DESCRIBE_LOG_DIRS",
        "DESCRIBE_ACLS",
        "DESCRIBE_USER_SCRAM_CREDENTIALS",
        "DESCRIBE_QUORUM",
    },
    (CLUSTER, Operation.DESCRIBE_CONFIGS): {"DESCRIBE_CONFIGS", "DESCRIBE_CLIENT_QUOTAS"},
    (CLUSTER, Operation.ALTER_CONFIGS): {"ALTER_CONFIGS", "INCREMENTAL_ALTER_CONFIGS", "ALTER_CLIENT_QUOTAS"},
}
OF_THE_CLUSTER = {"ALTER_PARTITION_REASSIGNMENTS", "ELECT_LEADERS"}
"""APIs that change topics, and need the operation on the cluster. `admin` of the file is enough for its topics."""

SUFFICIENT = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
"""The operations that imply another one."""


def needed(api: ApiKey, need: Need, names: Names) -> Acl:
    """Return the ACL that a need of an API is."""
    found = [operation for (other, operation), several in OTHERS.items() if other is need and api.name in several]
    operation = found[0] if found else USUAL[need]
    kind = TYPES[need.resource]
    if need is ADMIN and api.name in OF_THE_CLUSTER:
        kind = ResourceType.CLUSTER
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else need.name_in(names)
    return Acl(kind, name, "User:anne", operation)


def everything_but(acl: Acl) -> list[Acl]:
    """Return all operations on everything, but what suffices for an ACL; that, for names that look alike."""
    found = []
    missing = {acl.operation, *SUFFICIENT.get(acl.operation, ())}
    # What the cluster has counts for topics, too.
    creation = (ResourceType.CLUSTER, Operation.CREATE) if acl.operation is Operation.CREATE else None
    for kind in TYPES.values():
        for operation in OPERATIONS:
            is_missing = (kind is acl.resource_type and operation in missing) or (kind, operation) == creation
            if not is_missing:
                name = CLUSTER_NAME if kind is ResourceType.CLUSTER else "*"
                found.append(Acl(kind, name, "User:anne", operation))
    if acl.resource_type is not ResourceType.CLUSTER:
        alike = (acl.name[:-1], f"{acl.name}x", f"x{acl.name}", acl.name.upper(), BESIDE.topic, BESIDE.group)
        found += [attrs.evolve(acl, operation=Operation.ALL, name=each) for each in alike]
        found.append(attrs.evolve(acl, name=f"{acl.name}x", pattern_type=PatternType.PREFIXED))
    found.append(attrs.evolve(acl, host="10.0.0.1"))
    found.append(attrs.evolve(acl, principal="User:ann"))
    return found


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    path = tmp_path_factory.mktemp("door") / "users"
    config = Config().with_kafka(auto_create_topics="off").with_clients(login_ms=600_000)
    with open_door(config, users=path) as found:
        yield found


@pytest.fixture(scope="module")
def client(door: Door) -> Iterator[Client]:
    door.permit(anne=EVERYTHING)
    with door.connect("anne") as found:
        create_existing(found)
        door.permit(anne=NOTHING)
        yield found


def change(door: Door, command: Command) -> None:
    door.call_async(door.broker.node.admin.change, command)


def stand(door: Door, *acls: Acl) -> None:
    """Have exactly these ACLs in the cluster."""
    present = {*door.broker.node.tables.state.access.list_acls()}
    if present - {*acls}:
        change(door, DeleteAcls(tuple(present - {*acls})))
    if {*acls} - present:
        change(door, CreateAcls(tuple({*acls} - present)))


def errors(client: Client, call: Call, *, by_id: dict[str, Any] | None = None, names: Names | None = None) -> set[int]:
    values = call.values([names or call.granted])
    return errors_in(client.ask(call.api, call.versions[-1], **(values if by_id is None else identify(values, by_id))))


@pytest.mark.parametrize("call", named([*CALLS, *BY_ID]))
def test_a_call_needs_each_of_its_acls_and_no_other(door: Door, client: Client, call: Call) -> None:
    ids = None
    if call in BY_ID:
        stand(door, Acl(ResourceType.TOPIC, "*", "User:anne", Operation.DESCRIBE))
        ids = {each["name"]: each["topic_id"] for each in client.ask(ApiKey.METADATA, 12, topics=None)["topics"]}
    acls = [needed(call.api, need, call.granted) for need in call.needs]
    stand(door, *acls)
    assert not errors(client, call, by_id=ids) & REFUSALS
    acls = [needed(call.api, need, EXISTING) for need in call.needs]
    before = state_of(door)
    for acl, need in zip(acls, call.needs, strict=True):
        stand(door, *everything_but(acl))
        assert errors(client, call, by_id=ids, names=EXISTING) == {call.error_without(need)}
        for denial in (attrs.evolve(acl, effect=AclEffect.DENY), deny_everything(acl)):
            stand(door, *acls, denial)
            assert errors(client, call, by_id=ids, names=EXISTING) == {call.error_without(need)}
    assert state_of(door) == before
    stand(door)


def deny_everything(acl: Acl) -> Acl:
    """Return a denial of all operations on what an ACL is about, for all users."""
    kind = PatternType.LITERAL if acl.resource_type is ResourceType.CLUSTER else PatternType.PREFIXED
    name = acl.name if acl.resource_type is ResourceType.CLUSTER else acl.name[:3]
    return Acl(acl.resource_type, name, "User:*", Operation.ALL, kind, effect=AclEffect.DENY)


@pytest.mark.parametrize("row", named(LISTINGS))
def test_a_list_shows_what_acls_permit_and_nothing_else(door: Door, client: Client, row: Listing) -> None:
    acl = needed(row.api, row.need, EXISTING)
    everything = attrs.evolve(acl, name="*")
    for acls, expected in (
        ([acl], (True, False)),
        (everything_but(acl), (False, row.need.resource != "transaction")),
        ([everything, attrs.evolve(acl, effect=AclEffect.DENY)], (False, True)),
        ([everything], (True, True)),
        ([], (False, False)),
    ):
        stand(door, *acls)
        frame = client.exchange(row.api, row.versions[-1], **row.values)
        assert tuple(row.need.name_in(each).encode() in frame for each in (EXISTING, BESIDE)) == expected, acls
    stand(door)


def test_permissions_of_the_file_and_acls_add_up(door: Door, client: Client) -> None:
    call = next(each for each in CALLS if each.api is ApiKey.OFFSET_COMMIT)
    door.permit(anne=Permissions(groups=(EXISTING.group,)))
    assert errors(client, call) == {READ.error}
    stand(door, needed(call.api, READ, EXISTING))
    assert not errors(client, call)
    stand(door)
    door.permit(anne=NOTHING)


def test_a_fetch_that_waits_gets_no_records_once_they_may_no_longer_be_read(door: Door, client: Client) -> None:
    log, acl = (EXISTING.topic, 0), Acl(ResourceType.TOPIC, EXISTING.topic, "User:anne", Operation.READ)
    door.permit(anne=NOTHING, root=EVERYTHING)
    stand(door, acl)
    with door.connect("root") as root:
        end = root.ask_logs(ApiKey.LIST_OFFSETS, 5, {log: {"timestamp": -1}})[log]["offset"]
        watchers = door.broker.broker.node.watchers
        before = door.call(len, watchers)
        asked = of_logs(ApiKey.FETCH, {log: {"fetch_offset": end}}, max_wait_ms=10**7)
        client.send(ApiKey.FETCH, 11, **asked)
        poll_until(lambda: door.call(len, watchers) > before)
        stand(door)
        root.append(EXISTING.topic, encode_batch(0, [b"secret"], timestamps=1))
        frame = client.receive()
    assert frame is not None
    found = logs_in(ApiKey.FETCH, plain(decode_response(frame, RESPONSES[ApiKey.FETCH], 11)))[log]
    assert (found["error_code"], b"secret" in frame) == (READ.error, False)
    door.permit(anne=NOTHING)


def test_the_settings_of_a_new_topic_are_answered_to_those_who_may_see_them(door: Door, client: Client) -> None:
    def acl(operation: Operation) -> Acl:
        return Acl(ResourceType.TOPIC, "seen", "User:anne", operation, PatternType.PREFIXED)

    create, describe = acl(Operation.CREATE), acl(Operation.DESCRIBE_CONFIGS)
    asked = {"num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    for name, acls in (("seen-not", [create]), ("seen", [create, describe])):
        stand(door, *acls)
        (found,) = client.ask(ApiKey.CREATE_TOPICS, 7, topics=[{"name": name, **asked}], timeout_ms=60_000)["topics"]
        is_shown = describe in acls
        assert (found["error_code"], bool(found["topic_id"].int)) == (0, True)
        assert found["topic_config_error_code"] == (0 if is_shown else ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        assert (found["num_partitions"], found["replication_factor"]) == ((2, 1) if is_shown else (-1, -1))
        assert bool(found["configs"]) is is_shown
    stand(door, acl(Operation.DELETE))
    client.ask(ApiKey.DELETE_TOPICS, 5, topic_names=["seen", "seen-not"], timeout_ms=60_000)
    stand(door)


def test_topic_is_created_by_asking_only_with_the_acl_to_create_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    with open_door(users=tmp_path_factory.mktemp("creating") / "users") as door:
        door.permit(anne=NOTHING)
        with door.connect("anne") as client:
            for number, (kind, operation, is_created) in enumerate(
                [
                    (ResourceType.TOPIC, Operation.WRITE, False),
                    (ResourceType.TOPIC, Operation.CREATE, True),
                    (ResourceType.CLUSTER, Operation.CREATE, True),
                ]
            ):
                name = f"new-{number}"
                about = CLUSTER_NAME if kind is ResourceType.CLUSTER else name
                describe = Acl(ResourceType.TOPIC, name, "User:anne", Operation.DESCRIBE)
                stand(door, describe, Acl(kind, about, "User:anne", operation))
                client.ask(ApiKey.METADATA, 13, topics=[{"name": name}])
                assert (name in state_of(door)[0]) is is_created
