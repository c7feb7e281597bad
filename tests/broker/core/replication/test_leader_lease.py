"""Leases: since when other brokers are known to hear a leader, and to have voted for nobody else before."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.broker.core.replication.leader_lease import ROUNDS_MAX, LeaseRounds, RoundAnswer

NEVER = float("-inf")
FIRST = 100


class Begin(NamedTuple):
    can_write: bool


class Answer(NamedTuple):
    broker: str
    rounds_ago: int
    control_ahead: int  # how many control records of the broker were not known here when it answered


class Learn(NamedTuple):
    broker: str
    records: int


STEPS = st.one_of(
    st.builds(Begin, st.sampled_from([True, True, True, False])),
    st.builds(Answer, st.sampled_from("bc"), st.integers(-1, 3), st.integers(-1, 1)),
    st.builds(Learn, st.sampled_from("bc"), st.integers(0, 2)),
)


@settings(max_examples=60)
@given(st.lists(STEPS, min_size=10, max_size=30))
def test_a_broker_is_heard_since_the_last_round_began_that_it_has_answered_and_whose_answer_is_known(
    steps: list[Begin | Answer | Learn],
) -> None:
    """Times count from when a round began, never from when its answer came."""
    rounds = LeaseRounds(FIRST)
    begun: list[tuple[float, bool]] = []
    known: defaultdict[str, int] = defaultdict(int)
    heard: defaultdict[str, float] = defaultdict(lambda: NEVER)
    waiting: dict[str, tuple[int, int]] = {}

    def counts(broker: str, number: int, control_end: int) -> bool:
        last = max((each for each in range(len(begun)) if turned_unwritable(each)), default=0)
        is_valid = last <= number < len(begun)
        if is_valid and known[broker] < control_end:
            waiting[broker] = number, control_end
            return False
        if is_valid:
            heard[broker] = max(heard[broker], begun[number][0])
        return is_valid

    def turned_unwritable(number: int) -> bool:
        return not begun[number][1] and (number == 0 or begun[number - 1][1])

    for now, step in enumerate(steps):
        if isinstance(step, Begin):
            assert rounds.begin(float(now), can_write=step.can_write) == FIRST + len(begun)
            begun.append((float(now), step.can_write))
            if turned_unwritable(-1 + len(begun)):
                heard.clear()
                waiting.clear()
        elif isinstance(step, Answer):
            number = len(begun) - 1 - step.rounds_ago
            end = max(known[step.broker] + step.control_ahead, 0)
            found = rounds.answered(step.broker, RoundAnswer(FIRST + number, end), known[step.broker])
            assert found == counts(step.broker, number, end)
        else:
            known[step.broker] += step.records
            before = waiting.pop(step.broker, None)
            expected = before is not None and counts(step.broker, *before)
            assert rounds.learned(step.broker, known[step.broker]) == expected
        assert [rounds.heard_since(each) for each in "bcd"] == [heard["b"], heard["c"], NEVER]


def test_only_answers_to_the_last_rounds_count() -> None:
    rounds = LeaseRounds(FIRST)
    for number in range(ROUNDS_MAX + 1):
        rounds.begin(float(number), can_write=True)
    assert not rounds.answered("b", RoundAnswer(FIRST, 0), 0)
    assert rounds.answered("b", RoundAnswer(FIRST + 1, 0), 0)
    assert rounds.heard_since("b") == 1.0
