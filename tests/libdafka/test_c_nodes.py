"""Nodes of this project with default settings in one cluster with the C implementation.

    LIBDAFKA_TOOLS=FOLDER pytest -m long tests/libdafka

The environment variables LIBDAFKA_SECONDS (30) and LIBDAFKA_ROUNDS (5) make the trials longer.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from dafka import Config, ProducerRecord, Record, open_consumer, open_observer, open_producer, serve_store
from dafka.events import DialectAdopted
from dafka.roles import open_reader
from tests.libdafka.tools import START_S, needs_tools, open_program, open_tower
from tests.roles.helpers import contents, receive, wait_event
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600), needs_tools]

SECONDS = float(os.environ.get("LIBDAFKA_SECONDS", "30"))
ROUNDS = int(os.environ.get("LIBDAFKA_ROUNDS", "5"))
DEADLINE_S = 120.0


async def hold_records(config: Config, count: int) -> None:
    """Publish records, and leave when a store has them."""
    with trio.fail_after(DEADLINE_S):
        async with open_producer("hello", config) as producer:
            await producer.send_many(contents(0, count))


@pytest.mark.parametrize("tower", ["ours", "libdafka"])
async def test_default_settings_end_no_c_node(tower: str, tmp_path: Path) -> None:
    async with (
        open_tower(tower, tmp_path / "tower") as config,
        open_program("dafka_stored", config=config, folder=tmp_path / "store") as c_store,
        open_program("dafka_console_consumer", "hello", config=config, folder=tmp_path) as c_consumer,
        open_program("dafka_console_producer", "greetings", config=config, folder=tmp_path) as c_producer,
    ):
        programs = (c_store, c_consumer, c_producer)
        printed = b""

        async def print_lines() -> None:
            nonlocal printed
            assert c_consumer.stdout is not None
            async for data in c_consumer.stdout:
                printed += data

        async with trio.open_nursery() as nursery:
            nursery.start_soon(print_lines)
            await trio.sleep(START_S)
            await hold_records(config, 3000)
            begun = trio.current_time()
            rounds = 0
            while rounds == 0 or trio.current_time() < begun + SECONDS:
                rounds += 1
                assert c_producer.stdin is not None
                await c_producer.stdin.send_all(b"line %d\n" % rounds)
                await _use_each_role(config, rounds)
                assert [program.poll() for program in programs] == [None] * 3, f"after {rounds} rounds"
            with trio.fail_after(DEADLINE_S):
                while b" 2000\n" not in printed:  # noqa: ASYNC110 (the program buffers its lines)
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    print(f"{rounds} rounds at the tower {tower!r}")


async def _use_each_role(config: Config, lines: int) -> None:
    """Read everything once with each role, and then leave."""
    with trio.fail_after(DEADLINE_S):
        async with open_observer(config=config) as observer:
            await observer.wait_settled()
            survey = await observer.survey(30)
            assert "hello" in {topic.name for topic in survey.topics}
        async with open_consumer(["hello", "greetings"], config.with_consumer(offset_reset="earliest")) as consumer:
            await receive(consumer, 3000 + lines)
            assert await wait_event(consumer.events, DialectAdopted) == DialectAdopted("libdafka")
        async with open_reader(["hello"], config) as reader:
            await reader.wait_ready()
            assert 3000 in reader.ends().values()
        async with trio.open_nursery() as nursery:
            store = await nursery.start(serve_store, config.with_store(storage="memory:"))
            await wait_until(lambda: store.statistics().records_stored == 3000 + lines)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("tower", ["slow", "ours"])
async def test_an_empty_store_catches_up_from_a_c_store(tower: str, tmp_path: Path) -> None:
    """Beacons are late by up to two seconds at the slow tower, so that either store may connect first."""
    count = 20_000
    async with (
        open_tower(tower, tmp_path / "tower") as config,
        open_program("dafka_stored", config=config, folder=tmp_path / "store") as c_store,
    ):
        await trio.sleep(2 * START_S)
        await hold_records(config, count)
        for number in range(ROUNDS):
            begun = trio.current_time()
            async with trio.open_nursery() as nursery:
                store = await nursery.start(serve_store, config.with_store(storage="memory:"))
                with trio.fail_after(DEADLINE_S):
                    while store.statistics().records_stored < count:  # noqa: ASYNC110 (statistics are to be asked)
                        await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            print(f"round {number}: complete after {trio.current_time() - begun:.1f} s", flush=True)
        assert c_store.poll() is None


async def test_a_c_store_that_lags_gets_the_rest_of_a_producer_that_has_left_erratum_32(tmp_path: Path) -> None:
    count = 150_000
    async with (
        open_tower("ours", tmp_path / "tower") as config,
        open_program("dafka_stored", config=config, folder=tmp_path / "store") as c_store,
        trio.open_nursery() as nursery,
    ):
        store = await nursery.start(serve_store, config.with_store(storage="memory:"))
        await trio.sleep(START_S)
        with trio.fail_after(DEADLINE_S):
            async with open_producer("hello", config.with_node(linger_ms=0)) as producer:
                await producer.send_many(contents(0, 1000))
                await trio.sleep(START_S)
                c_store.send_signal(signal.SIGSTOP)
                for first in range(1000, count, 1000):
                    await producer.send_many(contents(first, first + 1000))
            c_store.send_signal(signal.SIGCONT)
            ends: dict[str, int | None] = {}
            while set(ends.values()) != {count} or len(ends) < 2:
                async with open_observer(config=config) as observer:
                    await observer.wait_settled()
                    (partition,) = (await observer.survey(30)).partitions
                ends = {holder.store: holder.end_sequence for holder in partition.holders}
                print(ends, flush=True)
        assert store.address in ends
        nursery.cancel_scope.cancel()


async def test_a_c_consumer_gets_more_than_one_page_of_a_producer_that_has_left_erratum_17(tmp_path: Path) -> None:
    count = 250_000
    async with open_tower("ours", tmp_path / "tower") as config, trio.open_nursery() as nursery:
        await nursery.start(serve_store, config.with_store(storage="memory:"))
        await hold_records(config, count)
        arguments = ("hello", "--from-beginning")
        async with open_program("dafka_console_consumer", *arguments, config=config, folder=tmp_path) as consumer:
            assert consumer.stdout is not None
            lines = 0
            with trio.fail_after(DEADLINE_S):
                while lines < count - 1000:  # it buffers the last lines
                    lines += (await consumer.stdout.receive_some()).count(b"\n")
        nursery.cancel_scope.cancel()


WHOLE = [
    ProducerRecord(b"value %d" % number, b"key", (("a", b"1"), ("a", None), ("", b"")), 1_700_000_000_000 + number)
    for number in range(500)
] + [
    ProducerRecord(None, b"key"),
    ProducerRecord(None),
    ProducerRecord(b""),
    ProducerRecord(b"", b""),
    ProducerRecord(b"only a value"),
    ProducerRecord(b"", None, (("name", b"x" * 1000),)),
]


async def test_records_keep_everything_on_their_way_through_a_c_store(tmp_path: Path) -> None:
    """The producer has left, so that a consumer, and a second store of ours, get them from the C store alone."""
    async with (
        open_tower("ours", tmp_path / "tower") as config,
        open_program("dafka_stored", config=config, folder=tmp_path / "store") as c_store,
    ):
        await trio.sleep(2 * START_S)
        with trio.fail_after(DEADLINE_S):
            async with open_producer("hello", config.with_producer(compression="zstd")) as producer:
                await producer.send_many(WHOLE)
            await expect_whole(config)
            async with trio.open_nursery() as nursery:
                store = await nursery.start(serve_store, config.with_store(storage=f"filelog:{tmp_path / 'log'}"))
                await wait_until(lambda: store.statistics().records_stored == len(WHOLE))
                assert c_store.poll() is None
                c_store.kill()
                await c_store.wait()
                await expect_whole(config)
                nursery.cancel_scope.cancel()


async def expect_whole(config: Config) -> None:
    """Read the records of `WHOLE` from the beginning."""
    found: list[Record] = []
    async with open_consumer(["hello"], config.with_consumer(offset_reset="earliest")) as consumer:
        while len(found) < len(WHOLE):
            found += await consumer.next_batch()
    assert [(each.value, each.key, tuple(each.headers)) for each in found] == [
        (each.value, each.key, tuple(each.headers)) for each in WHOLE
    ]
    assert [each.timestamp for each in found[:500]] == [each.timestamp for each in WHOLE[:500]]
