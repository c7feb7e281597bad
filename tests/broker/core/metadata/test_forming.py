"""Brokers that start together form one cluster. Later brokers join it."""

from __future__ import annotations

from itertools import combinations

import attrs
import pytest

from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.forming import Form, Join, Refuse, Wait, choose_step

NEW = [BrokerRegistration(address=each, initial_brokers=3) for each in "abcd"]


def member(address: str, cluster: str, *, is_open: bool = True, founder: str = "a") -> BrokerRegistration:
    return BrokerRegistration(address=address, cluster_id=cluster, first_voters=(founder,), is_open=is_open)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_one_of_the_brokers_that_see_each_other_forms_a_cluster(count: int) -> None:
    for wanted in (1, 3):
        for group in combinations([attrs.evolve(each, initial_brokers=wanted) for each in NEW], count):
            steps = [choose_step(own, [each for each in group if each is not own]) for own in group]
            if count < wanted:
                assert steps == [Wait(f"it waits for {3 - count} of 3 brokers to form a cluster")] * count
            else:
                waiting = Wait(f"it waits for the broker {group[0].address} to form a cluster")
                assert steps == [Form(), *[waiting] * (count - 1)]


def test_a_broker_joins_the_cluster_that_it_sees_and_forms_none() -> None:
    own = NEW[0]
    assert choose_step(own, [NEW[1], member("c", "C1")]) == Join("C1", ("a",))
    assert choose_step(own, [member("c", "C1"), member("d", "C2", is_open=False)]) == Join("C1", ("a",))
    forming = [member("d", "C1", is_open=False, founder="d"), member("b", "C2", is_open=False, founder="b")]
    assert choose_step(own, forming) == Join("C2", ("b",)), "that of the smallest founder"


def test_an_operator_decides_between_clusters() -> None:
    seen = [member("c", "C1"), member("d", "C2"), member("e", "C3", is_open=False, founder="e")]
    assert choose_step(NEW[0], seen) == Refuse("there are several clusters, C1 and C2: choose one with --cluster")
    assert choose_step(NEW[0], seen, "C2") == Join("C2", ("a",))
    assert choose_step(NEW[0], seen, "C3") == Join("C3", ("e",))
    for brokers, waited_s in ((seen, 0.0), ((), 0.0), (seen, 2.9), ((), 60.0), (NEW[1:], 60.0)):
        assert choose_step(NEW[0], brokers, "C4", waited_s) == Wait("it waits for a broker of the cluster C4")
    missed = "no broker of the cluster C4 is seen, but brokers of C1 and C2 and C3: choose one with --cluster"
    assert choose_step(NEW[0], seen, "C4", 3.0) == Refuse(missed)


def test_brokers_that_want_different_numbers_of_brokers_form_no_cluster() -> None:
    found = choose_step(NEW[0], [attrs.evolve(NEW[1], initial_brokers=5), NEW[2]], waited_s=0.9)
    assert isinstance(found, Refuse)
    assert "different numbers of initial brokers, 3 and 5" in found.reason
    assert choose_step(NEW[0], [attrs.evolve(NEW[1], initial_brokers=5)], waited_s=1.0) == Wait(found.reason)
