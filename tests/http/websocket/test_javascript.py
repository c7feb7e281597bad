"""The JavaScript client `dafka.js` in Node, over the package `ws`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import attrs
import pytest
import trio

import dafka.http
from dafka import Config
from dafka.broker.access.credentials import create_token
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User, write_users
from dafka.broker.core.log.partitioner import log_of_key
from tests.cli.harness import Dafka, Running
from tests.http.running import open_web
from tests.kafka.server.secured import make_credentials
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
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    return folder


@attrs.define
class Lines:
    """The lines of JSON that a process prints."""

    process: Any
    received: bytes = b""

    async def next(self) -> Any:
        while b"\n" not in self.received:
            data = await self.process.stdout.receive_some()
            assert data, "the process has ended"
            self.received += data
        line, _, self.received = self.received.partition(b"\n")
        return json.loads(line)

    async def send(self, line: str) -> None:
        await self.process.stdin.send_all(f"{line}\n".encode())


@asynccontextmanager
async def run_node(folder: Path, url: str, *scenarios: str) -> AsyncIterator[Lines]:
    command = ["node", str(folder / "client.mjs"), str(MODULE), f"{url}/ws", *scenarios]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
        process = await nursery.start(run)
        with trio.fail_after(DEADLINE_S):
            yield Lines(process)
        process.kill()


async def test_records_are_published_and_read_and_what_is_wrong_is_told(node_folder: Path) -> None:
    async with open_web() as web:
        await web.broker.node.admin.create_topic("orders", 3)
        scenarios = ("roundtrip:orders:100", "roundtrip:new:10", "credit:new", "rest:new", "refused:others")
        async with run_node(node_folder, web.broker.url, *scenarios) as lines:
            published, found = await lines.next(), await lines.next()
            keys = [f"k{number}" for number in range(100)]
            assert [log for log, _ in published] == [log_of_key(key.encode(), 3) for key in keys]
            for log in range(3):
                offsets = [offset for number, offset, *_ in found if number == log]
                assert offsets == [*range(len(offsets))]
            assert {(key, value) for *_, key, value in found} == {(f"k{n}", f"{n} ä") for n in range(100)}
            created, _ = await lines.next(), await lines.next()
            assert created == [[0, number] for number in range(10)], "the topic is created"
            assert await lines.next() == [[0, ["2 ä", "3 ä", "4 ä"], 5], [0, ["5 ä", "6 ä"], 7]], "credit by hand"
            assert await lines.next() == [{"log": 0, "start_offset": 0, "end_offset": 10}]
            assert await lines.next() == [[200, "new"]]
            assert await lines.next() == {"error": "topic_not_found"}
            groups = await web.broker.broker.groups.fetch_offsets("group")
            assert [each.offset for each in groups.values()] == [1]
            assert await lines.next() == [0, 1, "too_large", 2, "bad_request", 3], "others behind them are published"


async def test_records_of_a_queue_are_acknowledged_one_by_one(node_folder: Path) -> None:
    async with open_web() as web:
        await web.broker.node.admin.create_topic("jobs", 3)
        queue = "/topics/jobs/queues/workers"
        assert (await web.request("PUT", queue, document={"from": "earliest"})).status == 200
        for number in range(7):
            await web.request("POST", f"/topics/jobs/records?log={number % 3}", f"{number}".encode())
        async with run_node(node_folder, web.broker.url, "consume:jobs:workers:7") as lines:
            expected = [[f"{number}", True] for number in range(7)]
            assert await lines.next() == [expected, expected, False]
        assert (await web.get(queue)).document["available_count"] == 0


async def test_login(node_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "users"
    secret, token = create_token()
    write_users(path, {"ada": User("ada", make_credentials(), Permissions(write=("orders",)), (token,))})
    async with open_web(config=Config().with_clients(users=str(path))) as web:
        scenarios = [f"login:orders:{each}" for each in (secret, "x", "")]
        async with run_node(node_folder, web.broker.url, *scenarios) as lines:
            found = [await lines.next() for _ in scenarios]
            assert found == [["published", ""], ["unauthenticated"] * 2, ["unauthenticated"] * 2]


async def test_broker_that_is_killed_while_records_flow(node_folder: Path, tmp_path: Path, dafka: Dafka) -> None:
    """Each record is stored once, and the subscriber gets each of them once, in order."""
    address = f"127.0.0.1:{free_port()}"

    def start() -> Running:
        up = dafka.start_up("--http", address, "--storage", f"filelog:{tmp_path}/log")
        up.wait_output(3)
        return up

    async def wait_further() -> None:
        stored = await trio.to_thread.run_sync(count_records, address)
        while await trio.to_thread.run_sync(count_records, address) < stored + 300:
            pass

    up = start()
    url = f"http://{address}"
    async with run_node(node_folder, url, "count:orders") as published:
        assert await published.next() == "begun"
        async with run_node(node_folder, url, "follow:orders") as followed:
            assert await followed.next() == "following"
            for _ in range(2):
                await wait_further()
                up.end(signal.SIGKILL)
                up = start()
            await wait_further()
            await published.send("stop")
            count = await published.next()
            await followed.send(f"{count}")
            assert await followed.next() == [[number, f"{number}"] for number in range(count)]
    assert count > 900


def count_records(address: str) -> int:
    with urlopen(f"http://{address}/topics/orders", timeout=DEADLINE_S) as answer:
        return int(json.loads(answer.read())["record_count"])
