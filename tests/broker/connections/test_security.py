"""Who may connect from where, and which files a broker can use."""

from __future__ import annotations

import logging
import os
import re
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from dafka import Config
from dafka.broker.access.permissions import Permissions
from dafka.broker.connections.security import REFRESH_S, ServerSecurity
from dafka.endpoints import is_loopback
from dafka.errors import ConfigError
from tests.broker.access.test_issuer_keys import run_issuer
from tests.broker.access.test_oauth import EC, RSA, sign, write_keys
from tests.kafka.server.secured import Authority, write_user_file


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    write_user_file(path, alice=Permissions())
    return path


def test_listening_elsewhere_needs_authentication_or_the_operators_word(users: Path, tmp_path: Path) -> None:
    """Every combination of what there is: users, certificates of clients, and the operator's word."""
    authority = Authority(tmp_path)
    certificate = {"tls_certificate": str(authority.issue("127.0.0.1"))}
    for has_users, has_tls, has_authority, is_allowed in product((False, True), repeat=4):
        settings: dict[str, Any] = {"users": str(users)} if has_users else {}
        settings |= certificate if has_tls or has_authority else {}
        settings |= {"tls_client_ca": str(authority.path)} if has_authority else {}
        settings |= {"allow_unauthenticated": "on"} if is_allowed else {}
        security = ServerSecurity(Config().with_clients(**settings).clients)
        security.check_exposure("127.0.0.1")
        for host in ("0.0.0.0", "", "10.0.0.1", "::"):
            if has_users or has_authority or is_allowed:
                security.check_exposure(host)
                continue
            with pytest.raises(ConfigError, match=r"from elsewhere.*--users.*--allow-unauthenticated on"):
                security.check_exposure(host)


def test_loopback_is_known() -> None:
    for host in ("127.0.0.1", "127.255.0.9", "localhost", "::1", "::1%lo", "::ffff:127.0.0.1"):
        assert is_loopback(host)
    for host in ("::ffff:10.0.0.1", "10.0.0.1", "128.0.0.1", "localhost.example", "", "*"):
        assert not is_loopback(host)


def test_unusable_files_are_named(users: Path, tmp_path: Path) -> None:
    certificate = Authority(tmp_path).issue("127.0.0.1")
    other = Authority(make_folder(tmp_path, "other")).issue("127.0.0.1")
    locked = tmp_path / "locked"
    key = load_pem_private_key(certificate.read_bytes(), None)
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"x")))
    pem = {"tls_certificate": str(certificate)}
    loading = "cannot load the TLS certificate and key of"
    rows: list[tuple[dict[str, Any], str]] = [
        ({"users": "missing"}, "cannot read the users missing"),
        ({"tls_certificate": "missing"}, f"{loading} missing: No such file"),
        ({"tls_certificate": str(users)}, f"{loading} {users}: expected PEM format"),
        ({**pem, "tls_key": "missing"}, f"{loading} {certificate} and missing: No such file"),
        ({**pem, "tls_key": str(other)}, f"{loading} {certificate} and {other}: key values mismatch"),
        ({**pem, "tls_key": str(locked)}, f"the TLS key {locked} is encrypted"),
        ({**pem, "tls_client_ca": "missing"}, "cannot load the TLS authorities of missing: No such file"),
        ({**pem, "tls_client_ca": str(users)}, f"cannot load the TLS authorities of {users}: "),
        ({"tls_key": "missing"}, "[clients] tls_key: expected tls_certificate, too"),
        ({"tls_client_ca": "missing"}, "[clients] tls_client_ca: expected tls_certificate, too"),
        ({**pem, "tls_users": "on", "users": str(users)}, "[clients] tls_users: expected users and tls_client_ca, too"),
        ({**pem, "tls_users": "on", "tls_client_ca": str(certificate)}, "[clients] tls_users: expected users and"),
    ]
    for settings, sentence in rows:
        with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}"):
            ServerSecurity(Config().with_clients(**settings).clients)


def damage(path: Path) -> None:
    path.write_text("{")
    os.utime(path, ns=(0, 0))


