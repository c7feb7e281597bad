"""Where logs are put, and who leads them."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dafka.broker.core.metadata.replica_placement import BrokerSpace, choose_replicas
from dafka.protocol.rendezvous import rank_nodes

BROKERS = [f"broker-{number}" for number in range(10)]
LOGS = [f"orders/{number}" for number in range(1000)]


def test_logs_are_spread_evenly() -> None:
    leaders = Counter(rank_nodes(log, BROKERS)[0] for log in LOGS)
    assert leaders.keys() == set(BROKERS)
    assert max(leaders.values()) < 2 * min(leaders.values())


def test_a_further_broker_takes_only_its_share() -> None:
    for log in LOGS:
        before, after = rank_nodes(log, BROKERS), rank_nodes(log, [*BROKERS, "further"])
        after.remove("further")
        assert after == before


def test_the_broker_with_most_space_gets_the_replica_among_those_that_keep_the_fewest() -> None:
    brokers = [BrokerSpace(name, number) for number, name in enumerate(BROKERS[:3])]
    assert choose_replicas("log", brokers, 2, {}) == (BROKERS[2], BROKERS[1])
    assert choose_replicas("log", brokers, 2, {BROKERS[1]: 1, BROKERS[2]: 1}) == (BROKERS[0], BROKERS[2])


def test_replicas_are_in_different_racks_while_there_are_any() -> None:
    brokers = [BrokerSpace(name, 1, rack=str(number % 3)) for number, name in enumerate(BROKERS)]
    racks = {each.broker: each.rack for each in brokers}
    for seed in range(100):
        draw = random.Random(seed)
        found = choose_replicas(f"orders/{seed}", brokers, 5, {name: draw.randrange(9) for name in BROKERS})
        assert sorted(Counter(racks[each] for each in found).values()) == [1, 2, 2]


def test_full_brokers_get_no_replicas() -> None:
    brokers = [BrokerSpace(name, 1, takes_replicas=number < 2) for number, name in enumerate(BROKERS)]
    assert set(choose_replicas("log", brokers, 3, {})) == set(BROKERS[:2])


@given(st.integers(0, 12), st.integers(0, 4), st.lists(st.integers(0, 100), min_size=10, max_size=10))
def test_replicas_are_different_brokers_and_former_ones_are_kept(count: int, kept: int, free: list[int]) -> None:
    brokers = [BrokerSpace(name, free_bytes) for name, free_bytes in zip(BROKERS, free, strict=True)]
    loads = dict(zip(BROKERS, free[::-1], strict=True))
    found = choose_replicas("log", brokers, count, loads, BROKERS[:kept])
    assert list(found[:kept]) == BROKERS[:kept]
    assert len(set(found)) == len(found) == max(min(count, len(BROKERS)), kept)
