"""Stores and towers for asyncio."""

from __future__ import annotations

from functools import partial

from dafka import roles
from dafka.asyncio.node import Hosted, Node, Opening
from dafka.clients.serving import run_store, run_tower
from dafka.config import Config
from dafka.roles import Health, StoreStatistics, TowerStatistics


class Store(Node[roles.Store]):
    """A running store, started by `serve_store`."""

    async def statistics(self) -> StoreStatistics:
        """Return the counters so far, and the lag."""
        return await self._ask(self._role.statistics)


class Tower(Hosted[roles.Tower]):
    """A running tower, started by `serve_tower`."""

    @property
    def sub_endpoint(self) -> str:
        """The endpoint that nodes send their beacons to."""
        return self._role.sub_endpoint

    @property
    def pub_endpoint(self) -> str:
        """The endpoint that publishes the beacons of all nodes."""
        return self._role.pub_endpoint

    async def statistics(self) -> TowerStatistics:
        """Return the counters so far."""
        return await self._ask(self._role.statistics)

    async def health(self) -> Health:
        """Return the tower's health."""
        return await self._ask(self._role.health)

    async def discarded(self) -> dict[str, int]:
        """Return the number of discarded beacons and subscriptions and of ended connections, by reason."""
        return await self._ask(self._role.discarded)


def serve_store(config: Config | None = None) -> Opening[Store]:
    """Run a store in the background; see `dafka.serve_store`, whose argument and exceptions it has.

    `async with` or `await` opens the store. Leaving the block, or `aclose`, ends it when it has written all that it has
    received.
    """
    return Opening(Store, partial(run_store, config))


def serve_tower(config: Config | None = None) -> Opening[Tower]:
    """Run a tower in the background; see `dafka.serve_tower`, whose argument and exceptions it has.

    `async with` or `await` opens the tower. Leaving the block, or `aclose`, ends it.
    """
    return Opening(Tower, partial(run_tower, config))
