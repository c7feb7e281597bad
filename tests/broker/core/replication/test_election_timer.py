"""When a replica requests votes: waits that grow, and conditions that must last."""

from __future__ import annotations

from itertools import product

import pytest

from dafka.broker.core.replication.election_timer import Debounce, ElectionTimer
from dafka.broker.core.replication.settings import ReplicaSettings

SETTINGS = ReplicaSettings(election_timeout_s=1.0, stagger_s=0.25)
WAITS = [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
"""The wait for votes after so many elections without a new epoch."""

REMAINING = [1.0, 1.0, 2.0, 4.0, 4.0, 4.0]
"""What of it remains if brokers come or go: one doubling less, of at most three."""


def make_timer(elections_before: int = 0) -> ElectionTimer:
    timer = ElectionTimer(SETTINGS)
    for _ in range(elections_before):
        timer.record_request()
    return timer


def first_due(timer: ElectionTimer, start: float = 100.0, wait_s: float = 0.0) -> float:
    """Return when a timer is due, in steps of an eighth of a second, seen from a start."""
    return next(now - start for now in (start + each / 8 for each in range(200)) if timer.is_due(now, lambda: wait_s))


@pytest.mark.parametrize(("elections", "rank"), [*product(range(6), (0, 1, 3))])
def test_waits_for_votes_double_up_to_eight_times_and_each_preferred_replica_adds_a_part(
    elections: int, rank: int
) -> None:
    timer = make_timer(elections)
    assert not timer.is_running
    timer.wait_for_votes(100.0, rank)
    assert timer.is_running
    assert first_due(timer, wait_s=99.0) == WAITS[elections] + rank * 0.25
    timer.wait_for_votes(100.0, rank)
    timer.shorten_wait(100.0, rank)
    assert first_due(timer) == REMAINING[elections] + rank * 0.25
    timer.record_new_epoch()
    timer.wait_for_votes(100.0, 0)
    assert first_due(timer) == WAITS[0]


def test_a_first_request_waits_as_long_as_others_have() -> None:
    timer = make_timer()
    assert first_due(timer, wait_s=0.5) == 0.5
    timer.stop()
    assert not timer.is_running
    assert first_due(timer, wait_s=0.0) == 0.0


def test_a_wait_is_not_shortened_below_a_first_election_and_never_prolonged() -> None:
    timer = make_timer(1)
    timer.shorten_wait(100.0, 0)
    assert not timer.is_running, "nothing is scheduled"
    timer.wait_for_votes(100.0, 0)
    timer.shorten_wait(101.5, 0)
    assert first_due(timer) == 2.0, "it is due sooner than an election from now on"


def test_a_part_of_the_wait_remains_when_it_is_stopped_and_nothing_when_the_clock_is_set_back() -> None:
    timer = make_timer(4)
    timer.wait_for_votes(100.0, 0)
    timer.stop()
    assert first_due(timer) == REMAINING[4]
    timer.wait_for_votes(100.0, 0)
    timer.reset()
    assert first_due(timer, start=2.0) == 0.0


def test_a_condition_has_lasted_when_it_was_true_at_each_check_for_that_long() -> None:
    lasting = Debounce()
    assert not lasting.is_running
    assert [lasting.has_lasted(True, now, 2.0) for now in (10.0, 11.5, 12.0)] == [False, False, True]
    assert lasting.is_running
    assert not lasting.has_lasted(False, 12.5, 0.0)
    assert not lasting.is_running
    assert not lasting.has_lasted(True, 13.0, 1.0)
    lasting.end()
    assert [lasting.has_lasted(True, now, 1.0) for now in (14.5, 15.5)] == [False, True]
    assert Debounce().has_lasted(True, 0.0, 0.0)
