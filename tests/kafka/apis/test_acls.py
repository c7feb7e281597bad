"""What a client creates as ACLs and users is what it is shown then, after a restart too, and what it may do."""

from __future__ import annotations

import hashlib
import hmac
import threading
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio

from dafka import Config
from dafka.broker import node as broker_node
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.acls import Acl, AclEffect, AclFilter, Operation, PatternType, ResourceType
from dafka.broker.core.cluster_status import MetadataQuorum
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.acls import delete_acls, describe_acls
from dafka.kafka.apis.shared.registry import RequestContext
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import RequestHeader, encode_response_parts
from dafka.kafka.protocol.messages.access import DeleteAclsRequest, DescribeAclsRequest
from dafka.kafka.protocol.tables import Response
from dafka.kafka.protocol.writing import Buffer
from tests.broker.access.test_acls import draw_acl, draw_filter
from tests.kafka.apis.door import Client, Door, build, open_door
from tests.kafka.server.secured import PASSWORD

ADMINISTRATOR = Permissions(admin=("*",))
ANY_ACL = AclFilter()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(users=tmp_path_factory.mktemp("door") / "users") as found:
        found.permit(root=ADMINISTRATOR, carl=Permissions(read=("orders", "a*b"), groups=("g*",)))
        yield found


@pytest.fixture
def client(door: Door) -> Iterator[Client]:
    with door.connect("root") as found:
        delete(found, attrs.evolve(ANY_ACL))
        yield found


def creation(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": acl.resource_type,
        "resource_name": acl.name,
        "resource_pattern_type": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.effect,
    }


def filter_of(chosen: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": chosen.resource_type,
        "resource_name_filter": chosen.name,
        "pattern_type_filter": chosen.pattern_type,
        "principal_filter": chosen.principal,
        "host_filter": chosen.host,
        "operation": chosen.operation,
        "permission_type": chosen.effect,
    }


def create(client: Client, *acls: Acl, version: int = 3) -> list[tuple[int, str | None]]:
    answer = client.ask(ApiKey.CREATE_ACLS, version, creations=[creation(each) for each in acls])
    return [(each["error_code"], each["error_message"]) for each in answer["results"]]


def read_acl(resource: dict[str, Any], found: dict[str, Any]) -> Acl:
    return Acl(
        ResourceType(resource["resource_type"]),
        resource["resource_name"],
        found["principal"],
        Operation(found["operation"]),
        PatternType(resource["pattern_type"]),
        found["host"],
        AclEffect(found["permission_type"]),
    )


def describe(client: Client, chosen: AclFilter = ANY_ACL, version: int = 3) -> list[Acl]:
    answer = client.ask(ApiKey.DESCRIBE_ACLS, version, **filter_of(chosen))
    assert answer["error_code"] == ErrorCode.NONE, answer["error_message"]
    return [read_acl(resource, acl) for resource in answer["resources"] for acl in resource["acls"]]


def delete(client: Client, *filters: AclFilter) -> list[dict[Acl, int]]:
    answer = client.ask(ApiKey.DELETE_ACLS, 3, filters=[filter_of(each) for each in filters])
    assert {each["error_code"] for each in answer["filter_results"]} == {ErrorCode.NONE}
    return [
        {read_acl(each, each): each["error_code"] for each in result["matching_acls"]}
        for result in answer["filter_results"]
    ]


def test_a_broker_that_may_not_know_the_latest_acls_and_users_deletes_none(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Acl(ResourceType.TOPIC, "kept", "User:ann", Operation.READ)
    create(client, kept)
    quorum = MetadataQuorum("", {"a": True, "b": False, "c": False})
    with monkeypatch.context() as patch:
        patch.setattr(broker_node, "describe_quorum", lambda *_: quorum)
        acls = client.ask(ApiKey.DELETE_ACLS, 3, filters=[filter_of(ANY_ACL), filter_of(AclFilter(name="x"))])
        user = {"name": "nobody", "mechanism": 1}
        users = client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[user], upsertions=[])
    answers = [*acls["filter_results"], *users["results"]]
    assert [each["error_code"] for each in answers] == 3 * [ErrorCode.NOT_CONTROLLER]
    assert all("1 of the 3 brokers" in each["error_message"] for each in answers)
    assert kept in describe(client)


