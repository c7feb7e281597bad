"""HTTP over TLS: of the broker, with curl; and of nginx as a web proxy, with the configuration that the page shows."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from websockets.trio.client import connect
from websockets.typing import Origin, Subprotocol

from dafka import Config
from dafka.broker.connections.tcp_server import AcceptedClient
from tests.http.running import DEADLINE_S, RunningWeb, open_web, read_all
from tests.http.server.test_authentication import basic
from tests.http.websocket.clients import JSON, Client
from tests.kafka.server.secured import EVERYTHING, PASSWORD, Authority, write_user_file
from tests.ports import free_port

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "http.md"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")

needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@asynccontextmanager
async def open_encrypted(folder: Path, receive_ms: int = 60_000) -> AsyncIterator[RunningWeb]:
    """Run a broker with a certificate for localhost and a user during the block."""
    certificate = Authority(folder).issue("localhost")
    write_user_file(folder / "users", anne=EVERYTHING)
    config = Config().with_clients(users=str(folder / "users"), tls_certificate=str(certificate))
    async with open_web(f"filelog:{folder}/log", config.with_http(listen="0.0.0.0:0", receive_ms=receive_ms)) as web:
        yield web


async def curl(web: RunningWeb, folder: Path, path: str, *options: str) -> str:
    command = curl_command(web, folder, path, *options)
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False, cwd=folder)
    return done.stdout.decode()


def curl_command(web: RunningWeb, folder: Path, path: str, *options: str) -> list[str]:
    url = f"https://localhost:{web.port}{path}"
    return ["curl", "-s", "--cacert", str(folder / "authority.pem"), url, *options]


async def test_a_client_publishes_and_reads_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of another machine."""
    monkeypatch.setattr(AcceptedClient, "is_local", False)
    async with open_encrypted(tmp_path) as web:
        user = ("-u", f"anne:{PASSWORD}")
        (tmp_path / "body").write_bytes(b"x" * 500_000)
        answer = await curl(web, tmp_path, "/topics/orders/records", *user, "--data-binary", "@body")
        assert json.loads(answer) == {"offsets": [{"log": 0, "offset": 0, "count": 1}]}
        record = json.loads(await curl(web, tmp_path, "/topics/orders/records", *user))
        assert record["value"] == "x" * 500_000
        assert json.loads(await curl(web, tmp_path, "/topics"))["error"]["code"] == "unauthenticated"
        follow = ("-N", "-H", "Accept: text/event-stream")
        command = curl_command(web, tmp_path, "/topics/orders/records?from=latest", *user, *follow)
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        expected, events = b"retry: 1000\nid: 0=1\n\n", b""
        with trio.fail_after(DEADLINE_S):
            while len(events) < len(expected):
                events += await process.stdout.receive_some() or b"the end"
        process.kill()
        await process.wait()
        assert events.startswith(expected)


async def test_the_cookie_of_a_session_is_sent_over_tls_only(tmp_path: Path) -> None:
    async with open_encrypted(tmp_path) as web:
        login = ("--json", json.dumps({"user": "anne", "password": PASSWORD}), "-c", "jar", "-i")
        answer = await curl(web, tmp_path, "/session", *login)
        assert "; HttpOnly; SameSite=Strict; Secure\r\n" in answer
        assert json.loads(await curl(web, tmp_path, "/session", "-b", "jar"))["user"] == "anne"
        origin = ("-H", f"Origin: https://localhost:{web.port}")
        assert json.loads(await curl(web, tmp_path, "/topics", "-b", "jar", *origin, "--json", '{"name": "a"}'))["name"]
        downgraded = ("-H", f"Origin: http://localhost:{web.port}")
        refused = await curl(web, tmp_path, "/topics", "-b", "jar", *downgraded, "--json", '{"name": "b"}')
        assert json.loads(refused)["error"]["code"] == "forbidden"


