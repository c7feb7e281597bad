"""Simulated groups: kills, freezes and splits, and what must hold in all of them."""

from __future__ import annotations

import os
import random

import pytest

from tests.groups.running import run_seed


@pytest.mark.parametrize("seed", [3, 4, 5, 6, 9, 10])
def test_each_partition_is_handled_by_one_member_and_completely(seed: int) -> None:
    checker = run_seed(seed)
    assert checker.handovers
    assert all(each.handled for each in checker.partitions.values())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_seeds() -> None:
    first = int(os.environ.get("DAFKA_GROUPS_SEED", random.randrange(10**9)))
    for seed in range(first, first + 150):
        try:
            run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"DAFKA_GROUPS_SEED={seed}: {error}") from error
