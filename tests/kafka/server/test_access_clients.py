"""Clients of Kafka manage the users and the ACLs of a cluster with their own administration interfaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from dafka.broker.access.permissions import Permissions
from dafka.kafka.protocol.constants import ApiKey
from dafka.testing import RunningKafka, kafka
from tests.kafka.apis.door import Client
from tests.kafka.server.secured import (
    DEADLINE_S,
    PASSWORD,
    Login,
    RefusedError,
    run_secured,
    write_as,
    write_user_file,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
"""kafka-python leaves sockets to the garbage collector, and imports its files in a deprecated way."""

ROOT = Login("SCRAM-SHA-512", "root")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKafka]:
    users = tmp_path_factory.mktemp("users") / "users"
    write_user_file(users, root=Permissions(admin=("*",)), carl=Permissions(read=("orders",)))
    with run_secured(users=str(users)) as found:
        yield found


@pytest.fixture
def admin(broker: RunningKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, **ROOT.settings(), "socket.timeout.ms": 30_000})


def acl(principal: str, name: str, operation: AclOperation, **fields: object) -> AclBinding:
    values = {
        "restype": ResourceType.TOPIC,
        "resource_pattern_type": ResourcePatternType.LITERAL,
        "host": "*",
        "permission_type": AclPermissionType.ALLOW,
        **fields,
    }
    return AclBinding(name=name, principal=principal, operation=operation, **values)


def may_write(login: Login, servers: str, topic: str) -> bool:
    try:
        write_as(login, servers, topic)
    except RefusedError:
        return False
    return True


EVERY_ACL = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


def test_a_user_whom_librdkafka_has_added_may_do_what_its_acls_say(broker: RunningKafka, admin: AdminClient) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = UserScramCredentialUpsertion("dora", info, PASSWORD.encode())
    admin.alter_user_scram_credentials([upsertion])["dora"].result(DEADLINE_S)
    described = admin.describe_user_scram_credentials(["dora"])["dora"].result(DEADLINE_S)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    dora, servers = Login("SCRAM-SHA-256", "dora"), broker.bootstrap_servers
    assert not may_write(dora, servers, "orders-1")
    acls = [
        acl("User:dora", "orders-", operation, resource_pattern_type=ResourcePatternType.PREFIXED)
        for operation in (AclOperation.WRITE, AclOperation.CREATE)
    ]
    for future in admin.create_acls(acls).values():
        future.result(DEADLINE_S)
    found = admin.describe_acls(EVERY_ACL).result(DEADLINE_S)
    assert {each.principal for each in found} == {"User:root", "User:carl", "User:dora"}
    assert set(acls) == {each for each in found if each.principal == "User:dora"}
    assert may_write(dora, servers, "orders-1")
    of_dora = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:dora", None, AclOperation.ANY, AclPermissionType.ANY
    )
    (deleted,) = [future.result(DEADLINE_S) for future in admin.delete_acls([of_dora]).values()]
    assert set(deleted) == set(acls)
    assert not may_write(dora, servers, "orders-1")
    deletion = UserScramCredentialDeletion("dora", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])["dora"].result(DEADLINE_S)


def test_librdkafka_shows_why_users_of_the_file_are_not_changed(admin: AdminClient) -> None:
    (future,) = admin.create_acls([acl("User:carl", "orders", AclOperation.WRITE)]).values()
    with pytest.raises(KafkaException, match="the user 'carl' is in the file of users of this broker"):
        future.result(DEADLINE_S)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = UserScramCredentialUpsertion("carl", info, b"other")
    with pytest.raises(KafkaException, match="use `dafka user change` there"):
        admin.alter_user_scram_credentials([upsertion])["carl"].result(DEADLINE_S)


def test_librdkafka_waits_for_its_quota_and_loses_nothing() -> None:
    with kafka("memory:") as broker, Client(broker.bootstrap_servers) as admin:
        entity = [{"entity_type": "client-id", "entity_name": "metered"}]
        ops = [{"key": "producer_byte_rate", "value": 100_000.0, "remove": False}]
        answer = admin.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": entity, "ops": ops}], validate_only=False)
        assert answer["entries"][0]["error_code"] == 0
        waits: list[float] = []
        errors: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "client.id": "metered",
                "linger.ms": 0,
                "batch.size": 10_000,
                "throttle_cb": lambda event: waits.append(event.throttle_time),
            }
        )
        for _ in range(120):
            producer.produce("metered", bytes(10_000), on_delivery=lambda error, _: errors.append(error))
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        assert errors == [None] * 120
        assert max(waits) > 0


def test_kafka_python_creates_shows_and_deletes_acls(broker: RunningKafka) -> None:
    import kafka.admin as kafka_python

    admin = kafka_python.KafkaAdminClient(
        bootstrap_servers=broker.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="root",
        sasl_plain_password=PASSWORD,
    )
    operation, permission = kafka_python.ACLOperation, kafka_python.ACLPermissionType
    group = kafka_python.ResourcePattern(kafka_python.ResourceType.GROUP, "readers")
    made = kafka_python.ACL("User:finn", "127.0.0.1", operation.READ, permission.DENY, group)
    every = kafka_python.ResourcePatternFilter(
        kafka_python.ResourceType.ANY, None, kafka_python.ACLResourcePatternType.ANY
    )
    chosen = kafka_python.ACLFilter("User:finn", None, operation.ANY, permission.ANY, every)
    assert admin.create_acls([made])["succeeded"] == [made]
    assert admin.describe_acls(chosen)[0] == [made]
    ((_, deleted, _),) = admin.delete_acls([chosen])
    assert deleted == [made]
    assert admin.describe_acls(chosen)[0] == []
    admin.close()