async def test_clients_without_tls_are_ended(tmp_path: Path) -> None:
    async with open_encrypted(tmp_path, receive_ms=2000) as web:
        for sent in (b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"", b"\x16\x03\x01"):
            answer = await web.exchange(sent)
            assert b"HTTP" not in answer
        assert web.server.counters.disconnected == {"no TLS": 3}
        user = ("-u", f"anne:{PASSWORD}")
        assert "topics" in await curl(web, tmp_path, "/topics", *user)


# Through nginx


IDLE_S = 125
"""Longer than nginx waits for a broker or a client."""


def shown_configuration(broker_port: int, port: int, certificate: Path) -> str:
    """Return the configuration on the page, for a broker at a port, with another port and another certificate."""
    (block,) = re.findall(r"^```nginx\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    for stated, actual in (
        ("127.0.0.1:8080", f"127.0.0.1:{broker_port}"),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/dafka.pem", str(certificate)),
        ("/etc/ssl/dafka.key", str(certificate)),
    ):
        assert block.count(stated) == 1, stated
        block = block.replace(stated, actual)
    return str(block)


@attrs.frozen
class Proxy:
    """A running nginx.

    Attributes:
        port: The port at which it listens.
        tls: What its clients need.
    """

    port: int
    tls: ssl.SSLContext

    async def connect(self) -> trio.SSLStream[trio.SocketStream]:
        return await trio.open_ssl_over_tcp_stream("localhost", self.port, ssl_context=self.tls)

    async def exchange(self, method: str, target: str, body: bytes = b"", *lines: str) -> bytes:
        host = f"Host: localhost:{self.port}"
        return await self.send(f"{method} {target} HTTP/1.1", host, f"Content-Length: {len(body)}", *lines, body=body)

    async def send(self, *head: str, body: bytes = b"") -> bytes:
        stream = await self.connect()
        async with stream:
            await stream.send_all("\r\n".join([*head, "Connection: close", "", ""]).encode() + body)
            return await read_all(stream)


