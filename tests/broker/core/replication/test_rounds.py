"""LeaseRounds: when a broker is known to hear another one, and to have promised nobody else to follow."""

from __future__ import annotations

from dafka.broker.core.replication.leader_lease import ROUNDS_MAX, LeaseRounds, RoundAnswer


def test_an_answer_counts_from_when_the_round_began() -> None:
    rounds = LeaseRounds(100)
    first, second = rounds.begin(1.0, is_replaceable=False), rounds.begin(2.0, is_replaceable=False)
    assert rounds.heard_since("b") == float("-inf")
    assert rounds.answered("b", RoundAnswer(second, 0), 0)
    assert rounds.answered("b", RoundAnswer(first, 0), 0), "a late answer"
    assert rounds.heard_since("b") == 2.0


def test_an_answer_waits_for_the_control_records_that_were_made_before_it() -> None:
    rounds = LeaseRounds(0)
    number = rounds.begin(1.0, is_replaceable=False)
    assert not rounds.answered("b", RoundAnswer(number, 7), 5)
    assert not rounds.learned("b", 6)
    rounds.answered("b", RoundAnswer(number, 7), 6)
    assert rounds.heard_since("b") == float("-inf")
    assert rounds.learned("b", 7)
    assert rounds.heard_since("b") == 1.0


def test_answers_to_unknown_rounds_count_for_nothing() -> None:
    rounds = LeaseRounds(10)
    assert not rounds.answered("b", RoundAnswer(3, 0), 0), "a round before a restart"
    first = rounds.begin(1.0, is_replaceable=False)
    for number in range(ROUNDS_MAX):
        rounds.begin(2.0 + number, is_replaceable=False)
    assert not rounds.answered("b", RoundAnswer(first, 0), 0)


def test_no_answer_counts_when_others_may_elect_another_leader() -> None:
    rounds = LeaseRounds(0)
    first, second = rounds.begin(1.0, is_replaceable=False), rounds.begin(2.0, is_replaceable=False)
    rounds.answered("b", RoundAnswer(first, 0), 0)
    rounds.answered("c", RoundAnswer(second, 5), 4)
    replaceable = rounds.begin(3.0, is_replaceable=True)
    assert not any(rounds.answered(each, RoundAnswer(replaceable, 0), 0) for each in "bc")
    assert not rounds.answered("b", RoundAnswer(second, 0), 0), "a late answer"
    assert not rounds.learned("c", 5)
    assert {rounds.heard_since(each) for each in "bc"} == {float("-inf")}
    again = rounds.begin(4.0, is_replaceable=False)
    assert rounds.answered("b", RoundAnswer(again, 0), 0)
    assert rounds.heard_since("b") == 4.0
