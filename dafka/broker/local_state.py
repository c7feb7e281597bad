"""State that a broker keeps beside records, such as committed offsets: keys with values, in a partition of the storage.

The log is rewritten when most of its records are of no use any more: everything that counts is appended once more, and
what was before is trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dafka.records import Partition, RecordBatch
from dafka.storage import Storage
from dafka.storage.base import read_range

REWRITE_RECORDS = 10_000
"""Records of no use that a log may have, besides as many as there are of use."""

REWRITE_BATCH_RECORDS = 10_000
"""Records that are rewritten in one batch."""


class LocalStatePartition:
    """Keys and values, of which each change is a record of a partition.

    Changes are written by the owner, together with other records: it appends what `begin_write` returns, and calls
    `write_done` when that is durable.

    Args:
        partition: The partition.

    Attributes:
        partition: The partition.
        values: The values by key, with all changes, written or not.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.values: dict[bytes, bytes] = {}
        self._waiting: list[tuple[bytes, bytes | None]] = []
        self._writing: list[tuple[bytes, bytes | None]] = []
        self._earliest = 0
        self._end = 0
        self._rewritten_from: int | None = None

    def __bool__(self) -> bool:
        """Return whether changes wait to be written."""
        return bool(self._waiting or self._writing)

    @property
    def end_sequence(self) -> int:
        """The sequence after the last durable record."""
        return self._end

    async def load(self, storage: Storage) -> None:
        """Read the partition. Raises `StorageError`."""
        info = await storage.find_partition(self.partition)
        if info is None:
            return
        self._earliest, self._end = info.earliest_sequence, info.end_sequence
        async for batch in read_range(storage, self.partition, self._earliest, self._end):
            for key, value in zip(batch.keys or (), batch.values, strict=True):
                self._note(key or b"", value)

    def put(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Change values; None removes a key."""
        for key, value in changes:
            self._note(key, value)
            self._waiting.append((key, value))

    def begin_write(self, now_ms: int) -> RecordBatch | None:
        """Return the records to append next; None if there are none. After a failure it returns at least the same."""
        if self._rewritten_from is None and self._is_rewrite_due():
            self._rewritten_from = self._end + len(self._writing) + len(self._waiting)
            self._waiting += self.values.items()
        self._writing += self._waiting
        self._waiting = []
        if not self._writing:
            return None
        return RecordBatch(
            self.partition,
            self._end,
            [value for _, value in self._writing],
            keys=[key for key, _ in self._writing],
            timestamps=[now_ms] * len(self._writing),
        )

    def write_done(self) -> None:
        """Note that what `begin_write` returned is durable."""
        self._end += len(self._writing)
        self._writing = []

    async def trim(self, storage: Storage) -> None:
        """Drop what was before a rewrite that is durable. Raises `StorageError`."""
        if self._rewritten_from is not None and self._end >= self._rewritten_from + len(self.values):
            await storage.trim(self.partition, self._rewritten_from)
            self._earliest, self._rewritten_from = self._rewritten_from, None

    def _is_rewrite_due(self) -> bool:
        return self._end - self._earliest > 2 * len(self.values) + REWRITE_RECORDS

    def _note(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value


class LocalState:
    """The state logs of one broker, by topic.

    Args:
        identity: The address of the broker's storage, which is that of the partitions.
        topics: The topics in which state is kept.
    """

    def __init__(self, identity: str, topics: Iterable[str]) -> None:
        self._logs = {topic: LocalStatePartition(Partition(topic, identity)) for topic in topics}

    def __bool__(self) -> bool:
        """Return whether changes wait to be written."""
        return any(self._logs.values())

    def __contains__(self, partition: Partition) -> bool:
        log = self._logs.get(partition.topic)
        return log is not None and log.partition == partition

    def values(self, topic: str) -> Mapping[bytes, bytes]:
        """Return the state that is kept in a topic."""
        return self._logs[topic].values

    def end_of(self, partition: Partition) -> int:
        """Return the sequence after the last durable record of the partition of a state log; 0 if it is none."""
        log = self._logs.get(partition.topic)
        return 0 if log is None or log.partition != partition else log.end_sequence

    def put(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Change values; None removes a key."""
        self._logs[topic].put(changes)

    async def load(self, storage: Storage) -> None:
        """Read all state. Raises `StorageError`."""
        for log in self._logs.values():
            await log.load(storage)

    def begin_write(self, now_ms: int) -> list[RecordBatch]:
        """Return the records to append next."""
        batches = (log.begin_write(now_ms) for log in self._logs.values())
        return [batch for batch in batches if batch is not None]

    def write_done(self) -> None:
        """Note that what `begin_write` returned is durable."""
        for log in self._logs.values():
            log.write_done()

    async def trim(self, storage: Storage) -> None:
        """Drop what rewrites have made useless. Raises `StorageError`."""
        for log in self._logs.values():
            await log.trim(storage)
