"""Whether a wall clock is right, judged by those of the other brokers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dafka.broker.core.metadata.wall_clocks import DIFFERENCE_MS_MAX, WallClocks


def test_a_clock_is_right_if_half_of_the_others_agree_and_wrong_if_most_do_not() -> None:
    for ahead, is_right, is_wrong in [
        ({}, False, False),
        ({"b": 0}, True, False),
        ({"b": -DIFFERENCE_MS_MAX, "c": DIFFERENCE_MS_MAX + 1}, True, False),
        ({"b": DIFFERENCE_MS_MAX + 1, "c": -DIFFERENCE_MS_MAX - 1}, False, True),
    ]:
        clocks = WallClocks()
        for name, each in ahead.items():
            clocks.record(name, 10**12 + each, 5)
        found = [
            (clocks.is_right(10**12 + passed, 5 + passed, "bc"), clocks.is_wrong(10**12 + passed, 5 + passed, "bc"))
            for passed in (0, 10**9)
        ]
        assert found == [(is_right, is_wrong)] * 2
        assert clocks.is_right(0, 0, ())
        assert not clocks.is_wrong(0, 0, ())


@given(st.integers(-(10**8), 10**8), st.lists(st.integers(-(10**8), 10**8), max_size=4))
def test_the_time_is_that_of_this_broker_unless_most_clocks_are_far_from_its_own(
    own: int, differences: list[int]
) -> None:
    clocks = WallClocks()
    for name, each in zip("bcde", differences, strict=False):
        clocks.record(name, 10**12 + own + each, 5)
    near = [each for each in (0, *differences) if abs(each) <= DIFFERENCE_MS_MAX]
    corrected = clocks.correct(10**12 + own + 100, 105, "bcde") - (10**12 + own + 100)
    if 2 * len(near) >= 1 + len(differences):
        assert corrected == 0
    else:
        assert sum(each <= corrected for each in differences) >= len(differences) / 2
        assert sum(each >= corrected for each in differences) >= len(differences) / 2
        assert corrected in differences