def test_what_is_created_is_shown_until_it_is_deleted(door: Door, client: Client) -> None:
    draw, model = Random(1), set[Acl]()
    fixed = {*describe(client)}
    assert {each.principal for each in fixed} == {"User:root", "User:carl"}
    for _ in range(40):
        acls = [attrs.evolve(draw_acl(draw), principal="User:" + draw.choice(["dora", "*"])) for _ in range(3)]
        assert create(client, *acls) == [(ErrorCode.NONE, None)] * 3
        model |= {*acls}
        chosen = draw_filter(draw)
        selected = {each for each in model | fixed if chosen.selects(each)}
        found = describe(client, chosen)
        assert ({*found}, len(found)) == (selected, len(selected))
        if draw.random() < 0.3:
            (deleted,) = delete(client, chosen)
            errors = {each: ErrorCode.POLICY_VIOLATION if each in fixed else ErrorCode.NONE for each in selected}
            assert deleted == errors
            model -= selected
        assert {*describe(client)} == model | fixed
    assert fixed >= {
        Acl(ResourceType.TOPIC, "orders", "User:carl", Operation.READ),
        Acl(ResourceType.TOPIC, "a*b", "User:carl", Operation.READ),
        Acl(ResourceType.GROUP, "g", "User:carl", Operation.ALL, PatternType.PREFIXED),
        Acl(ResourceType.CLUSTER, "kafka-cluster", "User:root", Operation.ALTER),
    }


def test_the_first_version_knows_literal_patterns_only(client: Client) -> None:
    acl = Acl(ResourceType.TOPIC, "t", "User:dora", Operation.READ)
    prefixed = attrs.evolve(acl, pattern_type=PatternType.PREFIXED)
    assert create(client, prefixed) == [(ErrorCode.NONE, None)]
    of_dora = AclFilter(principal="User:dora", pattern_type=PatternType.LITERAL)
    for version in range(4):
        values = {key: each for key, each in creation(acl).items() if key != "resource_pattern_type" or version}
        client.ask(ApiKey.CREATE_ACLS, version, creations=[values])
        values = {key: each for key, each in filter_of(of_dora).items() if key != "pattern_type_filter" or version}
        (resource,) = client.ask(ApiKey.DESCRIBE_ACLS, version, **values)["resources"]
        assert resource["pattern_type"] == PatternType.LITERAL


def test_what_cannot_be_an_acl_is_refused_by_itself(client: Client) -> None:
    acl = Acl(ResourceType.TOPIC, "t", "User:dora", Operation.READ)
    wrong: list[tuple[dict[str, Any], ErrorCode, str]] = [
        ({"host": "10.0.0.0/8"}, ErrorCode.INVALID_REQUEST, "expected one address as the host"),
        ({"principal": "Group:staff"}, ErrorCode.INVALID_REQUEST, "such as User:anne"),
        ({"principal": "User:carl"}, ErrorCode.POLICY_VIOLATION, "'carl' is in the file of users of this broker"),
        ({"operation": 77}, ErrorCode.INVALID_REQUEST, "there is no operation 77: expected 1 (ANY), 2 (ALL), 3 (READ)"),
        ({"resource_type": 0}, ErrorCode.INVALID_REQUEST, "there is no resource type 0"),
        ({"permission_type": 1}, ErrorCode.INVALID_REQUEST, "ALLOW or DENY"),
        ({"resource_pattern_type": 2}, ErrorCode.INVALID_REQUEST, "expected LITERAL or PREFIXED"),
    ]
    asked = [creation(acl) | change for change, _, _ in wrong]
    results = client.ask(ApiKey.CREATE_ACLS, 3, creations=[*asked[:3], creation(acl), *asked[3:]])["results"]
    assert results.pop(3)["error_code"] == ErrorCode.NONE
    for (_, error, reason), found in zip(wrong, results, strict=True):
        assert (found["error_code"], reason in found["error_message"]) == (error, True), found
    assert describe(client, AclFilter(principal="User:dora")) == [acl]
    answer = client.ask(ApiKey.DESCRIBE_ACLS, 3, **filter_of(ANY_ACL) | {"operation": -1})
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST
    filters = [filter_of(AclFilter(principal="User:dora")), filter_of(ANY_ACL) | {"permission_type": 9}]
    right, refused = client.ask(ApiKey.DELETE_ACLS, 3, filters=filters)["filter_results"]
    assert (right["error_code"], len(right["matching_acls"])) == (ErrorCode.NONE, 1)
    assert (refused["error_code"], refused["matching_acls"]) == (ErrorCode.INVALID_REQUEST, [])
    assert describe(client, AclFilter(principal="User:dora")) == []


def test_acls_need_users() -> None:
    acl = Acl(ResourceType.TOPIC, "t", "User:dora", Operation.READ)
    with open_door() as door, door.connect() as client:
        assert [error for error, _ in create(client, acl)] == [ErrorCode.SECURITY_DISABLED]
        answer = client.ask(ApiKey.DESCRIBE_ACLS, 3, **filter_of(ANY_ACL))
        assert answer["error_code"] == ErrorCode.SECURITY_DISABLED
        assert "start it with --users" in answer["error_message"]
        (result,) = client.ask(ApiKey.DELETE_ACLS, 3, filters=[filter_of(ANY_ACL)])["filter_results"]
        assert result["error_code"] == ErrorCode.SECURITY_DISABLED


