"""Measures WebSocket: a broker with JSON and with binary messages, beside NATS's WebSocket listener.

100-byte records, published by one client and received live by another. All clients use Python's `websockets` and do the
least that a program must: publishing, they put the bytes or the text of each record into messages of the same number of
records; receiving, they take each record out again and compare it. The broker stores every record in a file log and
acknowledges it. NATS stores nothing and acknowledges nothing; its client waits for a PONG behind the last record.
Server, publisher and subscriber are processes of their own. Run on a quiet machine with `nats-server` in the path:

    python benchmarks/web_rates.py [RECORDS] [ROUNDS] [RECORDS_IN_A_MESSAGE]
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson
import trio
from websockets.asyncio.client import ClientConnection, connect

from dafka.batches import encode_batch, iter_batches
from dafka.batches.decoding import decode_batches
from dafka.listeners import ListeningBroker, serve_listeners
from dafka.testing.cluster import open_cluster
from dafka.web.websocket.binary import RECORDS_HEAD_BYTES, encode_publish

CONTENT_BYTES = 100
UNDER_WAY_MAX = 200
"""How many messages a publisher of the broker has under way."""
SYSTEMS = ("nats", "json", "binary")


def contents(records: int) -> list[bytes]:
    return [b"%09d " % number + b"abcdefghi " * 9 for number in range(records)]


@contextmanager
def serve_nats(folder: str) -> Iterator[str]:
    """Run nats-server, and yield its URL."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    config = Path(folder) / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{ports[0]}"\nmax_pending: 2GB\n'
        f'websocket {{ listen: "127.0.0.1:{ports[1]}", no_tls: true, compression: false }}\n'
    )
    program = shutil.which("nats-server") or "/usr/sbin/nats-server"
    with subprocess.Popen([program, "-c", config], stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                try:
                    socket.create_connection(("127.0.0.1", ports[1])).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield f"ws://127.0.0.1:{ports[1]}"
        finally:
            process.kill()


async def serve_broker(folder: str) -> None:
    async with open_cluster(storage=None) as cluster, trio.open_nursery() as nursery:
        config = cluster.config.with_store(storage=f"filelog:{folder}").with_http(listen="127.0.0.1:0")
        broker: ListeningBroker = await nursery.start(serve_listeners, config)
        print(broker.url, flush=True)


@contextmanager
def serve_dafka(folder: str) -> Iterator[str]:
    """Run a broker, and yield its URL."""
    program = [sys.executable, __file__, "serve", folder]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().replace("http", "ws") + "/ws"
        finally:
            process.kill()


def open_socket(url: str, system: str) -> Any:
    subprotocol: Any = {"json": "dafka.json.v1", "binary": "dafka.binary.v1"}.get(system)
    subprotocols = None if subprotocol is None else [subprotocol]
    return connect(url, subprotocols=subprotocols, compression=None, max_size=None, max_queue=None, proxy=None)


async def publish_nats(socket: ClientConnection, values: list[bytes], per_message: int) -> None:
    await socket.recv()
    await socket.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
    await socket.recv()
    head = b"PUB orders %d\r\n" % CONTENT_BYTES
    for start in range(0, len(values), per_message):
        part = values[start : start + per_message]
        await socket.send(b"".join([head + value + b"\r\n" for value in part]))
    await socket.send(b"PING\r\n")
    while b"PONG" not in await socket.recv():
        pass


async def publish_dafka(socket: ClientConnection, system: str, values: list[bytes], per_message: int) -> None:
    await socket.recv()
    under_way = 0
    for number, start in enumerate(range(0, len(values), per_message)):
        part = values[start : start + per_message]
        if system == "json":
            records = [{"value": value.decode()} for value in part]
            message = {"type": "publish", "id": number, "topic": "orders", "records": records}
            await socket.send(orjson.dumps(message), text=True)
        else:
            batch = encode_batch(0, part, timestamps=1_700_000_000_000)
            await socket.send(encode_publish(number, "orders", 0, batch))
        under_way += 1
        while under_way >= UNDER_WAY_MAX:
            under_way -= acknowledged(await socket.recv())
    while under_way:
        under_way -= acknowledged(await socket.recv())


def acknowledged(message: Any) -> int:
    answer = json.loads(message)
    assert answer["type"] == "published", answer
    return 1


def publish(url: str, system: str, records: int, per_message: int, gate: Connection) -> None:
    values = contents(records)

    async def run() -> None:
        async with open_socket(url, system) as socket:
            gate.send("ready")
            gate.recv()
            begun = time.perf_counter()
            if system == "nats":
                await publish_nats(socket, values, per_message)
            else:
                await publish_dafka(socket, system, values, per_message)
            gate.send((begun, time.perf_counter()))

    asyncio.run(run())


async def receive_nats(socket: ClientConnection, expected: list[bytes], gate: Connection) -> None:
    await socket.recv()
    await socket.send(b'CONNECT {"verbose":false}\r\nSUB orders 1\r\nPING\r\n')
    while b"PONG" not in await socket.recv():
        pass
    gate.send("ready")
    count = 0
    left = b""
    while count < len(expected):
        found = []
        data = left + await socket.recv()  # type: ignore[operator]
        position = 0
        while (end := data.find(b"\r\n", position)) >= 0:
            if data.startswith(b"PING", position):
                await socket.send(b"PONG\r\n")
                position = end + 2
                continue
            size = int(data[data.rfind(b" ", position, end) + 1 : end])
            if len(data) < end + size + 4:
                break
            found.append(data[end + 2 : end + 2 + size])
            position = end + size + 4
        left = data[position:]
        assert found == expected[count : count + len(found)]
        count += len(found)


async def receive_dafka(socket: ClientConnection, system: str, expected: list[Any], gate: Connection) -> None:
    await socket.recv()
    credit = 100_000
    subscribe = {"type": "subscribe", "id": 1, "topic": "orders", "from": "earliest", "credit": credit}
    await socket.send(json.dumps(subscribe))
    assert json.loads(await socket.recv())["type"] == "subscribed"
    gate.send("ready")
    count = owed = 0
    while count < len(expected):
        message = await socket.recv(decode=False)
        if system == "json":
            found = [record["value"] for record in orjson.loads(message)["records"]]
        else:
            data = memoryview(message)[RECORDS_HEAD_BYTES:]
            batches = [(header, data[at : at + header.size]) for at, header in iter_batches(data)]
            found = list(decode_batches(batches, bytes_max=2**24).values)
        assert found == expected[count : count + len(found)]
        count += len(found)
        owed += len(found)
        if owed >= credit // 2:
            await socket.send(json.dumps({"type": "credit", "id": 1, "records": owed}))
            owed = 0


def receive(url: str, system: str, records: int, gate: Connection) -> None:
    expected: list[Any] = contents(records)
    if system == "json":
        expected = [each.decode() for each in expected]

    async def run() -> None:
        async with open_socket(url, system) as socket:
            if system == "nats":
                await receive_nats(socket, expected, gate)
            else:
                await receive_dafka(socket, system, expected, gate)
            gate.send(time.perf_counter())

    asyncio.run(run())


def measure(system: str, records: int, per_message: int) -> tuple[float, float]:
    """Return how many records are published in a second, and how many are received live."""
    serve = serve_nats if system == "nats" else serve_dafka
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, serve(folder) as url:
        if system != "nats":
            warm_up(url)
        publishing, its_end = multiprocessing.Pipe()
        receiving, other_end = multiprocessing.Pipe()
        clients = [
            multiprocessing.Process(target=receive, args=(url, system, records, other_end)),
            multiprocessing.Process(target=publish, args=(url, system, records, per_message, its_end)),
        ]
        for client in clients:
            client.start()
        receiving.recv()
        publishing.recv()
        publishing.send("go")
        begun, published = publishing.recv()
        received = receiving.recv()
        for client in clients:
            client.join()
        return records / (published - begun), records / (received - begun)


def warm_up(url: str) -> None:
    """Create the topic."""

    async def create() -> None:
        async with open_socket(url, "json") as socket:
            await socket.recv()
            await socket.send(json.dumps({"type": "describe", "id": 1, "topic": "orders", "create": True}))
            assert json.loads(await socket.recv())["type"] == "described"

    asyncio.run(create())


def main(records: int, rounds: int, per_message: int) -> None:
    rates: dict[str, list[tuple[float, float]]] = {system: [] for system in SYSTEMS}
    for number, system in itertools.product(range(rounds), SYSTEMS):
        rates[system].append(measure(system, records, per_message))
        published, received = rates[system][-1]
        print(
            f"round {number + 1}: {system:6} published {published:10,.0f}/s  received {received:10,.0f}/s", flush=True
        )
    middle = {system: [statistics.median(each) for each in zip(*found, strict=True)] for system, found in rates.items()}
    for system in SYSTEMS[1:]:
        factors = [own / other for own, other in zip(middle[system], middle["nats"], strict=True)]
        print(f"{system}: published {factors[0]:.2f} times as fast as NATS, received {factors[1]:.2f} times")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        trio.run(serve_broker, sys.argv[2])
    else:
        given = [int(each) for each in sys.argv[1:]]
        main(*(given + [300_000, 3, 500][len(given) :]))
