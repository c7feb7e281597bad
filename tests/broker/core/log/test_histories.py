"""Histories of a log over its index, producers and transactions, compared with a list after every step."""

from __future__ import annotations

import pytest

from dafka.storage import open_storage
from tests.broker.log.history import draw_operations, find_failure, play_on


@pytest.mark.parametrize("first", range(1000, 1024, 6))
def test_a_log_restores_rewrites_and_truncates_its_index_without_a_difference(first: int) -> None:
    for seed in range(first, first + 6):
        failure = find_failure(draw_operations(seed, 40), play_on(lambda: open_storage("memory:"), seed))
        assert not failure, f"seed {seed}: {failure}"
