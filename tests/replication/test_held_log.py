"""What a broker holds of a log, as the indexes of its branches say."""

from __future__ import annotations

from collections import defaultdict

from dafka.protocol.logs import OWN, BranchAddress, BranchEntry, Entry, RestartEntry, RunEntry, encode_entries
from dafka.protocol.replication import Branch
from dafka.protocol.replication.held_log import REWRITE_RECORDS, HeldLog
from dafka.records import Partition

BRANCH = Branch(1024, "leader")
OWN_PARTITION = Partition("orders", str(BranchAddress("leader", "id", 0, 1024)))
PRODUCER = Partition("orders", "producer")


class Held(HeldLog):
    """A log of which parts are stored."""

    def __init__(self) -> None:
        self.ends_of: defaultdict[Partition, int] = defaultdict(int)
        super().__init__("orders", "id", 0, self.ends_of.__getitem__)
        self.index_end = 0

    def write(self, *entries: Entry) -> None:
        self.add_index(BRANCH, self.index_end, [encode_entries(entries)])
        self.index_end += 1


def test_an_index_record_is_held_when_all_that_it_names_is() -> None:
    held = Held()
    held.write(BranchEntry(5, 1024))
    held.write(RunEntry(5, OWN, 0, 3), RunEntry(8, "producer", 10, 2))
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
    held.write(RunEntry(0, OWN, 0, 0))
    held.write(RunEntry(7, "producer", 0, 1))
    held.ends_of[PRODUCER] = 1
    assert list(held.advance()) == [(BRANCH, 0)]
    assert list(held.missing()) == [OWN_PARTITION]
    held.ends_of[OWN_PARTITION] = 7
    assert list(held.advance()) == [(BRANCH, 8)]


def test_acknowledgements_stand_for_offsets() -> None:
    held = Held()
    for number in range(3):
        held.write(RunEntry(number * 10, OWN, number * 10, 10))
    assert [held.offset_at(BRANCH, end) for end in range(4)] == [None, 10, 20, 30]
    assert held.offset_at(Branch(1, "other"), 1) is None


def test_what_was_written_again_need_not_be_kept_once_much_follows() -> None:
    held = Held()
    held.write(RunEntry(0, OWN, 0, 10))
    held.write(RestartEntry(), RunEntry(0, OWN, 0, 10))
    held.ends_of[OWN_PARTITION] = 10**6
    list(held.advance())
    assert list(held.needed_from()) == []
    for number in range(1, REWRITE_RECORDS):
        held.write(RunEntry(number * 10, OWN, number * 10, 10))
    list(held.advance())
    assert list(held.needed_from()) == [(BRANCH, 1)]


def test_where_an_index_was_last_written_again_is_known_when_that_is_held() -> None:
    held = Held()
    held.write(BranchEntry(5, 1024))
    held.write(RunEntry(5, OWN, 0, 10))
    held.write(RestartEntry(), RunEntry(5, OWN, 0, 20))
    held.ends_of[OWN_PARTITION] = 10
    list(held.advance())
    assert held.restart(BRANCH) is None
    held.ends_of[OWN_PARTITION] = 20
    list(held.advance())
    assert held.restart(BRANCH) == (2, 15)
    assert held.restart(Branch(1, "other")) is None


def test_index_records_that_are_known_are_passed_over() -> None:
    held = Held()
    held.write(BranchEntry(5, 1024))
    held.write(RunEntry(5, OWN, 0, 10))
    held.ends_of[OWN_PARTITION] = 20
    list(held.advance())
    again = [encode_entries([RunEntry(5, OWN, 0, 10)]), encode_entries([RunEntry(15, OWN, 10, 10)])]
    held.add_index(BRANCH, 1, again)
    assert list(held.advance()) == [(BRANCH, 25)]
    assert [held.offset_at(BRANCH, end) for end in range(1, 4)] == [5, 15, 25]
