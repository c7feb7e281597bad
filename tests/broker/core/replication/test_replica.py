"""One replica by itself: what it does with what it hears."""

from __future__ import annotations

from itertools import pairwise

from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.effects import (
    Acknowledge,
    Lead,
    ReplicaAction,
    WriteControl,
)
from dafka.broker.core.replication.records import (
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
    next_epoch,
)
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.protocol.rendezvous import rank_nodes
from tests.broker.core.entries import epoch_end

REPLICAS = ("b0", "b1", "b2")
SETTINGS = ReplicaSettings(election_timeout_s=0.5, preferred_leader_after_s=30.0)


def make_replica(broker: str, replicas: tuple[str, ...] = REPLICAS) -> Replica:
    replica = Replica("log", broker, REPLICAS.index(broker), replicas, SETTINGS)
    replica.elections.restore([], [])
    replica.restore_local({})
    return replica


def claimed_at(replica: Replica, times: list[float]) -> float | None:
    """Return when a replica claims the log that it does not lead."""
    for now in times:
        if any(isinstance(each, WriteControl) for each in replica.set_alive(REPLICAS, now)):
            return now
    return None


def lead_followed_by_one() -> Replica:
    """Return a leader whose log reaches to 10, as one of its two followers has acknowledged."""
    leader = make_replica("b0")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0)
    leader.stored(FIRST, Offset(10))
    leader.acknowledged("b1", FIRST, Offset(10))
    return leader


def test_a_preferred_replica_takes_over_after_some_time() -> None:
    preferred, other, last = rank_nodes("log", REPLICAS)
    replicas = (last, other, preferred)
    assert claimed_at(make_replica(preferred, replicas), [0.0, 29.9, 60.0]) == 60.0
    assert claimed_at(make_replica(other, replicas), [0.0, 29.9, 100.0]) is None


def test_replicas_that_lack_records_claim_after_those_that_have_all() -> None:
    first, second, third = rank_nodes("log", REPLICAS)
    row = EpochStart("log", LeaderAndEpoch(next_epoch(0, 2), third), epoch_end(LeaderAndEpoch(0, third), 10), REPLICAS)

    def claims_at(broker: str, held: dict[LeaderAndEpoch, Offset]) -> float:
        """Return when a replica claims the log whose leader has died."""
        replica = make_replica(broker, (third, first, second))
        replica.set_alive(REPLICAS, 0.0)
        replica.receive(third, row)
        replica.restore_local(held)
        replica.set_alive(REPLICAS, 9.0)
        for now in (10 + each / 4 for each in range(100)):
            actions = replica.set_alive({first, second}, now)
            if any(isinstance(each, WriteControl) and isinstance(each.record, VoteRequest) for each in actions):
                return now
        raise AssertionError("it has not claimed the log")

    whole = {LeaderAndEpoch(0, third): Offset(10), row.leader_epoch: Offset(10)}
    assert claims_at(first, whole) < claims_at(second, whole)
    assert claims_at(second, whole) < claims_at(first, {LeaderAndEpoch(0, third): Offset(5)})


def test_a_new_replica_joins_until_it_has_all_before_the_branch_that_it_belongs_to() -> None:
    replica = make_replica("b2", ("b0", "b1"))
    row = EpochStart("log", LeaderAndEpoch(next_epoch(0, 0), "b0"), epoch_end(LeaderAndEpoch(0, "b0"), 10), REPLICAS)
    replica.receive("b0", row)
    replica.set_alive(REPLICAS, 0.0)
    assert replica.is_joining
    replica.set_alive(("b0", "b2"), 1.0)
    assert not replica.is_joining, "it is needed for a majority"
    replica.set_alive(REPLICAS, 2.0)
    replica.stored(LeaderAndEpoch(0, "b0"), 10)
    assert replica.is_joining
    replica.stored(row.leader_epoch, 10)
    assert not replica.is_joining


def test_a_leader_that_cannot_write_is_replaced() -> None:
    leader, other, last = rank_nodes("log", REPLICAS)
    replicas = (leader, other, last)

    def vote_requests(broker: str, unwritable: set[str]) -> bool:
        replica = make_replica(broker, replicas)
        times = (each / 4 for each in range(8))
        found = [each for now in times for each in replica.set_alive(REPLICAS, now, frozenset(unwritable))]
        return any(isinstance(each, WriteControl) and isinstance(each.record, VoteRequest) for each in found)

    assert not vote_requests(other, set())
    assert vote_requests(other, {leader})
    assert not vote_requests(leader, {leader})
    assert not vote_requests(other, {leader, last})


