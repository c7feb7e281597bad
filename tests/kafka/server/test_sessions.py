"""Logins that count for a time only (KIP-368): clients authenticate again on the same connection, or lose it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Producer
from trio.testing import MockClock

from dafka import Config
from dafka.broker.access.oauth import OAUTHBEARER
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users import Users
from dafka.broker.core.acls import Acl, Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import CreateAcls
from dafka.kafka.protocol.constants import ApiKey
from tests.broker.access.test_oauth import RSA, sign, write_keys
from tests.kafka.apis.door import open_door
from tests.kafka.server.memory_client import MemoryClient, connect
from tests.kafka.server.secured import EVERYTHING, PASSWORD, Login, write_user_file

LIFETIME_S = 10


@pytest.fixture
def users(tmp_path: Path) -> Users:
    write_user_file(tmp_path / "users", anne=EVERYTHING, bob=Permissions())
    return Users(tmp_path / "users")


async def log_in(
    client: MemoryClient, user: str = "anne", password: str = PASSWORD, *, version: int = 2, mechanism: str = "PLAIN"
) -> Any:
    """Authenticate, and return the last response."""
    answer = await client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
    if answer["error_code"]:
        return answer
    return await client.ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=f"\0{user}\0{password}".encode())


async def is_served(client: MemoryClient) -> bool:
    try:
        answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False)
    except (EOFError, trio.BrokenResourceError):
        return False
    return bool(answer["error_code"] == ErrorCode.NONE)


def reasons(client: MemoryClient) -> dict[str, int]:
    return dict(client.cluster.listener.counters.disconnected)


async def test_a_login_counts_until_it_is_renewed_too_late(mock_clock: MockClock, users: Users) -> None:
    async with connect(users, reauthenticate_ms=LIFETIME_S * 1000) as client:
        for version in (2, 1, 0):
            answer = await log_in(client, version=version)
            assert (answer["error_code"], answer["session_lifetime_ms"]) == (0, LIFETIME_S * 1000 * (version > 0))
            assert await is_served(client)
            mock_clock.jump(LIFETIME_S - 1)
            assert await is_served(client)
        mock_clock.jump(1)
        assert (await client.ask(ApiKey.API_VERSIONS, 0))["error_code"] == 0
        assert (await log_in(client))["error_code"] == 0, "it is not too late before another request"
        assert await is_served(client)
        assert client.cluster.listener.counters.logins["PLAIN"] == 4
        mock_clock.jump(LIFETIME_S)
        assert not await is_served(client)
        assert reasons(client) == {"expired login": 1}


@pytest.mark.parametrize(
    ("again", "error"),
    [
        ({"user": "bob"}, ErrorCode.SASL_AUTHENTICATION_FAILED),
        ({"password": "wrong"}, ErrorCode.SASL_AUTHENTICATION_FAILED),
        ({"mechanism": "SCRAM-SHA-256"}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
async def test_who_is_somebody_else_or_fails_is_disconnected(
    users: Users, again: dict[str, Any], error: ErrorCode
) -> None:
    async with connect(users, reauthenticate_ms=LIFETIME_S * 1000) as client:
        await log_in(client)
        assert (await log_in(client, **again))["error_code"] == error
        assert not await is_served(client)
        assert reasons(client) == {"failed login": 1}


async def test_a_login_without_end_is_not_renewed(mock_clock: MockClock, users: Users) -> None:
    async with connect(users) as client:
        assert (await log_in(client))["session_lifetime_ms"] == 0
        mock_clock.jump(10 * LIFETIME_S)
        assert await is_served(client)
        assert (await log_in(client))["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
        assert await is_served(client)


def test_librdkafka_authenticates_again_while_it_writes(tmp_path: Path) -> None:
    config = Config().with_clients(reauthenticate_ms=4000)  # clients do it after 90 % of this time
    with open_door(config, users=tmp_path / "users") as door:
        door.permit(root=EVERYTHING)
        server, errors = door.broker.kafka, list[object]()
        assert server is not None
        login = Login("SCRAM-SHA-256", "root")
        producer = Producer({"bootstrap.servers": door.servers, "linger.ms": 0, **login.settings()})
        while server.counters.logins["SCRAM-SHA-256"] < 3:
            producer.produce("written", b"value", on_delivery=lambda error, _: errors.append(error))
            producer.poll(0.05)
        assert producer.flush(60) == 0
        assert set(errors) == {None}
        assert not server.counters.disconnected["expired login"]


def test_librdkafka_logs_in_by_tokens_and_renews_them(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", RSA)
    config = Config().with_clients(
        oauth_keys=str(tmp_path / "keys"), oauth_issuer="https://issuer.example", oauth_audience="dafka"
    )
    with open_door(config, users=tmp_path / "users") as door:
        acls = [Acl(ResourceType.TOPIC, "t", "User:anne", each) for each in (Operation.WRITE, Operation.CREATE)]
        door.call_async(door.broker.node.admin.change, CreateAcls(tuple(acls)))
        server = door.broker.kafka
        assert server is not None
        given, errors = list[str](), list[object]()

        def give_token(_: str) -> tuple[str, float]:
            expires_at = int(time.time()) + 3
            given.append(sign(exp=expires_at))
            return given[-1], expires_at

        producer = Producer(
            {
                "bootstrap.servers": door.servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": OAUTHBEARER,
                "oauth_cb": give_token,
                "linger.ms": 0,
            }
        )
        while server.counters.logins[OAUTHBEARER] < 4 or len(given) < 2:
            producer.produce("t", b"value", on_delivery=lambda error, _: errors.append(error))
            producer.poll(0.1)
        assert producer.flush(60) == 0
        assert set(errors) == {None}
        with door.connect() as client:
            assert OAUTHBEARER in client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=OAUTHBEARER)["mechanisms"]
            token = f"n,,\1auth=Bearer {sign(exp=int(time.time()) + 600)}\1\1".encode()
            answer = client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token)
            assert 590_000 <= answer["session_lifetime_ms"] <= 600_000
            assert client.ask(ApiKey.METADATA, 12, topics=None)["topics"][0]["name"] == "t"
