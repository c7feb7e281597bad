"""A role in a process of its own, with honest traffic, which reports its measurements on request.

`python -m benchmarks.adversarial.target ROLE` reads a configuration from standard input and prints its endpoints. Then
it answers every line with what it has measured since the previous one.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import trio

from dafka.config import Config
from dafka.config.configuration import change_section
from dafka.roles import open_consumer, open_producer, serve_store, serve_tower

TOPIC = "orders"
INTERVAL_S = 0.02
_STAMP = struct.Struct("=d")


def stamp() -> bytes:
    """Return a content that holds the current time."""
    return _STAMP.pack(time.monotonic()) + b"x" * 92


def age(content: bytes) -> float:
    """Return how long ago a content was made, in seconds."""
    made: float = _STAMP.unpack_from(content)[0]
    return time.monotonic() - made


def say(**values: Any) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


async def answer(statistics: Callable[[], dict[str, Any]], latencies: list[float]) -> None:
    """Answer every line of standard input until its end."""
    stdin = trio.lowlevel.FdStream(0)
    async for _ in stdin:
        measured, latencies[:] = latencies[:], []
        say(latencies=measured, **statistics())


async def run_store(config: Config) -> None:
    """Run a store. The process that publishes measures."""
    async with trio.open_nursery() as nursery:
        store = await nursery.start(serve_store, config)
        say(address=store.address, endpoint=store.endpoint)
        await answer(
            lambda: {"discarded": store.statistics().discarded, "count": store.statistics().records_stored}, []
        )
        nursery.cancel_scope.cancel()


async def run_tower(config: Config) -> None:
    """Run a tower. The process whose nodes join measures."""
    async with trio.open_nursery() as nursery:
        tower = await nursery.start(serve_tower, config)
        say(address="", sub=tower.sub_endpoint, pub=tower.pub_endpoint, endpoint=tower.pub_endpoint)
        await answer(lambda: {"discarded": tower.discarded(), "count": tower.statistics().beacons}, [])
        nursery.cancel_scope.cancel()


async def run_producer(config: Config) -> None:
    """Run a producer, which measures how long it takes until a record is stored."""
    latencies: list[float] = []

    async def publish() -> None:
        while True:
            began = time.monotonic()
            await producer.send(stamp())
            await producer.wait_stored()
            latencies.append(time.monotonic() - began)
            await trio.sleep(INTERVAL_S)

    config = config.with_producer(close_timeout_ms=0)
    async with trio.open_nursery() as nursery, open_producer(TOPIC, config) as producer:
        say(address=producer.partition.address, endpoint=producer.endpoint)
        nursery.start_soon(publish)
        await answer(
            lambda: {"discarded": producer.statistics().discarded, "count": producer.statistics().records}, latencies
        )
        sys.exit(0)


async def run_consumer(config: Config) -> None:
    """Run a consumer, which measures how old records are when they are delivered."""
    latencies: list[float] = []
    wrong: list[int] = []
    expected: dict[Any, int] = {}

    async def consume() -> None:
        async for record in consumer:
            if record.value is not None and len(record.value) == len(stamp()):
                latencies.append(age(record.value))
                if expected.setdefault(record.partition, record.sequence) != record.sequence:
                    wrong.append(record.sequence)
                expected[record.partition] = record.sequence + 1

    async with trio.open_nursery() as nursery, open_consumer([TOPIC], config) as consumer:
        say(address=consumer.address, endpoint=consumer.endpoint)
        nursery.start_soon(consume)
        await answer(
            lambda: {
                "discarded": consumer.statistics().discarded,
                "count": consumer.statistics().records,
                "wrong": len(wrong),
            },
            latencies,
        )
        nursery.cancel_scope.cancel()


def main() -> None:
    """Run the role that the command line names."""
    config = Config()
    for section, values in json.loads(sys.stdin.readline()).items():
        config = change_section(config, section, values)
    roles = {"store": run_store, "tower": run_tower, "producer": run_producer, "consumer": run_consumer}
    trio.run(roles[sys.argv[1]], config)


if __name__ == "__main__":
    main()
