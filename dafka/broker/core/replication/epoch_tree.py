"""The branch table of one log: which branch began where, as far as its rows are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dafka.broker.core.replication.records import NO_EPOCH, NO_EPOCH_END, EpochEnd, EpochStart, LeaderAndEpoch


class EpochTree:
    """The rows of one log.

    Args:
        rows: Rows that are known.

    Attributes:
        rows: The rows, by branch; `add` adds one.
        latest: The row with the largest epoch; None if there is none.
    """

    def __init__(self, rows: Iterable[EpochStart] = ()) -> None:
        self.rows: dict[LeaderAndEpoch, EpochStart] = {}
        self.latest: EpochStart | None = None
        for row in rows:
            self.add(row)

    def add(self, row: EpochStart) -> None:
        """Add a row."""
        self.rows[row.branch] = row
        if self.latest is None or row.branch >= self.latest.branch:
            self.latest = row

    def chain(self, tip: EpochEnd) -> list[EpochEnd] | None:
        """Return the branches that a log consists of, the last one first, each with its end there.

        Args:
            tip: How far the log reaches.

        Returns:
            The branches; None if a row is not known yet.
        """
        found = []
        while tip.branch != NO_EPOCH:
            row = self.rows.get(tip.branch)
            if row is None:
                return None
            found.append(tip)
            tip = row.parent
        return found

    def epoch_at(self, last: LeaderAndEpoch, offset: int) -> int:
        """Return the leader epoch of the record before an offset.

        Args:
            last: The last branch of the log.
            offset: The offset.

        Returns:
            The epoch; that of the first known branch before the last one if the offset is before all of them.
        """
        row = self.rows[last]
        while row.parent.end_offset >= offset and row.parent.branch in self.rows:
            row = self.rows[row.parent.branch]
        return row.branch.epoch

    def fork(self, first: EpochEnd, second: EpochEnd) -> EpochEnd | None:
        """Return the last place that two logs have in common.

        Args:
            first: How far one of them reaches.
            second: How far the other one reaches.

        Returns:
            The place; None if a row is not known yet.
        """
        one, other = self.chain(first), self.chain(second)
        if one is None or other is None:
            return None
        ends = {each.branch: each.end_offset for each in other}
        for each in one:
            if each.branch in ends:
                return EpochEnd(each.branch, min(each.end_offset, ends[each.branch]))
        return NO_EPOCH_END

    def divergences(self, tip: EpochEnd) -> dict[int, tuple[int, int]]:
        """Return where a log parts from the branches that it does not continue.

        Args:
            tip: How far the log reaches.

        Returns:
            By the epoch of each of these branches, the epoch and the end of what it shares with the log.
        """
        chain = {each.branch for each in self.chain(tip) or ()}
        found = {}
        for branch, row in self.rows.items():
            fork = None if branch in chain else self.fork(row.parent, tip)
            if fork is not None:
                found[branch.epoch] = fork.branch.epoch, fork.end_offset
        return found

    def heads(self) -> Iterator[EpochStart]:
        """Yield the rows of branches that no other branch continues."""
        parents = {row.parent.branch for row in self.rows.values()}
        for branch, row in self.rows.items():
            if branch not in parents:
                yield row
