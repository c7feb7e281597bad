"""Readers for plain threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

import trio

from dafka import roles
from dafka.blocking.node import Node
from dafka.config import Config
from dafka.records import Partition, RecordBatch
from dafka.roles import Time
from dafka.roles.reader import POSITIONS_TIMEOUT_S


class Reader(Node[roles.Reader]):
    """Reads what the stores of a running cluster hold, without following it. `open_reader` creates one."""

    def wait_ready(self) -> None:
        """Wait until `ends` returns what the connected stores held when this was called."""
        self._wait(None, self._role.wait_ready)

    def check_settled(self) -> None:
        """Check that a cluster has been found; see `dafka.Reader.check_settled`."""
        self._ask(self._role.check_settled)

    def ends(self) -> dict[Partition, int]:
        """Return the ends of partitions that the stores have reported; see `dafka.Reader.ends`."""
        return self._ask(self._role.ends)

    def held_end(self, partition: Partition, timeout_s: float, *, min_stores: int = 1) -> int:
        """Ask the stores how many records of a partition they hold; see `dafka.Reader.held_end`."""
        return self._wait(None, partial(self._role.held_end, partition, timeout_s, min_stores=min_stores))

    def positions_at(self, time: Time, timeout_s: float = POSITIONS_TIMEOUT_S) -> dict[Partition, int]:
        """Ask the stores where partitions continue from a time on; see `dafka.Reader.positions_at`."""
        return self._wait(None, partial(self._role.positions_at, time, timeout_s))

    def earliest(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
        """Find the first record of partitions that any store still holds; see `dafka.Reader.earliest`."""
        return self._wait(None, partial(self._role.earliest, partitions, timeout_s))

    def read(self, partition: Partition, first_sequence: int, end_sequence: int) -> Range:
        """Begin to fetch a range of records, which must exist; see `dafka.Reader.read`."""
        return Range(self, self._ask(self._role.read, partition, first_sequence, end_sequence))


class Range:
    """The records of a range of one partition, as they arrive. Iterate over it for batches, in order.

    Attributes:
        partition: The partition of the records.
    """

    def __init__(self, reader: Reader, found: roles.Range) -> None:
        """Show a range. Programs call `Reader.read` instead."""
        self.partition = found.partition
        self._reader = reader
        self._range = found

    def __iter__(self) -> Iterator[RecordBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, *, timeout_s: float | None = None) -> RecordBatch | None:
        """Wait for the next batch. None after the last one."""
        return self._reader._wait(timeout_s, self._range.next_batch)

    def first_sequence(self, *, timeout_s: float | None = None) -> int:
        """Wait for the first batch, and return where it begins; see `dafka.Range.first_sequence`."""
        return self._reader._wait(timeout_s, self._range.first_sequence)

    def close(self) -> None:
        """Stop fetching, and drop the records that have arrived. May be called again."""
        with suppress(trio.ClosedResourceError):
            self._reader._ask(self._range.close)


def open_reader(topics: Iterable[str] = (), config: Config | None = None) -> Reader:
    """Open a reader; see `dafka.open_reader`, whose arguments and exceptions it has.

    The reader is open. Leaving its `with` block, or `close`, closes it.
    """
    return Reader(partial(roles.open_reader, topics, config))
