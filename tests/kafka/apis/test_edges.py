"""What clients rarely send: each edge of an API is answered as Kafka answers it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.shared.authorization import NOT_ASKED, SUPPORTED_OPERATIONS
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, open_door

NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_REQUEST


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door() as found:
        yield found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(users=tmp_path_factory.mktemp("users") / "users.json") as found:
        yield found


@pytest.mark.parametrize("version", range(5))
def test_software_has_a_name_and_a_version(client: Client, version: int) -> None:
    for name, of, is_valid in (
        ("a", "1", True),
        ("apache-kafka.python", "3.0.12", True),
        ("", "1", False),
        ("a", "", False),
        ("-a", "1", False),
        ("a.", "1", False),
        ("a b", "1", False),
        ("ä", "1", False),
    ):
        found = client.ask(ApiKey.API_VERSIONS, version, client_software_name=name, client_software_version=of)
        is_served = is_valid or version < 3
        assert (found["error_code"], bool(found["api_keys"])) == (NONE if is_served else INVALID, is_served), (name, of)


@pytest.mark.parametrize("version", range(3))
def test_the_endpoints_are_brokers(client: Client, version: int) -> None:
    for kind, error in (
        (1, NONE),
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ):
        asked = {"include_cluster_authorized_operations": False, "endpoint_type": kind}
        found = client.ask(ApiKey.DESCRIBE_CLUSTER, version, **asked)
        expected = error if version else NONE
        assert (found["error_code"], bool(found["brokers"])) == (expected, not expected)
        assert found["endpoint_type"] == (kind if version else 1)


@pytest.mark.parametrize("version", range(8))
def test_topics_whose_names_collide_are_refused_also_within_a_request(client: Client, version: int) -> None:
    rest = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    created = [f"a.b{version}", f"a_b{version}", f"c_d.e{version}", f"c.d.e{version}", f"ab{version}"]
    found = client.ask(ApiKey.CREATE_TOPICS, version, topics=[{"name": each, **rest} for each in created])["topics"]
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert [each["error_code"] for each in found] == [NONE, refused, NONE, refused, NONE]
    again = client.ask(ApiKey.CREATE_TOPICS, version, topics=[{"name": created[1], **rest}])["topics"]
    by_use = client.ask(ApiKey.METADATA, 4, topics=[{"name": created[1]}], allow_auto_topic_creation=True)["topics"]
    assert again[0]["error_code"] == by_use[0]["error_code"] == refused


@pytest.mark.parametrize("version", range(8))
@pytest.mark.parametrize(("count", "factor"), [(-1, -1), (1, -1), (-1, 1), (1, 1), (2, -1)])
def test_numbers_beside_assignments_are_refused(client: Client, version: int, count: int, factor: int) -> None:
    asked = {
        "name": f"placed-{version}{count}{factor}",
        "num_partitions": count,
        "replication_factor": factor,
        "assignments": [{"partition_index": 0, "broker_ids": [0]}],
        "configs": [],
    }
    (found,) = client.ask(ApiKey.CREATE_TOPICS, version, topics=[asked])["topics"]
    assert found["error_code"] == (NONE if (count, factor) == (-1, -1) else INVALID)


def test_groups_without_a_name_are_refused(client: Client) -> None:
    group = {"group_id": "", "member_id": ""}
    joining = {**group, "session_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": []}
    for api, versions, values in (
        (ApiKey.JOIN_GROUP, range(10), joining),
        (ApiKey.SYNC_GROUP, range(6), {**group, "generation_id": 1, "assignments": []}),
        (ApiKey.HEARTBEAT, range(5), {**group, "generation_id": 1}),
        (ApiKey.LEAVE_GROUP, range(6), {**group, "members": []}),
    ):
        for version in versions:
            asked = {name: each for name, each in values.items() if name != "members" or version >= 3}
            if api is ApiKey.LEAVE_GROUP and version >= 3:
                asked.pop("member_id")
            assert client.ask(api, version, **asked)["error_code"] == ErrorCode.INVALID_GROUP_ID, (api, version)


def bits(operations: tuple[Operation, ...]) -> int:
    return sum(1 << each for each in operations)


def operations_seen(client: Client, *, is_asked: bool) -> dict[str, int]:
    """Return the sets of operations in the responses of all APIs that have some."""
    flags = {"include_topic_authorized_operations": is_asked, "include_cluster_authorized_operations": is_asked}
    topics, groups = [{"name": "seen"}], ["seen"]
    found = {}
    for version in (8, 10, 13):
        answer = client.ask(ApiKey.METADATA, version, topics=topics, allow_auto_topic_creation=False, **flags)
        found[f"topic {version}"] = answer["topics"][0]["topic_authorized_operations"]
        if version <= 10:
            found[f"cluster {version}"] = answer["cluster_authorized_operations"]
    asked = {"include_cluster_authorized_operations": is_asked}
    found["cluster"] = client.ask(ApiKey.DESCRIBE_CLUSTER, 0, **asked)["cluster_authorized_operations"]
    asked = {"include_authorized_operations": is_asked}
    classic = client.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=groups, **asked)["groups"]
    consumer = client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=groups, **asked)["groups"]
    shared = client.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=groups, **asked)["groups"]
    found |= zip(
        ("classic group", "group", "share group"),
        (each["authorized_operations"] for each in (*classic, *consumer, *shared)),
        strict=True,
    )
    if is_asked:  # this API always tells
        described = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics)["topics"]
        found["topic"] = described[0]["topic_authorized_operations"]
    return found


def test_everything_is_authorized_where_there_are_no_users(client: Client) -> None:
    client.create_topics("seen")
    assert set(operations_seen(client, is_asked=False).values()) == {NOT_ASKED}
    for what, found in operations_seen(client, is_asked=True).items():
        kind = next(each for each in SUPPORTED_OPERATIONS if each.name.lower() in what)
        assert found == bits(SUPPORTED_OPERATIONS[kind]), what


@pytest.mark.parametrize(
    "permissions",
    [
        Permissions(read=("seen",)),
        Permissions(write=("s*",), groups=("seen",)),
        Permissions(admin=("seen",), groups=("other",)),
        Permissions(*[("*",)] * 5),
    ],
)
def test_the_authorized_operations_are_what_the_user_may_do(secured: Door, permissions: Permissions) -> None:
    secured.permit(root=Permissions(*[("*",)] * 5), anne=permissions)
    with secured.connect("root") as root:
        names = {each["name"] for each in root.ask(ApiKey.METADATA, 1, topics=None)["topics"]}
        if "seen" not in names:
            root.create_topics("seen")
    with secured.connect("anne") as client:
        assert set(operations_seen(client, is_asked=False).values()) == {NOT_ASKED}
        for what, found in operations_seen(client, is_asked=True).items():
            kind = next(each for each in SUPPORTED_OPERATIONS if each.name.lower() in what)
            name = {} if kind is ResourceType.CLUSTER else {"name": "seen"}
            allowed = tuple(each for each in SUPPORTED_OPERATIONS[kind] if permissions.allow(each, kind, **name))
            is_seen = permissions.allow(Operation.DESCRIBE, kind, **name)
            refused = NOT_ASKED if kind is ResourceType.GROUP else 0
            assert found == (bits(allowed) if is_seen else refused), what
