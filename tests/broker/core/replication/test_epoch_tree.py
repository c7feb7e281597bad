"""The tree of epochs and what a replica stores of it, against logs that are written out as lists of records."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeAlias

import attrs

from dafka.broker.core.metadata.log_replicas import RECOVERY_STEP
from dafka.broker.core.positions import OFFSET_MAX, Offset
from dafka.broker.core.replication.divergence import DivergentRule, MajorityRule
from dafka.broker.core.replication.election import Election
from dafka.broker.core.replication.epoch_tree import EpochTree, LocalEpochs
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochEnd, EpochStart, LeaderAndEpoch, Vote, VoteRequest
from tests.broker.core.entries import epoch_end

Contents: TypeAlias = list[tuple[LeaderAndEpoch, int]]
"""A log: the epoch and the offset of each of its records."""

EPOCH = LeaderAndEpoch(1024, "a")


@attrs.define
class Logs:
    """Epochs, each of which begins somewhere in an earlier one and has some records of its own."""

    rows: list[EpochStart] = attrs.field(factory=list)
    ends: dict[LeaderAndEpoch, int] = attrs.field(factory=dict)

    @property
    def tree(self) -> EpochTree:
        return EpochTree(self.rows)

    def row_of(self, leader_epoch: LeaderAndEpoch) -> EpochStart:
        return next(each for each in self.rows if each.leader_epoch == leader_epoch)

    def start_of(self, leader_epoch: LeaderAndEpoch) -> int:
        return self.row_of(leader_epoch).parent.end_offset

    def epochs_of(self, leader_epoch: LeaderAndEpoch) -> list[LeaderAndEpoch]:
        """Return an epoch and those before it, the last one first."""
        parent = self.row_of(leader_epoch).parent
        return [leader_epoch, *(self.epochs_of(parent.leader_epoch) if parent != NO_EPOCH_END else ())]

    def contents(self, log_end: EpochEnd) -> Contents:
        if log_end == NO_EPOCH_END:
            return []
        own = range(self.start_of(log_end.leader_epoch), log_end.end_offset)
        return [
            *self.contents(self.row_of(log_end.leader_epoch).parent),
            *((log_end.leader_epoch, each) for each in own),
        ]


def draw_logs(count: int = 60) -> Iterator[tuple[Logs, random.Random]]:
    """Yield trees of up to six epochs, each with what has drawn it."""
    for seed in range(count):
        found, draw, generation = Logs(), random.Random(seed), 0
        for number in range(draw.randint(1, 6)):
            leader_epoch, parent = LeaderAndEpoch(number * 10, draw.choice("ab")), NO_EPOCH_END
            if number:
                before = draw.choice(found.rows).leader_epoch
                parent = epoch_end(before, draw.randint(found.start_of(before), found.ends[before]))
            generation += draw.randint(0, 1) * RECOVERY_STEP // 2
            found.rows.append(EpochStart("log", leader_epoch, parent, ("a", "b"), (), generation))
            found.ends[leader_epoch] = parent.end_offset + draw.randint(0, 4)
        yield found, draw


def shared_length(one: Contents, other: Contents) -> int:
    """Return how many records two logs have in common."""
    pairs = zip(one, other, strict=False)
    return next((number for number, (first, second) in enumerate(pairs) if first != second), min(len(one), len(other)))


def log_ends(found: Logs) -> list[EpochEnd]:
    return [epoch_end(each, end) for each, last in found.ends.items() for end in range(found.start_of(each), last + 1)]


def test_a_chain_is_all_that_a_log_consists_of() -> None:
    for found, _ in draw_logs():
        tree = found.tree
        for log_end in log_ends(found):
            chain = tree.chain(log_end)
            assert chain is not None
            assert [each.leader_epoch for each in chain] == found.epochs_of(log_end.leader_epoch)
            starts = [found.start_of(each.leader_epoch) for each in chain]
            records = [(e.leader_epoch, n) for e, s in zip(chain, starts, strict=True) for n in range(s, e.end_offset)]
            assert sorted(records, key=lambda each: each[1]) == found.contents(log_end)
        assert tree.latest is found.rows[-1]
        assert tree.chain(epoch_end(LeaderAndEpoch(99, "c"), 0)) is None
        assert tree.chain(NO_EPOCH_END) == []
        assert EpochTree().latest is None
        later = EpochTree(found.rows[::-1])
        assert later.latest is found.rows[-1], "in whatever order they come"


def test_logs_have_in_common_what_their_first_records_are() -> None:
    for found, _ in draw_logs():
        tree, ends = found.tree, log_ends(found)
        for one in ends:
            for other in ends:
                common = tree.common_end(one, other)
                assert common is not None
                shared = shared_length(found.contents(one), found.contents(other))
                assert common.end_offset == shared
                both = [
                    each for each in found.epochs_of(one.leader_epoch) if each in found.epochs_of(other.leader_epoch)
                ]
                assert common.leader_epoch == both[0]
        unknown = epoch_end(LeaderAndEpoch(99, "c"), 1)
        assert tree.common_end(ends[0], unknown) is tree.common_end(unknown, ends[0]) is None
        assert tree.common_end(NO_EPOCH_END, ends[0]) == NO_EPOCH_END


def test_each_record_is_in_its_epoch_and_other_epochs_diverge_where_they_leave_the_log() -> None:
    for found, _ in draw_logs():
        tree = found.tree
        for log_end in log_ends(found):
            contents = found.contents(log_end)
            for offset, (leader_epoch, _) in enumerate(contents, 1):
                assert tree.epoch_at(log_end.leader_epoch, Offset(offset)) == leader_epoch.epoch
            assert tree.epoch_at(log_end.leader_epoch, Offset(0)) == 0
            divergences = tree.divergences(log_end)
            others = [each for each in found.rows if each.leader_epoch not in found.epochs_of(log_end.leader_epoch)]
            assert sorted(divergences) == sorted(each.leader_epoch.epoch for each in others)
            for row in others:
                shared = shared_length(found.contents(row.parent), contents)
                assert divergences[row.leader_epoch.epoch][1] == shared
        parents = {each.parent.leader_epoch for each in found.rows}
        assert {each.leader_epoch for each in tree.leaves()} == set(found.ends) - parents
        for recovery in range(3):
            later = [each.parent.end_offset for each in found.rows if each.generation >= RECOVERY_STEP * (recovery + 1)]
            assert tree.recovered_end(recovery) == min(later, default=OFFSET_MAX)


def test_a_log_starts_where_any_of_its_votes_says_as_far_as_it_shares_the_records_of_that_log() -> None:
    for found, draw in draw_logs():
        for parent in log_ends(found):
            votes = {
                each: Vote("log", EPOCH, draw.choice(log_ends(found)), (), log_start=Offset(draw.randint(0, 9)))
                for each in "abc"
            }
            election = Election(VoteRequest("log", EPOCH, ("a", "b", "c")), MajorityRule(), votes)
            shared = [
                min(each.log_start, shared_length(found.contents(each.log_end), found.contents(parent)))
                for each in votes.values()
            ]
            assert election.log_start(parent, found.tree) == max(shared)


def test_a_log_end_is_reached_when_every_epoch_of_it_is_stored_that_far() -> None:
    """What was added one by one is known as after a restart."""
    for found, draw in draw_logs():
        tree, first = found.tree, found.rows[0].leader_epoch
        local = LocalEpochs(tree, first)
        stored = {first: 0}
        for _ in range(draw.randint(0, 8)):
            leader_epoch = draw.choice(sorted(found.ends))
            end = draw.randint(found.start_of(leader_epoch), found.ends[leader_epoch])
            local.add(leader_epoch, Offset(end))
            stored[leader_epoch] = max(end, stored.get(leader_epoch, 0))
            check_local(found, local, stored)
        again = LocalEpochs(tree, first)
        again.restore({each: Offset(end) for each, end in stored.items()})
        check_local(found, again, stored)
        again.restore({})
        check_local(found, again, {first: 0})


def check_local(found: Logs, local: LocalEpochs, stored: dict[LeaderAndEpoch, int]) -> None:
    def reaches(log_end: EpochEnd) -> bool:
        chain = found.tree.chain(log_end) or []
        return all(stored.get(each.leader_epoch, -1) >= each.end_offset for each in chain)

    complete = [each for each in found.ends if each in stored and reaches(epoch_end(each, stored[each]))]
    assert local.latest == max(stored)
    assert local.log_end() == epoch_end(max(complete), stored[max(complete)])
    for each in found.ends:
        assert local.is_complete(each) == (each in complete)
        assert local.end_of(each) == stored.get(each, 0)
    for log_end in log_ends(found):
        assert local.reaches(log_end) == reaches(log_end)
    unknown = epoch_end(LeaderAndEpoch(99, "c"), 0)
    assert not local.reaches(unknown)
    assert not local.is_complete(unknown.leader_epoch)


def test_a_new_epoch_continues_the_longest_log_of_the_latest_epoch() -> None:
    for found, draw in draw_logs():
        ends = draw.choices(log_ends(found), k=draw.randint(1, 5))
        chosen = MajorityRule().choose_parent(ends, found.tree)
        assert chosen in ends
        assert chosen.leader_epoch.epoch == max(each.leader_epoch.epoch for each in ends)
        assert chosen.end_offset == max(each.end_offset for each in ends if each.leader_epoch == chosen.leader_epoch)


def test_of_logs_that_diverge_the_one_continues_that_most_replicas_have() -> None:
    """It includes the logs of most others; of several such ones it is the longest, then the latest."""
    for found, draw in draw_logs():
        ends = draw.choices(log_ends(found), k=draw.randint(1, 5))
        ranked = {each: (count_included(found, each, ends), each.end_offset, each.leader_epoch) for each in ends}
        assert DivergentRule().choose_parent(ends, found.tree) == max(ends, key=ranked.__getitem__)


def count_included(found: Logs, log_end: EpochEnd, others: list[EpochEnd]) -> int:
    """Count the logs that a log continues: their epochs are part of it, up to their ends."""
    chain = {each.leader_epoch: each.end_offset for each in found.tree.chain(log_end) or ()}
    return sum(chain.get(each.leader_epoch, -1) >= each.end_offset for each in others)
