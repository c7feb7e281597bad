"""Measures WebSocket: a broker with JSON and with binary messages, compared with NATS's WebSocket listener.

One client publishes 100-byte records, and others receive all of them live. The publisher, the subscribers and the
server are three processes. The clients do as little as possible while time is measured, so that the servers are
compared: messages are made before, subscribers count what they receive, and what one of them received is taken apart
and compared after. The broker stores every record in a file log and acknowledges it. NATS stores nothing and
acknowledges nothing; its client waits for a PONG behind the last record. `lz4` is the binary subprotocol with batches
that the publisher has compressed; the values are JSON with numbers that differ. Run on a quiet machine with
`nats-server` in the path:

    python benchmarks/web_rates.py [RECORDS] [ROUNDS] [RECORDS_IN_A_MESSAGE] [SUBSCRIBERS]
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import random
import selectors
import shutil
import socket
import statistics
import struct
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
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.uri import parse_uri

from dafka.batches import Compression, encode_batch, iter_batches
from dafka.batches.decoding import decode_batches
from dafka.http.websocket.binary import RECORDS_HEAD_BYTES, encode_publish
from dafka.server import ServingBroker, serve_listeners
from dafka.testing.cluster import open_cluster

CONTENT_BYTES = 100
NATS_RECORD_BYTES = len(b"MSG orders 1 %d\r\n" % CONTENT_BYTES) + CONTENT_BYTES + 2
NATS_PING = b"PING\r\n"
HEAD_BYTES = 128
SUBPROTOCOLS: dict[str, Any] = {
    "json": ["dafka.json.v1"],
    "binary": ["dafka.binary.v1"],
    "lz4": ["dafka.binary.v1"],
}
UNDER_WAY_MAX = 200
"""How many messages a publisher of the broker has under way."""
SYSTEMS = ("nats", "json", "binary", "lz4")


def contents(records: int) -> list[bytes]:
    draw = random.Random(1)
    return [
        b'{"id":%09d,"user":%06d,"amount":%08d,"currency":"EUR","country":"NL","state":"completed"}'
        % (number, draw.randrange(10**6), draw.randrange(10**8))
        for number in range(records)
    ]


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
        broker: ServingBroker = await nursery.start(serve_listeners, config)
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
    return connect(
        url, subprotocols=SUBPROTOCOLS.get(system), compression=None, max_size=None, max_queue=None, proxy=None
    )


def make_messages(system: str, values: list[bytes], per_message: int) -> list[Any]:
    """Return the messages that publish these records."""
    parts = [values[start : start + per_message] for start in range(0, len(values), per_message)]
    if system == "nats":
        head = b"PUB orders %d\r\n" % CONTENT_BYTES
        return [b"".join([head + value + b"\r\n" for value in part]) for part in parts]
    if system == "json":
        return [
            orjson.dumps(
                {
                    "type": "publish",
                    "id": number,
                    "topic": "orders",
                    "records": [{"value": value.decode()} for value in part],
                }
            )
            for number, part in enumerate(parts)
        ]
    time_ms, compression = 1_700_000_000_000, Compression.LZ4 if system == "lz4" else Compression.NONE
    return [
        encode_publish(number, "orders", 0, encode_batch(0, part, timestamps=time_ms, compression=compression))
        for number, part in enumerate(parts)
    ]


async def publish_nats(socket: ClientConnection, messages: list[bytes]) -> None:
    for message in messages:
        await socket.send(message)
    await socket.send(b"PING\r\n")
    while b"PONG" not in await socket.recv():
        pass


async def publish_dafka(socket: ClientConnection, system: str, messages: list[bytes]) -> None:
    under_way = 0
    for message in messages:
        await socket.send(message, text=system == "json")
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
    messages = make_messages(system, contents(records), per_message)

    async def run() -> None:
        async with open_socket(url, system) as socket:
            await socket.recv()
            if system == "nats":
                await socket.send(b'CONNECT {"verbose":false}\r\nPING\r\n')
                await socket.recv()
            gate.send("ready")
            gate.recv()
            begun = time.perf_counter()
            if system == "nats":
                await publish_nats(socket, messages)
            else:
                await publish_dafka(socket, system, messages)
            gate.send((begun, time.perf_counter()))

    asyncio.run(run())


class Subscriber:
    """A connection that subscribes and counts received records.

    Attributes:
        received: The bytes received, if this subscriber keeps them.
        is_done: Whether it has received everything.
    """

    def __init__(self, url: str, system: str, records: int, *, keeps: bool) -> None:
        host, _, port = url.removeprefix("ws://").removesuffix("/ws").rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.received = bytearray()
        self.is_done = False
        self._system = system
        self._records = records
        self._keeps = keeps
        self._payload_left = 0
        self._counted = 0
        self._start = b""
        self._protocol = ClientProtocol(parse_uri(url), subprotocols=SUBPROTOCOLS.get(system))
        self._protocol.send_request(self._protocol.connect())
        self._flush()
        self._wait(1)
        if system == "nats":
            self._send(b'CONNECT {"verbose":false}\r\nSUB orders 1\r\nPING\r\n')
            self._wait(1)
        else:
            subscribe = {"type": "subscribe", "id": 1, "topic": "orders", "from": "earliest", "credit": 2**31 - 1}
            self._send(json.dumps(subscribe).encode())
            self._wait(1)
        self.socket.setblocking(False)

    def _send(self, data: bytes) -> None:
        if self._system == "nats":
            self._protocol.send_binary(data)
        else:
            self._protocol.send_text(data)
        self._flush()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            self.socket.sendall(data)

    def _wait(self, messages: int) -> None:
        while messages > 0:
            self._protocol.receive_data(self.socket.recv(2**16))
            messages -= sum(isinstance(each, Frame) for each in self._protocol.events_received())

    def receive(self, room: memoryview) -> None:
        """Receive the available data, and process its frames."""
        size = self.socket.recv_into(room)
        assert size, "the server has closed the connection"
        if self._keeps:
            self.received += room[:size]
        position = 0
        while position < size:
            if self._payload_left:
                taken = min(self._payload_left, size - position)
                self._payload_left -= taken
                position += taken
                continue
            # The longest head of a frame, and the fixed header of a binary message or the beginning of a JSON one.
            head = self._start + bytes(room[position : min(position + HEAD_BYTES - len(self._start), size)])
            length, start = frame_length(head)
            needed = start + min(length, len(NATS_PING) if self._system == "nats" else HEAD_BYTES - start)
            if start == 0 or len(head) < needed:
                self._start = head
                return
            self._count(head, start, length)
            position += start - len(self._start)
            self._start = b""
            self._payload_left = length
            if position < 0:  # a part of the payload came with the beginning
                self._payload_left += position
                position = 0

    def _count(self, head: bytes, start: int, length: int) -> None:
        if self._system == "nats":
            self._counted += length - len(NATS_PING) * (head[start : start + len(NATS_PING)] == NATS_PING)
            self.is_done = self._counted >= self._records * NATS_RECORD_BYTES
        elif self._system == "json":
            at = head.find(b'"next_offset":') + len(b'"next_offset":')
            self.is_done = int(head[at : head.find(b",", at)]) >= self._records
        else:
            (end,) = struct.unpack_from(">q", head, start + RECORDS_HEAD_BYTES - 8)
            self.is_done = end >= self._records

    def payloads(self) -> Iterator[bytes]:
        """Yield the payloads of the frames received."""
        position = 0
        while position < len(self.received):
            length, start = frame_length(self.received[position : position + 10])
            yield bytes(self.received[position + start : position + start + length])
            position += start + length


def frame_length(head: bytes | bytearray) -> tuple[int, int]:
    """Return the length of a frame's payload and of the head before it; 0 and 0 if too little of the head is there."""
    if len(head) < 10:
        return 0, 0
    length = head[1]
    if length < 126:
        return length, 2
    if length == 126:
        return int.from_bytes(head[2:4], "big"), 4
    return int.from_bytes(head[2:10], "big"), 10


