"""An administrator learns why a log has too few replicas in sync, and what a change of the cluster needs."""

from __future__ import annotations

import pytest

from dafka.broker.core.cluster_status import MetadataQuorum, explain_under_replication
from dafka.broker.core.metadata.brokers import BrokerRegistration, Brokers
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr


@pytest.mark.parametrize(
    ("replicas", "in_sync", "learners", "wanted", "reason"),
    [
        ("abc", "abc", "", 3, ""),
        ("abc", "ab", "", 3, "broker 2 is catching up"),
        ("abc", "ab", "c", 3, "broker 2 still copies it"),
        ("abd", "abd", "", 3, "broker 3 is not heard"),
        ("abx", "ab", "", 3, "a forgotten broker is not replaced yet"),
        ("a", "a", "", 3, "it has 1 of 3 replicas"),
        ("abz", "ab", "", 3, "broker 1 has damaged records of it, a forgotten broker is not replaced yet"),
        ("acd", "a", "c", 4, "broker 2 still copies it, broker 3 is not heard, it has 3 of 4 replicas"),
    ],
)
def test_each_missing_replica_is_a_reason(replicas: str, in_sync: str, learners: str, wanted: int, reason: str) -> None:
    brokers = Brokers(BrokerRegistration(address="a", number=0), 1)
    for number, each in enumerate("bcd", 1):
        damaged = ("bz",) if each == "b" else ()
        brokers.record_registration(BrokerRegistration(address=each, number=number, damaged_logs=damaged))
        if each != "d":
            brokers.record_heartbeat(each, 0.5)
    brokers.check_alive(1)
    log = LeaderAndIsr("a", replicas=tuple(replicas), in_sync=tuple(in_sync), learners=tuple(learners))
    assert explain_under_replication(replicas[1:], log, wanted, brokers) == reason


@pytest.mark.parametrize(("count", "needed"), [(1, 1), (3, 2), (5, 3)])
def test_changes_need_most_of_the_voters(count: int, needed: int) -> None:
    quorum = MetadataQuorum(voters={str(number): number > 0 for number in range(count)})
    assert (quorum.heard, quorum.needed) == (count - 1, needed)
    expected = f"{count - 1} of the {count} brokers that vote on metadata are heard, {needed} are needed"
    assert str(quorum) == expected
