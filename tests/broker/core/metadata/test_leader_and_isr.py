"""Leader epochs, of which each broker has its own, and the replicas that count for a quorum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dafka.broker.core.metadata.leader_and_isr import EPOCH_STEP, LeaderAndIsr, next_epoch

numbers = st.integers(0, EPOCH_STEP - 1)


@given(st.integers(-1, 10**6), numbers, numbers)
def test_the_next_epoch_is_later_and_no_other_broker_has_it(latest: int, number: int, other: int) -> None:
    found = next_epoch(latest, number)
    assert latest < found <= latest + 2 * EPOCH_STEP
    assert (found % EPOCH_STEP == other) == (number == other)


@given(st.permutations("abc"), st.sets(st.sampled_from("abcd")))
def test_replicas_are_voters_unless_they_learn(replicas: list[str], learners: set[str]) -> None:
    found = LeaderAndIsr("a", replicas=tuple(replicas), learners=tuple(sorted(learners)))
    assert found.voters == tuple(each for each in replicas if each not in learners)
