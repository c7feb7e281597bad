"""Histories of a log, each compared with a list after every step. One that fails is reduced to what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka.storage import open_storage
from tests.broker.log.history import draw_operations, find_failure, play_on


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_readers_get_what_a_list_has(first: int) -> None:
    for seed in range(first, first + 5):
        failure = find_failure(draw_operations(seed, 40), play_on(lambda: open_storage("memory:"), seed))
        assert not failure, f"seed {seed}: {failure}"


@pytest.mark.parametrize("seed", [100])
def test_readers_of_a_storage_that_keeps_record_batches_get_what_a_list_has(seed: int, tmp_path: Path) -> None:
    numbers = iter(range(1000))
    play = play_on(lambda: open_storage(f"sqlite:{tmp_path}/{next(numbers)}.db"), seed)
    failure = find_failure(draw_operations(seed, 40), play)
    assert not failure, failure
