"""Readers that a program has not stopped keep neither its interpreter alive, nor the thread that drops them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from dafka.spark.portal import open_portal
from tests.spark.stores import A, batch, fill

HANG_S = 100

PROGRAM = """
import sys
from pyspark.sql.streaming.datasource import ReadAllAvailable
from dafka import Config
from dafka.spark.cluster_source import BlockingReader
from dafka.spark.schema import default_columns
from dafka.spark.store_source import StoreStreamReader

of_stores = StoreStreamReader({"path": sys.argv[1], "startingOffsets": "earliest"}, default_columns({}))
[task] = of_stores.partitions({}, of_stores.latestOffset(of_stores.initialOffset(), ReadAllAvailable()))
batches = of_stores.read(task)
next(batches)
of_a_cluster = BlockingReader(
    Config().with_beacon(tower_sub="tcp://127.0.0.1:9", tower_pub="tcp://127.0.0.1:9"), ["orders"]
)
of_a_cluster.ends()
print("done")
"""


def test_the_interpreter_ends_though_readers_are_not_stopped(tmp_path: Path) -> None:
    fill(f"filelog:{tmp_path / 'orders'}", batch("orders", A, 0, 10))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "orders")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANG_S)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


@asynccontextmanager
async def open_forever() -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        yield
        nursery.cancel_scope.cancel()


def test_a_portal_that_is_forgotten_ends_with_what_runs_in_it() -> None:
    before = set(threading.enumerate())
    block = open_portal()
    opened = block.__enter__().wrap_async_context_manager(open_forever())
    opened.__enter__()
    (thread,) = [each for each in threading.enumerate() if each not in before and each.name == "dafka"]
    del block
    gc.collect()
    assert not thread.is_alive()
