"""Requests to other brokers: their connections, and the signatures that prove who sends them."""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from dafka import Config
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.http.forwarding.broker_client import CONNECTIONS_MAX, BrokerClient, BrokerError, OtherBrokers
from dafka.http.forwarding.credentials import SCHEME, RequestSigner, SignatureChecker
from dafka.http.server.errors import WebError
from tests.http.running import outcome
from tests.kafka.server.secured import Authority
from tests.seeds import each_seed
from tests.waiting import wait_until

# A connection is used again only if the whole answer to the request before has arrived


DEADLINE_S = 60
CHALLENGE = b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: %b x\r\nContent-Length: 0\r\n\r\n" % SCHEME.encode()
SILENCE = b"nothing"


def answer(body: bytes, status: int = 200, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d -\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


@attrs.define
class Server:
    """Stands for a broker, with its answers to the next requests. It closes the connection after an incomplete one."""

    script: list[bytes]
    challenge: bytes = CHALLENGE
    connections: int = 0
    ended: int = 0
    received: list[bytes] = attrs.field(factory=list)

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        try:
            with suppress(trio.BrokenResourceError):
                await self._serve(stream)
        finally:
            self.ended += 1

    async def _serve(self, stream: trio.abc.Stream) -> None:
        received = b""
        async for data in stream:
            received += data
            head, _, body = received.partition(b"\r\n\r\n")
            if b"\r\n\r\n" not in received or (b"Content-Length: %d" % len(body) not in head and head[:3] != b"GET"):
                continue
            found = self.challenge if received.startswith(b"GET /session ") else self.script.pop(0)
            self.received.append(received)
            received = b""
            if found == SILENCE:
                await trio.sleep_forever()
            await stream.send_all(found)
            if found not in {self.challenge, *WHOLE}:
                return


@asynccontextmanager
async def open_server(
    *script: bytes, config: Config | None = None, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[Server, BrokerClient, BrokerRegistration]]:
    server = Server([*script])
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http{'s' if tls else ''}://{host}:{listener.socket.getsockname()[1]}"
    client = BrokerClient(config or Config(), "a" * 32, "s" * 32)
    listeners = [listener if tls is None else trio.SSLListener(listener, tls, https_compatible=True)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        nursery.start_soon(client.run)
        yield server, client, BrokerRegistration(address="b" * 32, number=1, http_url=url)
        nursery.cancel_scope.cancel()


FIRST, SECOND = answer(b'{"n":1}'), answer(b'{"n":2}')
REFUSAL = answer(b'{"error":{"code":"topic_not_found","message":"no"}}', 404)
LAST = answer(b'{"n":1}', headers=b"Connection: close\r\n")

TOLD = answer(b'{"error":{"code":"unauthenticated","message":"no"}}', 401)
UNKNOWN = answer(b'{"error":{"code":"of a later version"}}', 404)
ANSWERS: dict[str, tuple[bytes, object, bool]] = {
    "answer": (FIRST, {"n": 1}, True),
    "refusal": (REFUSAL, WebError, True),
    "last answer": (LAST, {"n": 1}, False),
    "another signature": (TOLD, BrokerError, False),
    "unknown refusal": (UNKNOWN, WebError, True),
    "no document": (answer(b"[]", 503), WebError, True),
    "nothing": (answer(b""), None, True),
    "an end after it": (answer(b'{"n": 1}'), {"n": 1}, False),
    "a large answer": (answer(b" " * 81), BrokerError, False),
    "no answer in time": (SILENCE, BrokerError, False),
    "no answer": (b"", BrokerError, False),
    "part of an answer": (FIRST[:-1], BrokerError, False),
    "no HTTP": (b"what?\r\n\r\n", BrokerError, False),
}
WHOLE = {SECOND, TOLD, *(data for data, _, is_reused in ANSWERS.values() if is_reused)}
"""What a broker answers, what becomes of it, and whether the connection is used again."""


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_request_gets_its_own_answer_whatever_the_one_before_got(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, expected, is_reused = ANSWERS[kind]
    async with open_server(data, SECOND) as (server, client, broker):
        found: object
        with monkeypatch.context() as patch:
            patch.setattr("dafka.http.forwarding.broker_client.ANSWER_BYTES_MAX", 80)
            if data == SILENCE:
                patch.setattr("dafka.http.forwarding.broker_client.ANSWER_S", 0.2)
            try:
                found = await client.request(broker, "GET", "/topics")
            except (BrokerError, WebError) as error:
                found = type(error)
        assert found == expected
        server.script[:] = [SECOND]  # the first answer, too, if the first request was given up before it was read
        await wait_until(lambda: data in {*WHOLE, SILENCE} or server.ended > 0)
        with trio.fail_after(DEADLINE_S):
            assert await client.request(broker, "GET", "/topics") == {"n": 2}
        assert server.connections == (1 if is_reused else 2)


async def test_a_document_is_sent_whole_and_signed_with_it_are_only_its_head_and_number() -> None:
    async with open_server(SECOND, FIRST) as (server, client, broker):
        assert await client.request(broker, "PUT", "/a", {"b": "c"}) == {"n": 2}
        assert await client.request(broker, "GET", "/a") == {"n": 1}
    _, put, get = server.received
    signer = RequestSigner("s" * 32, "a" * 32, "b" * 32, "x")
    for received, method in ((put, "PUT"), (get, "GET")):
        assert b"\r\nAuthorization: %b\r\n" % signer.sign(method, "/a").encode() in received
        assert b"\r\nHost: 127.0.0.1:" in received
    assert put.endswith(b'\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"b":"c"}')


async def test_brokers_that_are_not_reached_are_left_out_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections end, and so do those to a broker that gives no challenge."""
    monkeypatch.setattr("dafka.http.forwarding.broker_client.IDLE_S", 0.1)
    async with open_server(FIRST, REFUSAL, SECOND) as (server, client, broker):
        own, silent = attrs.evolve(broker, address="a" * 32), attrs.evolve(broker, address="d" * 32, http_url="")
        node: Any = SimpleNamespace(address=own.address)
        node.brokers = SimpleNamespace(living=lambda: [own, broker, silent])
        others = OtherBrokers(node, client)
        found = [await others.get_all("/x", wait_s=DEADLINE_S) for _ in range(2)]
        assert found == [{broker.address: {"n": 1}}, {}]
        await wait_until(lambda: server.ended == server.connections and not client._pools)
        assert await others.request(broker, "POST", "/x", {}) == {"n": 2}
        server.challenge = REFUSAL
        await wait_until(lambda: server.ended == server.connections)
        for each in (broker, silent):
            assert await outcome(others.request(each, "GET", "/x")) == "broker_unavailable"
        await wait_until(lambda: server.ended == server.connections)


async def test_pages_and_other_requests_use_limited_connections_and_do_not_wait_for_each_other() -> None:
    async with open_server(*[SILENCE] * CONNECTIONS_MAX, FIRST) as (server, client, broker):
        node: Any = SimpleNamespace(address="a" * 32)
        node.brokers = SimpleNamespace(living=lambda: [broker] * (CONNECTIONS_MAX + 3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(OtherBrokers(node, client).get_all, "/x", wait_s=DEADLINE_S))
            await wait_until(lambda: not server.script[1:])
            assert await client.request(broker, "GET", "/x") == {"n": 1}
            assert (server.connections, server.ended) == (CONNECTIONS_MAX + 1, 0)
            nursery.cancel_scope.cancel()


async def test_a_broker_with_tls_is_reached_only_if_both_prove_what_they_must(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    certificate, ca = authority.issue("localhost"), str(authority.path)
    tls, strict = (ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) for _ in range(2))
    for context in (tls, strict):
        context.load_cert_chain(certificate)
    strict.load_verify_locations(ca)
    strict.verify_mode = ssl.CERT_REQUIRED
    trusting, named = Config().with_broker(tls_ca=ca), Config().with_clients(tls_client_ca=ca)
    named = named.with_clients(tls_certificate=str(certificate))
    cases = [
        (trusting, tls, "localhost", {"n": 1}),
        (trusting, tls, "127.0.0.1", "BrokerError"),
        (Config(), tls, "localhost", "BrokerError"),
        (Config().with_broker(tls_ca=str(other.path)), tls, "localhost", "BrokerError"),
        (Config().with_broker(tls_ca=str(tmp_path / "none")), tls, "localhost", "BrokerError"),
        (named, tls, "localhost", {"n": 1}),
        (named, strict, "localhost", {"n": 1}),
        (named.with_broker(tls_ca=ca), strict, "localhost", {"n": 1}),
        (trusting, strict, "localhost", "BrokerError"),
        (trusting.with_clients(tls_certificate=str(certificate)), strict, "localhost", "BrokerError"),
        (named.with_clients(tls_certificate=""), tls, "localhost", {"n": 1}),
        (named.with_broker(tls_ca=str(other.path)), tls, "localhost", "BrokerError"),
    ]
    for config, context, host, expected in cases:
        async with open_server(FIRST, config=config, tls=context, host=host) as (_, client, broker):
            try:
                found = await client.request(broker, "GET", "/topics")
            except BrokerError as error:
                found = type(error).__name__
            assert found == expected, (config.broker.tls_ca, config.clients, host)


# Each signature counts once and for one connection


SECRET = "s" * 32
A, B = "a" * 32, "b" * 32
REQUESTS = [("GET", "/topics"), ("GET", "/groups"), ("DELETE", "/groups")]


@attrs.frozen
class Signed:
    """A credential, and what it is for: a connection, the number of its challenge, the request and its number."""

    credential: str
    connection: int
    challenge: int
    number: int
    request: tuple[str, str]
    is_by_broker: bool


@each_seed(100)
def test_a_signature_counts_once_and_in_order_for_its_request_and_connection(seed: int) -> None:
    random, secret = Random(seed), SECRET if seed % 5 else ""
    checkers = [SignatureChecker(secret, B) for _ in range(2)]
    challenges, accepted, signed = [0, 0], [0, 0], list[Signed]()
    signers: list[tuple[RequestSigner, int, int, bool]] = []  # with the connection, and whether it is a broker
    for _ in range(60):
        connection = random.randrange(2)
        step = random.choice(["challenge", "sign", "sign", "check", "check", "check"])
        if step == "challenge" and random.random() < 0.5:
            challenges[connection], accepted[connection] = challenges[connection] + 1, 0
            challenge = checkers[connection].challenge()
            of_broker, of_none, for_another = (secret, B), ("t" * 32, B), (secret, A)
            key, receiver = random.choice([of_broker, of_broker, of_broker, of_none, for_another])
            is_broker = bool(secret) and (key, receiver) == of_broker
            signers.append((RequestSigner(key, A, receiver, challenge), connection, challenges[connection], is_broker))
        elif step == "sign" and signers:
            signer, connection, challenge_number, is_broker = random.choice(signers[-3:])
            request = random.choice(REQUESTS)
            credential = signer.sign(*request).removeprefix(f"{SCHEME} ")
            number = int(credential.split(".")[1])
            signed.append(Signed(credential, connection, challenge_number, number, request, is_broker))
        elif signed:
            each, request = random.choice(signed[-6:]), random.choice(REQUESTS)
            if random.random() < 0.7:
                connection, request = each.connection, each.request
            place = (each.connection, each.challenge, each.number, each.request)
            current = (connection, challenges[connection], accepted[connection] + 1, request)
            counts = each.is_by_broker and place == current
            assert checkers[connection].check(each.credential, *request) == counts
            accepted[connection] += counts


def test_malformed_credentials_do_not_count_and_neither_do_any_before_a_challenge() -> None:
    checker = SignatureChecker(SECRET, B)
    signed = RequestSigner(SECRET, A, B, "").sign("GET", "/topics").removeprefix(f"{SCHEME} ")
    assert not checker.check(signed, "GET", "/topics")
    checker.challenge()
    for given in ("", "x", "a.1", "a.1.", ".1.\xff", "a.\xb2.x", "a.-1.x", "a.99999999999999999999.x"):
        assert not checker.check(given, "GET", "/topics")


def test_requests_use_nothing_up() -> None:
    """Each request of a client made another broker remember a credential, until there were 100,000."""
    checker = SignatureChecker(SECRET, B)
    signer = RequestSigner(SECRET, A, B, checker.challenge())
    sizes = []
    for _ in range(2_000):
        assert checker.check(signer.sign("GET", "/").removeprefix(f"{SCHEME} "), "GET", "/")
        sizes.append(sum(sys.getsizeof(each) for each in vars(checker).values()))
    assert sizes[-1] - sizes[0] < 100
