"""The simulation of groups notices mistakes: each planted one shows at a known seed."""

from __future__ import annotations

import pytest

from tests.groups.planted import PLANTED, Planted


@pytest.mark.parametrize("mistake", PLANTED.values(), ids=PLANTED.keys())
def test_the_simulation_finds_a_planted_mistake(mistake: Planted) -> None:
    assert any(mistake.is_found(seed) for seed in mistake.seeds)
