"""A program that appends to a store and trims it, until its standard input ends."""

from __future__ import annotations

import sys

import trio

from dafka.records import Partition
from dafka.storage import open_storage
from tests.spark.stores import A, batch

STEP, KEPT = 500, 3000


async def main(url: str) -> None:
    async with open_storage(url) as storage, trio.open_nursery() as nursery:

        async def work() -> None:
            end = 0
            while True:
                await storage.append([batch("orders", A, end, end + STEP)])
                end += STEP
                if end > KEPT:
                    await storage.trim(Partition("orders", A), end - KEPT)

        nursery.start_soon(work)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


trio.run(main, sys.argv[1])
