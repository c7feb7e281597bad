"""The branch table of a log."""

from __future__ import annotations

from dafka.broker.core.replication.epoch_tree import BranchTable
from dafka.broker.core.replication.records import NO_TIP, Branch, BranchRow, Tip

FIRST, SECOND, LOST, LAST = Branch(0, "a"), Branch(1024, "b"), Branch(2049, "c"), Branch(3072, "b")


def make_table() -> BranchTable:
    """Return a log whose branch `SECOND` was left twice: by `LOST` at offset 7, by `LAST` at offset 9."""
    table = BranchTable()
    for branch, parent in (
        (FIRST, NO_TIP),
        (SECOND, Tip(FIRST, 5)),
        (LOST, Tip(SECOND, 7)),
        (LAST, Tip(SECOND, 9)),
    ):
        table.add(BranchRow("log", branch, parent, ("a", "b", "c")))
    return table


def test_a_lost_branch_parts_from_the_log_where_it_began() -> None:
    assert make_table().forks(Tip(LAST, 20)) == {LOST.epoch: (SECOND.epoch, 7)}


def test_a_branch_behind_a_lost_one_parts_from_the_log_there_too() -> None:
    table = make_table()
    behind = Branch(4096, "c")
    table.add(BranchRow("log", behind, Tip(LOST, 12), ("a", "b", "c")))
    assert table.forks(Tip(LAST, 20))[behind.epoch] == (SECOND.epoch, 7)


def test_a_log_that_was_left_earlier_shares_no_more() -> None:
    assert make_table().forks(Tip(LOST, 12)) == {LAST.epoch: (SECOND.epoch, 7)}