def test_a_leader_that_cannot_write_serves_only_while_others_cannot_either() -> None:
    leader = make_replica("b0")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0, frozenset({"b0"}))
    assert not leader.may_serve
    leader.set_alive(REPLICAS, 1.0, frozenset({"b0", "b1"}))
    assert leader.may_serve


def test_a_leader_that_is_drained_is_replaced_soon() -> None:
    preferred, other, last = rank_nodes("log", REPLICAS)
    replicas = (preferred, other, last)
    times = [0.0, 0.4, 0.5, 1.0]
    found = make_replica(other, replicas)
    assert claimed_at(found, times) is None
    found.preference.set((), frozenset({preferred}))
    assert claimed_at(found, [10 + each for each in times]) == 10.5
    third = make_replica(last, replicas)
    third.preference.set((), frozenset({preferred}))
    assert claimed_at(third, times) is None


def test_a_drained_replica_leads_if_no_other_is_alive() -> None:
    [preferred, *_] = rank_nodes("log", REPLICAS)
    others = tuple(each for each in REPLICAS if each != preferred)
    replica = make_replica(others[0], (preferred, *others))
    replica.preference.set((), frozenset(REPLICAS))
    actions: list[ReplicaAction] = []
    for now in (0.0, 1.0):
        actions += replica.set_alive(others, now)
    [action] = actions
    assert isinstance(action, WriteControl)
    assert action.record == VoteRequest(
        "log", LeaderAndEpoch(action.record.leader_epoch.epoch, others[0]), (preferred, *others)
    )


FIRST = LeaderAndEpoch(0, "b0")


def test_a_leader_is_heard_since_most_replicas_that_follow_it_were_asked() -> None:
    leader = lead_followed_by_one()
    asked = {"b1": 7.0, "b2": 9.0}
    assert leader.heard_since(asked.__getitem__) == 9.0
    assert leader.heard_since({"b1": 7.0, "b2": float("-inf")}.__getitem__) == 7.0
    assert leader.heard_since(lambda _broker: float("-inf")) == float("-inf")
    leader.receive("b2", Vote("log", LeaderAndEpoch(2048, "b1"), epoch_end(FIRST, 7), (), FIRST))
    assert leader.heard_since(asked.__getitem__) == 7.0, "b2 may follow another leader"
    leader.receive("b1", Vote("log", LeaderAndEpoch(2048, "b1"), epoch_end(FIRST, 7), (), FIRST))
    assert leader.heard_since(asked.__getitem__) == float("-inf")
    unwritable = lead_followed_by_one()
    unwritable.set_alive(REPLICAS, 0.0, frozenset({"b0"}))
    assert unwritable.heard_since(lambda _broker: 9.0) == float("-inf"), "others may elect another leader"
    branch = Replica("log", "b0", 0, REPLICAS, ReplicaSettings(availability=Availability.BRANCH))
    branch.resume()
    assert branch.heard_since(lambda _broker: float("-inf")) == float("inf")
    assert make_replica("b1").heard_since(asked.__getitem__) == float("-inf"), "it leads nothing"


def test_a_clock_that_is_set_back_delays_a_claim_no_longer_than_one_that_is_right() -> None:
    replica = make_replica(rank_nodes("log", REPLICAS)[1], REPLICAS)
    [leader] = {replica.leader}
    others = tuple(each for each in REPLICAS if each != leader)
    actions: list[ReplicaAction] = []
    for now in (1000.0, 0.0, 1.0):
        actions += replica.set_alive(others, now)
    assert [type(each) for each in actions] == [WriteControl]


def test_a_claim_waits_for_promises_before_it_is_made_again() -> None:
    preferred, other, leader = rank_nodes("log", REPLICAS)
    replicas = (leader, other, preferred)
    replica = make_replica(preferred, replicas)
    alive = (preferred, other)
    vote_requests: list[float] = []
    for number in range(400):
        now = number / 100
        for action in replica.set_alive(alive, now):
            assert isinstance(action, WriteControl)
            vote_requests.append(now)
            replica.elections.written(action.record)
    assert vote_requests == [0.0, 0.5, 1.5, 3.5]


def test_brokers_that_come_and_go_do_not_make_a_replica_claim_again_and_again() -> None:
    preferred, other, leader = rank_nodes("log", REPLICAS)
    replica = make_replica(preferred, (leader, other, preferred))
    vote_requests: list[float] = []
    for number in range(2000):
        now = number / 100
        alive = (preferred, other) if number // 30 % 2 else (preferred,)
        for action in replica.set_alive(alive, now):
            assert isinstance(action, WriteControl)
            vote_requests.append(now)
            replica.elections.written(action.record)
    waits = [after - before for before, after in pairwise(vote_requests)]
    assert waits[0] < 1.0
    assert min(waits[-3:]) > 1.9


