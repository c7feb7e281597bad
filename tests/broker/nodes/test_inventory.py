"""Sizes are measured once for all who ask, and not all the time."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.inventory import REUSED_FACTOR, SLOW_S, Inventory

WATCHES = 20


class SlowStorage:
    """A storage that takes long to say what it has."""

    def __init__(self, takes_s: float) -> None:
        self.measured = 0
        self._takes_s = takes_s

    async def partitions(self, _topic: str | None = None) -> dict[Any, Any]:
        self.measured += 1
        await trio.sleep(self._takes_s)
        return {}


@pytest.mark.parametrize("takes_s", [2 * SLOW_S, 1.0])
async def test_watches_of_sizes_share_measurements(autojump_clock: trio.testing.MockClock, takes_s: float) -> None:
    storage: Any = SlowStorage(takes_s)
    inventory, watched_s = Inventory(None, storage, None, ClusterState()), 200 * takes_s  # type: ignore[arg-type]

    async def watch() -> None:
        while True:
            await inventory.stored_topics()
            await trio.sleep(takes_s)

    async with trio.open_nursery() as nursery:
        for _ in range(WATCHES):
            nursery.start_soon(watch)
        await trio.sleep(watched_s)
        nursery.cancel_scope.cancel()
    assert 1 < storage.measured <= watched_s / (REUSED_FACTOR * takes_s) + 1


async def test_what_is_measured_at_once_is_new(autojump_clock: trio.testing.MockClock) -> None:
    storage: Any = SlowStorage(SLOW_S / 10)
    inventory = Inventory(None, storage, None, ClusterState())  # type: ignore[arg-type]
    for number in range(5):
        await inventory.stored_topics()
        assert storage.measured == number + 1


async def test_who_is_cancelled_leaves_the_measurement_to_the_next(autojump_clock: trio.testing.MockClock) -> None:
    storage: Any = SlowStorage(1.0)
    inventory = Inventory(None, storage, None, ClusterState())  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.5):
            await inventory.stored_topics()
        nursery.start_soon(inventory.stored_topics)
    assert storage.measured == 2
