"""Readers for asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import trio

from dafka import roles
from dafka.asyncio.node import Node, Opening
from dafka.config import Config
from dafka.records import Partition, RecordBatch
from dafka.roles import Time
from dafka.roles.reader import POSITIONS_TIMEOUT_S


class Reader(Node[roles.Reader]):
    """Reads what the stores of a running cluster hold, without following it. `open_reader` creates one."""

    async def wait_ready(self) -> None:
        """Wait until `ends` returns what the connected stores held when this was called."""
        await self._wait(self._role.wait_ready)

    async def check_settled(self) -> None:
        """Check that a cluster has been found; see `dafka.Reader.check_settled`."""
        await self._ask(self._role.check_settled)

    async def ends(self) -> dict[Partition, int]:
        """Return the ends of partitions that the stores have reported; see `dafka.Reader.ends`."""
        return await self._ask(self._role.ends)

    async def held_end(self, partition: Partition, timeout_s: float, *, min_stores: int = 1) -> int:
        """Ask the stores how many records of a partition they hold; see `dafka.Reader.held_end`."""
        return await self._wait(partial(self._role.held_end, partition, timeout_s, min_stores=min_stores))

    async def positions_at(self, time: Time, timeout_s: float = POSITIONS_TIMEOUT_S) -> dict[Partition, int]:
        """Ask the stores where partitions continue from a time on; see `dafka.Reader.positions_at`."""
        return await self._wait(partial(self._role.positions_at, time, timeout_s))

    async def earliest(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
        """Find the first record of partitions that any store still holds; see `dafka.Reader.earliest`."""
        return await self._wait(partial(self._role.earliest, partitions, timeout_s))

    def read(self, partition: Partition, first_sequence: int, end_sequence: int) -> Range:
        """Return a range of records, which must exist; see `dafka.Reader.read`. Its first use begins to fetch them."""
        return Range(self, partition, first_sequence, end_sequence)


class Range:
    """The records of a range of one partition, as they arrive. Iterate over it for batches, in order.

    Attributes:
        partition: The partition of the records.
    """

    def __init__(self, reader: Reader, partition: Partition, first_sequence: int, end_sequence: int) -> None:
        """Show a range. Programs call `Reader.read` instead."""
        self.partition = partition
        self._reader = reader
        self._limits = first_sequence, end_sequence
        self._range: roles.Range | None = None

    def __aiter__(self) -> Range:
        return self

    async def __anext__(self) -> RecordBatch:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next_batch(self) -> RecordBatch | None:
        """Wait for the next batch. None after the last one."""
        return await self._reader._wait((await self._begin()).next_batch)

    async def first_sequence(self) -> int:
        """Wait for the first batch, and return where it begins; see `dafka.Range.first_sequence`."""
        return await self._reader._wait((await self._begin()).first_sequence)

    async def close(self) -> None:
        """Stop fetching, and drop the records that have arrived. May be called again."""
        if self._range is not None:
            with suppress(trio.ClosedResourceError):
                await self._reader._ask(self._range.close)

    async def _begin(self) -> roles.Range:
        """Begin to fetch, once. A task that is cancelled meanwhile has begun, too."""
        if self._range is None:
            await self._reader._ask(self._begin_in_trio)
            assert self._range is not None
        return self._range

    def _begin_in_trio(self) -> None:
        if self._range is None:
            self._range = self._reader._role.read(self.partition, *self._limits)


def open_reader(topics: Iterable[str] = (), config: Config | None = None) -> Opening[Reader]:
    """Open a reader; see `dafka.open_reader`, whose arguments and exceptions it has.

    `async with` or `await` opens the reader. Leaving the block, or `aclose`, closes it.
    """
    return Opening(Reader, partial(roles.open_reader, topics, config))
