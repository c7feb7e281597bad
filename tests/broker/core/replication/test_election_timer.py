"""When a replica requests votes: waits that grow, and conditions that must last."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import attrs
import pytest

from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.divergence import LateVotes
from dafka.broker.core.replication.effects import ReplicaAction, WriteControl
from dafka.broker.core.replication.election_timer import Debounce, ElectionTimer
from dafka.broker.core.replication.election_triggers import JOINING_WAIT_S, ElectionTriggers
from dafka.broker.core.replication.elections import Elections
from dafka.broker.core.replication.epoch_tree import EpochTree, LocalEpochs
from dafka.broker.core.replication.peers import Peers
from dafka.broker.core.replication.records import EpochStart, LeaderAndEpoch, Vote, VoteRequest
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.broker.core.replication.states import Leader
from tests.broker.core.entries import epoch_end
from tests.broker.core.replication.test_quorums import EPOCH, FIRST, make_peers, sets_of_replicas, subsets

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


def make_triggers(peers: Peers) -> ElectionTriggers:
    parts = peers._rule, peers, peers._epoch_tree, peers._local_epochs, LateVotes()
    return ElectionTriggers("log", peers._broker, SETTINGS, *parts)


def test_a_leader_goes_on_unless_it_is_superseded_or_misses_records_and_others_could_lead() -> None:
    for (replicas, learners), end, has_begun in product(sets_of_replicas(3), (9, 10), (True, False)):
        for writable, later in product(subsets(replicas), ("", *replicas)):
            peers, votes = make_peers(replicas, learners)
            peers.alive, peers.writable = frozenset(replicas), writable
            peers._local_epochs.add(FIRST, Offset(end))
            if has_begun:
                peers._local_epochs.add(EPOCH, Offset(10))
            votes.record_vote(later, EPOCH.epoch + 1)
            triggers = make_triggers(peers)
            assert triggers.is_stuck() == (end < 10 and len(writable.intersection(peers.latest.voters)) > 1)
            goes_on = end == 10 and has_begun and not later
            may_request = "a" in writable and peers.can_elect
            assert triggers.should_request_votes(Leader(EPOCH), 0.0) == (may_request and not goes_on)


def test_a_leader_of_a_branch_begins_another_epoch_if_living_voters_that_returned_have_a_better_log() -> None:
    """Better is the log that more of them have, then the longer one. A part of the leader's log is not another one."""
    side, unknown = LeaderAndEpoch(512, "b"), LeaderAndEpoch(700, "c")
    ends = (None, epoch_end(side, 11), epoch_end(side, 13), epoch_end(FIRST, 8), epoch_end(unknown, 99))
    for b, c, alive, voted_for in product(ends, ends, subsets("bc"), (EPOCH, FIRST)):
        peers, votes = make_peers(("a", "b", "c"), can_diverge=True)
        peers._epoch_tree.add(EpochStart("log", side, epoch_end(FIRST, 10), ("a", "b", "c")))
        for leader_epoch, end in ((FIRST, 10), (EPOCH, 12)):
            peers._local_epochs.add(leader_epoch, Offset(end))
        peers.alive = peers.writable = alive | {"a"}
        votes.record_vote("b", EPOCH.epoch)
        triggers = make_triggers(peers)
        for each, end_of_log in (("b", b), ("c", c)):
            if end_of_log is not None:
                triggers._late_votes.add(each, voted_for, end_of_log)
        late = {"b": b, "c": c} if voted_for == EPOCH else {}
        others = [
            found for each in sorted(alive) if (found := late.get(each)) is not None and found.leader_epoch == side
        ]
        having, own_count = len(others), 1 + len(alive) - len(others)
        best = max((each.end_offset for each in others), default=0)
        is_better = having > own_count or (having == own_count and best > 12)
        assert triggers.should_request_votes(Leader(EPOCH), 0.0) == is_better, (b, c, alive, voted_for)


def test_replicas_that_must_fetch_records_first_request_votes_later() -> None:
    """A replica that copies a new log lets all others be first."""
    stagger_s = SETTINGS.stagger_s
    for broker, first_end, has_begun in product("abcd", (9, 10), (True, False)):
        peers, _ = make_peers(("a", "b", "c"))
        peers = Peers("log", broker, peers.latest, peers._epoch_tree, peers._local_epochs, peers._votes, peers._rule)
        peers._epoch_tree.add(attrs.evolve(peers.latest, replicas=("a", "b", "c", "d")))
        peers.alive = peers.writable = frozenset("abcd")
        peers.preference.set(("a", "b", "c", "d"), frozenset())
        peers._local_epochs.add(FIRST, Offset(first_end))
        if has_begun:
            peers._local_epochs.add(EPOCH, Offset(10))
        is_complete = first_end == 10 and has_begun
        extra_s = 0.0 if is_complete else 4 * stagger_s if first_end == 10 else 8 * stagger_s
        if broker == "d" and not is_complete:
            extra_s = JOINING_WAIT_S
        assert make_triggers(peers).wait_s() == "abcd".index(broker) * stagger_s + extra_s


