from collections.abc import Callable

import pytest

from tests.broker.core.coordination.model.events import ViolationError
from tests.broker.core.coordination.model.planted import PLANTED, World

SEEDS = 100
"""Seeds after which each planted bug must have been noticed."""


def run_seeds(world: World) -> None:
    for seed in range(SEEDS):
        world(seed).run()


@pytest.mark.parametrize(("world", "plant"), PLANTED, ids=lambda each: each.__name__)
def test_planted_bug_is_noticed(
    world: World, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(ViolationError):
        run_seeds(world)
