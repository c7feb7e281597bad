"""The branch table of a log."""

from __future__ import annotations

from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from tests.broker.core.entries import epoch_end

FIRST, SECOND, LOST, LAST = (
    LeaderAndEpoch(0, "a"),
    LeaderAndEpoch(1024, "b"),
    LeaderAndEpoch(2049, "c"),
    LeaderAndEpoch(3072, "b"),
)


def make_table() -> EpochTree:
    """Return a log whose branch `SECOND` was left twice: by `LOST` at offset 7, by `LAST` at offset 9."""
    table = EpochTree()
    for branch, parent in (
        (FIRST, NO_EPOCH_END),
        (SECOND, epoch_end(FIRST, 5)),
        (LOST, epoch_end(SECOND, 7)),
        (LAST, epoch_end(SECOND, 9)),
    ):
        table.add(EpochStart("log", branch, parent, ("a", "b", "c")))
    return table


def test_a_lost_branch_parts_from_the_log_where_it_began() -> None:
    assert make_table().divergences(epoch_end(LAST, 20)) == {LOST.epoch: (SECOND.epoch, 7)}


def test_a_branch_behind_a_lost_one_parts_from_the_log_there_too() -> None:
    table = make_table()
    behind = LeaderAndEpoch(4096, "c")
    table.add(EpochStart("log", behind, epoch_end(LOST, 12), ("a", "b", "c")))
    assert table.divergences(epoch_end(LAST, 20))[behind.epoch] == (SECOND.epoch, 7)


def test_a_log_that_was_left_earlier_shares_no_more() -> None:
    assert make_table().divergences(epoch_end(LOST, 12)) == {LAST.epoch: (SECOND.epoch, 7)}