@pytest.mark.parametrize("watched", [("users",), ("tls_certificate",), ("users", "oauth_keys", "tls_certificate")])
async def test_changed_files_are_read_again_and_mistakes_change_nothing(
    users: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
    watched: tuple[str, ...],
) -> None:
    caplog.set_level(logging.INFO, "dafka.broker")
    authority = Authority(tmp_path)
    certificate = authority.issue("127.0.0.1")
    keys = tmp_path / "keys"
    write_keys(keys, RSA)
    paths = {"users": users, "oauth_keys": keys, "tls_certificate": certificate}
    settings: dict[str, Any] = {each: str(paths[each]) for each in watched}
    if "oauth_keys" in watched:
        settings |= {"oauth_issuer": "https://issuer.example", "oauth_audience": "dafka"}
    security = ServerSecurity(Config().with_clients(**settings).clients)
    known = security.users
    names = {"users": "the users", "oauth_keys": "the keys of tokens", "tls_certificate": "the TLS certificate"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(security.keep_current)
        await trio.sleep(REFRESH_S / 2)
        for path in paths.values():
            damage(path)
        await trio.sleep(REFRESH_S)
        assert [(each.levelname, each.getMessage().partition(":")[0]) for each in caplog.records] == [
            ("WARNING", f"{names[each]} remain as before") for each in watched
        ]
        assert known is None or known.find("alice") is not None
        write_user_file(users, bob=Permissions())
        write_keys(keys, EC)
        os.replace(authority.issue("localhost"), certificate)
        caplog.clear()
        await trio.sleep(2 * REFRESH_S)
        assert [each.getMessage() for each in caplog.records] == [f"read {names[each]} again" for each in watched]
        assert known is None or (known.find("alice"), known.find("bob") is None) == (None, False)
        nursery.cancel_scope.cancel()


async def test_keys_of_tokens_are_fetched(users: Path) -> None:
    with run_issuer() as issuer:
        issuer.publish(RSA)
        given = {"oauth_issuer": "https://issuer.example", "oauth_audience": "dafka", "users": str(users)}
        security = ServerSecurity(Config().with_clients(oauth_jwks_endpoint_url=issuer.url, **cast(Any, given)).clients)
        assert security.tokens is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(security.keep_current)
            assert (await security.tokens.verify(sign())).user == "anne", "it waits for the keys"
            nursery.cancel_scope.cancel()


def test_broker_without_files_watches_nothing() -> None:
    trio.run(ServerSecurity(Config().clients).keep_current)


async def is_accepted(security: ServerSecurity, context: ssl.SSLContext) -> bool:
    """Return whether a client with these settings of TLS gets a connection, on which both can send."""
    ours, theirs = trio.testing.memory_stream_pair()
    server = security.encrypt(cast("trio.SocketStream", ours))
    client = trio.SSLStream(theirs, context, server_hostname="127.0.0.1", https_compatible=True)
    found = []

    async def use(stream: trio.abc.Stream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.send_all(b"x")
            found.append(await stream.receive_some(1))
        await trio.aclose_forcefully(stream)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for each in (server, client):
                nursery.start_soon(use, each)
    return found == [b"x", b"x"]


async def test_certificates_are_required_and_verified_as_configured(tmp_path: Path) -> None:
    own, other = Authority(make_folder(tmp_path, "own")), Authority(make_folder(tmp_path, "other"))
    certificate = own.issue("127.0.0.1")

    def client_with(trusted: Authority, shown: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(trusted.path))
        if shown is not None:
            context.load_cert_chain(shown)
        return context

    open_to_all = ServerSecurity(Config().with_clients(tls_certificate=str(certificate)).clients)
    config = Config().with_clients(tls_certificate=str(certificate), tls_client_ca=str(own.path))
    verifying = ServerSecurity(config.clients)
    for security, context, expected in (
        (open_to_all, client_with(own), True),
        (open_to_all, client_with(other), False),
        (verifying, client_with(own), False),
        (verifying, client_with(own, own.issue("client")), True),
        (verifying, client_with(own, other.issue("client")), False),
        (verifying, client_with(own, own.issue("expired", not_after=datetime(2020, 1, 1, tzinfo=UTC))), False),
    ):
        assert await is_accepted(security, context) is expected
    os.replace(other.issue("127.0.0.1"), certificate)
    assert open_to_all.tls is not None
    assert open_to_all.tls.refresh()
    assert await is_accepted(open_to_all, client_with(other))
    assert not await is_accepted(open_to_all, client_with(own))
    ours, _ = trio.testing.memory_stream_pair()
    assert ServerSecurity(Config().clients).encrypt(cast("trio.SocketStream", ours)) is ours


def make_folder(path: Path, name: str) -> Path:
    found = path / name
    found.mkdir()
    return found
