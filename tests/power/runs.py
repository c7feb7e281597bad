"""Runs of storages that are recorded in this process, and the files that failures leave of them."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Protocol

import attrs
import pytest
import trio

from dafka.errors import StorageError
from dafka.records import RecordBatch
from dafka.storage import CompactsPartitions, DeletesPartitions, RetentionPolicy, Storage, open_storage
from tests.power.disk import ALL, NOTHING, Disk, Tree, store_tree
from tests.power.promises import NAMES, PARTITIONS, BrokenPromiseError, Promises, make_batch, storage_errors
from tests.power.recorder import Recorder, another_boot
from tests.power.recording import Entry, Kind
from tests.storage.quick import quickly

SIZE = 40
"""The largest size of a record."""

IO_ERROR = r"Input/output error|disk I/O error"


class MarksCalls(Protocol):
    """What records a storage, here or from outside.

    Attributes:
        failing_syncs: The number of syncs that fail next.
        is_failing_folders: Whether syncs of folders fail.
    """

    failing_syncs: int
    is_failing_folders: bool

    def mark(self, text: str) -> None:
        """Add a mark to the recording."""


class Writer:
    """Uses a storage, with a mark before each call, and one with its promise when it has returned.

    If `is_relaxed`, records are promised when they were flushed, and so are positions if the whole storage is relaxed.
    """

    def __init__(
        self, storage: Storage, recorder: MarksCalls, ends: list[int], *, size: int = SIZE, is_relaxed: bool = False
    ) -> None:
        self.storage = storage
        self._recorder = recorder
        self.ends = ends
        self.is_relaxed = is_relaxed
        self._size = size
        self._saves_durably = not is_relaxed

    def mark(self, what: str, value: object) -> None:
        self._recorder.mark(json.dumps([what, value]))

    async def change(self, change: Callable[[], Awaitable[None]], *, failing_syncs: int = 0, fails: bool) -> None:
        """Make a change; again after failed syncs, and if it `fails`, after folders could not be synced."""
        for number in range(failing_syncs + fails):
            self._recorder.failing_syncs = int(number < failing_syncs)
            self._recorder.is_failing_folders = number == failing_syncs
            with pytest.raises(StorageError, match=IO_ERROR):
                await change()
        self._recorder.is_failing_folders = False
        await change()

    async def append(self, *chosen: tuple[int, int], failing_syncs: int = 0, fails: bool = False) -> None:
        """Append a number of records to each of some partitions; after a failure again, as a store does."""
        batches = []
        for number, count in chosen:
            batches.append(make_batch(number, self.ends[number], count, size=self._size))
            self.ends[number] += count
        self.mark("appending", self.ends)
        await self.change(partial(self.storage.append, batches), failing_syncs=failing_syncs, fails=fails)
        self.promise()

    def promise(self) -> None:
        """Mark that all records are durable, unless they need not be."""
        if not self.is_relaxed:
            self.mark("appended", self.ends)

    async def flush(self, *, failing_syncs: int = 0, fails: bool = False) -> None:
        """Make everything durable; after a failure again."""
        await self.change(self.storage.flush, failing_syncs=failing_syncs, fails=fails)
        self.mark("appended", self.ends)

    async def save(self, name: int, number: int, *, fails: bool = False) -> None:
        self.mark("saving", [name, number, self.ends[number]])
        positions = {PARTITIONS[number]: self.ends[number]}
        await self.change(partial(self.storage.save_positions, NAMES[name], positions), fails=fails)
        if self._saves_durably:
            self.mark("saved", [name, number, self.ends[number]])

    async def trim(self, number: int, back: int) -> None:
        """Drop all but the last records."""
        earliest = max(self.ends[number] - back, 0)
        self.mark("trimming", [number, earliest])
        await self.storage.trim(PARTITIONS[number], earliest)

    async def retain(self, count: int) -> None:
        """Let retention keep at least the last records of each partition."""
        for number, end in enumerate(self.ends):
            self.mark("trimming", [number, end - count])
        await self.storage.apply_retention(RetentionPolicy(records_max=count))

    async def reset(self, number: int, by: int, *, fails: bool = False) -> None:
        """Continue a partition at a later sequence."""
        self.ends[number] += by
        self.mark("trimming", [number, self.ends[number]])
        self.mark("appending", self.ends)
        await self.change(partial(self.storage.reset_to, PARTITIONS[number], self.ends[number]), fails=fails)
        self.promise()

    async def delete(self, number: int) -> None:
        assert isinstance(self.storage, DeletesPartitions)
        self.mark("deleting", number)
        await self.storage.delete_partitions([PARTITIONS[number]])
        self.mark("deleted", number)
        self.ends[number] = 0

    async def compact(self, number: int) -> None:
        """Remove every record with an even sequence."""
        assert isinstance(self.storage, CompactsPartitions)
        self.mark("compacting", [number, [*range(0, self.ends[number], 2)]])
        found = await self.storage.find_compactable(PARTITIONS[number], 0)
        assert found is not None
        done = await self.storage.compact(PARTITIONS[number], found.end_sequence, even, no_wait)
        assert done.records_removed > 0


def even(batch: RecordBatch) -> bytes:
    return bytes(sequence % 2 == 0 for sequence in range(batch.first_sequence, batch.end_sequence))


async def no_wait(_count: int) -> None:
    """Go on at once."""
    await trio.lowlevel.checkpoint()


@asynccontextmanager
async def opened(
    recorder: MarksCalls, url: str, *, size: int = SIZE, is_relaxed: bool = False
) -> AsyncIterator[Writer]:
    """Open a storage, and promise what it holds, as a store does that begins to acknowledge the records it finds.

    A storage whose options relax durability promises nothing when it is opened and closed.
    """
    async with open_storage(url) as storage:
        held = await storage.partitions()
        ends = [held[each].end_sequence if each in held else 0 for each in PARTITIONS]
        writer = Writer(storage, recorder, ends, size=size, is_relaxed=is_relaxed)
        writer.mark("opened", storage.identity)
        writer.mark("appending", writer.ends)
        writer.promise()
        yield writer
    if not is_relaxed:
        writer.mark("appended", writer.ends)


@attrs.frozen
class Moment:
    """A moment of a recording: the files of a disk, and what was promised."""

    number: int
    disk: Disk
    promises: Promises


def moments(disk: Disk, promises: Promises, entries: list[Entry]) -> Iterator[tuple[Entry, Moment]]:
    """Replay a recording, and yield each moment with the entry before it."""
    for number, entry in enumerate(entries):
        disk.apply(entry)
        if entry.kind is Kind.MARK:
            promises.add_mark(entry.first)
        yield entry, Moment(number, disk, promises)


Session = Callable[[Writer], Awaitable[None]]


def record(root: Path, url: str, sessions: Sequence[Session]) -> list[Entry]:
    """Use a storage below a folder one session after the other, and return the recording."""
    recorder = Recorder(root)

    async def run() -> None:
        for session in sessions:
            async with opened(recorder, url.format(folder=root)) as writer:
                await session(writer)

    with recorder.recording():
        trio.run(run)
    return recorder.entries


class Left:
    """Opens the files that failures leave, each different tree once."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._seen: set[bytes] = set()
        self.count = 0

    def check(self, tree: Tree, moment: Moment, *, is_killed: bool = False, is_exact: bool = True) -> None:
        """Check a tree, and that the storage can go on."""
        key = sha256(repr((sorted(tree.items()), moment.promises, is_killed)).encode()).digest()
        if key in self._seen:
            return
        self._seen.add(key)
        self.count += 1
        target = self._folder / f"{self.count}"
        store_tree(tree, target)
        promises = copy.deepcopy(moment.promises)
        try:
            with nullcontext() if is_killed else another_boot(), storage_errors():
                trio.run(self._open, target, promises, is_exact, is_killed)
        except BrokenPromiseError as error:
            error.add_note(f"at entry {moment.number}, {'killed' if is_killed else 'without power'}")
            raise
        rmtree(target)

    async def _open(self, target: Path, promises: Promises, is_exact: bool, is_killed: bool) -> None:
        async with open_storage(self._url.format(folder=target)) as storage:
            await promises.check(storage, is_exact=is_exact, is_killed=is_killed)
            if self.count % 5 == 0 and is_exact:
                await promises.append_more(storage)
                await promises.check(storage)


@contextmanager
def left_of(url: str, folder: Path) -> Iterator[Left]:
    """Provide what opens the files that failures leave of a storage, in memory if possible."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="dafka-power-", dir=memory if memory.is_dir() else folder) as left, quickly():
        yield Left(Path(left), url)


def check_second_process(
    recorded: tuple[Path, list[Entry]],
    numbers: Iterable[int],
    url: str,
    session: Session,
    left: Left,
    folder: Path,
    *,
    removed: str = "",
) -> None:
    """Kill a recorded process after each of some entries; the power fails when a second process has gone on.

    The second process finds a file `removed`, if that is given.
    """
    root, entries = recorded
    for number in numbers:
        disk, promises = Disk(root), Promises(SIZE)
        for _ in moments(disk, promises, entries[: number + 1]):
            pass
        second = folder / f"{number}"
        store_tree({name: data for name, data in disk.tree(ALL).items() if name != removed}, second)
        disk.start_process(second)
        for entry, moment in moments(disk, promises, record(second, url, [session])):
            if entry.kind is Kind.MARK:
                left.check(moment.disk.tree(NOTHING), moment)
