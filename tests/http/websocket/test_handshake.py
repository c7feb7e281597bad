"""Handshakes: what is no WebSocket, comes from elsewhere or has no permission gets an HTTP response."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from websockets.exceptions import InvalidStatus

from dafka import Config
from dafka.broker.access.permissions import Permissions
from tests.http.running import DEADLINE_S, SharedWeb, open_web
from tests.http.server.test_authentication import basic
from tests.http.websocket.clients import BINARY, JSON, open_client
from tests.http.websocket.raw import KEY, open_raw
from tests.kafka.server.secured import PASSWORD, write_user_file

UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY}


WRONG: list[tuple[dict[str, str], int]] = [
    ({"Sec-WebSocket-Version": "8"}, 400),
    ({"Sec-WebSocket-Key": "short"}, 400),
    ({"Sec-WebSocket-Protocol": "chat"}, 400),
    ({"Origin": "https://example.com"}, 403),
    ({"Host": "example.com"}, 403),
    ({"Authorization": basic("ada", "wrong")}, 401),
]


async def test_handshake_that_is_wrong_is_refused(web: SharedWeb, tmp_path: Path) -> None:
    write_user_file(tmp_path / "users", ada=Permissions(read=("*",)))
    answer = await web.get("/ws")
    assert (answer.status, answer.headers["Upgrade"], answer.code) == (426, "websocket", "bad_request")
    async with open_web(config=Config().with_clients(users=str(tmp_path / "users"))) as with_users:
        for changes, expected in WRONG:
            answer = await (with_users if expected == 401 else web).get("/ws", **{**UPGRADE, **changes})
            assert (answer.status, bool(answer.body)) == (expected, True), changes
    assert await web.is_alive()


async def test_origin_of_the_broker_and_those_of_the_settings_are_accepted() -> None:
    async with open_web(config=Config().with_http(origins=("https://example.com",))) as web:
        for origin in ("https://example.com", f"http://127.0.0.1:{web.port}"):
            async with open_client(web, Origin=origin) as client:
                assert (await client.ask("ping"))["type"] == "pong"
        with pytest.raises(InvalidStatus):
            async with open_client(web, Origin="https://other.example.com"):
                pass


async def test_subprotocol_is_chosen(web: SharedWeb) -> None:
    for offered, chosen in (
        ("", None),
        (JSON, JSON),
        (BINARY, BINARY),
        (f"{JSON}, {BINARY}", BINARY),
        (f"x, {JSON}", JSON),
    ):
        async with open_raw(web, *([f"Sec-WebSocket-Protocol: {offered}"] if offered else [])) as client:
            assert client.subprotocol == chosen


async def test_login_must_come_in_time(tmp_path: Path) -> None:
    """A client that has logged in before stays when the time of a later one is over, and when others want its place."""
    users = tmp_path / "users"
    write_user_file(users, ada=Permissions(write=("orders",)))
    config = Config().with_clients(users=str(users), login_ms=4000).with_http(connections_max=2)
    async with open_web(config=config) as web, open_client(web) as early:
        assert (await early.ask("authenticate", user="ada", password=PASSWORD))["type"] == "authenticated"
        async with open_client(web) as late:
            with trio.fail_after(DEADLINE_S):
                await late.connection.wait_closed()
            assert late.connection.close_code == 1008
        async with AsyncExitStack() as stack:
            for _ in range(3):
                silent = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", web.port))
            await silent.send_all(b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 401 " in await silent.receive_some()
        assert await early.publish("orders", "a") == [{"log": 0, "offset": 0, "count": 1}]
