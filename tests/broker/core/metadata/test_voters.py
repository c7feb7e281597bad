"""The brokers that vote on metadata: 1, 3 or 5, never fewer than before, and none that leaves if another can vote."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from dafka.broker.core.metadata.voters import VOTERS, choose_voters

BROKERS = "abcdefgh"
SETS = st.frozensets(st.sampled_from(BROKERS))


@given(st.sampled_from([1, 2, 3, 5]), st.permutations(BROKERS), SETS, SETS)
@example(1, list("abcdefgh"), frozenset("b"), frozenset("a"))
@example(3, list("abcdefgh"), frozenset("bcd"), frozenset("a"))
def test_voters_change_until_they_are_as_many_and_as_good_as_can_be(
    count: int, order: list[str], usable: frozenset[str], leaving: frozenset[str]
) -> None:
    present, usable = tuple(order[:count]), usable - leaving
    controller = present[0]
    for _ in range(6):
        chosen = choose_voters(present, controller, usable, leaving)
        assert len(set(chosen)) == len(chosen)
        assert controller in chosen
        assert len(chosen) >= len(present) or len(present) not in VOTERS
        assert set(chosen) <= {*present, *usable}
        assert len(chosen) in VOTERS or (len(chosen) == 2 and controller in leaving)
        if len(chosen) in VOTERS:
            assert set(chosen) >= set(present) - leaving or len(present) not in VOTERS
        present = chosen
        if controller in leaving and not leaving.issuperset(present):
            controller = next(each for each in present if each not in leaving)  # a voter that stays takes over
    assert choose_voters(present, controller, usable, leaving) == present or len(present) not in VOTERS
    could_vote = usable.union(order[:count]) - leaving
    assert leaving.isdisjoint(present) or len(could_vote) < len(present)
    assert len(present) == max(each for each in VOTERS if each <= max(len(could_vote), min(count, len(present))))
