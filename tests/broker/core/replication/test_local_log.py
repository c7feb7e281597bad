"""What a broker stores of a log, against a model that keeps each index record with all that it names."""

from __future__ import annotations

import random
from collections import defaultdict

import attrs
import pytest

from dafka.broker.core.log.entries import (
    Entry,
    EpochStartEntry,
    IndexRewriteEntry,
    LogStartEntry,
    NextStartEntry,
    RunEntry,
    encode_entries,
)
from dafka.broker.core.log.log import LEADER
from dafka.broker.core.partition_address import EpochAddress
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication import local_log
from dafka.broker.core.replication.checkpoints import Checkpoint, decode_checkpoint, encode_checkpoint
from dafka.broker.core.replication.local_log import LocalLog
from dafka.broker.core.replication.records import LeaderAndEpoch
from dafka.errors import StorageFormatError
from dafka.records import Partition
from tests.broker.core.entries import marker_entry, run_entry

EPOCHS = [LeaderAndEpoch(1024, "leader"), LeaderAndEpoch(2048, "other")]
CHECKPOINT_RECORDS, CHECKPOINT_PARTITIONS_MAX, REWRITE_RECORDS = 5, 2, 3


Named = dict[Partition, tuple[int, int]]
"""What an index record names: by partition, the sequence and the offset after the last record."""


@attrs.define
class Record:
    """An index record: the end of the log behind it, what it names, and the end before it if it begins a rewrite.

    It moves the start of the log to `start`.
    """

    value: bytes
    end: int
    named: Named
    restart: int | None
    start: int


@attrs.define
class Index:
    """The index of one epoch."""

    epoch: LeaderAndEpoch
    records: list[Record] = attrs.field(factory=list)
    offset: int = 0
    end: int = 0
    open_run: RunEntry | None = None
    held: int = 0  # how many records are stored with all that they name
    start: int = 0
    kept: dict[str, int] = attrs.field(factory=dict)  # the ends of what was stored when they were
    checkpoint: Checkpoint | None = None
    is_changed: bool = False

    def partition(self, address: str) -> Partition:
        own = str(EpochAddress(self.epoch.leader, "id", 0, self.epoch.epoch))
        return Partition("orders", own if address == LEADER else address)


