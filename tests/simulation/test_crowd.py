"""The crowd: what many nodes that start at once need, counted in the simulation."""

import pytest

from tests.simulation.crowd import Crowd


def test_every_first_record_of_a_crowd_is_stored() -> None:
    report = Crowd(20).measure()
    assert (report.stored, report.stored_s is not None) == (20, True)
    assert report.joining["tower"] >= 1
    assert report.idle["producer"] > 0


def test_fewer_cores_take_a_crowd_longer() -> None:
    slow, fast = (Crowd(20, cores, message_s=0.001).measure() for cores in (1, 100))
    assert slow.stored_s is not None
    assert fast.stored_s is not None
    assert slow.stored_s >= 2 * fast.stored_s


@pytest.mark.parametrize(
    "producers", [10, *(pytest.param(number, marks=pytest.mark.long) for number in (100, 300, 1000))]
)
def test_connections_and_messages_are_in_proportion_to_the_crowd(producers: int) -> None:
    assert list(Crowd(producers).measure().excesses()) == []
