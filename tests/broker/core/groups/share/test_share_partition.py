"""A share partition against its model: members that acknowledge, are late and leave, and leaders that restart.

Each record is accepted once, rejected, delivered as often as it may be, or deleted. What is rejected or delivered too
often waits for its dead letter, if the group has these, and no other record does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import attrs
import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.runs import RecordState
from dafka.broker.core.groups.share.share_partition import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRange,
    FetchedBatch,
    ShareLimits,
    SharePartition,
)
from dafka.broker.core.groups.share.state import NO_STATE
from tests.broker.core.groups.share.model import Model, expand, expand_ranges, make_log, read

SEEDS = 150
STEPS = 150
END = 120
MEMBERS = ("a", "b", "c")
ACQUIRE, ACKNOWLEDGE, ACKNOWLEDGE_PARTS, WITHDRAW, RELEASE, WAIT, RESTART, DELETE, STORE_LETTERS, COMPACT = range(10)


def records_of(log: Sequence[FetchedBatch]) -> set[int]:
    """Return the offsets of the records in a log."""
    return {n for each in log if each.has_records for n in range(each.first, each.end)}


class Run:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.limits = ShareLimits(
            lock_ms=100,
            delivery_count_max=self.draw.randint(1, 4),
            in_flight_max=self.draw.choice((4, 15, 1000)),
            has_dead_letters=self.draw.random() < 0.5,
        )
        self.lettered: set[int] = set()
        self.log = make_log(self.draw, END)
        self.records, self.end = records_of(self.log), self.log[-1].end
        start = self.draw.choice((0, 0, 7))
        self.partition = SharePartition(attrs.evolve(NO_STATE, start_offset=start), 1)
        self.model = Model(start)
        self.now_ms = 0
        self.accepted: set[int] = set()
        self.rejected: set[int] = set()
        self.gaps: set[int] = set()
        self.begins = start

    def step(self) -> None:
        (kind,) = self.draw.choices(range(10), (40, 30, 10, 6, 4, 8, 4, 3, 5, 2))
        member_id = self.draw.choice(MEMBERS)
        if kind == ACQUIRE:
            self.acquire(member_id)
        elif kind == ACKNOWLEDGE:
            self.acknowledge(member_id)
        elif kind == ACKNOWLEDGE_PARTS:
            self.acknowledge_parts(member_id)
        elif kind == WITHDRAW:
            self.withdraw(member_id)
        elif kind == RELEASE:
            self.partition.release(member_id, self.limits)
            self.model.release(member_id, self.limits)
        elif kind == WAIT:
            self.wait()
        elif kind == RESTART:
            self.restart()
        elif kind == STORE_LETTERS:
            self.store_letters()
        elif kind == COMPACT:
            first = self.draw.randrange(END)
            end = first + self.draw.randint(1, 30)
            self.log = [each for each in self.log if each.end <= first or each.first >= end]
        else:
            offset = self.model.start + self.draw.choice((-1, 0, 2, 6))
            self.partition.advance_log_start(offset)
            self.model.advance_log_start(offset)
        self.check()

    def store_letters(self) -> None:
        """Store the dead letters of some records that wait for theirs."""
        waiting = self.partition.awaiting_dead_letters()
        assert self.limits.has_dead_letters or not waiting
        for first, end in ((run.first, run.end) for run in waiting):
            assert self.lettered.isdisjoint(range(first, end))
            ended = self.draw.randint(first, end)
            revision = self.partition.revision
            self.partition.end_dead_letters(first, ended)
            self.model.end_dead_letters(first, ended)
            self.lettered.update(range(first, ended))
            assert self.partition.revision > revision

    def wait(self) -> None:
        self.now_ms += self.draw.choice((10, 40, 120))
        lock_ms, deliveries_max = self.draw.choice((20, 100)), self.draw.randint(1, 4)
        self.limits = attrs.evolve(self.limits, lock_ms=lock_ms, delivery_count_max=deliveries_max)
        if self.draw.random() < 0.5:
            self.partition.expire(self.limits, self.now_ms)
            self.model.expire(self.limits, self.now_ms)

    def check(self) -> None:
        assert expand(self.partition) == self.model.offsets
        assert (self.partition.start_offset, self.partition.end_offset) == (self.model.start, self.model.end)
        assert self.partition.next_offset(self.limits) == self.model.next_offset(self.limits)
        states = [each.state for each in self.model.offsets.values()]
        assert self.partition.count_acquired() == states.count(RecordState.ACQUIRED)
        assert self.partition.count_available(END) == states.count(RecordState.AVAILABLE) + max(END - self.model.end, 0)
        available = [n for n, each in self.model.offsets.items() if each.state is RecordState.AVAILABLE]
        available += range(self.model.end, END)
        count = self.draw.randint(1, 20)
        assert self.partition.find_end(count, END) == min([*available, *[END] * count][count - 1] + 1, END)
        locks = [each.deadline_ms for each in self.model.offsets.values() if each.state is RecordState.ACQUIRED]
        next_ms = self.partition.next_deadline_ms()
        assert not locks or (next_ms is not None and next_ms <= min(locks))
        runs = list(self.partition.runs)
        assert not any(after.continues(before) for before, after in itertools.pairwise(runs))

    def acquire(self, member_id: str, records_max: int | None = None) -> list[tuple[int, int]]:
        offset = self.partition.next_offset(self.limits)
        if offset is None or offset >= self.end:
            return []
        batches = read(self.log, self.draw, offset, self.end)
        while self.draw.random() < 0.3:  # during the read
            self.draw.choice((self.wait, lambda: self.acknowledge(member_id)))()
        records_max = self.draw.randint(0, 12) if records_max is None else records_max
        is_exact, range_max = self.draw.random() < 0.3, self.draw.randint(1, 8)
        ranges = self.partition.acquire(
            member_id,
            offset,
            batches,
            self.limits,
            self.now_ms,
            records_max=records_max,
            range_max=range_max,
            is_exact=is_exact,
        )
        found = expand_ranges(ranges)
        assert found == self.model.acquire(member_id, offset, batches, self.limits, self.now_ms, records_max, is_exact)
        assert not is_exact or len(found) <= records_max
        largest = max((each.end - each.first for each in self.log), default=0)
        assert all(each.end - each.first <= max(range_max, largest) for each in ranges)
        for number, count in found:
            assert number in self.records
            assert number not in self.accepted | self.rejected
            assert count <= self.limits.delivery_count_max
        return found

    def acknowledge(self, member_id: str) -> None:
        held = [n for n, each in self.model.offsets.items() if each.member_id == member_id]
        said = list[Acknowledgement]()
        while held and len(said) < self.draw.randint(1, 3):
            first = self.draw.choice(held)
            end = first + self.draw.randint(1, 5) if self.draw.random() < 0.3 else first + 1
            while self.draw.random() < 0.7 and end in held:
                end += 1
            said.append(Acknowledgement(first, end, self.draw.choice(list(AcknowledgeType))))
        if self.draw.random() < 0.9:
            said.sort()
        if self.draw.random() < 0.05:
            said.append(Acknowledgement(self.draw.randint(-2, END), END + 5, AcknowledgeType.ACCEPT))
        self.say(member_id, said)

    def acknowledge_parts(self, member_id: str) -> None:
        """Acknowledge what the member has of some ranges, and perhaps all else that it has."""
        cuts = sorted(self.draw.sample(range(-2, END + 5), 4))
        kinds = list(AcknowledgeType)
        asked = [Acknowledgement(cuts[n], cuts[n + 1], self.draw.choice(kinds)) for n in (0, 2)]
        others = self.draw.choice((None, *kinds))
        self.model.expire(self.limits, self.now_ms)
        expected = dict.fromkeys(self.model.acquired_by(member_id), others)
        expected |= {n: kind for first, end, kind in asked for n in range(first, end) if n in expected}
        self.draw.shuffle(asked)
        found = self.partition.find_acquired(member_id, asked, others, self.limits, self.now_ms)
        said = {n: kind for first, end, kind in found for n in range(first, end)}
        assert said == {n: kind for n, kind in expected.items() if kind is not None}
        self.say(member_id, found)

    def withdraw(self, member_id: str) -> None:
        """Take back some of the records that the member has."""
        first = self.draw.randint(-2, END)
        end = first + self.draw.randint(1, 30)
        self.partition.withdraw(member_id, [AcquiredRange(first, end, 1)])
        self.model.withdraw(member_id, range(first, end))

    def say(self, member_id: str, said: list[Acknowledgement]) -> None:
        revision = self.partition.revision
        error = self.partition.acknowledge(member_id, said, self.limits, self.now_ms)
        assert error == self.model.acknowledge(member_id, said, self.limits, self.now_ms)
        if error:
            return
        is_lasting = any(each.kind is not AcknowledgeType.RENEW for each in said)
        assert not is_lasting or self.partition.revision > revision
        for first, end, kind in said:
            numbers = set(range(first, end))
            if kind is AcknowledgeType.ACCEPT:
                assert not numbers & (self.accepted | self.rejected)
                self.accepted |= numbers
            elif kind in {AcknowledgeType.REJECT, AcknowledgeType.GAP}:
                self.rejected |= numbers
            if kind is AcknowledgeType.GAP:
                self.gaps |= numbers

    def restart(self) -> None:
        stored = self.partition.store()
        assert stored.end_offset <= self.partition.end_offset
        self.partition = SharePartition(stored, self.draw.randint(1, 9))
        self.model.restart()
        self.model.advance_log_start(0)
        self.partition.advance_log_start(self.model.log_start)

    def drain(self) -> None:
        """Accept everything that is left."""
        for member_id in MEMBERS:
            self.partition.release(member_id, self.limits)
            self.model.release(member_id, self.limits)
        self.check()
        while self.partition.end_offset < END or any(run.state is RecordState.AVAILABLE for run in self.partition.runs):
            before = self.partition.next_offset(self.limits)
            found = self.acquire("last", records_max=50)
            self.check()
            assert found or before is None or self.partition.next_offset(self.limits) != before, "it does not go on"
            self.say("last", [Acknowledgement(number, number + 1, AcknowledgeType.ACCEPT) for number, _ in found])
            self.store_letters()
            self.check()
        while self.partition.awaiting_dead_letters():
            self.store_letters()
            self.check()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_record_has_one_fate(seed: int) -> None:
    run = Run(seed)
    for _ in range(STEPS):
        run.step()
    run.drain()
    given_up = run.model.given_up
    assert not given_up & run.accepted
    for number in records_of(run.log) & set(range(run.begins, END)):
        is_deleted = number < run.model.log_start
        assert number in run.accepted | given_up | run.gaps or is_deleted, number
    assert run.partition.start_offset >= END
    assert run.lettered == (given_up if run.limits.has_dead_letters else set())


def test_ranges_that_overlap_or_are_empty_are_refused() -> None:
    limits, partition = ShareLimits(), SharePartition(attrs.evolve(NO_STATE, start_offset=0), 0)
    partition.acquire("a", 0, [FetchedBatch(0, 9)], limits, 0, records_max=9, range_max=9)
    accept, release = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
    for said in (
        [Acknowledgement(0, 4, accept), Acknowledgement(3, 5, release)],
        [Acknowledgement(4, 4, accept)],
        [Acknowledgement(-1, 3, accept)],
        [Acknowledgement(5, 6, accept), Acknowledgement(2, 3, accept)],
    ):
        assert partition.acknowledge("a", said, limits, 0) is ErrorCode.INVALID_REQUEST
    assert partition.acknowledge("b", [Acknowledgement(0, 1, accept)], limits, 0) is ErrorCode.INVALID_RECORD_STATE
    assert partition.acknowledge("a", [Acknowledgement(0, 9, accept)], limits, 0) is ErrorCode.NONE
    assert (partition.start_offset, list(partition.runs)) == (9, [])
