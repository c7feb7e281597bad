"""An index against a list of (address, sequence): every look-up, for every offset and record."""

from __future__ import annotations

import random

import pytest

from dafka.broker.core.log.entries import (
    CONTROL,
    DroppedEntry,
    LogStartEntry,
    MarkerEntry,
    RunEntry,
    decode_entries,
    encode_entries,
)
from dafka.broker.core.log.log_index import LogIndex
from dafka.broker.core.positions import Offset, RecordSequence
from tests.broker.core.entries import marker_entry

ADDRESSES = ["", "P", "Q"]


class Model:
    """An index, the list that it stands for, and how much of the list is deleted."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.index = LogIndex()
        self.items: list[tuple[str, int]] = []
        self.next: dict[str, int] = dict.fromkeys(ADDRESSES, 0)
        self.start = 0
        self.ends: dict[str, int] = {}

    def append(self) -> None:
        address, count = self.draw.choice(ADDRESSES), self.draw.randint(1, 4)
        if self.draw.random() < 0.2:
            self.next[address] += self.draw.randint(1, 3)  # records of another log
        first = self.next[address]
        self.index.append(address, RecordSequence(first), count, is_open=self.draw.random() < 0.3)
        self.items += [(address, sequence) for sequence in range(first, first + count)]
        self.next[address] = self.ends[address] = first + count

    def append_marker(self) -> None:
        offset = len(self.items)
        assert self.index.append_marker(marker_entry(99, 0, offset, 0, 1, 5, None)).offset == offset
        self.items.append((CONTROL, offset))

    def fail(self) -> None:
        before = self.index.mark()
        items, following, ends = list(self.items), dict(self.next), dict(self.ends)
        for _ in range(self.draw.randint(1, 3)):
            self.draw.choice([self.append, self.append_marker])()
        self.index.undo_to(before)
        self.items, self.next, self.ends = items, following, ends

    def drop(self) -> None:
        offset = self.draw.randint(0, len(self.items) + 1)
        self.index.drop_before(Offset(offset))
        self.start = max(self.start, min(offset, len(self.items)))

    def close(self) -> None:
        open_run = self.index.open_run()
        assert open_run is None or open_run == (self.items[-1][0], self.items[-1][1] + 1)
        entry = self.index.close_run()
        assert (entry is None) == (open_run is None)
        if entry is not None:
            run = [(entry.address, entry.first_sequence + number) for number in range(entry.record_count)]
            assert self.items[entry.offset :] == run

    def truncate(self) -> None:
        """Truncate the log, as another leader that continues it does. Does nothing if records were deleted."""
        if not self.start:
            offset = self.draw.randint(max(len(self.items) - 4, 0), len(self.items))
            self.index.end_at(Offset(offset))
            del self.items[offset:]
            self.ends = {address: sequence + 1 for address, sequence in self.items}

    def restore(self) -> None:
        end = self.index.open_run()
        restored = LogIndex()
        for entry in decode_entries(encode_entries(self.index.entries())):
            match entry:
                case RunEntry():
                    restored.restore(entry)
                case MarkerEntry():
                    restored.restore_marker(entry)
                case LogStartEntry():
                    restored.start_offset = max(restored.start_offset, entry.offset)
                case DroppedEntry():
                    restored.dropped_ends[entry.address] = entry.sequence
                case _:
                    pytest.fail(f"{entry} is no entry of an index")
        if end is not None:
            assert restored.open_run() is not None
            restored.extend_open_run(len(self.items) - restored.end_offset)
        if len(self.index):
            self.index = restored

    def check(self) -> None:
        index, items = self.index, self.items
        assert (index.start_offset, index.end_offset) == (self.start, len(items))
        held = range(self.start, len(items))
        for offset in (-1, self.start - 1, len(items)):
            assert index.locate(Offset(offset)) is None
        for offset in held:
            location = index.locate(Offset(offset))
            assert location is not None
            address, sequence = items[offset]
            assert location.address == address
            if address == CONTROL:
                (marker,) = index.markers(location, 1)
                assert (marker.offset, marker.producer_id) == (offset, sequence)
                continue
            assert location.sequence == sequence
            run = items[offset : offset + location.record_count]
            assert run == [(address, sequence + number) for number in range(location.record_count)]
            after = offset + location.record_count
            assert after == len(items) or items[after] != (address, sequence + location.record_count)
            assert index.find(address, RecordSequence(sequence)) == offset
        assert set(index.addresses()) >= {items[each][0] for each in held} - {CONTROL}
        for address in ADDRESSES:
            self.check_partition(address)

    def check_partition(self, address: str) -> None:
        index = self.index
        places = {sequence: offset for offset, (each, sequence) in enumerate(self.items) if each == address}
        held = {sequence: offset for sequence, offset in places.items() if offset >= self.start}
        assert index.end_sequence(address) == self.ends.get(address, 0)
        left = max((sequence + 1 for sequence, offset in places.items() if offset < self.start), default=0)
        for sequence in range(left, self.next[address] + 2):
            assert index.find(address, RecordSequence(sequence)) == held.get(sequence)
            following = min((offset for each, offset in held.items() if each >= sequence), default=len(self.items))
            assert index.find_from(address, RecordSequence(sequence)) == following
        for offset in range(self.start, len(self.items) + 2):
            following_sequence = min((each for each, at in held.items() if at >= offset), default=None)
            assert index.sequence_from(address, Offset(offset)) == following_sequence
        first = self.draw.randint(left, max(left, self.next[address]))
        end = self.draw.randint(first, max(first, self.next[address]) + 1)
        end_offset = self.draw.randint(self.start, len(self.items))
        runs = index.placed(address, RecordSequence(first), RecordSequence(end), Offset(end_offset))
        found_places = {
            run.first_sequence + number: run.offset + number for run in runs for number in range(run.record_count)
        }
        wanted = {each: at for each, at in held.items() if first <= each < end and at < end_offset}
        assert found_places == wanted


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_every_look_up_is_that_of_a_list(first: int) -> None:
    for seed in range(first, first + 10):
        model = Model(seed)
        for _ in range(40):
            step = model.draw.choices(
                [model.append, model.append_marker, model.fail, model.drop, model.close, model.truncate, model.restore],
                [8, 3, 1, 1, 1, 1, 2],
            )[0]
            step()
            model.check()
