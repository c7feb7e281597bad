"""Where clients go on when a log has another leader: back only with the availability "branch"."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.http.logs.positions import DivergenceTracker
from tests.broker.core.entries import epoch_end

BRANCHES = [LeaderAndEpoch(epoch, f"b{epoch % 2}") for epoch in range(1, 8)]


def make_rows(parents: list[tuple[int, int]]) -> list[EpochStart]:
    """Return rows, of which each continues an earlier branch somewhere."""
    rows = [EpochStart("", BRANCHES[0], NO_EPOCH_END, ())]
    for branch, (parent, length) in zip(BRANCHES[1:], parents, strict=True):
        row = rows[parent % len(rows)]
        rows.append(EpochStart("", branch, epoch_end(row.leader_epoch, row.parent.end_offset + length), ()))
    return rows


def make_follower(availability: str, rows: list[EpochStart], known: list[int]) -> tuple[Any, DivergenceTracker]:
    """Return a log and the follower of one client. `known` has the number of rows that the broker knows at present."""
    log_table = LogTable("here")
    log_table.add_topic(Topic("orders", "id", 1, {"availability": availability}))
    broker: Any = SimpleNamespace(log_table=log_table, epoch_starts=lambda _topic: [rows[: known[0]]])
    return log_table.logs("orders")[0], DivergenceTracker(broker)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), min_size=6, max_size=6),
    st.lists(st.tuples(st.sampled_from(BRANCHES), st.integers(1, 7), st.integers(0, 30)), max_size=20),
)
def test_clients_of_logs_with_majorities_never_go_back(
    parents: list[tuple[int, int]], steps: list[tuple[LeaderAndEpoch, int, int]]
) -> None:
    known = [7]
    log, follower = make_follower("majority", make_rows(parents), known)
    offset = 0
    for branch, known[0], read in steps:  # rows may come later than the records that were read
        log.leadership = LeaderAndIsr(branch.leader, branch.epoch, is_led=False)
        found = follower.check(log, offset)
        assert found == offset
        offset = found + read


def test_clients_of_logs_with_branches_go_back_to_where_these_part() -> None:
    first, second, third = BRANCHES[:3]
    rows = [
        EpochStart("", first, NO_EPOCH_END, ()),
        EpochStart("", second, epoch_end(first, 5), ()),
        EpochStart("", third, epoch_end(first, 7), ()),
    ]
    log, follower = make_follower("branch", rows, [3])
    found = []
    for branch, offset in ((first, 4), (second, 9), (third, 9)):
        log.leadership = LeaderAndIsr(branch.leader, branch.epoch, is_led=False)
        found.append(follower.check(log, offset))
    assert found == [4, 5, 5]