def test_a_replica_leaves_time_to_the_claim_that_it_has_promised_to_follow() -> None:
    preferred, other, leader = rank_nodes("log", REPLICAS)
    replica = make_replica(preferred, (leader, other, preferred))
    replica.set_alive(REPLICAS, 10.0)
    vote_request = VoteRequest("log", LeaderAndEpoch(1024, other), REPLICAS, is_transfer=True)
    replica.receive(other, vote_request)
    replica.receive(
        leader, Vote("log", vote_request.leader_epoch, epoch_end(LeaderAndEpoch(0, leader), 0), (REPLICAS,))
    )
    found = [now for now in (10.1, 10.4, 10.5, 10.6) if replica.set_alive((preferred, other), now)]
    assert found[0] == 10.5


def test_a_leader_has_time_to_read_what_is_before_its_branch() -> None:
    preferred, other, leader = rank_nodes("log", REPLICAS)
    replica = make_replica(preferred, (leader, other, preferred))
    before = EpochStart("log", LeaderAndEpoch(1024, leader), epoch_end(replica.latest.leader_epoch, 0), REPLICAS)
    replica.receive(leader, before)
    (action,) = replica.set_alive((preferred, other), 10.0)
    assert isinstance(action, WriteControl)
    replica.elections.written(action.record)
    replica.set_alive((preferred, other), 10.4)
    branch = action.record.leader_epoch
    (own,) = replica.receive(
        other, Vote("log", branch, epoch_end(before.leader_epoch, 5), (REPLICAS,), before.leader_epoch)
    )
    assert isinstance(own, WriteControl)
    (row,) = replica.elections.written(own.record)
    assert isinstance(row, WriteControl)
    assert isinstance(row.record, EpochStart)
    assert replica.elections.written(row.record) == [Lead(row.record)]
    assert not replica.may_append
    times = (11.1, 12.3, 12.5)
    assert next(now for now in times if replica.set_alive((preferred, other), now)) == 12.5


def test_a_replica_that_joins_claims_nothing_and_leads_nothing() -> None:
    learners = make_replica("b2")
    row = EpochStart("log", LeaderAndEpoch(next_epoch(0, 0), "b0"), epoch_end(FIRST, 0), REPLICAS, ("b2",))
    learners.receive("b0", row)
    learners.stored(row.leader_epoch, Offset(5))
    for now in range(60):
        assert not any(
            isinstance(each, WriteControl) and isinstance(each.record, VoteRequest)
            for each in learners.set_alive(("b1", "b2"), float(now))
        )
    assert learners.rank_replicas() == rank_nodes("log", ("b0", "b1"))


def follow(leader: str, broker: str) -> Replica:
    """Return a replica that gets the records of a leader."""
    replica = make_replica(broker, (leader, *(each for each in REPLICAS if each != leader)))
    replica.set_alive(REPLICAS, 0.0)
    replica.stored(LeaderAndEpoch(0, leader), Offset(10))
    return replica


def votes(actions: list[ReplicaAction]) -> list[LeaderAndEpoch]:
    """Return which branches a replica promises to follow."""
    records = [each.record for each in actions if isinstance(each, WriteControl)]
    return [each.leader_epoch for each in records if isinstance(each, Vote)]


def test_a_replica_that_follows_a_living_leader_refuses_those_that_do_not_hear_it() -> None:
    vote_request = VoteRequest("log", LeaderAndEpoch(1024, "b2"), REPLICAS)
    assert votes(follow("b0", "b1").receive("b2", vote_request)) == []
    lonely = follow("b0", "b1")
    lonely.set_alive(("b1", "b2"), 5.0)
    assert votes(lonely.receive("b2", vote_request)) == [vote_request.leader_epoch]
    behind = make_replica("b1")
    behind.receive(
        "b0", EpochStart("log", LeaderAndEpoch(1000, "b0"), epoch_end(LeaderAndEpoch(0, "b0"), 10), REPLICAS)
    )
    behind.set_alive(REPLICAS, 0.0)
    assert votes(behind.receive("b2", vote_request)) == [vote_request.leader_epoch]


def test_a_leader_that_others_hear_refuses_to_be_replaced_by_one_that_does_not() -> None:
    vote_request = VoteRequest("log", LeaderAndEpoch(1024, "b2"), REPLICAS)
    leader = make_replica("b0")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0)
    assert leader.receive("b2", vote_request) == []
    found = leader.receive(
        "b1", Vote("log", vote_request.leader_epoch, epoch_end(LeaderAndEpoch(0, "b0"), 0), (REPLICAS,))
    )
    assert votes(found) == [vote_request.leader_epoch], "others do not hear it either"
    assert leader.led_epoch is None


