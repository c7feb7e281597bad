"""TLS and authentication with unmodified clients of Kafka."""

from __future__ import annotations

import datetime
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.frames import decode_response, encode_request, encode_token
from dafka.kafka.protocol.messages.cluster import MetadataRequest, MetadataResponse
from dafka.kafka.protocol.messages.connections import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from dafka.kafka.protocol.tables import Request, Response
from dafka.testing import RunningKafka
from tests.kafka.server.secured import (
    CLIENTS,
    EVERYTHING,
    PASSWORD,
    Authority,
    Confluent,
    Login,
    RefusedError,
    run_secured,
    write_user_file,
)

R = TypeVar("R", bound=Response)

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Wire:
    """A connection to a broker that sends single requests.

    Args:
        running: The broker.
    """

    def __init__(self, running: RunningKafka) -> None:
        host, _, port = running.bootstrap_servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 20)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def receive(self) -> bytes | None:
        """Return the next frame; None at the end of the connection."""
        try:
            head = self._read(4)
            return self._read(int.from_bytes(head, "big"))
        except (EOFError, ConnectionError):
            return None

    def ask(self, request: Request, response: type[R], version: int) -> R:
        """Return the response to a request."""
        self.socket.sendall(encode_request(request, version, 1))
        frame = self.receive()
        assert frame is not None
        return decode_response(frame, response, version)

    def is_ended(self) -> bool:
        """Return whether the broker ends the connection, rather than sending something."""
        return self.receive() is None

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
        return found


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users"
    write_user_file(path, alice=EVERYTHING)
    return path


@pytest.fixture(scope="module")
def plain(users: Path) -> Iterator[RunningKafka]:
    with run_secured(users.parent, users=str(users)) as running:
        yield running


@pytest.fixture(scope="module")
def encrypted(users: Path, authority: Authority) -> Iterator[RunningKafka]:
    with run_secured(users.parent, users=str(users), tls_certificate=str(authority.issue("127.0.0.1"))) as running:
        yield running


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", CLIENTS)
def test_clients_authenticate(plain: RunningKafka, name: str, mechanism: str) -> None:
    client, login = CLIENTS[name], Login(mechanism)
    client.write(plain.bootstrap_servers, f"{name}-{mechanism}", login)
    assert client.read(plain.bootstrap_servers, f"{name}-{mechanism}", login) == b"value"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", CLIENTS)
def test_clients_authenticate_over_tls(
    encrypted: RunningKafka, authority: Authority, name: str, mechanism: str
) -> None:
    client, login = CLIENTS[name], Login(mechanism, authority=authority.path)
    client.write(encrypted.bootstrap_servers, f"{name}-{mechanism}", login)
    assert client.read(encrypted.bootstrap_servers, f"{name}-{mechanism}", login) == b"value"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("carol", PASSWORD)], ids=["password", "user"])
def test_wrong_passwords_and_unknown_users_are_refused(
    plain: RunningKafka, name: str, mechanism: str, user: str, password: str
) -> None:
    with pytest.raises(RefusedError):
        CLIENTS[name].write(plain.bootstrap_servers, "refused", Login(mechanism, user, password))


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_that_do_not_authenticate_are_refused(plain: RunningKafka, name: str) -> None:
    with pytest.raises(RefusedError):
        CLIENTS[name].write(plain.bootstrap_servers, "refused", Login())


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_that_do_not_know_the_authority_refuse(encrypted: RunningKafka, tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusedError):
        CLIENTS[name].write(encrypted.bootstrap_servers, "refused", Login("PLAIN", authority=Authority(tmp_path).path))


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_refuse_an_expired_certificate(authority: Authority, tmp_path: Path, name: str) -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = authority.issue("127.0.0.1", not_after=past)
    with (
        run_secured(tmp_path, tls_certificate=str(certificate)) as running,
        pytest.raises(RefusedError),
    ):
        CLIENTS[name].write(running.bootstrap_servers, "refused", Login(authority=authority.path))


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_need_a_certificate_if_an_authority_is_set(authority: Authority, tmp_path: Path, name: str) -> None:
    settings = {"tls_certificate": str(authority.issue("127.0.0.1")), "tls_client_ca": str(authority.path)}
    own = authority.issue("client")
    with run_secured(tmp_path, **settings) as running:
        servers, client = running.bootstrap_servers, CLIENTS[name]
        client.write(servers, "topic", Login(authority=authority.path, certificate=own))
        with pytest.raises(RefusedError):
            client.write(servers, "topic", Login(authority=authority.path))


def test_client_without_tls_is_disconnected_by_a_listener_with_tls(
    encrypted: RunningKafka, authority: Authority
) -> None:
    with Wire(encrypted) as wire:
        wire.socket.sendall(encode_request(ApiVersionsRequest(), 0, 1))
        while wire.receive() is not None:  # an alert of TLS, which is no frame
            pass
    with pytest.raises(RefusedError):
        Confluent().write(encrypted.bootstrap_servers, "refused", Login("PLAIN"))
    Confluent().write(encrypted.bootstrap_servers, "served", Login("PLAIN", authority=authority.path))


def test_client_with_tls_is_disconnected_by_a_listener_without(plain: RunningKafka, authority: Authority) -> None:
    with Wire(plain) as wire, pytest.raises((ssl.SSLError, OSError)):
        ssl.create_default_context(cafile=str(authority.path)).wrap_socket(wire.socket, server_hostname="127.0.0.1")
    with pytest.raises(RefusedError):
        Confluent().write(plain.bootstrap_servers, "refused", Login("PLAIN", authority=authority.path))
    Confluent().write(plain.bootstrap_servers, "served", Login("PLAIN"))


