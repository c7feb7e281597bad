"""The state of logs and their table, by brute force over small cases.

The histories of one log, in `test_histories.py`, show its index, its transactions and its producers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import attrs
import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.entries import (
    Entry,
    IndexRewriteEntry,
    LogStartEntry,
    MarkerEntry,
    NextStartEntry,
    encode_entries,
)
from dafka.broker.core.log.log import FORMER_ENDS_MAX, LEADER, Log
from dafka.broker.core.log.log_index import LogIndex
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import REWRITE_EPOCHS, OffsetAssigner
from dafka.broker.core.log.partitioner import log_of_address, log_of_key
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import FIRST_SEQUENCE, AtOffset, Offset, RecordSequence
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import batch_entry, marker_entry, run_entry
from tests.broker.core.log.test_producer_model import make_header
from tests.seeds import each_seed

EPOCHS = [(0, 0), (3, 4), (5, 4), (9, 7)]
END = 10


def make_log(**fields: Any) -> Log:
    place = Partition("orders", "own")
    return Log("orders", 0, place, place, high_watermark=Offset(END), **fields)


def test_an_epoch_ends_where_the_next_one_of_the_log_begins() -> None:
    log = make_log(epochs=[(epoch, Offset(start)) for epoch, start in EPOCHS])
    for epoch in range(12):
        last = max(each for each, _ in EPOCHS if each <= epoch)
        following = [start for each, start in EPOCHS if each > last]
        assert log.end_of_epoch(epoch) == (last, min(following, default=END))
        assert log.knows_epoch(epoch)
    assert log.end_of_epoch(-1) is None
    log.divergences = {4: (3, Offset(2))}
    assert log.end_of_epoch(4) == (3, 2)
    assert [epoch for epoch in range(12) if log.knows_epoch(epoch)] == [0, 3, 4, 5, 9]


@pytest.mark.parametrize("start", [9, 10, 11])
def test_a_leader_knows_the_end_when_it_has_committed_up_to_its_first_offset(start: int) -> None:
    log = make_log(epochs=[(0, Offset(0)), (1, Offset(start))])
    assert log.is_end_known == (start <= END)


def restore(log: Log, *entries: Entry, end: int) -> None:
    """Read the index of a former leader, whose epoch ends at an offset."""
    arguments: dict[str, Any] = {"leader_address": "OTHER/1D/0/7", "end_offset": Offset(end)}
    log.restore(RecordSequence(0), encode_entries(entries), **arguments)


def test_a_new_leader_knows_producers_whose_last_records_are_deleted_and_none_of_those_that_are_not_in_its_log() -> (
    None
):
    log = make_log()
    rewritten: list[Entry] = [IndexRewriteEntry(), LogStartEntry(Offset(5)), run_entry(5, LEADER, 5, 9)]
    batches = [batch_entry(at, 1, producer, 0, at, 1, 0) for at, producer in ((1, 6), (2, 6), (6, 7), (9, 8), (20, 9))]
    restore(log, *rewritten, NextStartEntry(Offset(9)), *batches, end=8)
    assert (log.index.start_offset, log.next_start) == (5, 8), "where its epoch ended in this log"
    for producer, following in ((6, 3), (7, 7)):
        header = make_header(1, producer, 0, following, transactional=True)
        assert log.producers.check_batch(header).error_code is ErrorCode.NONE
        header = make_header(1, producer, 0, following + 1, transactional=True)
        assert log.producers.check_batch(header).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert set(log.producers.producers) == {6, 7}
    assert set(log.producers.open_transactions) == {7}


def test_a_marker_names_the_first_record_of_its_transaction_that_another_leader_has_appended() -> None:
    log = make_log()
    marker = marker_entry(8, 8, 7, 0, 0, 5, None)._replace(first_position=AtOffset(Offset(3)))
    restore(log, IndexRewriteEntry(), run_entry(0, "P", 0, 4), run_entry(4, LEADER, 4, 4), marker, end=9)
    assert log.aborted_between(Offset(0), Offset(9)) == [(7, 3)]


def leading(log_count: int = 1) -> OffsetAssigner:
    assigner = OffsetAssigner(LogTable("broker"))
    assigner.table.add_topic(Topic("orders", "1D", log_count))
    return assigner


def test_withdrawn_records_get_no_offset_and_all_others_do() -> None:
    ranges = [(first, end) for first in range(5) for end in range(first + 1, 6)]
    for one, other in product(ranges, ranges):
        assigner = leading()
        (log,) = assigner.table.logs("orders")
        own = log.leader_partition
        withdrawn = [each for each in (one, other) if assigner.table.withdraw(log, own, *map(RecordSequence, each))]
        assert withdrawn == [one, other]
        for first, end in ((0, 3), (3, 6)):
            assigner.commit(assigner.plan([RecordBatch(own, first, [b""] * (end - first))], 0))
        kept = [each for each in range(6) if not (one[0] <= each < one[1] or other[0] <= each < other[1])]
        found = [log.index.find(LEADER, RecordSequence(each)) for each in kept]
        assert found == list(range(len(kept)))
        assert log.index.end_offset == len(kept)
        for each in range(6):
            is_withdrawn = assigner.table.withdraw(log, own, RecordSequence(each), RecordSequence(each + 1))
            assert is_withdrawn == ((each, each + 1) in (one, other) or each > max([*kept, -1]))


def test_records_of_former_epochs_are_withdrawn_unless_they_had_an_offset() -> None:
    assigner = leading()
    (log,) = assigner.table.logs("orders")
    own = log.leader_partition
    assigner.commit(assigner.plan([RecordBatch(own, 0, [b""] * 3)], 0))
    for epoch in range(1, FORMER_ENDS_MAX + 1):
        assigner.table.begin_epoch(log, epoch)
        found = [assigner.table.withdraw(log, own, RecordSequence(each), RecordSequence(9)) for each in range(5)]
        assert found == [False, False, False, True, True]
    assigner.table.begin_epoch(log, FORMER_ENDS_MAX + 1)
    assert not assigner.table.withdraw(log, own, RecordSequence(3), RecordSequence(9)), "nothing is known of it"


@pytest.mark.parametrize("topic_id", [None, "1D", "other"])
def test_a_log_is_found_by_its_number_and_topic(topic_id: str | None) -> None:
    table = leading(2).table
    for number in range(-1, 4):
        found = table.find_log("orders", number, topic_id)
        expected = table.logs("orders")[number] if number in (0, 1) and topic_id != "other" else None
        assert found is expected
    assert table.find_log("none", 0) is None
    table.add_topic(Topic("$internal", "2D", 1))
    assert table.find_log("$internal", 0) is not None
    assert (table.find_client_log("$internal", 0), table.find_client_topic("$internal")) == (None, None)
    assert (table.find_client_log("orders", 0), table.find_client_topic("orders")) != (None, None)


def test_records_are_needed_from_the_first_that_a_log_needs_whoever_leads_it() -> None:
    """They are all needed if this broker does not know what a log needs that it stores."""
    native = Partition("orders", "P")
    for first, second, leader in product(range(4), range(4), ("this", "other", "unknown")):
        assigner = leading(2)
        logs = assigner.table.logs("orders")
        for log, sequences in zip(logs, ((0, 3), (3, 6)), strict=True):
            log.index.append(native.address, RecordSequence(sequences[0]), 3, is_open=False)
            log.high_watermark = Offset(3)
        for log, offset in zip(logs, (first, second), strict=True):
            assigner.table.move_start(log, Offset(offset))
        followed = {} if leader == "this" else {logs[1]: logs[1].needed_from() if leader == "other" else None}
        if followed:
            assigner.table.end_epoch(logs[1])
        expected = min([*range(first, 3), *range(3 + second, 6)], default=6)
        found = assigner.table.find_needed("orders", followed).get(native)
        assert found == (None if leader == "unknown" else expected)


def test_records_without_an_offset_are_needed() -> None:
    assigner = leading(2)
    logs, native = assigner.table.logs("orders"), Partition("orders", "P")
    logs[0].index.append(native.address, FIRST_SEQUENCE, 3, is_open=False)
    assert assigner.table.find_needed("orders", {})[native] == 0
    assigner.table.move_start(logs[0], Offset(3))
    assert assigner.table.find_needed("orders", {})[native] == 3
    logs[1].backfill[native.address] = FIRST_SEQUENCE
    assert native not in assigner.table.find_needed("orders", {})


def test_nothing_beyond_the_high_watermark_is_deleted() -> None:
    for offset, high_watermark in product(range(8), range(6)):
        assigner = leading()
        (log,) = assigner.table.logs("orders")
        assigner.table.replicate(log)
        assigner.commit(assigner.plan([RecordBatch(log.leader_partition, 0, [b""] * 5)], 0))
        log.high_watermark = Offset(high_watermark)
        assigner.table.decide_start(log, Offset(offset))
        assert (log.next_start, log.index.start_offset) == (min(offset, high_watermark), 0), "it is only decided"
        assigner.table.move_start(log, log.next_start)
        assert log.index.start_offset == log.next_start
        assigner.table.skip_dropped(log, {log.leader_partition: 5})
        assert log.index.start_offset == high_watermark


def test_partitions_are_forgotten_when_the_storage_has_dropped_their_records_up_to_the_last_that_a_log_had() -> None:
    for dropped, own in product(range(5), repeat=2):
        assigner = leading()
        (log,) = assigner.table.logs("orders")
        log.index.dropped_ends = {LEADER: RecordSequence(2), "P": RecordSequence(3)}
        assigner.table.forget_dropped(log, {Partition("orders", "P"): dropped, log.leader_partition: own})
        assert log.index.dropped_ends == {LEADER: 2} | ({} if dropped >= 3 else {"P": 3})


def test_an_index_of_too_many_epochs_is_rewritten() -> None:
    for count in range(REWRITE_EPOCHS + 3):
        assigner = leading()
        (log,) = assigner.table.logs("orders")
        for number, partition in enumerate((log.leader_partition, Partition("orders", "P"))):
            log.epoch_count = count
            plan = assigner.plan([RecordBatch(partition, 0, [b""])], 0)
            assert [each.is_rewrite for each in plan.plans] == [number == 1 and count > REWRITE_EPOCHS]
            assigner.commit(plan)


def test_divergent_records_that_come_while_others_are_written_are_merged_next() -> None:
    for succeeds in (True, False):
        assigner = leading()
        (log,) = assigner.table.logs("orders")
        assigner.table.replicate(log)
        assigner.table.merge_divergent(log, [run_entry(0, "P", 0, 2)])
        plan = assigner.plan([], 0)
        if not succeeds:
            assigner.undo(plan)
        assigner.table.merge_divergent(log, [run_entry(0, "Q", 0, 3)])
        if succeeds:
            assigner.commit(plan)
        assigner.commit(assigner.plan([], 0))
        assert [log.index.end_sequence(each) for each in "PQ"] == [2, 3]
        assert not assigner.table.has_unwritten()


@attrs.define
class Transaction:
    producer: int
    first: int
    marker: int | None = None
    is_commit: bool = False


@each_seed(60)
def test_transactions_are_undecided_until_their_markers_are_committed(seed: int) -> None:
    """A marker can name the first record, which another leader has appended. Deleted records are in no transaction."""
    draw, log, end, start = random.Random(seed), make_log(), 0, 0
    log.high_watermark = Offset(0)
    known = list[Transaction]()
    for _ in range(40):
        producer, step = draw.randrange(4), draw.choice(["begin", "begin", "end", "end", "commit", "drop"])
        running = next((each for each in known if each.producer == producer and each.marker is None), None)
        if step == "begin":
            log.transactions.begin(producer, Offset(end))
            known += [] if running else [Transaction(producer, end)]
            end += draw.randint(1, 3)
        elif step == "end":
            named = Offset(draw.randrange(end + 1)) if draw.random() < 0.3 else None
            running = running or Transaction(producer, end)
            running.first = running.first if named is None else named
            running.marker, running.is_commit = end, draw.random() < 0.4
            log.transactions.end(producer, Offset(end), named, is_commit=running.is_commit)
            known = [each for each in known if each is not running] + [running] * (running.first < end)
            end += 1
        elif step == "commit":
            log.high_watermark = Offset(draw.randint(log.high_watermark, end))
        else:
            start = draw.randint(start, log.high_watermark)
            log.transactions.drop_before(Offset(start))
        undecided = [each.first for each in known if each.marker is None or each.marker >= log.high_watermark]
        assert log.last_stable_offset == min([log.high_watermark, *undecided])
        first, last = sorted(draw.choices(range(start, end + 1), k=2))
        aborted = [each for each in known if each.marker is not None and not each.is_commit]
        expected = [
            (each.producer, each.first) for each in aborted if each.first < last and (each.marker or 0) >= first
        ]
        found = log.aborted_between(Offset(first), Offset(last))
        assert sorted(found) == sorted(expected)
        assert [each for _, each in found] == sorted(each for _, each in found)


def test_a_marker_follows_the_records_before_it_also_if_other_partitions_are_written_with_them() -> None:
    native = Partition("orders", "P")
    for position, order in product(range(5), (0, 1)):
        assigner = leading()
        (log,) = assigner.table.logs("orders")
        assigner.commit(assigner.plan([RecordBatch(log.leader_partition, 0, [b""])], 0))
        assigner.table.append_marker(log, marker_entry(0, position, 7, 0, 1, 0, None))
        batches = [RecordBatch(log.leader_partition, 1, [b""] * 3), RecordBatch(native, 0, [b""])]
        assigner.commit(assigner.plan(batches[:: 1 - 2 * order], 0))
        marker = next(each for each in log.index.entries() if isinstance(each, MarkerEntry))
        before = [log.index.find(LEADER, RecordSequence(each)) for each in range(max(position, 1))]
        after = [log.index.find(LEADER, RecordSequence(each)) for each in range(max(position, 1), 4)]
        assert all(each is not None and each < marker.offset for each in before)
        assert all(each is not None and each > marker.offset for each in after)


class Placing:
    """A topic that gets more logs, and the records that each log must have, in order."""

    def __init__(self, seed: int) -> None:
        self.draw, self.index = random.Random(seed), list[RecordBatch]()
        self.assigner = leading(1)
        self.own = self.assigner.table.logs("orders")[0].leader_partition
        self.places: list[list[tuple[str, int]]] = [[]]
        self.ends = {Partition("orders", "P"): 0, Partition("orders", "Q"): 0, self.own: 0}

    def append(self, *batches: RecordBatch) -> None:
        plan = self.assigner.plan(batches, 0)
        self.assigner.commit(plan)
        self.index += plan.index_records

    def add_log(self) -> None:
        self.places.append([])
        self.assigner.table.add_topic(Topic("orders", "1D", len(self.places)))
        self.append()

    def draw_batch(self, *partitions: Partition) -> RecordBatch:
        keys = self.draw.choices([None, b"a", b"b", b"c"], k=self.draw.randint(1, 6))
        partition = self.draw.choice(partitions)
        return RecordBatch(partition, self.ends[partition], [b""] * len(keys), keys=keys)

    def place(self, batch: RecordBatch) -> None:
        address, count = batch.partition.address, len(self.places)
        for sequence, key in enumerate(batch.keys or (), batch.first_sequence):
            if batch.partition == self.own:
                self.places[0].append((LEADER, sequence))
            else:
                number = log_of_address(address, count) if key is None else log_of_key(key, count)
                self.places[number].append((address, sequence))
        self.ends[batch.partition] = batch.end_sequence

    def produce(self) -> None:
        batch = self.draw_batch(*self.ends)
        if self.draw.random() < 0.2:
            self.assigner.undo(self.assigner.plan([batch], 0))
        else:
            self.append(batch)
            self.place(batch)

    def restart(self) -> None:
        """Restart a broker, perhaps after a producer has stored records without one."""
        self.assigner = leading(len(self.places))
        for log in self.assigner.table.logs("orders"):
            mine = [each for each in self.index if each.partition == log.index_partition]
            for at, value in enumerate(value or b"" for each in mine for value in each.values):
                self.assigner.table.restore(log, RecordSequence(at), value)
        later = [self.draw_batch(*list(self.ends)[:2])][: self.draw.randint(0, 1)]
        for batch in later:
            self.place(batch)
        rest = self.assigner.table.finish_restoring(self.ends, {})
        assert rest in ([], [(each.partition, each.first_sequence) for each in later])
        self.append(*later) if rest else None

    def check(self) -> None:
        for log, places in zip(self.assigner.table.logs("orders"), self.places, strict=True):
            assert log.high_watermark == log.index.end_offset == len(places)
            found = [log.index.find(address, RecordSequence(sequence)) for address, sequence in places]
            assert found == list(range(len(places)))
            check_placed(self.draw, log.index, places)


def test_records_are_placed_by_their_keys_in_all_logs_also_after_a_restart_and_when_there_are_more_logs() -> None:
    for seed in range(40):
        world = Placing(seed)
        for number in range(25):
            if number in (8, 16):
                world.add_log()
            world.draw.choices([world.produce, world.restart], [3, 1])[0]()
            world.check()


def check_placed(draw: random.Random, index: LogIndex, places: Sequence[tuple[str, int]]) -> None:
    """Compare what `placed` returns for some records of a partition with the offsets that they have, up to a limit."""
    address, first, count = draw.choice([LEADER, "P", "Q"]), draw.randrange(20), draw.randrange(20)
    end_offset = draw.randint(0, len(places))
    runs = index.placed(address, RecordSequence(first), RecordSequence(first + count), Offset(end_offset))
    found = [(run.offset + each, run.first_sequence + each) for run in runs for each in range(run.record_count)]
    wanted = enumerate(places[:end_offset])
    assert found == [
        (offset, sequence)
        for offset, (owner, sequence) in wanted
        if owner == address and first <= sequence < first + count
    ]
    assert all(run.address == address for run in runs)


def test_stored_records_without_an_offset_follow_those_that_have_one_or_are_deleted() -> None:
    """Also for a leader of a later epoch, which gives them their offsets step by step."""
    native = Partition("orders", "P")
    for indexed, earliest, start, end in product(range(4), repeat=4):
        assigner = leading(2)
        log = assigner.table.logs("orders")[log_of_address("P", 2)]
        if indexed:
            assigner.commit(assigner.plan([RecordBatch(native, 0, [b""] * indexed)], 0))
        assigner.table.producer_starts = {native: start}
        first = max(indexed, earliest, start)
        stored = {native: end, Partition("none", "P"): 9, Partition("orders", "OTHER/1D/0/7"): 9}
        assert assigner.table.finish_restoring(stored, {native: earliest}) == [(native, first)] * (end > first)
        assigner.table.catch_up(log, stored, {native: earliest})
        assert log.backfill == ({"P": first} if end > first else {})


def test_nothing_is_left_of_a_removed_topic() -> None:
    table = leading(2).table
    table.add_topic(Topic("others", "2D", 1))
    logs = table.logs("orders")
    assert [table.is_leader_partition(log.leader_partition) for log in logs] == [True, True]
    table.append_marker(logs[1], marker_entry(0, 0, 7, 0, 1, 0, None))
    assert table.remove_topic("orders") == logs
    assert [(log.is_gone, table.leads(log), table.is_leader_partition(log.leader_partition)) for log in logs] == [
        (True, False, False)
    ] * 2
    assert (table.has_unwritten(), list(table.topics), table.all_logs()) == (False, ["others"], table.logs("others"))
    assert not table.all_logs()[0].is_gone


def test_an_unbroken_run_is_one_entry() -> None:
    assigner = leading()
    (log,) = assigner.table.logs("orders")
    for number in range(100):
        plan = assigner.plan([RecordBatch(log.leader_partition, number * 5, [b""] * 5)], 0)
        assert len(plan.index_records) == (number == 0)
        assigner.commit(plan)
    assert (len(log.index), log.high_watermark) == (1, 500)


@pytest.mark.parametrize("count", [10, 100])
def test_a_restart_looks_at_one_log_for_each_partition_of_a_broker(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a restart grows with the number of logs, not with its square."""
    table, looked_up, end_sequence = leading(count).table, list[str](), LogIndex.end_sequence

    def look_up(self: LogIndex, address: str) -> int:
        looked_up.append(address)
        return end_sequence(self, address)

    monkeypatch.setattr(LogIndex, "end_sequence", look_up)
    partitions = [log.leader_partition for log in table.logs("orders")]
    other = [Partition("orders", f"OTHER/1D/{number}/7") for number in range(count)]
    assert table.finish_restoring(dict.fromkeys(partitions + other, 5), {}) == [(each, 0) for each in partitions]
    assert len(looked_up) == count
