"""HTTP over TLS, with curl."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from dafka import Config
from tests.http.running import DEADLINE_S, RunningWeb, open_web
from tests.kafka.server.secured import EVERYTHING, PASSWORD, Authority, write_user_file


@asynccontextmanager
async def open_encrypted(folder: Path) -> AsyncIterator[RunningWeb]:
    """Run a broker with a certificate for localhost and a user during the block."""
    certificate = Authority(folder).issue("localhost")
    write_user_file(folder / "users", anne=EVERYTHING)
    config = Config().with_clients(users=str(folder / "users"), tls_certificate=str(certificate))
    async with open_web(f"filelog:{folder}/log", config.with_http(listen="0.0.0.0:0", receive_ms=500)) as web:
        yield web


async def curl(web: RunningWeb, folder: Path, path: str, *options: str) -> str:
    """Return what curl prints."""
    url = f"https://localhost:{web.port}{path}"
    command = ["curl", "-s", "--cacert", str(folder / "authority.pem"), url, *options]
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False, cwd=folder)
    return done.stdout.decode()


async def test_a_client_publishes_and_reads_over_tls(tmp_path: Path) -> None:
    async with open_encrypted(tmp_path) as web:
        user = ("-u", f"anne:{PASSWORD}")
        (tmp_path / "body").write_bytes(b"x" * 500_000)
        answer = await curl(web, tmp_path, "/topics/orders/records", *user, "--data-binary", "@body")
        assert json.loads(answer) == {"offsets": [{"log": 0, "offset": 0, "count": 1}]}
        record = json.loads(await curl(web, tmp_path, "/topics/orders/records", *user))
        assert record["value"] == "x" * 500_000
        assert json.loads(await curl(web, tmp_path, "/topics"))["error"]["code"] == "unauthenticated"
        follow = ("-N", "--max-time", "2", "-H", "Accept: text/event-stream")
        events = await curl(web, tmp_path, "/topics/orders/records?from=latest", *user, *follow)
        assert events.startswith("retry: 1000\nid: 0=1\n\n")


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
    async with open_encrypted(tmp_path) as web:
        for sent in (b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"", b"\x16\x03\x01"):
            answer = await web.exchange(sent)
            assert b"HTTP" not in answer
        user = ("-u", f"anne:{PASSWORD}")
        assert "topics" in await curl(web, tmp_path, "/topics", *user)
