"""One replica by itself: what no scenario shows of when it requests votes, serves readers and counts as heard."""

from __future__ import annotations

from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.effects import WriteControl
from dafka.broker.core.replication.records import EpochStart, LeaderAndEpoch, Vote, VoteRequest, next_epoch
from dafka.broker.core.replication.replica import Replica
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.protocol.rendezvous import rank_nodes
from tests.broker.core.entries import epoch_end

REPLICAS = ("b0", "b1", "b2")
SETTINGS = ReplicaSettings(election_timeout_s=0.5, preferred_leader_after_s=30.0)
FIRST = LeaderAndEpoch(0, "b0")


def make_replica(broker: str, replicas: tuple[str, ...] = REPLICAS) -> Replica:
    replica = Replica("log", broker, REPLICAS.index(broker), replicas, SETTINGS)
    replica.elections.restore([], [])
    replica.restore_local({})
    return replica


def lead_followed_by_one() -> Replica:
    """Return a leader whose log reaches to 10, as one of its two followers has acknowledged."""
    leader = make_replica("b0")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0)
    leader.stored(FIRST, Offset(10))
    leader.acknowledged("b1", FIRST, Offset(10))
    return leader


def test_a_leader_that_cannot_write_serves_only_while_others_cannot_either() -> None:
    leader = make_replica("b0")
    leader.resume()
    leader.set_alive(REPLICAS, 0.0, frozenset({"b0"}))
    assert not leader.may_serve
    leader.set_alive(REPLICAS, 1.0, frozenset({"b0", "b1"}))
    assert leader.may_serve


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
