"""Producers, stores and consumers of both implementations in one cluster: every consumer gets every record, in order.

    LIBDAFKA_TOOLS=FOLDER pytest -m long tests/libdafka/test_mixes.py

Producers of this project leave as soon as they may. Those of libdafka stay, since its consumers get the last records
only while HEADs come (erratum 17). They are so slow that they never have more than 256 unacknowledged records (erratum
19).
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

from dafka import Config, open_consumer, open_producer, serve_store
from tests.libdafka.tools import START_S, needs_tools, open_program, open_tower

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    needs_tools,
    pytest.mark.skipif(not shutil.which("stdbuf"), reason="stdbuf, of coreutils, makes the programs print each line"),
]

COUNT = 12_000
"""Records of each producer."""

RATES = {"ours": 8000, "libdafka": 2000}
"""Records that a producer publishes in a second."""

DEADLINE_S = 120.0
KINDS = ("ours", "libdafka", "both")

Found: TypeAlias = "defaultdict[bytes, list[int]]"
"""The numbers of the records that a consumer got, by the kind of their producer."""


def kinds(choice: str) -> list[str]:
    """Return the implementations that a parameter names."""
    return [kind for kind in ("ours", "libdafka") if choice in (kind, "both")]


def values(kind: str, first: int, end: int) -> list[bytes]:
    """Return records that name their producer and their number."""
    return [b"%s %d" % (kind.encode(), number) for number in range(first, end)]


class Mix:
    """One cluster of both implementations.

    Attributes:
        found: What each consumer got, by its implementation.
        has_half: Set when a producer has published half of its records.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self.found: dict[str, Found] = {}
        self.has_half = trio.Event()
        self._config = config
        self._folder = folder

    async def produce(self, kind: str) -> None:
        """Publish all records at a steady rate; leave at the end, or stay if the producer is libdafka's."""
        async with self._open_producer(kind) as send:
            begun, step = trio.current_time(), RATES[kind] // 100
            for first in range(0, COUNT, step):
                await send(values(kind, first, min(first + step, COUNT)))
                if first >= COUNT / 2:
                    self.has_half.set()
                await trio.sleep_until(begun + first / RATES[kind])
            if kind == "libdafka":
                await trio.sleep_forever()

    @asynccontextmanager
    async def _open_producer(self, kind: str) -> AsyncIterator[Callable[[list[bytes]], Awaitable[object]]]:
        if kind == "ours":
            async with open_producer("hello", self._config) as producer:
                yield producer.send_many
            return
        async with open_program("dafka_console_producer", "hello", config=self._config, folder=self._folder) as program:
            await trio.sleep(START_S)  # it sends what it reads at once, to whom it knows by then
            assert program.stdin is not None
            stdin = program.stdin
            yield lambda lines: stdin.send_all(b"".join(b"%s\n" % line for line in lines))

    async def consume(self, kind: str) -> None:
        """Read all records from the earliest on."""
        found: Found = defaultdict(list)
        self.found[kind] = found

        def add(value: bytes) -> None:
            producer, _, number = value.partition(b" ")
            found[producer].append(int(number))

        if kind == "ours":
            async with open_consumer(["hello"], self._config.with_consumer(offset_reset="earliest")) as consumer:
                async for batch in consumer.batches():
                    for record in batch:
                        assert record.value is not None
                        add(record.value)
            return
        arguments = ("hello", "--from-beginning")
        async with open_program(
            "dafka_console_consumer", *arguments, config=self._config, folder=self._folder
        ) as program:
            assert program.stdout is not None
            rest = b""
            async for data in program.stdout:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.startswith(b"hello "):  # it also prints that it cannot read RFC 46's dialect
                        add(line.split(b" ", 2)[2])

    def lengths(self) -> dict[str, dict[str, int]]:
        """Return how many records each consumer has of each producer."""
        return {kind: {by.decode(): len(each) for by, each in found.items()} for kind, found in self.found.items()}


@pytest.mark.parametrize(("producers", "stores", "joins"), list(product(KINDS, KINDS, ["early", "in the middle"])))
async def test_every_consumer_gets_every_record_erratum_17(
    producers: str, stores: str, joins: str, tmp_path: Path
) -> None:
    expected = {kind: dict.fromkeys(kinds(producers), COUNT) for kind in kinds("both")}
    async with AsyncExitStack() as stack:
        config = await stack.enter_async_context(open_tower("ours", tmp_path / "tower"))
        nursery = await stack.enter_async_context(trio.open_nursery())
        if "libdafka" in kinds(stores):
            await stack.enter_async_context(open_program("dafka_stored", config=config, folder=tmp_path / "store"))
        if "ours" in kinds(stores):
            await nursery.start(serve_store, config.with_store(storage="memory:"))
        await trio.sleep(START_S)
        mix = Mix(config, tmp_path)
        consumers = [*kinds("both")]
        if joins == "early":
            for kind in consumers:
                nursery.start_soon(mix.consume, kind)
            await trio.sleep(2 * START_S)
        for kind in kinds(producers):
            nursery.start_soon(mix.produce, kind)
        if joins != "early":
            await mix.has_half.wait()
            for kind in consumers:
                nursery.start_soon(mix.consume, kind)
        with trio.move_on_after(DEADLINE_S):
            while mix.lengths() != expected:  # noqa: ASYNC110 (another program's output)
                await trio.sleep(0.1)
        assert mix.lengths() == expected
        for found in mix.found.values():
            assert all(numbers == list(range(COUNT)) for numbers in found.values())
        nursery.cancel_scope.cancel()
