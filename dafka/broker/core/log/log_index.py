"""The index of one log: which run of which partition is at which offset.

A run is a range of offsets whose records are consecutive in one partition, so offset and sequence have a constant
difference. There are no gaps between runs. Adjacent runs that continue each other are one run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from dafka.broker.core.log.entries import (
    CONTROL,
    DroppedEntry,
    Entry,
    LogStartEntry,
    MarkerEntry,
    MergedEntry,
    RunEntry,
)
from dafka.broker.core.positions import FIRST_OFFSET, FIRST_SEQUENCE, Offset, RecordSequence


class Location(NamedTuple):
    """The partition and the sequence of the record at an offset, and the number of records to the end of its run."""

    address: str
    sequence: RecordSequence
    record_count: int


class LogIndex:
    """The runs of one log. The last run ends at `end_offset`.

    `dropped_ends` has the addresses of partitions without remaining runs, each with the sequence after its last record
    that was in the log. `merged_ends` has the ends of what was merged of divergent leader partitions, by address.
    """

    def __init__(self) -> None:
        self.start_offset = FIRST_OFFSET
        self.end_offset = FIRST_OFFSET
        self.dropped_ends: dict[str, RecordSequence] = {}
        self.merged_ends: dict[str, MergedEntry] = {}
        self._offsets = array("q")
        self._sequences = array("q")
        self._owners = array("q")
        self._addresses: list[str] = []
        self._numbers: dict[str, int] = {}
        self._runs_of: list[array[int]] = []
        self._dropped = 0
        self._is_last_open = False
        self._markers: list[MarkerEntry] = []
        self._markers_dropped = 0

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._offsets)

    def addresses(self) -> list[str]:
        """Return the addresses of the partitions with records in the log."""
        return [each for each, number in self._numbers.items() if self._runs_of[number] and each != CONTROL]

    @property
    def marker_count(self) -> int:
        """The number of transaction markers in the log."""
        return len(self._markers)

    def append_marker(self, marker: MarkerEntry) -> MarkerEntry:
        """Append a transaction marker. Return it with its offset, to be written."""
        marker = marker._replace(offset=self.end_offset)
        self.append(CONTROL, self._next_marker(), 1, is_open=False)
        self._markers.append(marker)
        return marker

    def restore_marker(self, marker: MarkerEntry) -> None:
        """Restore a transaction marker."""
        self.restore(RunEntry(marker.offset, CONTROL, self._next_marker(), 1))
        self._markers.append(marker)

    def _next_marker(self) -> RecordSequence:
        """Return the sequence of the next marker: the number of earlier ones."""
        return RecordSequence(self._markers_dropped + len(self._markers))

    def markers(self, location: Location, count: int) -> list[MarkerEntry]:
        """Return transaction markers, starting at a location."""
        first = location.sequence - self._markers_dropped
        return self._markers[first : first + count]

    def append(self, address: str, first_sequence: RecordSequence, count: int, *, is_open: bool) -> RunEntry | None:
        """Append at least one record of a partition. Return the entry to write; None if they continue an open run.

        An open run is continued by later records of the partition without entries of their own.
        """
        offset = self.end_offset
        continues = self._is_continued(address, first_sequence)
        if not continues:
            self._begin_run(offset, address, first_sequence)
        self._advance(count)
        if continues and is_open and self._is_last_open:
            return None
        self._is_last_open = is_open
        return RunEntry(offset, address, first_sequence, 0 if is_open else count)

    def restore(self, entry: RunEntry) -> None:
        """Restore a run. `end_offset` becomes the end of this run, without the records of an open one."""
        if not len(self) and not self.end_offset:
            self.start_offset = entry.offset
        self.end_offset = entry.offset
        if not self._is_continued(entry.address, entry.first_sequence):
            self._begin_run(entry.offset, entry.address, entry.first_sequence)
        self._advance(entry.record_count)
        self._is_last_open = not entry.record_count

    def open_run(self) -> tuple[str, RecordSequence] | None:
        """Return the partition of the last run and the sequence after its end, if the run is open."""
        if not self._is_last_open:
            return None
        return self._last_address(), self._next_of_last_run()

    def close_run(self) -> RunEntry | None:
        """Close the last run. Return the entry to write if it was open and has records."""
        if not self._is_last_open:
            return None
        self._is_last_open = False
        count = self.end_offset - self._offsets[-1]
        if not count:
            return None
        return RunEntry(Offset(self._offsets[-1]), self._last_address(), RecordSequence(self._sequences[-1]), count)

    def extend_open_run(self, count: int) -> None:
        """Extend the open last run. After a restart, it ends where its partition ends."""
        self._advance(count)

    def _advance(self, count: int) -> None:
        self.end_offset = Offset(self.end_offset + count)

    def mark(self) -> tuple[Offset, bool]:
        """Return the current state, for `undo_to`."""
        return self.end_offset, self._is_last_open

    def undo_to(self, mark: tuple[Offset, bool]) -> None:
        """Undo every `append` since `mark` returned this state."""
        self.end_offset, self._is_last_open = mark
        while self._offsets and self._offsets[-1] >= self.end_offset:
            self._offsets.pop()
            self._sequences.pop()
            self._runs_of[self._owners.pop()].pop()
        while self._markers and self._markers[-1].offset >= self.end_offset:
            self._markers.pop()

    def end_at(self, offset: Offset) -> None:
        """Truncate the index to an offset."""
        if offset < self.end_offset:
            self.undo_to((max(offset, FIRST_OFFSET), False))
            self.start_offset = min(self.start_offset, self.end_offset)

    def locate(self, offset: Offset) -> Location | None:
        """Return the location of the record at an offset; None if the log has no such record."""
        if not self.start_offset <= offset < self.end_offset:
            return None
        number = bisect_right(self._offsets, offset) - 1
        end = self._run_end(number)
        address = self._addresses[self._owners[number]]
        sequence = RecordSequence(self._sequences[number] + offset - self._offsets[number])
        return Location(address, sequence, end - offset)

    def find(self, address: str, sequence: RecordSequence) -> Offset | None:
        """Return the offset of a record; None if it is not in the log."""
        position = self._run_before(address, sequence)
        if position is None:
            return None
        offset = Offset(self._offsets[position] + sequence - self._sequences[position])
        return offset if offset < self._run_end(position) else None

    def find_written(self, address: str, sequence: RecordSequence) -> Offset | None:
        """Return the offset of a record that an entry refers to; None if its run is gone.

        While an index is being restored, the end of its open run is not known yet.
        """
        position = self._run_before(address, sequence)
        if position is not None and self._is_last_open and position + 1 == len(self._offsets):
            return Offset(self._offsets[position] + sequence - self._sequences[position])
        return self.find(address, sequence)

    def find_from(self, address: str, sequence: RecordSequence) -> Offset:
        """Return the offset of a partition's first record from a sequence on; the end offset if there is none."""
        found = self.find(address, sequence)
        if found is not None:
            return found
        runs = self._runs_at(address)
        index = bisect_right(runs, sequence, key=self._sequence_of_run)
        return Offset(self._offsets[runs[index] - self._dropped]) if index < len(runs) else self.end_offset

    def placed(
        self, address: str, first_sequence: RecordSequence, end_sequence: RecordSequence, end_offset: Offset
    ) -> list[RunEntry]:
        """Return the runs of a partition's records in a range of sequences, as far as they are before an offset."""
        found: list[RunEntry] = []
        sequence = first_sequence
        while sequence < end_sequence:
            offset = self.find_from(address, sequence)
            location = self.locate(offset)
            if location is None or location.address != address or offset >= end_offset:
                break
            count = min(location.record_count, end_sequence - location.sequence, end_offset - offset)
            if count <= 0:
                break
            found.append(RunEntry(offset, address, location.sequence, count))
            sequence = RecordSequence(location.sequence + count)
        return found

    def sequence_from(self, address: str, offset: Offset) -> RecordSequence | None:
        """Return the sequence of a partition's first record at an offset or later; None if there is none."""
        runs = self._runs_at(address)
        index = bisect_right(runs, offset, key=self._offset_of_run) - 1
        if index >= 0:
            position = runs[index] - self._dropped
            if offset < self._run_end(position):
                return RecordSequence(self._sequences[position] + offset - self._offsets[position])
        if index + 1 < len(runs):
            return RecordSequence(self._sequences[runs[index + 1] - self._dropped])
        return None

    def merged_end(self, address: str) -> RecordSequence:
        """Return the sequence up to which a divergent leader partition is merged: the next record is missing here."""
        merged = self.merged_ends.get(address)
        end_sequence = self.end_sequence(address)
        return end_sequence if merged is None else max(merged.sequence, end_sequence)

    def count_from(self, address: str, offset: Offset) -> int:
        """Return the number of a partition's records at an offset or later."""
        positions = (run - self._dropped for run in self._runs_at(address))
        return sum(max(self._run_end(each) - max(self._offsets[each], offset), 0) for each in positions)

    def end_sequence(self, address: str) -> RecordSequence:
        """Return the sequence after a partition's last record that is or was in the log; 0 if there is none."""
        runs = self._runs_at(address)
        if not runs:
            return self.dropped_ends.get(address, FIRST_SEQUENCE)
        position = runs[-1] - self._dropped
        return RecordSequence(self._sequences[position] + self._run_end(position) - self._offsets[position])

    def entries(self) -> list[Entry]:
        """Return entries from which `restore` and `restore_marker` rebuild this index."""
        found: list[Entry] = [DroppedEntry(address, end) for address, end in self.dropped_ends.items()]
        markers = iter(self._markers)
        for position, offset in enumerate(self._offsets):
            is_open = position + 1 == len(self._offsets) and self._is_last_open
            count = self._run_end(position) - offset
            address = self._addresses[self._owners[position]]
            if address == CONTROL:
                found += islice(markers, count)
            elif count or is_open:
                sequence = RecordSequence(self._sequences[position])
                found.append(RunEntry(Offset(offset), address, sequence, 0 if is_open else count))
        return [*found, *self.merged_ends.values(), LogStartEntry(self.start_offset)]

    def drop_before(self, offset: Offset) -> None:
        """Delete the records before an offset."""
        self.start_offset = max(self.start_offset, min(offset, self.end_offset))
        count = bisect_left(self._offsets, self.start_offset)
        if count == len(self._offsets) or self._offsets[count] > self.start_offset:
            count -= 1  # keep the run with the first record, or the last run, which can be continued
        if count <= 0:
            return
        for owner in set(self._owners[:count]):
            runs = self._runs_of[owner]
            gone = bisect_left(runs, self._dropped + count)
            if gone == len(runs) and self._addresses[owner] != CONTROL:
                self.dropped_ends[self._addresses[owner]] = self.end_sequence(self._addresses[owner])
            del runs[:gone]
        del self._offsets[:count], self._sequences[:count], self._owners[:count]
        self._dropped += count
        gone = bisect_left(self._markers, self._offsets[0], key=lambda marker: marker.offset)
        del self._markers[:gone]
        self._markers_dropped += gone

    def _is_continued(self, address: str, first_sequence: RecordSequence) -> bool:
        if not len(self) or self._last_address() != address:
            return False
        return self._next_of_last_run() == first_sequence

    def _next_of_last_run(self) -> RecordSequence:
        """Return the sequence after the last run."""
        return RecordSequence(self._sequences[-1] + self.end_offset - self._offsets[-1])

    def _run_end(self, position: int) -> Offset:
        """Return the offset after the run at a position."""
        return Offset(self._offsets[position + 1]) if position + 1 < len(self._offsets) else self.end_offset

    def _last_address(self) -> str:
        return self._addresses[self._owners[-1]]

    def _begin_run(self, offset: Offset, address: str, first_sequence: RecordSequence) -> None:
        if self._offsets and self._offsets[-1] == offset:  # the last run is empty
            self._offsets.pop()
            self._sequences.pop()
            self._runs_of[self._owners.pop()].pop()
        number = self._numbers.get(address)
        if number is None:
            number = self._numbers[address] = len(self._addresses)
            self._addresses.append(address)
            self._runs_of.append(array("q"))
        runs = self._runs_of[number]
        if runs and self._sequences[runs[-1] - self._dropped] >= first_sequence:
            del runs[:]  # the partition starts again; its former records are found only by offset
        runs.append(self._dropped + len(self._offsets))
        self._offsets.append(offset)
        self._sequences.append(first_sequence)
        self._owners.append(number)

    def _runs_at(self, address: str) -> Sequence[int]:
        """Return the numbers of a partition's runs, which count dropped runs, too."""
        number = self._numbers.get(address)
        return () if number is None else self._runs_of[number]

    def _sequence_of_run(self, run: int) -> RecordSequence:
        return RecordSequence(self._sequences[run - self._dropped])

    def _offset_of_run(self, run: int) -> Offset:
        return Offset(self._offsets[run - self._dropped])

    def _run_before(self, address: str, sequence: RecordSequence) -> int | None:
        """Return the position of a partition's last run that begins at a sequence or earlier."""
        runs = self._runs_at(address)
        index = bisect_right(runs, sequence, key=self._sequence_of_run)
        return runs[index - 1] - self._dropped if index else None
