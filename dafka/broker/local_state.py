"""Stores the state of a broker, such as committed offsets, as keys and values in partitions of its storage.

When most records of a partition are obsolete, the broker rewrites it: it appends all current values again and trims
the records before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing

import attrs

from dafka.records import Partition, RecordBatch
from dafka.storage import Storage
from dafka.storage.opening import read_range

REWRITE_RECORDS = 10_000
"""Obsolete records, in addition to as many as there are values, after which a partition of small values is rewritten.
"""


@attrs.define(eq=False)
class LocalStatePartition:
    """Keys and values. Each change is a record of a partition.

    The owner writes changes together with other records: it appends the batch of `begin_write` and calls `write_done`
    when the batch is durable. `values` includes changes that are not written yet.
    """

    partition: Partition
    is_large: bool = False  # its values are so large that it is rewritten as soon as half of its records are obsolete
    values: dict[bytes, bytes] = attrs.field(init=False, factory=dict)
    end_sequence: int = attrs.field(init=False, default=0)
    loaded_end: int = attrs.field(init=False, default=0)
    _waiting: list[tuple[bytes, bytes | None]] = attrs.field(init=False, factory=list)
    _writing: list[tuple[bytes, bytes | None]] = attrs.field(init=False, factory=list)
    _earliest: int = attrs.field(init=False, default=0)
    _rewritten: range | None = attrs.field(init=False, default=None)
    """The sequences of the current values that were appended again, until the records before are trimmed."""

    def __bool__(self) -> bool:
        """Return whether changes wait to be written."""
        return bool(self._waiting or self._writing)

    async def load(self, storage: Storage) -> None:
        """Read the partition. Raises `StorageError`."""
        info = await storage.find_partition(self.partition)
        if info is None:
            return
        self._earliest, self.loaded_end = info.earliest_sequence, info.end_sequence
        self.end_sequence = self.loaded_end
        async with aclosing(read_range(storage, self.partition, self._earliest, self.end_sequence)) as stored:
            async for batch in stored:
                for key, value in zip(batch.keys or (), batch.values, strict=True):
                    self._apply(key or b"", value)

    def put(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Change values; None removes a key."""
        for key, value in changes:
            self._apply(key, value)
            self._waiting.append((key, value))

    def begin_write(self, now_ms: int) -> RecordBatch | None:
        """Return the records to append next; None if there are none. After a failure it returns at least the same."""
        if self._rewritten is None and self._is_rewrite_due():
            first = self.end_sequence + len(self._writing) + len(self._waiting)
            self._rewritten = range(first, first + len(self.values))
            self._waiting += self.values.items()
        self._writing += self._waiting
        self._waiting = []
        if not self._writing:
            return None
        return RecordBatch(
            self.partition,
            self.end_sequence,
            [value for _, value in self._writing],
            keys=[key for key, _ in self._writing],
            timestamps=[now_ms] * len(self._writing),
        )

    def write_done(self) -> None:
        """Record that the batch of `begin_write` is durable."""
        self.end_sequence += len(self._writing)
        self._writing = []

    async def trim(self, storage: Storage) -> None:
        """Trim the records before a durable rewrite. Raises `StorageError`."""
        if self._rewritten is not None and self.end_sequence >= self._rewritten.stop:
            await storage.trim(self.partition, self._rewritten.start)
            self._earliest, self._rewritten = self._rewritten.start, None

    def _is_rewrite_due(self) -> bool:
        spare = 0 if self.is_large else REWRITE_RECORDS
        return self.end_sequence - self._earliest > 2 * len(self.values) + spare

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value


class LocalState:
    """The state of one broker, in one partition of each topic."""

    def __init__(self) -> None:
        self._partitions: dict[str, LocalStatePartition] = {}

    def __bool__(self) -> bool:
        """Return whether changes wait to be written."""
        return any(self._partitions.values())

    def values(self, topic: str) -> Mapping[bytes, bytes]:
        """Return the state that is stored in a topic."""
        return self._partitions[topic].values

    def end_of(self, partition: Partition) -> int:
        """Return the sequence after the last durable record of a state partition; 0 for other partitions."""
        state = self._partitions.get(partition.topic)
        return 0 if state is None or state.partition != partition else state.end_sequence

    async def written_since_load(self, storage: Storage) -> list[Partition]:
        """Return the partitions that have got records since they were loaded. Raises `StorageError`."""
        found = {each.partition: await storage.find_partition(each.partition) for each in self._partitions.values()}
        loaded = {each.partition: each.loaded_end for each in self._partitions.values()}
        return [each for each, info in found.items() if info is not None and info.end_sequence > loaded[each]]

    def put(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Change values; None removes a key."""
        self._partitions[topic].put(changes)

    async def load(self, storage: Storage, *partitions: Partition, are_large: bool = False) -> None:
        """Read the state in partitions of different topics. Raises `StorageError`.

        Few obsolete values stay where they `are_large`.
        """
        for each in partitions:
            state = self._partitions[each.topic] = LocalStatePartition(each, are_large)
            await state.load(storage)

    def begin_write(self, now_ms: int) -> list[RecordBatch]:
        """Return the records to append next."""
        batches = (state.begin_write(now_ms) for state in self._partitions.values())
        return [batch for batch in batches if batch is not None]

    def write_done(self) -> None:
        """Record that the batches of `begin_write` are durable."""
        for state in self._partitions.values():
            state.write_done()

    async def trim(self, storage: Storage) -> None:
        """Trim the records that rewrites have made obsolete. Raises `StorageError`."""
        for state in self._partitions.values():
            await state.trim(storage)
