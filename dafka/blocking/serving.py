"""Stores and towers for plain threads."""

from __future__ import annotations

from functools import partial

from dafka import roles
from dafka.blocking.node import Hosted, Node
from dafka.clients.serving import run_store, run_tower
from dafka.config import Config
from dafka.roles import Health, StoreStatistics, TowerStatistics


class Store(Node[roles.Store]):
    """A running store, started by `serve_store`."""

    def statistics(self) -> StoreStatistics:
        """Return the counters so far, and the lag."""
        return self._ask(self._role.statistics)


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

    def statistics(self) -> TowerStatistics:
        """Return the counters so far."""
        return self._ask(self._role.statistics)

    def health(self) -> Health:
        """Return the tower's health."""
        return self._ask(self._role.health)

    def discarded(self) -> dict[str, int]:
        """Return the number of discarded beacons and subscriptions and of ended connections, by reason."""
        return self._ask(self._role.discarded)


def serve_store(config: Config | None = None) -> Store:
    """Run a store in the background; see `dafka.serve_store`, whose argument and exceptions it has.

    The store is open. Leaving its `with` block, or `close`, ends it when it has written all that it has received.
    """
    return Store(partial(run_store, config))


def serve_tower(config: Config | None = None) -> Tower:
    """Run a tower in the background; see `dafka.serve_tower`, whose argument and exceptions it has.

    The tower is open. Leaving its `with` block, or `close`, ends it.
    """
    return Tower(partial(run_tower, config))
