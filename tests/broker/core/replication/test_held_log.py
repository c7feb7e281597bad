"""What a broker holds of a log, as the indexes of its branches say."""

from __future__ import annotations

from collections import defaultdict

import pytest

from dafka.broker.core.log.entries import (
    Entry,
    EpochStartEntry,
    IndexRewriteEntry,
    LogStartEntry,
    encode_entries,
)
from dafka.broker.core.log.log import LEADER
from dafka.broker.core.partition_address import EpochAddress
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.checkpoints import decode_checkpoint, encode_checkpoint
from dafka.broker.core.replication.local_log import CHECKPOINT_RECORDS, REWRITE_RECORDS, LocalLog
from dafka.broker.core.replication.records import LeaderAndEpoch
from dafka.errors import StorageFormatError
from dafka.records import Partition
from tests.broker.core.entries import run_entry

BRANCH, LATER = LeaderAndEpoch(1024, "leader"), LeaderAndEpoch(2048, "other")
OWN_PARTITION = Partition("orders", str(EpochAddress("leader", "id", 0, 1024)))
PRODUCER = Partition("orders", "producer")


class Held(LocalLog):
    """A log of which parts are stored."""

    def __init__(self) -> None:
        self.ends_of: defaultdict[Partition, int] = defaultdict(int)
        super().__init__("orders", "id", 0, self.ends_of.__getitem__)
        self.index_end = 0

    def write(self, *entries: Entry) -> None:
        self.add_index(BRANCH, RecordSequence(self.index_end), [encode_entries(entries)])
        self.index_end += 1


def test_an_index_record_is_held_when_all_that_it_names_is() -> None:
    held = Held()
    held.write(EpochStartEntry(Offset(5), 1024))
    held.write(run_entry(5, LEADER, 0, 3), run_entry(8, "producer", 10, 2))
    assert list(held.advance()) == [(BRANCH, 5)]
    assert set(held.missing()) == {OWN_PARTITION, PRODUCER}
    held.ends_of[OWN_PARTITION] = 3
    held.ends_of[PRODUCER] = 11
    assert list(held.advance()) == []
    assert list(held.missing()) == [PRODUCER]
    held.ends_of[PRODUCER] = 12
    assert list(held.advance()) == [(BRANCH, 10)]
    assert held.acknowledged_end(BRANCH) == 2


def test_the_end_of_an_open_run_is_known_when_another_one_begins() -> None:
    held = Held()
    held.write(run_entry(0, LEADER, 0, 0))
    held.write(run_entry(7, "producer", 0, 1))
    held.ends_of[PRODUCER] = 1
    assert list(held.advance()) == [(BRANCH, 0)]
    assert list(held.missing()) == [OWN_PARTITION]
    held.ends_of[OWN_PARTITION] = 7
    assert list(held.advance()) == [(BRANCH, 8)]


def test_what_all_index_records_name_is_missing_at_once_until_it_is_held() -> None:
    held = Held()
    held.write(run_entry(0, LEADER, 0, 3))
    held.write(run_entry(3, LEADER, 3, 4), run_entry(7, "producer", 10, 2))
    assert list(held.advance()) == []
    assert held.missing() == {OWN_PARTITION: 7, PRODUCER: 12}
    held.ends_of[PRODUCER] = 12
    held.ends_of[OWN_PARTITION] = 3
    assert list(held.advance()) == [(BRANCH, 3)]
    assert held.missing() == {OWN_PARTITION: 7}
    held.ends_of[OWN_PARTITION] = 7
    assert list(held.advance()) == [(BRANCH, 9)]
    assert held.missing() == {}


def test_acknowledgements_stand_for_offsets() -> None:
    held = Held()
    for number in range(3):
        held.write(run_entry(number * 10, LEADER, number * 10, 10))
    assert [held.offset_at(BRANCH, RecordSequence(end)) for end in range(4)] == [None, 10, 20, 30]
    assert held.offset_at(LeaderAndEpoch(1, "other"), RecordSequence(1)) is None


def test_what_was_written_again_need_not_be_kept_once_much_follows() -> None:
    held = Held()
    held.write(run_entry(0, LEADER, 0, 10))
    held.write(IndexRewriteEntry(), run_entry(0, LEADER, 0, 10))
    held.ends_of[OWN_PARTITION] = 10**6
    list(held.advance())
    assert held.needed_from() == {}
    for number in range(1, REWRITE_RECORDS):
        held.write(run_entry(number * 10, LEADER, number * 10, 10))
    list(held.advance())
    assert held.needed_from() == {BRANCH: 1}


def test_branches_may_come_while_what_was_written_again_is_dropped() -> None:
    held = Held()
    held.write(IndexRewriteEntry())
    for _ in range(REWRITE_RECORDS):
        held.write(LogStartEntry(Offset(0)))
    list(held.advance())
    seen = []
    for branch in held.needed_from():
        held.add_index(LATER, RecordSequence(0), [encode_entries([LogStartEntry(Offset(0))])])
        seen.append(branch)
    assert seen == [BRANCH]


