"""What a task is about to publish, held against what an earlier attempt of it has left in the stores.

The rows of a task that is tried again should be the same, in the same order: then they are compared as they come, and
memory is needed for one batch of them. Rows that come in another order (out of a shuffle) are recognised by digests
of what is held. Rows that are not the same cannot be published once each, and are an error.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import trio

from dafka.config import Config
from dafka.errors import UnacknowledgedError, UnansweredError
from dafka.records import Partition
from dafka.roles import Reader
from dafka.spark.errors import InputChangedError, PublishingError

READ_BYTES = 8 * 2**20
"""What is read from stores at a time when rows come in another order: about so much."""

READ_RECORDS_MAX = 10_000

Read = Callable[[int, int], Awaitable[Sequence[bytes | None]]]
"""Gives the records held from one sequence up to another; None in place of those that retention has dropped."""


class Deduplicator:
    """Attributes:
    partition: what is published to.
    held_end: how many of its records the stores held before.
    """

    def __init__(self, partition: Partition, held_end: int, read: Read) -> None:
        self.partition = partition
        self.held_end = held_end
        self._read = read
        self._position = 0
        self._unordered: Counter[bytes] | None = None

    async def unpublished(self, contents: Sequence[bytes]) -> Sequence[bytes]:
        """Of the task's next rows, those that are not held. Raises `InputChangedError`."""
        if self._unordered is None:
            count = min(len(contents), self.held_end - self._position)
            if not count:
                return contents
            held = await self._read(self._position, self._position + count)
            if all(old is None or old == new for old, new in zip(held, contents[:count], strict=True)):
                self._position += count
                return contents[count:]
            self._unordered = await self._digest_rest()
        return self._leave_out(contents, self._unordered)

    def finish(self) -> None:
        """There are no more rows. Raises `InputChangedError` where some that are held did not come again."""
        missing = self.held_end - self._position if self._unordered is None else self._unordered.total()
        if missing:
            raise self._changed(f"{missing} of them are not among the rows that it has now")

    async def _digest_rest(self) -> Counter[bytes]:
        digests: Counter[bytes] = Counter()
        first, count = self._position, 100
        while first < self.held_end:
            held = await self._read(first, min(first + count, self.held_end))
            whole = [content for content in held if content is not None]
            if len(whole) < len(held):
                raise self._changed("its rows come in another order, and retention has dropped some that could tell")
            digests.update(map(_digest, whole))
            first += len(held)
            count = min(max(READ_BYTES * len(held) // max(sum(map(len, whole)), 1), 1), READ_RECORDS_MAX)
        return digests

    def _leave_out(self, contents: Sequence[bytes], digests: Counter[bytes]) -> Sequence[bytes]:
        new = []
        for content in contents:
            digest = _digest(content)
            if digests[digest] > 1:
                digests[digest] -= 1
            elif digests.pop(digest, 0) == 0:
                new.append(content)
        return new

    def _changed(self, how: str) -> InputChangedError:
        return InputChangedError(
            f"topic {self.partition.topic}: an earlier attempt of this task has published {self.held_end} records "
            f"({self.partition}), and {how}. The query is not deterministic, so they cannot be published once each: "
            "persist its result first, or leave out what differs from run to run"
        )


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


async def held_end(reader: Reader, partition: Partition, config: Config) -> int:
    """The sequence after the last record of a task's partition that any store holds.

    Raises `DiscoveryError` where no tower answers, `PublishingError` where there are fewer stores than must
    acknowledge, or where somebody else goes on adding to the partition.
    """
    seconds = config.producer.close_timeout_ms / 1000
    try:
        return await reader.held_end(partition, seconds, min_stores=config.producer.min_stores)
    except UnansweredError as error:
        raise PublishingError(f"topic {partition.topic}: {_unanswered(partition, error)}") from None


async def read_held(
    reader: Reader, partition: Partition, first_sequence: int, end_sequence: int, config: Config
) -> Sequence[bytes | None]:
    """The contents of these records; None for one that retention has dropped.

    Raises `PublishingError` where no store sends them.
    """
    seconds = config.producer.close_timeout_ms / 1000
    contents: list[bytes | None] = []
    records = reader.read(partition, first_sequence, end_sequence)
    try:
        while len(contents) < end_sequence - first_sequence:
            position = first_sequence + len(contents)
            with trio.move_on_after(seconds) as scope:
                batch = await records.next_batch()
            if scope.cancelled_caught:
                raise PublishingError(
                    f"topic {partition.topic}: stores hold records of {partition.address}, and for {seconds:g} s "
                    f"none sent the one at {position}; see to the stores, or raise ackTimeout"
                )
            next_sequence = end_sequence if batch is None else batch.first_sequence
            contents += [None] * (next_sequence - position)
            contents += () if batch is None else batch.contents
    finally:
        records.close()
    return contents


def unacknowledged(partition: Partition, error: UnacknowledgedError) -> PublishingError:
    """What a user can do about it."""
    return PublishingError(
        f"topic {partition.topic}: {error}; see to the stores, change the option minStores or ackTimeout, or end "
        "another attempt of the task that still lives"
    )


def _unanswered(partition: Partition, error: UnansweredError) -> str:
    if error.lacking == "stores":
        return (
            f"{error}; start one more, see that the option towers names their tower, or change minStores or ackTimeout"
        )
    if error.lacking == "answers":
        return f"{error}; see to the stores, or raise ackTimeout"
    return (
        f"somebody else goes on publishing this task's partition ({partition.address}): another attempt of it. "
        "Set spark.speculation to false"
    )
