"""Handshakes, also with curl: what is no WebSocket, comes from elsewhere or has no permission gets an HTTP response."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import attrs
import pytest
import trio
from websockets.exceptions import InvalidStatus

from dafka import Config
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import read_users, write_users
from tests.http.api.test_permissions import basic
from tests.http.running import RunningWeb, open_web
from tests.http.websocket.clients import BINARY, JSON, open_client
from tests.http.websocket.raw import KEY
from tests.kafka.server.secured import PASSWORD, write_user_file

CURL_FEATURES = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout

UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY}


async def curl(web: RunningWeb, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body that curl gets."""
    command = ["curl", "--silent", "--include", "--http1.1", "--max-time", "20", f"http://127.0.0.1:{web.port}/ws"]
    for name, value in headers.items():
        command += ["--header", f"{name}: {value}"]
    result = await trio.run_process(command, capture_stdout=True, check=False)
    head, _, body = result.stdout.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status.split()[1]), found, body


async def test_request_without_upgrade_is_told_so() -> None:
    async with open_web() as web:
        status, headers, body = await curl(web)
        assert (status, headers["upgrade"]) == (426, "websocket")
        assert json.loads(body)["error"]["code"] == "bad_request"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"Sec-WebSocket-Version": "8"}, 400),
        ({"Sec-WebSocket-Key": "short"}, 400),
        ({"Sec-WebSocket-Protocol": "chat"}, 400),
        ({"Origin": "https://example.com"}, 403),
        ({"Host": "example.com"}, 403),
    ],
)
async def test_handshake_that_is_wrong_is_refused(changes: dict[str, str], status: int) -> None:
    async with open_web() as web:
        found, _, body = await curl(web, **{**UPGRADE, **changes})
        assert found == status
        assert body
        assert await web.is_alive()


async def test_credentials_that_are_wrong_are_refused(tmp_path: Path) -> None:
    write_user_file(tmp_path / "users", ada=Permissions(read=("*",)))
    async with open_web(config=Config().with_clients(users=str(tmp_path / "users"))) as web:
        status, _, body = await curl(web, **UPGRADE, Authorization=basic("ada", "wrong"))
        assert (status, json.loads(body)["error"]["code"]) == (401, "unauthenticated")


async def test_origin_of_the_broker_and_those_of_the_settings_are_accepted() -> None:
    async with open_web(config=Config().with_http(origins=("https://example.com",))) as web:
        for origin in ("https://example.com", f"http://127.0.0.1:{web.port}"):
            async with open_client(web, Origin=origin) as client:
                assert (await client.ask("ping"))["type"] == "pong"
        with pytest.raises(InvalidStatus):
            async with open_client(web, Origin="https://other.example.com"):
                pass


@pytest.mark.parametrize("offered", [None, JSON, BINARY])
async def test_subprotocol_is_chosen(offered: str | None) -> None:
    async with open_web() as web, open_client(web, offered) as client:
        assert client.connection.subprotocol == offered


@pytest.mark.skipif(" ws" not in CURL_FEATURES, reason="this curl has no WebSocket")
async def test_curl_speaks_websocket_where_it_can() -> None:
    async with open_web() as web:
        command = ["curl", "--silent", "--max-time", "2", f"ws://127.0.0.1:{web.port}/ws"]
        result = await trio.run_process(command, capture_stdout=True, check=False)
        assert b'"type":"welcome"' in result.stdout


# Logging in


def secure(folder: Path) -> Config:
    users = folder / "users"
    write_user_file(users, ada=Permissions(read=("orders*",), write=("orders",), groups=("mine",)))
    return Config().with_clients(users=str(users), login_ms=500)


async def test_user_logs_in_with_the_first_message(tmp_path: Path) -> None:
    async with open_web(config=secure(tmp_path)) as web, open_client(web) as client:
        assert client.welcome["needs_authentication"]
        assert client.welcome["user"] is None
        refused = await client.ask("publish", topic="orders", records=[{"value": "a"}])
        assert refused["code"] == "unauthenticated"
        answer = await client.ask("authenticate", user="ada", password=PASSWORD)
        assert (answer["type"], answer["user"]) == ("authenticated", "ada")
        await trio.sleep(0.6)  # beyond `login_ms`
        assert await client.publish("orders", "a") == [{"log": 0, "offset": 0, "count": 1}]


async def test_user_of_the_handshake_is_logged_in(tmp_path: Path) -> None:
    config = secure(tmp_path)
    async with open_web(config=config) as web, open_client(web, Authorization=basic("ada", PASSWORD)) as client:
        assert (client.welcome["user"], client.welcome["needs_authentication"]) == ("ada", False)
        await client.publish("orders", "a")


async def test_wrong_password_ends_the_connection(tmp_path: Path) -> None:
    async with open_web(config=secure(tmp_path)) as web, open_client(web) as client:
        answer = await client.ask("authenticate", user="ada", password="wrong")
        assert answer["code"] == "unauthenticated"
        with trio.fail_after(20):
            await client.connection.wait_closed()
        assert client.connection.close_code == 1008


async def test_login_must_come_in_time(tmp_path: Path) -> None:
    async with open_web(config=secure(tmp_path)) as web, open_client(web) as client:
        with trio.fail_after(20):
            await client.connection.wait_closed()
        assert client.connection.close_code == 1008


@pytest.mark.parametrize(
    "request_",
    [
        {"type": "publish", "topic": "orders-2", "records": [{"value": "a"}]},
        {"type": "publish", "topic": "other", "records": [{"value": "a"}]},
        {"type": "subscribe", "topic": "other", "from": "earliest", "credit": 1},
        {"type": "subscribe", "topic": "orders", "from": {"group": "theirs"}, "credit": 1},
        {"type": "commit", "group": "theirs", "topic": "orders", "offsets": {"0": 1}},
        {"type": "commit", "group": "mine", "topic": "other", "offsets": {"0": 1}},
        {"type": "describe", "topic": "other"},
        {"type": "describe", "topic": "orders-2", "create": True},
    ],
)
async def test_what_the_user_may_not_do_is_forbidden(request_: dict[str, object], tmp_path: Path) -> None:
    async with open_web(config=secure(tmp_path)) as web:
        await web.broker.node.create_topic("other").wait()
        async with open_client(web, Authorization=basic("ada", PASSWORD)) as client:
            await client.publish("orders", "a")
            await client.connection.send(json.dumps({"id": 5, **request_}))
            error = await client.expect("error", 5)
            assert error["code"] == "forbidden"
            view = await client.ask("watch", path="/topics", interval_ms=500)
            assert [each["name"] for each in view["body"]["topics"]] == ["orders"]


async def test_permission_that_is_taken_away_ends_subscriptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka.http.websocket.client_tasks.REFRESH_S", 0.05)
    config, path = secure(tmp_path), tmp_path / "users"
    async with open_web(config=config) as web, open_client(web, Authorization=basic("ada", PASSWORD)) as client:
        await client.publish("orders", "a", "b")
        idle = await client.subscribe("orders", "latest")
        waiting = await client.subscribe("orders", credit=1)
        assert await client.values(1, waiting) == ["a"]
        users = read_users(path)
        write_users(path, {"ada": attrs.evolve(users["ada"], permissions=Permissions(write=("orders",)))})
        ended = [await client.expect("error") for _ in range(2)]
        assert {each["id"] for each in ended} == {idle, waiting}
        assert {each["code"] for each in ended} == {"forbidden"}
        write_users(path, {})
        while (answer := await client.ask("publish", topic="orders", records=[{"value": "c"}]))["type"] != "error":
            pass
        assert answer["code"] == "unauthenticated"