def test_where_an_index_was_last_written_again_is_known_when_that_is_held() -> None:
    held = Held()
    held.write(EpochStartEntry(Offset(5), 1024))
    held.write(run_entry(5, LEADER, 0, 10))
    held.write(IndexRewriteEntry(), run_entry(5, LEADER, 0, 20))
    held.ends_of[OWN_PARTITION] = 10
    list(held.advance())
    assert held.restart(BRANCH) is None
    held.ends_of[OWN_PARTITION] = 20
    list(held.advance())
    assert held.restart(BRANCH) == (2, 15)
    assert held.restart(LeaderAndEpoch(1, "other")) is None


def test_index_records_that_are_known_are_passed_over() -> None:
    held = Held()
    held.write(EpochStartEntry(Offset(5), 1024))
    held.write(run_entry(5, LEADER, 0, 10))
    held.ends_of[OWN_PARTITION] = 20
    list(held.advance())
    again = [encode_entries([run_entry(5, LEADER, 0, 10)]), encode_entries([run_entry(15, LEADER, 10, 10)])]
    held.add_index(BRANCH, RecordSequence(1), again)
    assert list(held.advance()) == [(BRANCH, 25)]
    assert [held.offset_at(BRANCH, RecordSequence(end)) for end in range(1, 4)] == [5, 15, 25]


def write_some(held: Held) -> None:
    held.write(EpochStartEntry(Offset(5), 1024), LogStartEntry(Offset(3)))
    held.write(run_entry(5, LEADER, 0, 10))
    held.write(IndexRewriteEntry(), run_entry(5, LEADER, 0, 10), run_entry(15, "producer", 4, 2))
    held.ends_of[OWN_PARTITION] = held.ends_of[PRODUCER] = 100
    list(held.advance())


def test_a_log_is_the_same_after_it_was_restored_from_checkpoints() -> None:
    held, again = Held(), Held()
    write_some(held)
    ((branch, checkpoint),) = held.take_checkpoints(LATER)
    assert branch == BRANCH
    again.restore(branch, decode_checkpoint(encode_checkpoint(checkpoint)))
    again.index_end = held.index_end
    again.ends_of.update(held.ends_of)
    for each in (held, again):
        each.write(run_entry(17, LEADER, 10, 3))
        assert list(each.advance()) == [(BRANCH, 20)]
        assert each.ends() == each.known_ends() == {BRANCH: 20}
        assert (each.start_offset, each.restart(BRANCH), each.acknowledged_end(BRANCH)) == (3, (2, 15), 4)
        assert [each.offset_at(BRANCH, RecordSequence(end)) for end in (3, 4)] == [17, 20]
    assert list(held.take_checkpoints(LATER)) == list(again.take_checkpoints(LATER)) != []


def test_the_latest_branch_gets_a_checkpoint_only_after_many_records() -> None:
    held = Held()
    for number in range(CHECKPOINT_RECORDS):
        assert list(held.take_checkpoints(BRANCH)) == []
        held.write(run_entry(number, LEADER, number, 1))
        held.ends_of[OWN_PARTITION] = number + 1
        list(held.advance())
    ((_, checkpoint),) = held.take_checkpoints(BRANCH)
    assert checkpoint.index_end == CHECKPOINT_RECORDS
    assert list(held.take_checkpoints(BRANCH)) == list(held.take_checkpoints(LATER)) == []


def test_what_is_not_held_gets_no_checkpoint() -> None:
    held = Held()
    held.write(run_entry(0, LEADER, 0, 5))
    held.write(run_entry(5, PRODUCER.address, 0, 5))
    held.ends_of[OWN_PARTITION] = 5
    list(held.advance())
    assert list(held.take_checkpoints(LATER)) == []
    held.ends_of[PRODUCER] = 5
    list(held.advance())
    assert len(list(held.take_checkpoints(LATER))) == 1


def test_a_run_without_an_end_gets_no_checkpoint() -> None:
    held = Held()
    held.write(run_entry(0, LEADER, 0, 0))
    list(held.advance())
    assert list(held.take_checkpoints(LATER)) == []


def test_a_checkpoint_counts_only_where_all_that_it_names_is_stored() -> None:
    held = Held()
    write_some(held)
    ((_, checkpoint),) = held.take_checkpoints(LATER)
    ends = {OWN_PARTITION: 10, PRODUCER: 6}
    assert checkpoint.is_met("orders", ends.__getitem__)
    assert not checkpoint.is_met("orders", (ends | {PRODUCER: 5}).__getitem__)
    assert not checkpoint.is_met("orders", (ends | {OWN_PARTITION: 9}).__getitem__)


@pytest.mark.parametrize(
    "value", [b"", b"[]", b'{"version":1}', b'{"version":2,"held":[1,2,0,null,{}]}', b'{"version":1,"held":[1]}']
)
def test_a_malformed_checkpoint_is_refused(value: bytes) -> None:
    with pytest.raises(StorageFormatError):
        decode_checkpoint(value)


def test_a_log_starts_at_the_latest_start_that_was_written_or_restored() -> None:
    held, again = Held(), Held()
    for offset in (3, 7, 5):
        held.write(LogStartEntry(Offset(offset)))
    assert held.start_offset == 7
    list(held.advance())
    ((branch, checkpoint),) = held.take_checkpoints(LATER)
    again.write(LogStartEntry(Offset(9)))
    again.restore(branch, checkpoint)
    assert again.start_offset == 9
    held.clear()
    assert (held.start_offset, held.ends(), held.missing()) == (0, {}, {})