def test_tokens_without_headers_follow_the_first_version_of_the_handshake(plain: RunningKafka) -> None:
    with Wire(plain) as wire:
        shaken = wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 0)
        assert shaken.error_code == ErrorCode.NONE
        assert sorted(shaken.mechanisms) == sorted(MECHANISMS)
        wire.socket.sendall(encode_token(b"\0alice\0right"))
        assert wire.receive() == b""
        assert wire.ask(MetadataRequest(topics=[]), MetadataResponse, 1).error_code == 0
    with Wire(plain) as wire:
        wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 0)
        wire.socket.sendall(encode_token(b"\0alice\0wrong"))
        assert wire.is_ended()


def test_answer_names_the_failure_before_the_connection_ends(plain: RunningKafka) -> None:
    with Wire(plain) as wire:
        wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        answer = wire.ask(SaslAuthenticateRequest(auth_bytes=b"\0\0"), SaslAuthenticateResponse, 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "authentication failed: unknown user or wrong password"
        assert wire.is_ended()


def test_unknown_mechanism_is_answered_with_the_known_ones(plain: RunningKafka) -> None:
    with Wire(plain) as wire:
        answer = wire.ask(SaslHandshakeRequest(mechanism="GSSAPI"), SaslHandshakeResponse, 1)
        assert (answer.error_code, sorted(answer.mechanisms)) == (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            sorted(MECHANISMS),
        )
        assert wire.is_ended()


@pytest.mark.parametrize(
    "requests", [[SaslAuthenticateRequest(auth_bytes=b"\0alice\0right")], [MetadataRequest(topics=[])]]
)
def test_requests_before_the_handshake_end_the_connection(plain: RunningKafka, requests: list[Request]) -> None:
    with Wire(plain) as wire:
        wire.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
        for each in requests:
            wire.socket.sendall(encode_request(each, 1, 2))
        frames = iter(wire.receive, None)
        assert all(b"127.0.0.1" not in each for each in frames)


def test_clients_that_do_not_authenticate_are_limited(users: Path) -> None:
    with run_secured(users.parent, users=str(users), login_ms=600_000) as running:
        with Wire(running) as wire:
            for _ in range(21):
                wire.socket.sendall(encode_request(ApiVersionsRequest(), 0, 1))
            assert len(list(iter(wire.receive, None))) <= 20
        with Wire(running) as wire:
            wire.socket.sendall((2**16 + 1).to_bytes(4, "big"))
            assert wire.is_ended()


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["sasl", "tls"])
def test_silent_client_is_disconnected(users: Path, authority: Authority, is_encrypted: bool) -> None:
    settings = {"tls_certificate": str(authority.issue("127.0.0.1"))} if is_encrypted else {"users": str(users)}
    with run_secured(users.parent, login_ms=100, **settings) as running, Wire(running) as wire:
        assert wire.is_ended()


def test_client_that_has_authenticated_stays_connected(users: Path) -> None:
    with run_secured(users.parent, users=str(users), login_ms=1000) as running, Wire(running) as wire:
        wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        wire.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0right"), SaslAuthenticateResponse, 1)
        with Wire(running) as silent:
            assert silent.is_ended()  # a later connection has run out of time
        assert wire.ask(MetadataRequest(topics=[]), MetadataResponse, 1).error_code == 0


def test_removed_user_is_disconnected_and_new_one_is_served(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user_file(path, alice=EVERYTHING)
    with run_secured(tmp_path, users=str(path)) as running, Wire(running) as wire:
        wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        wire.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0right"), SaslAuthenticateResponse, 1)
        wire.ask(MetadataRequest(topics=[]), MetadataResponse, 1)
        write_user_file(path, bob=EVERYTHING)
        deadline = time.monotonic() + 30
        while True:
            wire.socket.sendall(encode_request(MetadataRequest(topics=[]), 1, 1))
            if wire.receive() is None:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        Confluent().write(running.bootstrap_servers, "topic", Login("SCRAM-SHA-256", "bob"))


def test_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    old, new = (Authority(folder) for folder in folders)
    path = tmp_path / "certificate.pem"
    path.write_bytes(old.issue("127.0.0.1").read_bytes())
    with run_secured(tmp_path, tls_certificate=str(path)) as running:
        Confluent().write(running.bootstrap_servers, "topic", Login(authority=old.path))
        path.write_bytes(new.issue("127.0.0.1").read_bytes())
        deadline = time.monotonic() + 30
        while True:
            context = ssl.create_default_context(cafile=str(new.path))
            try:
                with Wire(running) as wire, context.wrap_socket(wire.socket, server_hostname="127.0.0.1"):
                    break
            except ssl.SSLError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        Confluent().write(running.bootstrap_servers, "topic", Login(authority=new.path))


def test_passwords_are_not_taken_over_a_connection_that_anyone_can_read(
    users: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the client had connected to an address of the network."""
    monkeypatch.setattr("dafka.broker.connections.tcp_server.is_loopback", lambda _: False)
    with run_secured(users.parent, users=str(users)) as running:
        with Wire(running) as wire:
            answer = wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
            assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert "PLAIN" not in answer.mechanisms
        Confluent().write(running.bootstrap_servers, "topic", Login("SCRAM-SHA-256"))
    settings = {"users": str(users), "tls_certificate": str(authority.issue("127.0.0.1"))}
    with run_secured(users.parent, **settings) as running:
        Confluent().write(running.bootstrap_servers, "topic", Login("PLAIN", authority=authority.path))