def read_values(system: str, payloads: Iterator[bytes]) -> list[Any]:
    """Return the values in the data that a subscriber has received."""
    if system == "nats":
        data = b"".join(payloads).replace(NATS_PING, b"")
        head = NATS_RECORD_BYTES - CONTENT_BYTES - 2
        return [data[at + head : at + head + CONTENT_BYTES] for at in range(0, len(data), NATS_RECORD_BYTES)]
    if system == "json":
        return [record["value"].encode() for each in payloads for record in orjson.loads(each)["records"]]
    found: list[Any] = []
    for each in payloads:
        part = memoryview(each)[RECORDS_HEAD_BYTES:]
        batches = [(header, part[at : at + header.size]) for at, header in iter_batches(part)]
        found += decode_batches(batches, bytes_max=2**26).values
    return found


def receive(url: str, system: str, records: int, subscribers: int, gate: Connection) -> None:
    connections = [Subscriber(url, system, records, keeps=number == 0) for number in range(subscribers)]
    gate.send("ready")
    room = memoryview(bytearray(2**18))
    with selectors.DefaultSelector() as selector:
        for each in connections:
            selector.register(each.socket, selectors.EVENT_READ, each)
        left = subscribers
        while left:
            for key, _ in selector.select():
                key.data.receive(room)
                if key.data.is_done:
                    selector.unregister(key.fileobj)
                    left -= 1
    gate.send(time.perf_counter())
    first = connections[0]
    first.socket.setblocking(True)
    while first._payload_left:
        first.receive(room)
    assert read_values(system, first.payloads()) == contents(records)


def measure(system: str, records: int, per_message: int, subscribers: int) -> tuple[float, float]:
    """Return how many records are published in a second, and how many all subscribers receive together."""
    serve = serve_nats if system == "nats" else serve_dafka
    with tempfile.TemporaryDirectory(prefix=".rates-", dir=Path.cwd()) as folder, serve(folder) as url:
        if system != "nats":
            warm_up(url)
        publishing, its_end = multiprocessing.Pipe()
        receiving, other_end = multiprocessing.Pipe()
        clients = [
            multiprocessing.Process(target=receive, args=(url, system, records, subscribers, other_end)),
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
            assert client.exitcode == 0
        return records / (published - begun), subscribers * records / (received - begun)


def warm_up(url: str) -> None:
    """Create the topic."""

    async def create() -> None:
        async with open_socket(url, "json") as socket:
            await socket.recv()
            await socket.send(json.dumps({"type": "describe", "id": 1, "topic": "orders", "create": True}))
            assert json.loads(await socket.recv())["type"] == "described"

    asyncio.run(create())


def main(records: int, rounds: int, per_message: int, subscribers: int) -> None:
    rates: dict[str, list[tuple[float, float]]] = {system: [] for system in SYSTEMS}
    for number, system in itertools.product(range(rounds), SYSTEMS):
        rates[system].append(measure(system, records, per_message, subscribers))
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
        main(*(given + [300_000, 3, 500, 1][len(given) :]))
