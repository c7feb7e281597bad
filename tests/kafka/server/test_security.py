"""TLS and authentication, with unmodified clients of Kafka and message by message."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from dafka import Config
from dafka.broker.access.logins import Logins
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users import Users
from dafka.broker.core.acls import Acl, Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import CreateAcls
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import RequestHeader, encode_request
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from dafka.kafka.server.sasl import (
    FAILURE_DELAY_S,
    LOGIN_BYTES_MAX,
    LOGIN_REQUESTS_MAX,
    Authentication,
    AuthenticationError,
)
from dafka.testing import RunningKafka
from tests.kafka.apis.door import Client, Door, open_door
from tests.kafka.server.clients import AioKafka, KafkaPython, Message
from tests.kafka.server.secured import (
    EVERYTHING,
    PASSWORD,
    Authority,
    Login,
    RefusedError,
    read_as,
    run_secured,
    write_as,
    write_user_file,
)

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
VERSIONS = encode_request(ApiVersionsRequest(), 0, 1)

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users"
    write_user_file(path, alice=EVERYTHING)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    # A connection that should have ended would stay open for a while.
    config = Config().with_clients(login_ms=600_000).with_kafka(receive_ms=600_000)
    with open_door(config, users=tmp_path_factory.mktemp("plain") / "users") as door:
        door.permit(alice=EVERYTHING)
        yield door


@pytest.fixture(scope="module")
def encrypted(users: Path, authority: Authority) -> Iterator[RunningKafka]:
    with run_secured(users=str(users), tls_certificate=str(authority.issue("127.0.0.1"))) as running:
        yield running


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_authenticate(plain: Door, encrypted: RunningKafka, authority: Authority, mechanism: str) -> None:
    for servers, path in ((plain.servers, None), (encrypted.bootstrap_servers, authority.path)):
        login = Login(mechanism, authority=path)
        write_as(login, servers, mechanism)
        assert read_as(login, servers, mechanism) == b"value"


def test_other_clients_authenticate_over_tls(encrypted: RunningKafka, authority: Authority) -> None:
    login: dict[str, Any] = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    context = ssl.create_default_context(cafile=str(authority.path))
    for client in (AioKafka(**login, ssl_context=context), KafkaPython(**login, ssl_cafile=str(authority.path))):
        topic = type(client).__name__
        client.write(encrypted.bootstrap_servers, topic, [Message(b"value")], "none")
        assert [each.value for each in client.read(encrypted.bootstrap_servers, topic, 1)] == [b"value"]


def test_a_certificate_names_the_user_if_the_operator_wants_it(authority: Authority, tmp_path: Path) -> None:
    certificate = str(authority.issue("127.0.0.1"))
    config = Config().with_clients(tls_certificate=certificate, tls_client_ca=str(authority.path), tls_users="on")
    with open_door(config, users=tmp_path / "users") as door:
        door.permit(alice=EVERYTHING, mallory=Permissions())

        def is_permitted(name: str, topic: str = "written", **subject: str) -> bool:
            login = Login(authority=authority.path, certificate=authority.issue(name, **subject))
            try:
                write_as(login, door.servers, topic)
            except RefusedError:
                return False
            return True

        assert is_permitted("alice-1", common_name="alice")
        assert not is_permitted("mallory-1", common_name="mallory")
        assert not is_permitted("carol-1", common_name="carol")
        acls = [Acl(ResourceType.TOPIC, "carols", "User:carol", each) for each in (Operation.WRITE, Operation.CREATE)]
        door.call_async(door.broker.node.admin.change, CreateAcls(tuple(acls)))
        assert is_permitted("carol-2", "carols", common_name="carol")
        assert not is_permitted("carol-3", common_name="carol")
        assert not is_permitted("alice")
        assert not is_permitted("space", common_name="a b")
        assert door.broker.kafka is not None
        counters = door.broker.kafka.counters
        assert counters.failed_logins["TLS"] >= 2
        login = Login(
            "PLAIN", "alice", authority=authority.path, certificate=authority.issue("m", common_name="mallory")
        )
        with pytest.raises(RefusedError):
            write_as(login, door.servers, "written")


def test_others_are_refused(plain: Door, encrypted: RunningKafka, authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path).path
    for servers, login in (
        *((plain.servers, Login(mechanism, password="wrong")) for mechanism in MECHANISMS),
        *((plain.servers, Login(mechanism, "carol")) for mechanism in MECHANISMS),
        (plain.servers, Login()),
        (plain.servers, Login("PLAIN", authority=authority.path)),
        (encrypted.bootstrap_servers, Login("PLAIN")),
        (encrypted.bootstrap_servers, Login("PLAIN", authority=other)),
    ):
        with pytest.raises(RefusedError):
            write_as(login, servers, "refused")


def test_what_fails_is_explained_before_the_connection_ends(plain: Door) -> None:
    with plain.connect() as client:
        assert client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")["error_code"] == ErrorCode.NONE
        answer = client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\0\0")
        assert answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer["error_message"] == "authentication failed: unknown user or wrong password"
        assert client.receive() is None
    for version in (0, 1):
        with plain.connect() as client:
            answer = client.ask(ApiKey.SASL_HANDSHAKE, version, mechanism="GSSAPI")
            assert answer["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert sorted(answer["mechanisms"]) == sorted(MECHANISMS)
            assert client.receive() is None


@pytest.mark.parametrize("version", [0, 1])
async def test_a_wrong_password_is_answered_late(users: Path, autojump_clock: object, version: int) -> None:
    authentication = Authentication(Users(users), Logins(), "127.0.0.1", mechanisms=("PLAIN",))
    header = RequestHeader(ApiKey.SASL_HANDSHAKE, version, 1, None)
    await authentication.answer(header, SaslHandshakeRequest(mechanism="PLAIN"))
    token, begun = b"\0alice\0wrong", trio.current_time()
    if authentication.takes_tokens:
        with pytest.raises(AuthenticationError):
            await authentication.answer_token(token)
    else:
        assert (await authentication.answer(header, SaslAuthenticateRequest(auth_bytes=token)))[1]
    assert trio.current_time() - begun == pytest.approx(FAILURE_DELAY_S)


def test_clients_that_do_not_authenticate_have_few_requests(tmp_path: Path) -> None:
    config = Config().with_clients(login_ms=600_000)
    with open_door(config, users=tmp_path / "users") as door:
        for count in (LOGIN_REQUESTS_MAX - 2, LOGIN_REQUESTS_MAX - 1):
            with door.connect() as client:
                client.socket.sendall(VERSIONS * count)
                assert all(client.receive() for _ in range(count))
                client.send(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
                assert client.receive() is not None
                client.send(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=f"\0root\0{PASSWORD}".encode())
                is_served = client.receive() is not None
                assert is_served is (count == LOGIN_REQUESTS_MAX - 2)
                if is_served:  # then there is no limit
                    client.socket.sendall(VERSIONS * 50)
                    assert all(client.receive() for _ in range(50))


def test_clients_that_do_not_authenticate_have_small_requests(plain: Door) -> None:
    for size, is_read in ((LOGIN_BYTES_MAX, True), (LOGIN_BYTES_MAX + 1, False)):
        with plain.connect() as client:
            client.socket.sendall(size.to_bytes(4, "big") + VERSIONS[4:])
            if is_read:
                client.socket.sendall(bytes(size - len(VERSIONS) + 4))
                assert client.receive() is not None
            else:
                assert client.receive() is None
    with plain.connect("alice") as client:
        large = VERSIONS[4:] + bytes(10 * LOGIN_BYTES_MAX)
        client.socket.sendall(len(large).to_bytes(4, "big") + large)
        assert client.receive() is not None


def test_silent_clients_are_disconnected_and_others_stay(users: Path, authority: Authority) -> None:
    encrypted = {"login_ms": 1000, "tls_certificate": str(authority.issue("127.0.0.1"))}
    settings: list[dict[str, Any]] = [encrypted, {"login_ms": 4000, "users": str(users)}]
    for each in settings:
        with run_secured(**each) as running, ExitStack() as stack:
            early = None
            if "users" in each:
                early = stack.enter_context(Client(running.bootstrap_servers).log_in("alice"))
            silent = stack.enter_context(Client(running.bootstrap_servers))
            assert silent.receive() is None
            assert early is None or early.ask(ApiKey.METADATA, 1, topics=[])["topics"] == []


def test_passwords_are_not_taken_over_a_connection_that_anyone_can_read(
    users: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the client had connected to an address of the network."""
    monkeypatch.setattr("dafka.broker.connections.tcp_server.is_loopback", lambda _: False)
    with run_secured(users=str(users)) as running:
        with Client(running.bootstrap_servers) as client:
            answer = client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
            assert answer["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert "PLAIN" not in answer["mechanisms"]
        write_as(Login("SCRAM-SHA-256"), running.bootstrap_servers, "topic")
    settings = {"users": str(users), "tls_certificate": str(authority.issue("127.0.0.1"))}
    with run_secured(**settings) as running:
        write_as(Login("PLAIN", authority=authority.path), running.bootstrap_servers, "topic")
