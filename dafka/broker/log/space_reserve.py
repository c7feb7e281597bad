"""Keeps a part of the disk free for what the cluster needs, so that a full cluster can still delete topics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import attrs
import trio

from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.protocol.actions import Action
from dafka.storage.disk_space import measure_disk

_LOGGER = logging.getLogger("dafka.broker")

CHECK_S = 0.2
"""Seconds between two measurements of the disk."""

AGAIN_FACTOR = 1.1
"""How many times the reserve must be free until records are taken again, so that this does not change all the time."""


@attrs.define(eq=False, slots=False)
class SpaceReserve:
    """The reserve of one broker: below it, the broker takes no records of clients, and copies none from others.

    `act` executes the actions of the machine.
    """

    _machine: BrokerMachine
    _act: Callable[[Iterable[Action]], None]
    _storage: BrokerStorage
    _url: str
    _reserve_bytes: int

    async def run(self) -> None:
        """Measure the disk until cancelled; without a reserve, or a disk, do nothing."""
        while self._reserve_bytes and (found := measure_disk(self._url)) is not None:
            self._check(found.free)
            await trio.sleep(CHECK_S)

    def _check(self, free_bytes: int) -> None:
        was_low = bool(self._storage.space_problem)
        is_low = free_bytes < self._reserve_bytes * (AGAIN_FACTOR if was_low else 1)
        if is_low == was_low:
            return
        reserve = f"{self._reserve_bytes / 2**20:,.0f} MiB"
        problem = f"less than {reserve} of the disk are free ([broker] reserve_bytes): delete topics or add space"
        self._storage.space_problem = problem if is_low else ""
        if is_low:
            _LOGGER.warning("no records of clients are stored: %s", problem)
        else:
            _LOGGER.warning("records of clients are stored again: more than %s of the disk are free", reserve)
        self._act(self._machine.hold_client_data(trio.current_time(), is_held=is_low))
