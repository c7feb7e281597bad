"""Measures what encryption and authentication cost: the same work in an open and in a closed cluster, in records/s.

A tower and a store run in a process of their own, a producer and a consumer in this one. Run on a quiet machine:

    python benchmarks/closed.py [RECORDS] [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import trio

from dafka import Config, open_consumer, open_producer, serve_store, serve_tower
from dafka.transport import KeyPair
from dafka.transport.keys import write_key_file

CONTENT = bytes(range(100))
RUN = 1000


def make_keys(folder: Path) -> Config:
    pair = KeyPair.generate()
    write_key_file(folder / "key", pair)
    (folder / "list").write_text(f"{pair.public}\n")
    return Config().with_security(
        key_file=str(folder / "key"), authorized_keys=str(folder / "list"), tower_keys=(pair.public,)
    )


def configure(folder: str) -> Config:
    config = Config()
    if folder:
        public = (Path(folder) / "list").read_text().strip()
        config = config.with_security(key_file=f"{folder}/key", authorized_keys=f"{folder}/list", tower_keys=(public,))
    return config.with_consumer(offset_reset="earliest")


async def serve(folder: str) -> None:
    config = configure(folder).with_tower(sub="tcp://127.0.0.1:*", pub="tcp://127.0.0.1:*")
    async with trio.open_nursery() as nursery:
        tower = await nursery.start(serve_tower, config)
        config = config.with_beacon(tower_sub=(tower.sub_endpoint,), tower_pub=(tower.pub_endpoint,))
        await nursery.start(serve_store, config.with_store(storage="memory:"))
        print(tower.sub_endpoint, tower.pub_endpoint, flush=True)


@asynccontextmanager
async def open_server(folder: str) -> AsyncIterator[Config]:
    process = await trio.lowlevel.open_process([sys.executable, __file__, "serve", folder], stdout=PIPE)
    assert process.stdout is not None
    try:
        sub, pub = (await process.stdout.receive_some()).decode().split()
        yield configure(folder).with_beacon(tower_sub=(sub,), tower_pub=(pub,))
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()


async def measure(folder: str, records: int) -> tuple[float, float]:
    """Return the records per second that are published and acknowledged, and then read from the store."""
    async with open_server(folder) as config:
        async with open_producer("t", config) as producer:
            began = trio.current_time()
            for _ in range(records // RUN):
                await producer.send_many([CONTENT] * RUN)
            await producer.wait_stored()
            stored = trio.current_time() - began
        async with open_consumer(["t"], config) as consumer:
            began, count = trio.current_time(), 0
            while count < records:
                count += len(await consumer.next_batch())
            read = trio.current_time() - began
    return records / stored, records / read


async def main(records: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        make_keys(Path(name))
        found: dict[str, list[tuple[float, float]]] = {"plain": [], "closed": []}
        for _ in range(rounds):
            for kind, folder in (("plain", ""), ("closed", name)):
                found[kind].append(await measure(folder, records))
    for kind, rates in found.items():
        stored, read = (statistics.median(each) for each in zip(*rates, strict=True))
        print(f"{kind:8} stored and acknowledged {stored:>9,.0f}/s   read from the store {read:>9,.0f}/s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        trio.run(serve, sys.argv[2])
    else:
        given = [int(text) for text in sys.argv[1:]]
        records, rounds = (*given, *(500_000, 3)[len(given) :])
        trio.run(main, records, rounds)
