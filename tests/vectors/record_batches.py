"""Records what nodes with record batches send: `python -m tests.vectors.record_batches` writes record-batches/*.json.

For each compression, a producer publishes `RECORDS`, a store saves them, and a consumer that comes later fetches them.
Two connections listen to the producer and to the store: one subscribes to the commands with batches and to those
without, the other one to everything, which is RFC 46 alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import trio

from dafka import Config, ProducerRecord
from dafka.testing import open_cluster
from dafka_conformance.testbed.network import Sockets

CompressionName: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]

FOLDER = Path(__file__).with_name("record-batches")
TOPIC = "hello"
COMMANDS = (b"B", b"C", b"M", b"D", b"K", b"H", b"E")
SETTLE_S = 1.0
TIMEOUT_S = 30.0

RECORDS = (
    ProducerRecord(b"a value"),
    ProducerRecord(b"keyed", b"key", timestamp=1_700_000_000_000),
    ProducerRecord(b"headed", None, (("h", b"1"), ("h", None), ("", b"")), 1_700_000_000_001),
    ProducerRecord(None, b"deleted", timestamp=0),
    ProducerRecord(b"\xda\xfc\xa5\x01 begins as an envelope"),
    *(ProducerRecord(b"value %d " % number * 20) for number in range(10)),
)


async def record(compression: CompressionName) -> list[dict[str, Any]]:
    """Return the messages of a small cluster."""
    events: list[dict[str, Any]] = []
    counts = {"batches": 0, "rfc46": 0}
    is_recorded = trio.Event()
    config = Config().with_producer(compression=compression)
    with Sockets() as sockets:
        async with open_cluster(config) as cluster, trio.open_nursery() as nursery:

            async def listen(peer: str, endpoint: str, connection: str, prefixes: tuple[bytes, ...]) -> None:
                socket = sockets.subscriber()
                socket.connect(endpoint)
                for prefix in prefixes:
                    socket.subscribe(prefix)
                while True:
                    for frames in await socket.receive_many():
                        counts[connection] += frames[0][:1] in {b"C", b"D"}
                        shown = [frame.hex() for frame in frames]
                        if counts["rfc46"] == len(RECORDS) and counts["batches"]:
                            is_recorded.set()
                        events.append({"peer": peer, "connection": connection, "frames": shown})

            def start(peer: str, endpoint: str) -> None:
                nursery.start_soon(listen, peer, endpoint, "batches", COMMANDS)
                nursery.start_soon(listen, peer, endpoint, "rfc46", (b"",))

            async with cluster.producer(TOPIC) as producer:
                assert cluster.store is not None
                start("producer", producer.endpoint)
                start("store", cluster.store.endpoint)
                await trio.sleep(SETTLE_S)
                await producer.send_many(RECORDS)
                await producer.wait_stored()
            async with cluster.consumer([TOPIC]) as consumer:
                with trio.fail_after(TIMEOUT_S):
                    for _ in RECORDS:
                        await consumer.next_record()
                    await is_recorded.wait()
            nursery.cancel_scope.cancel()
    return events


def main() -> None:
    """Write a recording for each compression."""
    for name in get_args(CompressionName):
        text = json.dumps(trio.run(record, name), indent=0)
        (FOLDER / f"{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