def test_more_acls_than_one_command_has_are_created_and_deleted(client: Client) -> None:
    acls = [Acl(ResourceType.TOPIC, f"t{number}", "User:dora", Operation.READ) for number in range(2500)]
    assert {*create(client, *acls)} == {(ErrorCode.NONE, None)}
    assert describe(client, AclFilter(principal="User:dora")) == acls
    (deleted,) = delete(client, AclFilter(principal="User:dora"))
    assert list(deleted) == acls
    assert describe(client, AclFilter(principal="User:dora")) == []


def test_many_filters_and_acls_do_not_delay_other_clients(
    door: Door, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, *(Acl(ResourceType.TOPIC, f"t{each}", "User:dora", Operation.READ) for each in range(30)))
    monkeypatch.setattr("dafka.kafka.apis.acls.SELECTED_AT_ONCE", 3)
    filters = [filter_of(AclFilter(name=f"nothing-{number}")) for number in range(20)]
    server = door.broker.kafka
    assert server is not None
    header = RequestHeader(ApiKey.DELETE_ACLS, 3, 1, "test")
    context = RequestContext(server, header, "192.0.2.1", ("192.0.2.2", 9092), "root", door)

    async def count_turns(call: Callable[[], Awaitable[object]]) -> int:
        """Return how often another task runs during a call."""
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            await call()
            nursery.cancel_scope.cancel()
        return turns

    deletion, description = (
        build(DeleteAclsRequest, {"filters": filters}),
        build(DescribeAclsRequest, filter_of(ANY_ACL)),
    )
    assert door.call_async(count_turns, lambda: delete_acls(context, deletion)) >= 20 * 10 - 1
    assert door.call_async(count_turns, lambda: describe_acls(context, description)) >= 10 + 10 - 1


def test_descriptions_of_acls_are_encoded_while_other_clients_are_served(
    door: Door, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = dict[ApiKey, int]()

    def note(header: RequestHeader, response: Response) -> list[Buffer]:
        threads[header.api_key] = threading.get_ident()
        return encode_response_parts(header, response)

    monkeypatch.setattr("dafka.kafka.server.connection.encode_response_parts", note)
    describe(client)
    client.ask(ApiKey.API_VERSIONS, 0)
    assert threads[ApiKey.API_VERSIONS] == door.call(threading.get_ident) != threads[ApiKey.DESCRIBE_ACLS]


def test_filters_that_select_too_much_together_delete_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafka.kafka.apis.acls.DELETED_MAX", 3)
    acls = [Acl(ResourceType.TOPIC, f"t{each}", "User:dora", Operation.READ) for each in range(4)]
    create(client, *acls)
    filters = [AclFilter(principal="User:dora", name=name) for name in (None, "t0", "t0", "t1", "t2")]
    answer = client.ask(ApiKey.DELETE_ACLS, 3, filters=[filter_of(each) for each in filters])
    found = [(each["error_code"], len(each["matching_acls"])) for each in answer["filter_results"]]
    assert found == [(ErrorCode.INVALID_REQUEST, 0), (0, 1), (0, 1), (0, 1), (ErrorCode.INVALID_REQUEST, 0)]
    assert "select more than 3 ACLs together" in answer["filter_results"][0]["error_message"]
    assert describe(client, AclFilter(principal="User:dora")) == acls[2:]


# Users


def upsertion(name: str, password: str = PASSWORD, mechanism: int = 1, iterations: int = 4096) -> dict[str, Any]:
    digest, salt = {1: "sha256", 2: "sha512"}.get(mechanism, "sha256"), b"a long salt for " + name.encode()
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salted,
    }


def alter(client: Client, *upsertions: dict[str, Any], deletions: tuple[tuple[str, int], ...] = ()) -> dict[str, int]:
    asked = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
    answer = client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=asked, upsertions=[*upsertions])
    return {each["user"]: each["error_code"] for each in answer["results"]}


def credentials(client: Client, *names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    users = [{"name": each} for each in names]
    answer = client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users or None)
    return {
        each["user"]: (
            each["error_code"],
            [(info["mechanism"], info["iterations"]) for info in each["credential_infos"]],
        )
        for each in answer["results"]
    }


