"""Histories of a log over its index, producers and transactions, compared with a list after every step."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from dafka.storage import open_storage
from tests.broker.log.history import World, draw_operations, find_failure, play_on


@pytest.mark.parametrize("first", range(1000, 1018, 6))
def test_a_log_restores_rewrites_and_truncates_its_index_without_a_difference(first: int) -> None:
    for seed in range(first, first + 6):
        failure = find_failure(draw_operations(seed, 40), play_on(lambda: open_storage("memory:"), seed))
        assert not failure, f"seed {seed}: {failure}"


class RewritingWorld(World):
    """A log whose index is rewritten with each append."""

    rewrite_entries = property(lambda _: -1000, lambda _self, _value: None)


def test_a_log_whose_index_is_always_rewritten_restores_the_same() -> None:
    async def play(seed: int) -> None:
        async with open_storage("memory:") as storage:
            world = RewritingWorld(storage, seed)
            for operation in draw_operations(seed, 40):
                await world.play(operation)
                await world.check()

    for seed in range(8):
        trio.run(play, seed, clock=MockClock(autojump_threshold=0))
