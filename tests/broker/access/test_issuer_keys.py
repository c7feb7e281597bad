"""Keys of an issuer that are fetched from a URL: what a broker knows of them, whatever the issuer's server does."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from joserfc.jwk import Key, KeySet
from trio.testing import MockClock, wait_all_tasks_blocked

from dafka.broker.access import issuer_keys
from dafka.broker.access.issuer_keys import UNKNOWN_KEY_INTERVAL_S, KeysEndpoint, find_url_problem, open_keys
from dafka.broker.access.oauth import InvalidTokenError, TokenVerifier
from dafka.config import ClientsConfig, Config
from dafka.errors import ConfigError
from tests.broker.access.test_oauth import EC, RSA, STRANGER, sign
from tests.kafka.server.secured import Authority

REFRESH_S = 100.0


@attrs.define(eq=False)
class Issuer:
    """A server that publishes keys, and what it answers next: a status, headers and a body."""

    status: int = 200
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    requests: list[str] = attrs.field(factory=list)
    may_answer: Event = attrs.field(factory=Event)
    url: str = ""

    def publish(self, *keys: Key) -> None:
        self.status, self.headers = 200, {}
        self.body = json.dumps(KeySet(list(keys)).as_dict(private=False)).encode()

    def fail(self, status: int = 503, body: bytes = b"", **headers: str) -> None:
        self.status, self.headers, self.body = status, headers, body


@contextmanager
def run_issuer(certificate: Path | None = None) -> Iterator[Issuer]:
    issuer = Issuer()
    issuer.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.requests.append(self.path)
            issuer.may_answer.wait(60)
            self.send_response(issuer.status if self.path == "/jwks" else 200)
            for name, value in issuer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(issuer.body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if certificate is not None:
        context = SSLContext(PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    issuer.url = f"{scheme}://127.0.0.1:{server.server_port}/jwks"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield issuer
    finally:
        issuer.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with run_issuer() as found:
        yield found


def settings(url: str, **others: Any) -> ClientsConfig:
    given: dict[str, Any] = {
        "oauth_issuer": "https://issuer.example",
        "oauth_audience": "dafka",
        "oauth_jwks_endpoint_refresh_ms": int(REFRESH_S * 1000),
        "users": "users",
        **others,
    }
    return Config().with_clients(oauth_jwks_endpoint_url=url, **given).clients


@asynccontextmanager
async def fetching(issuer: Issuer, **others: Any) -> AsyncIterator[tuple[KeysEndpoint, TokenVerifier]]:
    """Fetch keys as a broker does, for the duration of a block that begins after the first attempt."""
    clients = settings(issuer.url, **others)
    keys = open_keys(clients)
    assert isinstance(keys, KeysEndpoint)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keys.run)
        await fetched(keys)
        yield keys, TokenVerifier(clients, keys)
        issuer.may_answer.set()
        nursery.cancel_scope.cancel()


async def fetched(keys: KeysEndpoint) -> None:
    """Wait until the next attempt to fetch has ended."""
    await keys.wait_fetched()
    await wait_all_tasks_blocked()


async def accepts(verifier: TokenVerifier, token: str) -> bool:
    try:
        return (await verifier.verify(token)).user == "anne"
    except InvalidTokenError:
        return False


async def test_keys_are_fetched_again_after_a_while(
    issuer: Issuer, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.publish(RSA)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # not for the same machine
    async with fetching(issuer) as (keys, verifier):
        assert await accepts(verifier, sign())
        issuer.publish(EC)
        mock_clock.jump(REFRESH_S - 1)
        await wait_all_tasks_blocked()
        assert len(issuer.requests) == 1
        mock_clock.jump(1)
        await fetched(keys)
        assert len(issuer.requests) == 2
        assert await accepts(verifier, sign(EC, "ES256"))
        assert not await accepts(verifier, sign()), "the issuer does not use the former key any more"


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "refused": ({"status": 503}, "it answers with the status 503"),
    "no set of keys": ({"status": 200, "body": b"<html>"}, "expected a set of public keys"),
    "no keys": ({"status": 200, "body": b'{"keys": []}'}, "expected a set of public keys"),
    "endless": ({"status": 200, "body": b" " * (issuer_keys.KEYS_BYTES_MAX + 1)}, "it answers with more than 1048576"),
    "to plain text": ({"status": 302, "Location": "http://issuer.example/jwks"}, "it redirects: expected https, not"),
    "to a file": ({"status": 302, "Location": "file:///etc/passwd"}, "it redirects: Found - Redirection to url"),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_the_former_keys_remain_while_the_issuer_fails_and_attempts_become_rarer(
    issuer: Issuer, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    caplog.set_level(logging.INFO, "dafka.broker")
    failure, problem = FAILURES[what]
    issuer.publish(RSA)
    waits = {"oauth_jwks_endpoint_retry_backoff_ms": 1000, "oauth_jwks_endpoint_retry_backoff_max_ms": 4000}
    async with fetching(issuer, **waits) as (keys, verifier):
        issuer.fail(**failure)
        for wait_s in (REFRESH_S, 1, 2, 4, 4):
            mock_clock.jump(wait_s - 0.5)
            await wait_all_tasks_blocked()
            before = len(issuer.requests)
            mock_clock.jump(0.5)
            await fetched(keys)
            assert len(issuer.requests) == before + 1
            assert await accepts(verifier, sign())
        issuer.publish(EC)
        mock_clock.jump(4)
        await fetched(keys)
        assert await accepts(verifier, sign(EC, "ES256"))
    first, warning, last = caplog.messages
    assert first == last == f"fetched 1 keys of tokens from {issuer.url}"
    assert warning.startswith(f"cannot fetch the keys of tokens from {issuer.url}, the former remain: {problem}")


async def test_a_redirect_on_the_same_machine_is_followed(issuer: Issuer, mock_clock: MockClock) -> None:
    issuer.publish(RSA)
    issuer.fail(302, issuer.body, Location="/moved")
    async with fetching(issuer) as (_, verifier):
        assert await accepts(verifier, sign())
    assert issuer.requests == ["/jwks", "/moved"]


@pytest.mark.parametrize(("padding", "is_fetched"), [(0, True), (900_000, False)])
async def test_an_answer_that_arrives_too_slowly_counts_as_none(
    issuer: Issuer, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, padding: int, is_fetched: bool
) -> None:
    monkeypatch.setattr(issuer_keys, "time", SimpleNamespace(monotonic=count(step=2).__next__))
    issuer.publish(RSA)
    issuer.body += b" " * padding
    async with fetching(issuer) as (keys, _):
        assert (keys.current is not None) is is_fetched


async def test_tokens_with_unknown_keys_cause_one_fetch_in_a_while(issuer: Issuer, mock_clock: MockClock) -> None:
    issuer.publish(RSA)
    async with fetching(issuer) as (_, verifier):
        issuer.publish(RSA, EC)
        outcomes: list[bool] = []

        async def verify(token: str) -> None:
            outcomes.append(await accepts(verifier, token))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(verify, sign(EC, "ES256", exp=2**32 + number))
                nursery.start_soon(verify, sign(header={"kid": f"unknown {number}"}))
        assert (outcomes.count(True), len(issuer.requests)) == (20, 2)
        issuer.publish(RSA)
        for _ in range(3):
            assert not await accepts(verifier, sign(header={"kid": "unknown"}))
            assert len(issuer.requests) == 2
        assert not await accepts(verifier, sign(STRANGER)), "another signature by a known key causes none"
        mock_clock.jump(UNKNOWN_KEY_INTERVAL_S)
        assert not await accepts(verifier, sign(header={"kid": "unknown"}))
        assert len(issuer.requests) == 3


async def test_a_broker_starts_without_its_issuer(
    issuer: Issuer, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.fail()
    async with fetching(issuer, oauth_jwks_endpoint_retry_backoff_ms=60_000) as (_, verifier):
        assert caplog.messages[0].endswith(", there are none yet: it answers with the status 503")
        issuer.publish(RSA)
        assert await accepts(verifier, sign()), "the first token causes a fetch"


async def test_a_token_waits_only_so_long_for_a_slow_issuer(issuer: Issuer, autojump_clock: MockClock) -> None:
    issuer.publish(RSA)
    async with fetching(issuer) as (_, verifier):
        issuer.may_answer.clear()
        assert not await accepts(verifier, sign(EC, "ES256"))
        assert await accepts(verifier, sign())


async def test_the_certificate_of_the_issuer_is_verified(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    with run_issuer(authority.issue("127.0.0.1")) as issuer:
        issuer.publish(RSA)
        async with fetching(issuer) as (_, verifier):
            assert not await accepts(verifier, sign())
        assert "its certificate is not accepted" in caplog.messages[0]
        async with fetching(issuer, oauth_tls_ca=str(authority.path)) as (_, verifier):
            assert await accepts(verifier, sign())


def test_only_urls_whose_answers_cannot_be_changed_on_the_way_are_accepted(tmp_path: Path) -> None:
    for url in (
        "https://issuer.example/jwks",
        "https://10.0.0.1:8443/a?b=c",
        "http://localhost/x",
        "http://[::1]:80/x",
    ):
        assert not find_url_problem(url)
    for url in ("http://issuer.example/jwks", "http://10.0.0.1/", "http://localhost.example/"):
        assert find_url_problem(url).startswith("expected https, not ")
    for url in ("keys.json", "file:///keys.json", "https://", "https://a:b", "https://a:b@c/", "ftp://127.0.0.1/"):
        assert find_url_problem(url).startswith("expected a URL such as https://")
    with pytest.raises(ConfigError, match=r"^\[clients\] oauth_jwks_endpoint_url: expected https, not 'http://i/'"):
        open_keys(settings("http://i/"))
    with pytest.raises(ConfigError, match=r"oauth_tls_ca: missing: No such file"):
        open_keys(settings("https://i/", oauth_tls_ca="missing"))
    with pytest.raises(ConfigError, match="expected either it or oauth_jwks_endpoint_url, not both"):
        open_keys(settings("https://i/", oauth_keys="keys"))
    with pytest.raises(ConfigError, match="oauth_jwks_endpoint_url: expected oauth_issuer, oauth_audience and users"):
        open_keys(settings("https://i/", oauth_issuer=""))
