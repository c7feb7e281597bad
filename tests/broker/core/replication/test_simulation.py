"""Brokers that replicate a log, simulated: thousands of splits and crashes, and what must hold in all of them."""

from __future__ import annotations

import os
import random

import pytest

from dafka.broker.core.replication.settings import Availability
from tests.broker.core.replication.running import run_seed

FIXED_SEEDS = range(25)
DRAWN_SEEDS = 15


@pytest.mark.parametrize("availability", Availability)
@pytest.mark.parametrize("seed", FIXED_SEEDS)
def test_nothing_that_was_promised_is_broken(seed: int, availability: Availability) -> None:
    assert run_seed(seed, availability).acknowledged()


@pytest.mark.parametrize("availability", Availability)
def test_nothing_that_was_promised_is_broken_with_drawn_seeds(availability: Availability) -> None:
    first = int(os.environ.get("DAFKA_REPLICATION_SEED", random.randrange(10**9)))
    for seed in range(first, first + DRAWN_SEEDS):
        try:
            run_seed(seed, availability)
        except AssertionError as error:
            raise AssertionError(f"DAFKA_REPLICATION_SEED={seed}: {error}") from error


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("availability", Availability)
def test_nothing_that_was_promised_is_broken_with_many_seeds(availability: Availability) -> None:
    for seed in range(1000, 3000):
        run_seed(seed, availability)
