"""Which peers of a plain cluster are on probation, and until when."""

from __future__ import annotations

from dafka.transport.suspect_peers import (
    HOSTS_MANY,
    HOSTS_MAX,
    NEWCOMER_MAX_S,
    PROBATION_S,
    PROBATION_TOLERATED_BURST,
    SuspectPeers,
)

A, B, C, OTHER = "tcp://h:1", "tcp://h:2", "tcp://h:3", "tcp://other:1"


def test_discards_beyond_those_tolerated_begin_probation_again() -> None:
    probations = SuspectPeers()
    probations.begin_offender(A, 0.0)
    probations.report_discards(A, 0, 4.0)
    probations.report_discards(A, PROBATION_TOLERATED_BURST - 1, 4.0)
    assert probations.end_due(PROBATION_S) == [A]
    probations.begin_offender(B, 9.0)
    probations.report_discards(B, PROBATION_TOLERATED_BURST, 14.0)
    assert probations.end_due(14.0 + 2 * PROBATION_S - 0.1) == []
    assert probations.end_due(14.0 + 2 * PROBATION_S) == [B]


def test_probation_doubles_with_every_offender_of_a_host_up_to_a_limit() -> None:
    probations = SuspectPeers()
    for seconds in (5, 10, 20, 40, 80, 160, 300, 300):
        probations.begin_offender(A, 0.0)
        assert probations.end_due(seconds - 0.1) == []
        assert probations.end_due(seconds) == [A]
    probations.begin_offender(OTHER, 0.0)
    assert probations.end_due(5.0) == [OTHER]


def test_new_peers_of_a_misbehaving_host_begin_on_probation_for_a_limited_time() -> None:
    probations = SuspectPeers()
    probations.begin_offender(A, 0.0)
    assert probations.begin_newcomer(B, 1.0)
    assert not probations.begin_newcomer(OTHER, 1.0)
    assert probations.end_due(1.0 + PROBATION_S - 0.1) == [A]
    assert probations.end_due(1.0 + PROBATION_S) == [B]
    for _ in range(6):
        probations.begin_offender(A, 10.0)
    probations.forget_peer(A)
    assert A not in probations
    assert probations.begin_newcomer(C, 10.0)
    assert probations.end_due(10.0 + NEWCOMER_MAX_S - 0.1) == []
    assert probations.end_due(10.0 + NEWCOMER_MAX_S) == [C]


def test_a_host_is_forgiven_when_its_peers_have_behaved_for_a_while() -> None:
    probations = SuspectPeers()
    probations.begin_offender(A, 0.0)
    assert probations.begin_newcomer(B, 2 * PROBATION_S - 0.1)
    assert not probations.begin_newcomer(C, 2 * PROBATION_S)
    probations.begin_offender(A, 100.0)
    assert set(probations.end_due(100.0 + PROBATION_S)) == {A, B}
    probations.begin_offender(A, 106.0)
    probations.report_discards(A, 1000, 120.0)
    assert probations.begin_newcomer(C, 139.0)  # the host still misbehaved at 120
    probations.begin_offender(A, 140.0)  # it has been forgiven, and begins anew
    assert probations.end_due(140.0 + PROBATION_S) == [A]


def test_if_many_hosts_misbehave_every_new_peer_begins_on_probation() -> None:
    probations = SuspectPeers()
    for number in range(HOSTS_MANY):
        assert not probations.begin_newcomer(OTHER, 0.0)
        probations.begin_offender(f"tcp://10.0.0.{number}:1", 0.0)
    assert probations.begin_newcomer(OTHER, 0.0)
    assert probations.end_due(PROBATION_S - 0.1) == []
    assert OTHER in probations
    assert not probations.begin_newcomer(C, 1000.0)


def test_the_number_of_remembered_hosts_is_limited() -> None:
    probations = SuspectPeers()
    for number in range(HOSTS_MAX + 10):
        probations.begin_offender(f"tcp://{number}:1", 0.0)
    assert len(probations._hosts) == HOSTS_MAX
    assert len(probations) == HOSTS_MAX + 10
    probations.report_discards(f"tcp://{HOSTS_MAX + 5}:1", 1000, 1.0)
    assert probations.end_due(PROBATION_S) == [
        f"tcp://{number}:1" for number in range(HOSTS_MAX + 10) if number != HOSTS_MAX + 5
    ]
    probations.begin_offender("tcp://5:1", 0.0)  # a remembered one is still punished more
    assert probations.begin_newcomer("tcp://5:2", 0.0)
    assert "tcp://5:2" not in probations.end_due(2 * PROBATION_S - 0.1)
