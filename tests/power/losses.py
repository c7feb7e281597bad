"""Power failures at any moment of a recorded run of `tests.power.workload`, and the records that must survive them.

    python -m tests.power.losses URL SEED STEPS LOSSES

`URL` has `{folder}` where the folder of the run is inserted: 'sqlite:{folder}/s.db'.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest
import trio

from dafka.errors import StorageError
from dafka.storage import Storage, read_range
from dafka.storage.filelog import catalog
from dafka.storage.tools.verify import verify_storage
from tests.power import planted
from tests.power.disk import LOSSES, SECTOR_BYTES, Disk, keep_all, lose_all
from tests.power.recording import Entry, Kind, record
from tests.power.workload import NAMES, PARTITIONS, is_relaxed, make_batch, open_storage, shrink_limits

MEMORY_FOLDER = Path("/dev/shm")


class BrokenPromiseError(AssertionError):
    """Something that was promised is not there after a power failure."""


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise BrokenPromiseError(str(error)) from error


@attrs.define
class Promises:
    """The promises made to a recorded process, and the changes that it had begun, up to a moment.

    Attributes:
        identity: The identity of the storage; empty until it was opened.
        begun_ends: By partition, the end of the records whose append has begun.
        ends: By partition, the end of the records that are durable.
        earliest: By partition, the greatest sequence before which records may have been dropped.
        positions: By name and partition, the positions that may be saved: the durable one, and those being saved.
    """

    identity: str = ""
    begun_ends: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))
    ends: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))
    earliest: list[int] = attrs.field(factory=lambda: [0] * len(PARTITIONS))
    positions: dict[tuple[int, int], set[int]] = attrs.field(factory=dict)

    def add_mark(self, text: bytes) -> None:
        """Take a mark."""
        what, value = json.loads(text)
        if what == "opened":
            self.identity = value
        elif what == "appending":
            self.begun_ends = [max(pair) for pair in zip(self.begun_ends, value, strict=True)]
        elif what == "appended":
            self.ends = [max(pair) for pair in zip(self.ends, value, strict=True)]
        elif what == "trimming":
            number, earliest = value
            self.earliest[number] = max(self.earliest[number], earliest)
        else:
            name, number, position = value
            if what == "saved":
                self.positions[name, number] = {position}
            else:
                self.positions.setdefault((name, number), {0}).add(position)

    async def check_storage(self, url: str, *, is_exact: bool) -> None:
        """Open the storage that a power failure left, and raise `BrokenPromiseError` if anything is missing.

        Args:
            url: The storage.
            is_exact: Whether every change was durable when it returned, so that nothing else may be damaged either.
        """
        async with open_storage(url) as storage:
            expect(storage.identity == self.identity or not self.identity, "the identity is another one")
            found = await storage.partitions()
            for number, partition in enumerate(PARTITIONS):
                if self.ends[number]:
                    expect(partition in found, f"partition {number} is lost, with {self.ends[number]} records")
                if partition in found:
                    await self._check_partition(storage, number, is_exact=is_exact)
            for (name, number), allowed in self.positions.items():
                position = (await storage.load_positions(NAMES[name])).get(PARTITIONS[number], 0)
                expect(position in allowed, f"position {position} is loaded, expected one of {allowed}")
            if is_exact:
                damages = (await verify_storage(storage)).damages
                expect(not damages, f"verify finds {damages}")

    async def _check_partition(self, storage: Storage, number: int, *, is_exact: bool) -> None:
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
        latest = 0
        async for run in read_range(storage, partition, sequence, end, with_times=True):
            expect(run.first_sequence == sequence, f"{held}: {run.first_sequence} follows {sequence - 1}")
            expected = make_batch(partition, sequence, len(run)).values
            expect(list(run.values) == list(expected), f"{held}: wrong contents from {sequence} on")
            times = run.stored_at or []
            expect(sorted([latest, *times]) == [latest, *times], f"{held}: times decrease after {sequence}")
            sequence, latest = run.end_sequence, times[-1]
        expect(sequence >= end, f"{held}, but reading ends at {sequence}, expected {end}")

    async def append_more(self, url: str) -> None:
        """Append to every partition, as the program would that goes on after a power failure."""
        async with open_storage(url) as storage:
            held = await storage.partitions()
            ends = [held[each].end_sequence if each in held else 0 for each in PARTITIONS]
            await storage.append(
                [make_batch(partition, end, 30) for partition, end in zip(PARTITIONS, ends, strict=True)]
            )
        self.ends = [end + 30 for end in ends]
        self.begun_ends = [max(pair) for pair in zip(self.begun_ends, self.ends, strict=True)]


def expect(condition: bool, problem: str) -> None:
    """Raise `BrokenPromiseError` unless a condition holds."""
    if not condition:
        raise BrokenPromiseError(problem)


def record_workload(url: str, seed: int, steps: int, folder: Path, bug: str | None = None) -> list[Entry]:
    """Record a run of the workload in a folder."""
    log = folder.with_suffix(".recording")
    command = [sys.executable, "-m", "tests.power.workload", url.format(folder=folder), str(seed), str(steps)]
    return record([*command, *(["--bug", bug] if bug else [])], folder, log)


class Run:
    """A recorded run that is replayed: the disk and the promises at one moment of it.

    Args:
        url: The storage, with `{folder}`.
        folder: A folder for everything.
        choose: Chooses the moments and the losses.
        bug: The name of a planted bug.
        is_decisive: See `lose_power`.
    """

    def __init__(
        self, url: str, folder: Path, choose: random.Random, bug: str | None, *, is_decisive: bool = False
    ) -> None:
        self._is_decisive = is_decisive
        self._url = url
        self._folder = folder
        self._choose = choose
        self._bug = bug
        # SQLite, and a storage with relaxed durability, do not write again what could not be synced.
        self._disk = Disk(forgets_failed=url.startswith("filelog:") and not is_relaxed(url))
        self._promises = Promises()
        self._entries: list[Entry] = []
        self._moment = 0

    def start_process(self, name: str, entries: list[Entry]) -> None:
        """Begin with the recording of a process that began with the files that the process before it left."""
        self._disk.start_process(self._folder / name)
        self._entries, self._moment = entries, 0

    def advance(self, moment: int) -> None:
        """Replay the recording up to an entry."""
        for entry in self._entries[self._moment : moment]:
            self._disk.apply(entry)
            if entry.kind is Kind.MARK:
                self._promises.add_mark(entry.first)
        self._moment = moment

    def kill_process(self, name: str) -> None:
        """End the process, but not the system, at a random moment, and store the files that it leaves."""
        writes = [number for number, entry in enumerate(self._entries, 1) if entry.kind is Kind.WRITE]
        self.advance(self._choose.choice(self._syncs_of_records() if self._is_decisive else writes))
        self._disk.fail_power(self._folder / name, keep_all, self._choose)

    def check_completeness(self, name: str) -> None:
        """Check that the whole recording leads to the files that the process left."""
        self.advance(len(self._entries))
        replayed = self._folder / "replayed"
        self._disk.fail_power(replayed, keep_all, self._choose)
        command = ["diff", "-rq", "-x", "*-shm", str(self._folder / name), str(replayed)]
        different = subprocess.run(command, capture_output=True, text=True, check=False)
        assert different.returncode == 0, f"the recording is incomplete: {different.stdout}"
        shutil.rmtree(replayed)

    async def check_losses(self, losses: int) -> None:
        """Let the power fail at random moments, and check the remaining storage each time."""
        first = self._first_promises() if self._is_decisive else ()
        for moment in self._choose_moments(losses):
            self.advance(moment)
            loss = lose_all if moment in first else self._choose.choice(LOSSES)
            left = self._folder / "left"
            self._disk.fail_power(left, loss, self._choose)
            try:
                with _storage_errors():
                    await self._check_left(self._url.format(folder=left), is_continued=self._choose.random() < 0.2)
            except BrokenPromiseError as error:
                error.add_note(f"{self._url}: {loss.__name__} at entry {moment} of {len(self._entries)}")
                raise
            shutil.rmtree(left)

    def _choose_moments(self, count: int) -> list[int]:
        """Return random moments, half of them immediately after something was promised, and the first promises."""
        marks = [number for number, entry in enumerate(self._entries, 1) if entry.kind is Kind.MARK]
        ends = range(len(self._entries) + 1)
        first = self._first_promises()
        others = range(count - len(first))
        return sorted(first + [self._choose.choice(self._choose.choice((marks, ends))) for _ in others])

    def _syncs_of_records(self) -> list[int]:
        """Return the moments during appends when a sync of more than a header is about to begin."""
        found = []
        paths: dict[int, bytes] = {}
        written: Counter[bytes] = Counter()
        is_appending = False
        for number, entry in enumerate(self._entries):
            if entry.kind is Kind.MARK:
                is_appending = entry.first.startswith(b'["appending"')
            elif entry.kind is Kind.OPEN:
                paths[entry.fd] = entry.first
            elif entry.kind is Kind.WRITE:
                written[paths[entry.fd]] += len(entry.first)
            elif entry.kind is Kind.SYNC_BEGIN:
                if is_appending and written[paths[entry.fd]] >= SECTOR_BYTES:
                    found.append(number)
                written[paths[entry.fd]] = 0
        return found

    def _first_promises(self) -> list[int]:
        """Return the moments when the process promises what it has found, of which it has written nothing itself."""
        return [number for number, entry in enumerate(self._entries, 1) if entry.kind is Kind.MARK][:3]

    async def _check_left(self, url: str, *, is_continued: bool) -> None:
        is_exact = not is_relaxed(url)
        promises = attrs.evolve(self._promises)
        with pytest.MonkeyPatch.context() as patch:
            shrink_limits(patch)
            if self._bug:
                planted.BUGS[self._bug](patch)
            patch.setattr(catalog, "boot_id", lambda: b"after the power failure")
            await promises.check_storage(url, is_exact=is_exact)
            if is_continued and is_exact:
                await promises.append_more(url)
                await promises.check_storage(url, is_exact=True)


def lose_power(
    url: str, *, seed: int, steps: int, losses: int, bug: str | None = None, is_decisive: bool = False
) -> None:
    """Check a storage after power failures. Raises `BrokenPromiseError`.

    A process uses the storage, and its recording is replayed to random moments. Then the same process is killed at a
    random moment, a second process continues, and its recording is replayed likewise.

    Args:
        url: The storage, with `{folder}`.
        seed: Chooses everything.
        steps: The number of calls of each process.
        losses: The number of power failures.
        bug: The name of a planted bug.
        is_decisive: Whether the process is killed when it has written records and is about to sync them, and the first
            failures lose all that is not synced. These are the moments that matter to what a second process finds.
    """
    parent = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    with TemporaryDirectory(prefix="dafka-power-", dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "first").mkdir()
        entries = record_workload(url, seed, steps, folder / "first", bug)
        first, second = (Run(url, folder, random.Random(each), bug, is_decisive=is_decisive) for each in (seed, ~seed))
        first.start_process("first", entries)
        trio.run(first.check_losses, losses // 2)
        first.check_completeness("first")
        second.start_process("first", entries)
        second.kill_process("second")
        entries = record_workload(url, seed + 1, steps // 2, folder / "second", bug)
        second.start_process("second", entries)
        trio.run(second.check_losses, losses // 2)
        second.check_completeness("second")


if __name__ == "__main__":
    lose_power(sys.argv[1], seed=int(sys.argv[2]), steps=int(sys.argv[3]), losses=int(sys.argv[4]))
