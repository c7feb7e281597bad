"""Histories of a log, each compared with a list after every step. One that fails is reduced to what it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest

from dafka.records import RecordBatch
from dafka.storage import open_storage
from tests.broker.log.history import draw_operations, find_failure, play_on


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_readers_get_what_a_list_has(first: int) -> None:
    for seed in range(first, first + 5):
        failure = find_failure(draw_operations(seed, 40), play_on(lambda: open_storage("memory:"), seed))
        assert not failure, f"seed {seed}: {failure}"


FILELOG = "filelog:{}/{}?segment_bytes=2000&fsync=never"


@pytest.mark.parametrize(("url", "seed"), [("sqlite:{}/{}.db", 100), *((FILELOG, seed) for seed in (100, 103))])
def test_readers_of_a_storage_that_keeps_record_batches_get_what_a_list_has(
    url: str, seed: int, tmp_path: Path
) -> None:
    numbers = iter(range(1000))
    play = play_on(lambda: open_storage(url.format(tmp_path, next(numbers))), seed)
    failure = find_failure(draw_operations(seed, 40), play)
    assert not failure, failure


@asynccontextmanager
async def open_forgetful(url: str) -> AsyncIterator[Any]:
    """Open a storage that loses every second record batch, and keeps its records."""
    async with open_storage(url) as storage:
        append, numbers = storage.append, count()

        async def lose(batches: Sequence[RecordBatch]) -> None:
            await append([attrs.evolve(each, encoded=()) if next(numbers) % 2 else each for each in batches])

        storage.append = lose  # type: ignore[method-assign]
        yield storage


@pytest.mark.parametrize(("url", "seed"), [(url, seed) for url in ("sqlite:{}/{}.db", FILELOG) for seed in (100, 101)])
def test_records_belong_to_their_transactions_where_their_record_batches_are_lost(
    url: str, seed: int, tmp_path: Path
) -> None:
    """A replica gets records without them from the middle of a batch, or from a replica that has none.

    A file log encodes such records by itself.
    """
    numbers = count()
    play = play_on(lambda: open_forgetful(url.format(tmp_path, next(numbers))), seed)
    failure = find_failure(draw_operations(seed, 40), play)
    assert not failure, failure