class Model:
    """A log of two epochs, whose index records and records are stored in any order, or not before its start."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.can_diverge = self.draw.random() < 0.3
        self.stored: defaultdict[Partition, int] = defaultdict(int)
        self.sequences: defaultdict[Partition, int] = defaultdict(int)
        self.indexes = [Index(each) for each in EPOCHS]
        self.start = self.decided = 0
        self.log = LocalLog("orders", "id", 0, self.stored.__getitem__, self.can_diverge)

    def start_of(self, index: Index) -> int:
        return index.start if self.can_diverge else self.start

    def write(self) -> None:
        """Store an index record, as a whole or as one of several that are stored together."""
        index = self.draw.choice(self.indexes)
        entries: list[Entry] = []
        named: Named = {}
        is_rewrite, before, moved = self.draw.random() < 0.15, index.end, 0
        if is_rewrite:
            entries.append(IndexRewriteEntry())
        if not index.records:
            index.offset = index.end = self.draw.randrange(4)
            entries.append(EpochStartEntry(Offset(index.offset), index.epoch.epoch))
        for _ in range(self.draw.randint(1, 3)):
            kind = self.draw.choice(["run", "run", "open", "marker", "start", "decide"])
            if kind in {"start", "decide"}:
                start = Offset(self.draw.randrange(20))
                entries.append(LogStartEntry(start) if kind == "start" else NextStartEntry(start))
                moved = max(moved, start * (kind == "start"))
                self.decided = max(self.decided, start)
                continue
            self.end_open_run(index, named)
            if kind == "marker":
                entries.append(marker_entry(index.offset, 0, 7, 0, 1, 0, None))
                index.offset += 1
            else:
                entries.append(self.begin_run(index, named, is_open=kind == "open"))
            index.end = max(index.end, index.offset)
        self.start, index.start = max(self.start, moved), max(index.start, moved)
        record = Record(encode_entries(entries), index.end, named, before if is_rewrite else None, moved)
        index.records.append(record)
        known = self.draw.randint(1, min(3, len(index.records)))  # some are given that are known
        values = [each.value for each in index.records[-known:]]
        self.log.add_index(index.epoch, RecordSequence(len(index.records) - known), values)

    def begin_run(self, index: Index, named: Named, *, is_open: bool) -> RunEntry:
        address = self.draw.choice([LEADER, LEADER, "P", "Q"])
        partition, count = index.partition(address), 0 if is_open else self.draw.randint(1, 4)
        run = run_entry(index.offset, address, self.sequences[partition], count)
        index.open_run = run if is_open else None
        self.sequences[partition] += count
        index.offset += count
        if count:
            named[partition] = self.sequences[partition], index.offset
        return run

    def end_open_run(self, index: Index, named: Named) -> None:
        """End the open run before the next entry, which states its length."""
        if index.open_run is not None:
            partition, count = index.partition(index.open_run.address), self.draw.randint(1, 3)
            self.sequences[partition] = index.open_run.first_sequence + count
            index.offset += count
            named[partition] = max((self.sequences[partition], index.offset), named.get(partition, (0, 0)))
            index.open_run = None

    def store(self) -> None:
        """Store some or all of the records of a partition."""
        for partition in self.draw.sample(list(self.sequences), min(2, len(self.sequences))):
            end = self.draw.choice([self.sequences[partition], self.draw.randint(0, self.sequences[partition])])
            self.stored[partition] = max(end, self.stored[partition])

    def advance(self) -> None:
        expected = []
        for index in self.indexes:
            before = index.held
            while index.held < len(index.records) and not self.missing(index, index.records[index.held]):
                for partition, (end, _) in index.records[index.held].named.items():
                    if self.stored[partition] >= end:
                        index.kept[partition.address] = max(end, index.kept.get(partition.address, 0))
                index.held += 1
            if index.held > before:
                index.is_changed = True
                expected.append((index.epoch, index.records[index.held - 1].end))
        assert sorted(self.log.advance()) == expected

    def missing(self, index: Index, record: Record) -> Named:
        start, named = self.start_of(index), record.named.items()
        return {each: (end, offset) for each, (end, offset) in named if self.stored[each] < end and offset > start}

    def take_checkpoints(self) -> None:
        latest = self.draw.choice(EPOCHS)
        found = dict(self.log.take_checkpoints(latest))
        for index in self.indexes:
            since = index.held - (0 if index.checkpoint is None else index.checkpoint.index_end)
            is_due = index.is_changed and (index.epoch != latest or since >= CHECKPOINT_RECORDS)
            if not is_due or index.held < len(index.records) or index.open_run is not None:
                assert index.epoch not in found
                continue
            index.is_changed = False
            needed = index.kept
            assert (index.epoch in found) == (len(needed) <= CHECKPOINT_PARTITIONS_MAX)
            if index.epoch in found:
                index.checkpoint = checkpoint = found[index.epoch]
                assert (checkpoint.index_end, checkpoint.end_offset) == (index.held, index.end)
                assert (checkpoint.start_offset, checkpoint.needed) == (self.start, needed)
                assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint
                assert not any(checkpoint.find_unmet("orders", self.stored.__getitem__))
                lacking = self.stored | {Partition("orders", each): end - 1 for each, end in needed.items()}
                assert not needed or any(checkpoint.find_unmet("orders", lacking.__getitem__))

    def restart(self) -> None:
        """Restore the log from its checkpoints, and read the index records behind them."""
        self.log.clear()
        assert (self.log.start_offset, self.log.ends(), self.log.missing()) == (0, {}, {})
        for index in self.indexes:
            first, index.kept = 0, {}
            if index.checkpoint is not None:
                self.log.restore(index.epoch, index.checkpoint)
                first, index.kept = index.checkpoint.index_end, dict(index.checkpoint.needed)
            if index.records:
                self.log.add_index(index.epoch, RecordSequence(first), [each.value for each in index.records[first:]])
            index.held, index.is_changed = first, False
            index.start = max((each.start for each in index.records[first:]), default=0)
        self.advance()

    def check(self) -> None:
        log = self.log
        unstored = defaultdict[Partition, set[int]](set)
        assert (log.start_offset, log.next_start) == (self.start, self.decided)
        for index in self.indexes:
            epoch, held, records = index.epoch, index.held, index.records
            waiting: Named = {}
            for record in records[held:]:
                for partition, named in self.missing(index, record).items():
                    waiting[partition] = max(named, waiting.get(partition, (0, 0)))
            for partition, (end, _) in waiting.items():
                unstored[partition].add(end)
            if not records:
                continue
            assert log.acknowledged_end(epoch) == held
            assert log.ends()[epoch] == (records[held - 1].end if held else 0)
            assert log.known_ends()[epoch] == index.end
            first = 1 if index.checkpoint is None else index.checkpoint.index_end
            for number in range(first, len(records) + 1):
                assert log.offset_at(epoch, RecordSequence(number)) == records[number - 1].end
            restarts = [(at, each.restart) for at, each in enumerate(records[:held]) if each.restart is not None]
            assert log.restart(epoch) == (restarts[-1] if restarts else None)
            needed_from = restarts[-1][0] if restarts and held >= restarts[-1][0] + REWRITE_RECORDS else None
            assert log.needed_from().get(epoch) == needed_from
        missing = log.missing()
        assert missing.keys() == unstored.keys()
        assert all(end in unstored[partition] for partition, end in missing.items())


def test_a_log_is_stored_as_far_as_its_index_and_all_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECKPOINT_RECORDS", "CHECKPOINT_PARTITIONS_MAX", "REWRITE_RECORDS"):
        monkeypatch.setattr(local_log, name, globals()[name])
    for seed in range(100):
        model = Model(seed)
        for _ in range(40):
            step = model.draw.choices([model.write, model.store, model.take_checkpoints, model.restart], [5, 5, 2, 1])
            step[0]()
            model.advance()
            model.check()


def test_nothing_is_known_of_other_epochs() -> None:
    log = LocalLog("orders", "id", 0, lambda _: 0)
    assert (log.offset_at(EPOCHS[0], RecordSequence(1)), log.restart(EPOCHS[0])) == (None, None)
    assert log.acknowledged_end(EPOCHS[0]) == 0


@pytest.mark.parametrize(
    "value", [b"", b"[]", b'{"version":1}', b'{"version":2,"held":[1,2,0,null,{}]}', b'{"version":1,"held":[1]}']
)
def test_a_malformed_checkpoint_is_refused(value: bytes) -> None:
    with pytest.raises(StorageFormatError):
        decode_checkpoint(value)
