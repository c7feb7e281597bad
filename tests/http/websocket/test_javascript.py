"""The JavaScript client `dafka.js` in Node, over the package `ws`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import dafka.http
from dafka import Config
from dafka.broker.access.credentials import create_token
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import read_users, write_users
from dafka.broker.core.log.partitioner import log_of_key
from tests.http.running import RunningWeb, open_web
from tests.http.websocket.broker_process import BrokerProcess
from tests.kafka.server.secured import write_user_file
from tests.ports import free_port

SCRIPTS = Path(__file__).parent / "node"
MODULE = Path(dafka.http.__file__).parent / "console" / "dafka.js"
DEADLINE_S = 60


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the scripts and what they need, which npm installs."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node is not installed")
    folder = tmp_path_factory.mktemp("node")
    for each in SCRIPTS.iterdir():
        shutil.copy(each, folder)
    installed = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--silent"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr
    return folder


@asynccontextmanager
async def run_node(
    folder: Path, scenario: str, url: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[trio.Process]:
    """Run a scenario during the block."""
    command = ["node", str(folder / "client.mjs"), scenario, str(MODULE), f"{url}/ws", *arguments]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **(environment or {})},
                check=False,
            )
        )
        with trio.fail_after(DEADLINE_S):
            yield process
        process.kill()


class Lines:
    """The lines of JSON that a process prints."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._received = b""

    async def next(self) -> Any:
        assert self._process.stdout is not None
        while b"\n" not in self._received:
            data = await self._process.stdout.receive_some()
            assert data, "the process has ended"
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)


async def run(
    folder: Path, scenario: str, web: RunningWeb, *arguments: str, count: int = 1, **environment: str
) -> list[Any]:
    """Run a scenario, and return the values that it prints."""
    async with run_node(folder, scenario, web.broker.url, *arguments, environment=environment) as process:
        lines = Lines(process)
        return [await lines.next() for _ in range(count)]


async def test_records_are_published_to_the_logs_of_their_keys_and_read(node_folder: Path) -> None:
    async with open_web() as web:
        await web.broker.node.create_topic("orders", 3).wait()
        published, found = await run(node_folder, "roundtrip", web, "orders", "100", count=2)
        keys = [f"k{number}" for number in range(100)]
        assert [log for log, _ in published] == [log_of_key(key.encode(), 3) for key in keys]
        by_log: dict[int, list[int]] = {}
        for log, offset, _, _ in found:
            by_log.setdefault(log, []).append(offset)
        assert all(offsets == [*range(len(offsets))] for offsets in by_log.values())
        assert {(key, value) for *_, key, value in found} == {(f"k{n}", f"{n} ä") for n in range(100)}


async def test_topic_is_created(node_folder: Path) -> None:
    async with open_web() as web:
        published, _ = await run(node_folder, "roundtrip", web, "new", "2", count=2)
        assert published == [[0, 0], [0, 1]]


async def test_records_behind_refused_ones_are_published(node_folder: Path) -> None:
    async with open_web() as web:
        assert await run(node_folder, "refused", web, "orders") == [[0, 1, "too_large", 2, "bad_request", 3]]


async def test_credit_is_granted_by_hand(node_folder: Path) -> None:
    async with open_web() as web:
        await run(node_folder, "roundtrip", web, "orders", "10", count=2)
        (found,) = await run(node_folder, "credit", web, "orders")
        assert found == [[0, ["2 ä", "3 ä", "4 ä"], 5], [0, ["5 ä", "6 ä"], 7]]


async def test_resources_commits_and_errors(node_folder: Path) -> None:
    async with open_web() as web:
        await run(node_folder, "roundtrip", web, "orders", "3", count=2)
        described, viewed, error = await run(node_folder, "rest", web, "orders", count=3)
        assert described == [{"log": 0, "start_offset": 0, "end_offset": 3}]
        assert viewed == [[200, "orders"]]
        assert error == {"error": "topic_not_found"}
        found = await web.broker.broker.groups.fetch_offsets("group")
        assert [each.offset for each in found.values()] == [1]


async def test_login(node_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user_file(path, ada=Permissions(write=("orders",)))
    users = read_users(path)
    secret, token = create_token()
    write_users(path, {"ada": attrs.evolve(users["ada"], tokens=(token,))})
    async with open_web(config=Config().with_clients(users=str(path))) as web:
        assert await run(node_folder, "login", web, "orders", DAFKA_TOKEN=secret) == ["published"]
        assert await run(node_folder, "login", web, "orders", DAFKA_TOKEN="x", count=2) == ["unauthenticated"] * 2
        assert await run(node_folder, "login", web, "orders", count=2) == ["unauthenticated"] * 2


@pytest.mark.parametrize("storage", ["filelog:{}/log", "sqlite:{}/broker.db"], ids=["filelog", "sqlite"])
async def test_broker_that_is_killed_while_records_flow(node_folder: Path, tmp_path: Path, storage: str) -> None:
    """Each record is stored once, and the subscriber gets each of them once, in order."""
    port = free_port()
    broker = BrokerProcess(storage.format(tmp_path), port)
    url = f"http://127.0.0.1:{port}"
    try:
        await trio.to_thread.run_sync(broker.start)
        async with AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(run_node(node_folder, "count", url, "orders"))
            published = Lines(publisher)
            assert await published.next() == "begun"
            subscriber = await stack.enter_async_context(run_node(node_folder, "follow", url, "orders"))
            followed = Lines(subscriber)
            assert await followed.next() == "following"
            for _ in range(3):
                await trio.sleep(0.7)
                broker.kill()
                await trio.to_thread.run_sync(broker.start)
            await trio.sleep(1)
            assert publisher.stdin is not None
            assert subscriber.stdin is not None
            await publisher.stdin.send_all(b"stop\n")
            count = await published.next()
            await subscriber.stdin.send_all(b"%d\n" % count)
            found = await followed.next()
        assert count > 1000
        assert found == [[number, f"{number}"] for number in range(count)]
    finally:
        broker.kill()