def can_log_in(door: Door, user: str, password: str, mechanism: str) -> bool:
    """Log in by SCRAM, whose messages are written here."""
    digest = "sha256" if mechanism == "SCRAM-SHA-256" else "sha512"
    with door.connect() as client:
        assert client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)["error_code"] == 0
        first = f"n={user},r=nonce"
        answer = client.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=f"n,,{first}".encode())["auth_bytes"].decode()
        nonce, salt, iterations = (each.partition("=")[2] for each in answer.split(","))
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), b64decode(salt), int(iterations))
        client_key = hmac.digest(salted, b"Client Key", digest)
        signed = f"{first},{answer},c=biws,r={nonce}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        proof = b64encode(bytes(one ^ other for one, other in zip(client_key, signature, strict=True))).decode()
        final = client.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=f"c=biws,r={nonce},p={proof}".encode())
        verifier = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        is_proved: bool = final["auth_bytes"].decode() == f"v={b64encode(verifier).decode()}"
        assert is_proved == (final["error_code"] == 0)
        return is_proved


def test_users_of_the_cluster_log_in_with_the_credentials_that_they_have(door: Door, client: Client) -> None:
    mechanisms = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
    assert alter(client, upsertion("dora"), upsertion("dora", "other", 2, 5000)) == {"dora": 0}
    assert credentials(client, "dora") == {"dora": (0, [(1, 4096), (2, 5000)])}
    for password, expected in ((PASSWORD, 1), ("other", 2)):
        for number, mechanism in mechanisms.items():
            assert can_log_in(door, "dora", password, mechanism) is (number == expected)
    assert alter(client, upsertion("dora", "new"), deletions=(("dora", 2),)) == {"dora": 0}
    assert credentials(client, "dora") == {"dora": (0, [(1, 4096)])}
    assert can_log_in(door, "dora", "new", "SCRAM-SHA-256")
    assert not can_log_in(door, "dora", PASSWORD, "SCRAM-SHA-256")
    assert not can_log_in(door, "dora", "other", "SCRAM-SHA-512")
    with door.connect().log_in("dora", "new") as dora:
        assert dora.ask(ApiKey.METADATA, 12, topics=None)["topics"] == []
        assert alter(client, deletions=(("dora", 1),)) == {"dora": 0}
        dora.send(ApiKey.METADATA, 12, topics=None)
        assert dora.receive() is None, "a user who was removed is disconnected"
    assert not can_log_in(door, "dora", "new", "SCRAM-SHA-256")
    assert credentials(client, "dora") == {"dora": (ErrorCode.RESOURCE_NOT_FOUND, [])}


def test_what_is_no_credential_is_refused(door: Door, client: Client) -> None:
    right = upsertion("eva")
    wrong: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16_385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": -1}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": "e,v=a"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": "carl"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"salt": b"s" * 11}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b"s" * 1025}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salted_password": b"x" * 64}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 2}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ]
    for change, error in wrong:
        asked = right | change
        assert alter(client, asked, upsertion("finn")) == {asked["name"]: error, "finn": 0}, change
    assert alter(client, upsertion("eva"), upsertion("eva")) == {"eva": ErrorCode.DUPLICATE_RESOURCE}
    assert alter(client, upsertion("eva"), deletions=(("eva", 2),)) == {"eva": ErrorCode.RESOURCE_NOT_FOUND}
    assert alter(client, deletions=(("carl", 1), ("nobody", 1))) == {
        "carl": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert credentials(client, "eva", "eva") == {"eva": (ErrorCode.DUPLICATE_RESOURCE, [])}
    assert {*credentials(client)} == {"root", "carl", "finn"}
    assert len(credentials(client)["carl"][1]) == 2
    alter(client, deletions=(("finn", 1),))


def test_everything_that_clients_have_changed_is_there_after_a_restart(tmp_path: Path) -> None:
    acls = [Acl(ResourceType.TOPIC, each, "User:dora", Operation.READ) for each in ("kept", "deleted")]
    config = Config().with_store(storage=f"filelog:{tmp_path / 'records'}")
    for is_first in (True, False):
        with open_door(config, users=tmp_path / "users", storage=config.store.storage) as door:
            door.permit(root=ADMINISTRATOR)
            with door.connect("root") as client:
                if is_first:
                    create(client, *acls)
                    delete(client, AclFilter(name="deleted"))
                    alter(client, upsertion("dora"), upsertion("finn"))
                    alter(client, deletions=(("finn", 1),))
                    client.create_topics("kept", "deleted")
                assert describe(client, AclFilter(principal="User:dora")) == acls[:1]
                assert {*credentials(client)} == {"root", "dora"}
            with door.connect().log_in("dora") as dora:
                found = dora.ask(ApiKey.METADATA, 12, topics=None)["topics"]
                assert [each["name"] for each in found] == ["kept"]