@asynccontextmanager
async def open_proxy(folder: Path, web: RunningWeb, port: int = 0) -> AsyncIterator[Proxy]:
    await trio.Path(folder).mkdir(exist_ok=True)
    authority = Authority(folder)
    certificate = authority.issue("localhost")
    port = port or free_port()
    configuration = f"""
        daemon off; pid {folder}/pid; error_log {folder}/errors; user root;
        events {{}}
        http {{
            access_log off;
            client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
            uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
            {shown_configuration(web.port, port, certificate)}
        }}
    """
    (folder / "nginx.conf").write_text(configuration)
    tls = ssl.create_default_context(cafile=str(authority.path))
    command = [str(NGINX), "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "errors")]
    process = await trio.lowlevel.open_process(command)
    try:
        with trio.fail_after(DEADLINE_S):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    assert process.poll() is None, (folder / "errors").read_text()
        yield Proxy(port, tls)
    finally:
        process.terminate()
        await process.wait()


async def read_events(stream: trio.abc.ReceiveStream, count: int) -> bytes:
    received = b""
    while received.count(b"data: ") < count or not received.endswith(b"\n\n"):
        data = await stream.receive_some()
        assert data, received
        received += data.replace(b"\r\n", b"")
    return received


@needs_nginx
async def test_records_are_published_and_followed_through_a_proxy_that_restarts(tmp_path: Path) -> None:
    write_user_file(tmp_path / "users", anne=EVERYTHING)
    user = f"Authorization: {basic('anne', PASSWORD)}"
    config = Config().with_clients(users=str(tmp_path / "users"))
    target = "/topics/orders/records"
    with trio.fail_after(2 * DEADLINE_S):
        async with open_web(f"filelog:{tmp_path}/log", config) as web:
            async with open_proxy(tmp_path / "nginx", web) as proxy:
                assert b" 401 " in await proxy.exchange("GET", "/topics")
                assert b" 200 " in await proxy.exchange("POST", target, b"a" * 900_000, user)
                own = f"Origin: https://localhost:{proxy.port}"
                assert b" 200 " in await proxy.exchange("POST", target, b"b", user, own)
                assert b" 403 " in await proxy.exchange("POST", target, b"c", user, "Origin: https://evil.example")
                head = [f"GET {target}?from=1 HTTP/1.0", f"Host: localhost:{proxy.port}", user]
                follow = "\r\n".join([*head, "Accept: text/event-stream", "", ""]).encode()
                async with await proxy.connect() as stream:
                    await stream.send_all(follow)
                    assert b'"value":"b"' in await read_events(stream, 1)
                    await web.request("POST", target, b"d", Authorization=basic("anne", PASSWORD))
                    received = await read_events(stream, 1)
                last = re.findall(rb"id: (\S+)\n", received)[-1].decode()
            await web.request("POST", target, b"e", Authorization=basic("anne", PASSWORD))
            async with open_proxy(tmp_path / "again", web, proxy.port) as again:
                async with await again.connect() as stream:
                    await stream.send_all(follow[:-2] + f"Last-Event-ID: {last}\r\n\r\n".encode())
                    events = await read_events(stream, 1)
                values = [json.loads(each)["value"] for each in re.findall(rb"data: (.*)\n", events)]
                assert values == ["e"]


@needs_nginx
async def test_a_proxy_without_users_needs_its_name_among_the_origins(tmp_path: Path) -> None:
    async with open_web() as web, open_proxy(tmp_path / "nginx", web) as proxy:
        assert b" 200 " in await proxy.exchange("GET", "/topics")
        assert b"[http] origins can allow it" in await proxy.send("GET /topics HTTP/1.1", "Host: dafka.example")
    config = Config().with_http(origins=("https://dafka.example",))
    async with open_web(config=config) as web, open_proxy(tmp_path / "other", web) as proxy:
        assert b" 200 " in await proxy.send("GET /topics HTTP/1.1", "Host: dafka.example")


@asynccontextmanager
async def open_websocket(proxy: Proxy) -> AsyncIterator[Client]:
    """Connect by WebSocket through the proxy, as a page of the broker's does."""
    url = f"wss://localhost:{proxy.port}/ws"
    own = Origin(f"https://localhost:{proxy.port}")
    options: Any = {"subprotocols": [Subprotocol(JSON)], "ping_interval": None, "proxy": None}  # browsers do not ping
    async with connect(url, ssl=proxy.tls, origin=own, **options) as connection:
        welcome = json.loads(await connection.recv())
        assert welcome["type"] == "welcome"
        yield Client(connection, welcome)


@needs_nginx
@pytest.mark.long
@pytest.mark.timeout(400)
async def test_idle_connections_last_and_subscriptions_resume_after_a_restart(tmp_path: Path) -> None:
    target = "/topics/orders/records"
    async with open_web(f"filelog:{tmp_path}/log") as web:
        async with (
            open_proxy(tmp_path / "nginx", web) as proxy,
            open_websocket(proxy) as client,
            await proxy.connect() as stream,
        ):
            await client.publish("orders", "0")
            await client.subscribe("orders")
            assert await client.values(1) == ["0"]
            head = [f"GET {target}?from=1 HTTP/1.0", f"Host: localhost:{proxy.port}", "Accept: text/event-stream"]
            await stream.send_all("\r\n".join([*head, "", ""]).encode())
            with trio.move_on_after(IDLE_S) as idle:
                await client.connection.recv()
            assert idle.cancelled_caught
            await web.request("POST", target, b"1")
            with trio.fail_after(DEADLINE_S):
                assert await client.values(1) == ["1"]
                assert b'"value":"1"' in await read_events(stream, 1)
        await web.request("POST", target, b"2")
        async with open_proxy(tmp_path / "again", web, proxy.port) as again, open_websocket(again) as client:
            await client.subscribe("orders", {"offset": 2})
            assert await client.values(1) == ["2"]
            await client.publish("orders", "3")