def test_a_replica_that_copies_the_log_refuses_those_that_do_not_hear_its_leader() -> None:
    copying = make_replica("b1")
    copying.receive(
        "b0", EpochStart("log", LeaderAndEpoch(1000, "b0"), epoch_end(LeaderAndEpoch(0, "b0"), 10), REPLICAS, ("b1",))
    )
    copying.set_alive(REPLICAS, 0.0)
    vote_request = VoteRequest("log", LeaderAndEpoch(2048, "b2"), REPLICAS, ("b1",))
    assert votes(copying.receive("b2", vote_request)) == []
    copying.set_alive(("b1", "b2"), 5.0)
    assert votes(copying.receive("b2", vote_request)) == [vote_request.leader_epoch]


def test_a_leader_refuses_a_broker_that_has_come_back_and_knows_no_later_branch_than_its_own() -> None:
    leader = make_replica("b0")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0)
    leader.receive("b2", Vote("log", LeaderAndEpoch(1024, "b2"), epoch_end(LeaderAndEpoch(0, "b0"), 0), (REPLICAS,)))
    assert leader.receive("b2", VoteRequest("log", LeaderAndEpoch(2048, "b2"), REPLICAS)) == []
    assert leader.led_epoch == LeaderAndEpoch(0, "b0")


def test_a_leader_promises_first_when_its_log_moves() -> None:
    vote_request = VoteRequest("log", LeaderAndEpoch(1024, "b2"), REPLICAS, is_transfer=True)
    leader, replica = make_replica("b0"), follow("b0", "b1")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0)
    assert votes(replica.receive("b2", vote_request)) == []
    (_, written) = leader.receive("b2", vote_request)
    assert isinstance(written, WriteControl)
    assert votes([written]) == [vote_request.leader_epoch]
    assert leader.led_epoch is None
    assert votes(replica.receive("b0", written.record)) == [vote_request.leader_epoch]


def test_a_refused_claim_is_followed_when_the_leader_follows_it() -> None:
    vote_request = VoteRequest("log", LeaderAndEpoch(1024, "b2"), REPLICAS)
    replica = follow("b0", "b1")
    assert votes(replica.receive("b2", vote_request)) == []
    vote = Vote("log", vote_request.leader_epoch, epoch_end(LeaderAndEpoch(0, "b0"), 10), (REPLICAS,))
    assert votes(replica.receive("b0", vote)) == [vote_request.leader_epoch]


def claim_after(leader: str, broker: str) -> tuple[Replica, WriteControl]:
    """Return a replica that has got the records of a leader which has died, and its claim."""
    replica = follow(leader, broker)
    for now in (5.0, 6.0):
        actions = replica.set_alive(set(REPLICAS) - {leader}, now)
    (vote_request,) = actions
    assert isinstance(vote_request, WriteControl)
    return replica, vote_request


def test_a_promise_names_the_voters_of_every_branch_that_may_have_begun() -> None:
    replica = follow("b0", "b1")
    replica.set_alive(("b1", "b2", "b3"), 5.0)
    replica.receive("b2", VoteRequest("log", LeaderAndEpoch(1026, "b2"), ("b1", "b2", "b3")))
    (written,) = replica.receive("b3", VoteRequest("log", LeaderAndEpoch(2051, "b3"), REPLICAS))
    assert isinstance(written, WriteControl)
    assert isinstance(written.record, Vote)
    assert set(written.record.replica_sets) == {REPLICAS, ("b1", "b2", "b3")}


def test_a_claim_is_withdrawn_when_the_leader_is_heard_again() -> None:
    replica, vote_request = claim_after("b0", "b1")
    replica.elections.written(vote_request.record)
    replica.set_alive(REPLICAS, 6.1)
    vote = Vote("log", vote_request.record.leader_epoch, epoch_end(LeaderAndEpoch(0, "b0"), 10), (REPLICAS,))
    assert votes(replica.receive("b2", vote)) == []


def test_repeated_acknowledgements_do_not_make_a_replica_claim_sooner() -> None:
    vote_requests: dict[bool, list[float]] = {}
    for repeats in (False, True):
        replica = follow("b0", "b1")
        vote_requests[repeats] = []
        for now in (5 + each / 4 for each in range(80)):
            vote_requests[repeats] += [now for _ in replica.set_alive(("b1", "b2"), now)]
            if repeats:
                assert replica.repeat_acknowledgement() == [Acknowledge(LeaderAndEpoch(0, "b0"), Offset(10))]
    assert vote_requests[True] == vote_requests[False]
