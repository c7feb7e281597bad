"""What a storage has promised up to a moment, by the marks in a recording, and the check of what a failure leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from dafka.storage import Storage, read_range

PARTITIONS = [Partition("orders", f"{number}" * 32) for number in range(3)] + [Partition("ü/..", "Z" * 250)]
NAMES = ["reader", "ü x" * 60]


def make_batch(number: int, first: int, count: int, *, size: int = 300) -> RecordBatch:
    """Return records of various sizes; the content of each names its partition and its sequence."""
    sequences = range(first, first + count)
    contents = [b"%d:%d:" % (number, each) + b"x" * (each * 7919 % size) for each in sequences]
    return RecordBatch(PARTITIONS[number], first, contents, stored_at=[time_of(each) for each in sequences])


def time_of(sequence: int) -> int:
    return 1_000_000 + sequence // 4


class BrokenPromiseError(AssertionError):
    """Something that was promised is not there after a failure."""


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise that a storage cannot be read as `BrokenPromiseError`."""
    try:
        yield
    except StorageError as error:
        raise BrokenPromiseError(str(error)) from error


def expect(condition: bool, problem: str) -> None:
    """Raise `BrokenPromiseError` unless a condition holds."""
    if not condition:
        raise BrokenPromiseError(problem)


@attrs.define
class Promises:
    """The promises made to a recorded process, and the changes that it had begun, up to a moment.

    Attributes:
        size: See `make_batch`.
        identity: The identity of the storage; empty until it was opened.
        begun_ends: By partition, the end of the records whose append has begun.
        ends: By partition, the end of the records that are durable.
        earliest: By partition, the greatest sequence before which records may have been dropped.
        positions: By name and partition, the positions that may be saved: the durable one, and those being saved.
        deleting: The partitions that may be deleted; `deleted` those that must be.
        compacted: By partition, the sequences that compaction may have removed.
    """

    size: int = 300
    identity: str = ""
    begun_ends: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))
    ends: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))
    earliest: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))
    positions: dict[tuple[int, int], set[int]] = attrs.field(factory=dict)
    deleting: set[int] = attrs.field(factory=set)
    deleted: set[int] = attrs.field(factory=set)
    compacted: dict[int, set[int]] = attrs.field(factory=dict)

    def add_mark(self, text: bytes) -> None:
        what, value = json.loads(text)
        if what == "opened":
            self.identity = value
        elif what == "appending":
            self.begun_ends = [max(pair) for pair in zip(self.begun_ends, value, strict=True)]
            self.deleted -= {number for number, end in enumerate(value) if end}
        elif what == "appended":
            self.ends = [max(pair) for pair in zip(self.ends, value, strict=True)]
        elif what == "trimming":
            number, earliest = value
            self.earliest[number] = max(self.earliest[number], earliest)
        elif what == "deleting":
            self.deleting.add(value)
            self.earliest[value] = self.begun_ends[value]
        elif what == "deleted":
            self.deleting.discard(value)
            self.deleted.add(value)
            self.ends[value] = self.begun_ends[value] = self.earliest[value] = 0
        elif what == "compacting":
            number, sequences = value
            self.compacted.setdefault(number, set()).update(sequences)
        else:
            name, number, position = value
            if what == "saved":
                self.positions[name, number] = {position}
            else:
                self.positions.setdefault((name, number), {0}).add(position)

    async def check(self, storage: Storage, *, is_exact: bool = True, is_killed: bool = False) -> None:
        """Raise `BrokenPromiseError` if anything is missing in the storage that a failure left.

        Args:
            storage: The storage.
            is_exact: Whether every change was durable when it returned, so that nothing else may be damaged either.
            is_killed: Whether only the process was killed, so that nothing that it had written is lost.
        """
        expect(storage.identity == self.identity or not self.identity, "the identity is another one")
        found = await storage.partitions()
        for number, partition in enumerate(PARTITIONS):
            if self.ends[number] and number not in self.deleting:
                expect(partition in found, f"partition {number} is lost, with {self.ends[number]} records")
            expect(partition not in found or number not in self.deleted, f"partition {number} was deleted")
            if partition in found:
                await self._check_partition(storage, number, is_exact=is_exact, is_killed=is_killed)
        for (name, number), allowed in self.positions.items():
            position = (await storage.load_positions(NAMES[name])).get(PARTITIONS[number], 0)
            expect(position in allowed, f"position {position} is loaded, expected one of {allowed}")
        if is_exact:
            damages = await storage.find_damage()
            expect(not damages, f"there is damage: {damages}")

    async def _check_partition(self, storage: Storage, number: int, *, is_exact: bool, is_killed: bool) -> None:
        partition, end = PARTITIONS[number], self.ends[number]
        info = (await storage.partitions())[partition]
        held = f"partition {number} holds {info.earliest_sequence} to {info.end_sequence}"
        expect(info.end_sequence >= end, f"{held}, but {end} records were durable")
        begun = self.begun_ends[number]
        expect(info.end_sequence <= begun, f"{held}, but only {begun} records were appended")
        # Segments before the first one may be lost, or never there: nobody can tell. What was synced must be there.
        may_lack_beginning = info.count == 0 or (not is_exact and end <= self.earliest[number])
        expect(may_lack_beginning or info.earliest_sequence <= self.earliest[number], f"{held}: its beginning is lost")
        sequence = info.earliest_sequence if is_exact else max(info.earliest_sequence, self.earliest[number])
        end = info.end_sequence if is_exact else end
        latest, content_bytes, removable = 0, 0, self.compacted.get(number, set())
        async for run in read_range(storage, partition, sequence, end, with_times=True):
            expect(run.first_sequence == sequence, f"{held}: {run.first_sequence} follows {sequence - 1}")
            expected = make_batch(number, sequence, len(run), size=self.size)
            gone = run.compacted or bytes(len(run))
            for at, (value, wanted, is_gone) in enumerate(
                zip(run.values, expected.values, gone, strict=True), sequence
            ):
                expect(at in removable if is_gone else value == wanted, f"{held}: wrong content at {at}")
            times = list(run.stored_at or [])
            expect(sorted([latest, *times]) == [latest, *times], f"{held}: times decrease after {sequence}")
            if is_killed and run.compacted is None:
                expect(times == expected.stored_at, f"{held}: wrong times from {sequence} on: {times}")
            content_bytes += run.content_bytes
            sequence, latest = run.end_sequence, times[-1]
        expect(not is_exact or content_bytes == info.content_bytes, f"{held}, {content_bytes} bytes, not {info}")
        expect(sequence >= end, f"{held}, but reading ends at {sequence}, expected {end}")

    async def append_more(self, storage: Storage) -> None:
        """Append to every partition, as the program would that goes on after a failure."""
        held = await storage.partitions()
        ends = [held[each].end_sequence if each in held else 0 for each in PARTITIONS]
        await storage.append([make_batch(number, end, 3, size=self.size) for number, end in enumerate(ends)])
        self.ends = [end + 3 for end in ends]
        self.begun_ends = [max(pair) for pair in zip(self.begun_ends, self.ends, strict=True)]
        self.deleted = set()
        self.deleting = set()
