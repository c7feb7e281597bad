"""The commands `dafka status`, `consume`, `store` and `spark` with default settings beside running C nodes.

    LIBDAFKA_TOOLS=FOLDER pytest -m long tests/libdafka/test_commands.py

The environment variable LIBDAFKA_SECONDS (30) makes the trial longer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
import trio

from dafka import Config
from tests.libdafka.tools import START_S, needs_tools, open_program, open_tower

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600), needs_tools]

SECONDS = float(os.environ.get("LIBDAFKA_SECONDS", "30"))
DEADLINE_S = 180.0
DAFKA = (sys.executable, "-m", "dafka")
LINES_PER_ROUND = 20

QUERY = """
import sys
towers, folder = sys.argv[1:]
query = (
    spark.readStream.format("dafka").option("towers", towers).option("subscribe", "hello")
    .option("startingOffsets", "earliest").load()
    .writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True).start(folder + "/sink")
)
query.awaitTermination()
print("rows", spark.read.parquet(folder + "/sink").count())
"""


class Lines:
    """The lines that a program has printed."""

    def __init__(self) -> None:
        self.count = 0

    async def read(self, process: trio.Process) -> None:
        """Count lines until the program closes its output."""
        assert process.stdout is not None
        async for data in process.stdout:
            self.count += data.count(b"\n")


@asynccontextmanager
async def run_command(*arguments: str) -> AsyncIterator[trio.Process]:
    """Run a command of this project, and end it with SIGTERM."""
    process = await trio.lowlevel.open_process([*DAFKA, *arguments], stdin=DEVNULL, stdout=PIPE)
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            process.terminate()
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()


async def output_of(*arguments: str) -> bytes:
    """Run a command of this project to its end, and return its output. Fail if its exit status is not 0."""
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process([*DAFKA, *arguments], capture_stdout=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stdout!r}"
    return done.stdout


def tower_options(config: Config) -> list[str]:
    """Return the options with the only setting that differs from the defaults: where the tower is."""
    (sub,), (pub,) = config.beacon.tower_sub, config.beacon.tower_pub
    return ["--tower-sub", sub, "--tower-pub", pub]


def towers_of(config: Config) -> str:
    """Return the tower as Spark's option `towers`."""
    ports = [each[0].rpartition(":")[2] for each in (config.beacon.tower_sub, config.beacon.tower_pub)]
    return f"127.0.0.1:{':'.join(ports)}"


@pytest.mark.parametrize("tower", ["libdafka", "ours"])
async def test_commands_end_no_c_node(tower: str, tmp_path: Path) -> None:
    async with (
        open_tower(tower, tmp_path / "tower") as config,
        trio.open_nursery() as nursery,
        AsyncExitStack() as stack,
    ):
        names = {"dafka_stored": (), "dafka_console_consumer": ("hello",), "dafka_console_producer": ("hello",)}
        programs = {
            name: await stack.enter_async_context(open_program(name, *arguments, config=config, folder=tmp_path / name))
            for name, arguments in names.items()
        }
        c_producer, c_consumer = programs["dafka_console_producer"], programs["dafka_console_consumer"]
        our_lines = Lines()
        nursery.start_soon(Lines().read, c_consumer)
        await trio.sleep(START_S)
        options = tower_options(config)
        store = await stack.enter_async_context(
            run_command("store", *options, "--storage", f"sqlite:{tmp_path}/records.db")
        )
        consumer = await stack.enter_async_context(run_command("consume", "hello", "--from-beginning", *options))
        nursery.start_soon(our_lines.read, consumer)
        begun = trio.current_time()
        rounds = sent = 0
        while rounds == 0 or trio.current_time() < begun + SECONDS:
            rounds += 1
            assert c_producer.stdin is not None
            for _ in range(LINES_PER_ROUND):
                sent += 1
                await c_producer.stdin.send_all(b"line %d\n" % sent)
            with trio.fail_after(DEADLINE_S):
                while our_lines.count < sent:  # noqa: ASYNC110 (another process's output)
                    await trio.sleep(0.1)
            assert b'"hello"' in await output_of("status", "--json", *options)
            read = await output_of("consume", "hello", "--from-beginning", "--count", str(sent), *options)
            assert sorted(read.splitlines()) == sorted(b"line %d" % n for n in range(1, sent + 1))
            folder = tmp_path / f"spark-{rounds}"
            folder.mkdir()
            (folder / "query.py").write_text(QUERY, "utf-8")
            rows = await output_of("spark", str(folder / "query.py"), towers_of(config), str(folder))
            assert f"rows {sent}\n".encode() in rows
            ended = {name: process.poll() for name, process in programs.items()}
            assert set(ended.values()) == {None}, f"after {rounds} rounds: {ended}"
            assert (store.poll(), consumer.poll()) == (None, None)
            minutes = (trio.current_time() - begun) / 60
            print(f"round {rounds} at the tower {tower!r}: {sent} records, {minutes:.1f} minutes", flush=True)
        nursery.cancel_scope.cancel()
