"""Brokers that replicate a log, simulated: thousands of splits and crashes, and what must hold in all of them."""

from __future__ import annotations

import os
import random

import pytest

from dafka.broker.core.replication.settings import Availability
from tests.broker.core.replication.running import run_seed

FIXED_SEEDS = {Availability.MAJORITY: range(6), Availability.BRANCH: range(4)}
"""Seeds with every kind of world: with leases, transactions, balancing, and logs on some of the brokers."""

DRAWN_SEEDS = 100


@pytest.mark.parametrize(
    ("availability", "seed"), [(each, seed) for each, seeds in FIXED_SEEDS.items() for seed in seeds]
)
def test_nothing_that_was_promised_is_broken(availability: Availability, seed: int) -> None:
    assert run_seed(seed, availability).acknowledged()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("availability", Availability)
def test_nothing_that_was_promised_is_broken_with_many_seeds(availability: Availability) -> None:
    drawn = int(os.environ.get("DAFKA_REPLICATION_SEED", random.randrange(10**9)))
    for seed in (*range(1000, 3000), *range(drawn, drawn + DRAWN_SEEDS)):
        try:
            run_seed(seed, availability)
        except AssertionError as error:
            raise AssertionError(f"DAFKA_REPLICATION_SEED={seed}: {error}") from error