def test_learners_become_voters_when_their_leader_has_all_and_they_have_been_in_sync_long_enough() -> None:
    for led, learners, first_end, has_begun, end in product(
        (FIRST, EPOCH), ((), ("c",), ("b", "c")), (9, 10), (0, 1), (9, 10)
    ):
        peers, _ = make_peers(("a", "b", "c"), learners)
        peers.alive = frozenset("abc")
        peers._local_epochs.add(FIRST, Offset(first_end))
        if has_begun:
            peers._local_epochs.add(EPOCH, Offset(10))
        peers.progress.begin(EPOCH)
        for each in "bc":
            peers.progress.add(each, EPOCH, Offset(end if each == "c" else 10))
        triggers, wait_s = make_triggers(peers), SETTINGS.learners_in_sync_s
        is_due = led == EPOCH and bool(learners) and first_end == 10 and bool(has_begun) and end == 10
        found = [triggers.are_learners_in_sync(Leader(led), now) for now in (1.0, 1.0 + wait_s - 0.1, 1.0 + wait_s)]
        assert found == [False, False, is_due]


def test_a_preferred_leader_takes_over_soon_from_one_that_should_not_lead_unless_that_is_true_of_both() -> None:
    """It waits again when another epoch begins."""
    begun = EpochStart("log", LeaderAndEpoch(512, "a"), epoch_end(FIRST, 10), ("a", "b", "c"))
    for ineligible, set_back, begins_at in product(subsets("abc"), (False, True), (0, 15)):
        elections = Elections("log", "b", 1, SETTINGS, *make_parts())
        elections.peers.preference.set(("b", "a", "c"), ineligible)
        elections.set_alive(frozenset("abc"), 1000.0, frozenset())
        start = 0.0 if set_back else 1000.0
        steps = (each / 8 for each in range(600))
        due = math.inf
        for each in steps:
            if elections.advance(start + each):
                due = each - begins_at if each >= begins_at else each
                break
            if each == begins_at:
                elections.receive("a", begun)
        if "b" in ineligible and ineligible != frozenset("abc"):
            assert due == math.inf
        elif "a" in ineligible and "b" not in ineligible:
            assert due - SETTINGS.election_timeout_s <= 0.25
        else:
            assert 30 <= due <= 60.25


def make_parts(generation: int = 0) -> tuple[EpochTree, LocalEpochs]:
    peers, _ = make_peers(("a", "b", "c"))
    peers._local_epochs.add(FIRST, Offset(10))
    peers._local_epochs.add(EPOCH, Offset(10))
    peers._epoch_tree.add(attrs.evolve(peers.latest, generation=generation))
    return peers._epoch_tree, peers._local_epochs


def test_log_ends_of_late_voters_count_until_a_replica_follows_another_one_or_its_next_epoch_is_complete() -> None:
    branch = attrs.evolve(SETTINGS, availability=Availability.BRANCH)
    for voted_for, follows in product((FIRST, EPOCH), (True, False)):
        elections = Elections("log", "a", 0, branch, *make_parts())
        elections.resume()
        elections.set_alive(frozenset("abc"), 0.0, frozenset())
        elections._late_votes.add("b", voted_for, epoch_end(FIRST, 12))
        if follows:
            assert elections.receive("c", VoteRequest("log", LeaderAndEpoch(2048, "c"), ("a", "b", "c")))
        else:
            assert elections.change_replicas(("a", "b"), 0)
        assert bool(elections._late_votes.log_ends) == (not follows and voted_for == EPOCH)


def take_record(actions: list[ReplicaAction]) -> Any:
    (found,) = [each.record for each in actions if isinstance(each, WriteControl)]
    return found


def test_no_epoch_begins_with_the_replicas_of_an_older_command_than_another_one() -> None:
    for asked, known, between in product(range(3), repeat=3):
        elections = Elections("log", "a", 0, SETTINGS, *make_parts(known))
        elections.resume()
        elections.set_alive(frozenset("abc"), 0.0, frozenset())
        made = elections.change_replicas(("a", "b", "c"), asked)
        assert bool(made) == (asked >= known)
        if made:
            request = take_record(made)
            elections.written(request)
            log_end, replicas = epoch_end(EPOCH, 10), ("a", "b", "c")
            vote = take_record(elections.receive("b", Vote("log", request.leader_epoch, log_end, (), EPOCH)))
            other = LeaderAndEpoch(EPOCH.epoch + 1, "b")
            elections.receive("b", EpochStart("log", other, log_end, replicas, (), between))
            assert bool(elections.written(vote)) == (asked >= between)
