"""A connection to another broker is used again only if the whole answer to the request before has arrived."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from dafka import Config
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.http.forwarding.broker_client import BrokerClient, BrokerError
from dafka.http.forwarding.credentials import SCHEME
from dafka.http.server.errors import WebError

DEADLINE_S = 60
CHALLENGE = b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: %b x\r\nContent-Length: 0\r\n\r\n" % SCHEME.encode()
SILENCE = b"nothing"


def answer(body: bytes, status: int = 200, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d -\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


@attrs.define
class Server:
    """Stands for a broker, with its answers to the next requests. It closes the connection after an incomplete one."""

    script: list[bytes]
    connections: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        received = b""
        async for data in stream:
            received += data
            if not received.endswith(b"\r\n\r\n"):
                continue
            found = CHALLENGE if received.startswith(b"GET /session ") else self.script.pop(0)
            received = b""
            if found == SILENCE:
                await trio.sleep_forever()
            await stream.send_all(found)
            if found not in {CHALLENGE, *WHOLE}:
                return


@asynccontextmanager
async def open_server(*script: bytes) -> AsyncIterator[tuple[Server, BrokerClient, BrokerRegistration]]:
    server = Server([*script])
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    client = BrokerClient(Config(), "a" * 32, "s" * 32)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        nursery.start_soon(client.run)
        yield server, client, BrokerRegistration(address="b" * 32, number=1, http_url=url)
        nursery.cancel_scope.cancel()


FIRST, SECOND = answer(b'{"n":1}'), answer(b'{"n":2}')
REFUSAL = answer(b'{"error":{"code":"topic_not_found","message":"no"}}', 404)
LAST = answer(b'{"n":1}', headers=b"Connection: close\r\n")
WHOLE = {FIRST, SECOND, REFUSAL}

ANSWERS: dict[str, tuple[bytes, object, bool]] = {
    "answer": (FIRST, {"n": 1}, True),
    "refusal": (REFUSAL, WebError, True),
    "last answer": (LAST, {"n": 1}, False),
    "no answer in time": (SILENCE, BrokerError, False),
    "no answer": (b"", BrokerError, False),
    "part of an answer": (FIRST[:-1], BrokerError, False),
    "no HTTP": (b"what?\r\n\r\n", BrokerError, False),
}
"""What a broker answers, what becomes of it, and whether the connection is used again."""


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_request_gets_its_own_answer_whatever_the_one_before_got(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, expected, is_reused = ANSWERS[kind]
    async with open_server(data, SECOND) as (server, client, broker):
        found: object
        with monkeypatch.context() as patch:
            if data == SILENCE:
                patch.setattr("dafka.http.forwarding.broker_client.ANSWER_S", 0.2)
            try:
                found = await client.request(broker, "GET", "/topics")
            except (BrokerError, WebError) as error:
                found = type(error)
        assert found == expected
        with trio.fail_after(DEADLINE_S):
            assert await client.request(broker, "GET", "/topics") == {"n": 2}
        assert server.connections == (1 if is_reused else 2)
