"""Measures HTTP: requests, publishing and reading JSON Lines, and many followers of one topic by server-sent events.

The broker runs in a process of its own with a file log. The client is Python's `http.client`, and sockets that count
the lines of followers. Run on a quiet machine:

    python benchmarks/http_rates.py [RECORDS] [FOLLOWERS]
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import trio

from dafka.server import ServingBroker, serve_listeners
from dafka.testing.cluster import open_cluster

REQUESTS = 2000
BODY_BYTES = 8 * 2**20
FOLLOWED_RECORDS = 10_000
LINES_OF_EVENT = 3
LINES = {"Content-Type": "application/x-ndjson"}


def serve(folder: str, pipe: Connection) -> None:
    """Run a broker until the process is ended, and send its URL."""

    async def run() -> None:
        async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
            config = cluster.config.with_store(storage=f"filelog:{folder}/log").with_http(listen="0")
            broker: ServingBroker = await nursery.start(serve_listeners, config)
            pipe.send(broker.url)
            await trio.sleep_forever()

    trio.run(run)


def measure(name: str, count: int, unit: str, work: Callable[[], object]) -> None:
    """Print how many there were a second."""
    begun = time.perf_counter()
    work()
    elapsed_s = time.perf_counter() - begun
    print(f"{name:<42} {count / elapsed_s:>12,.0f} {unit}/s")


class Client:
    """A client with one connection."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address)

    def send(self, method: str, target: str, body: bytes | None = None, **headers: str) -> bytes:
        """Send a request, and return the body of the answer."""
        self._connection.request(method, target, body, {name.replace("_", "-"): text for name, text in headers.items()})
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status < 300, content
        return content

    def publish(self, topic: str, first: int, count: int) -> None:
        """Publish records as JSON Lines."""
        size = 100
        while count:
            lines = [b'{"value":"%0*d"}' % (size, first + number) for number in range(min(count, BODY_BYTES // 120))]
            self.send("POST", f"/topics/{topic}/records", b"\n".join(lines), **LINES)
            first, count = first + len(lines), count - len(lines)


async def follow(address: str, followers: int, client: Client) -> None:
    """Run followers that read the records published meanwhile. One of them does not read."""
    host, _, port = address.rpartition(":")
    left = followers - 1
    done = trio.Event()
    request = (
        b"GET /topics/followed/records?from=latest HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    )

    async def read(task_status: trio.TaskStatus[None]) -> None:
        nonlocal left
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(request)
            lines = (await stream.receive_some()).partition(b"\r\n\r\n")[2].count(b"\n")
            task_status.started()
            while lines < LINES_OF_EVENT * (FOLLOWED_RECORDS + 1):  # the first event has no record
                lines += (await stream.receive_some(2**18)).count(b"\n")
        left -= 1
        if not left:
            done.set()

    async with await trio.open_tcp_stream(host, int(port)) as silent, trio.open_nursery() as nursery:
        await silent.send_all(request)
        for _ in range(followers - 1):
            await nursery.start(read)
        begun = time.perf_counter()
        for first in range(0, FOLLOWED_RECORDS, 1000):
            await trio.to_thread.run_sync(client.publish, "followed", first, 1000)
        await done.wait()
        elapsed_s = time.perf_counter() - begun
        name = f"events, {followers} followers, one of them silent"
        print(f"{name:<42} {FOLLOWED_RECORDS * (followers - 1) / elapsed_s:>12,.0f} records/s")
        nursery.cancel_scope.cancel()


def main(records: int = 500_000, followers: int = 1000) -> None:
    """Measure, and print the rates."""
    with tempfile.TemporaryDirectory() as folder:
        here, there = multiprocessing.Pipe()
        broker = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, there))
        broker.start()
        try:
            address = urlsplit(here.recv()).netloc
            client = Client(address)
            body = json.dumps({"name": "followed"}).encode()
            client.send("POST", "/topics", body, Content_Type="application/json")
            measure(
                "GET, one connection",
                REQUESTS,
                "requests",
                lambda: [client.send("GET", "/topics") for _ in range(REQUESTS)],
            )
            measure("publish JSON Lines of 100 bytes", records, "records", lambda: client.publish("orders", 0, records))
            target = f"/topics/orders/records?limit={records}"
            measure("read JSON Lines of 100 bytes", records, "records", lambda: client.send("GET", target))
            trio.run(follow, address, followers, client)
        finally:
            broker.terminate()
            broker.join()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
