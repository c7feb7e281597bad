"""Observers for asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dafka import roles
from dafka.asyncio.node import Node, Opening
from dafka.config import Config
from dafka.protocol import ClusterSurvey


class Observer(Node[roles.Observer]):
    """Looks at a cluster without taking part in it. `open_observer` creates one."""

    async def survey(self, timeout_s: float) -> ClusterSurvey:
        """Ask every store how much it holds, and wait until all have answered; see `dafka.Observer.survey`."""
        return await self._wait(partial(self._role.survey, timeout_s))

    async def list_topics(self, timeout_s: float) -> tuple[str, ...]:
        """Return the topics that stores hold, or that running producers and consumers use, in alphabetical order."""
        return await self._wait(partial(self._role.list_topics, timeout_s))


def open_observer(topics: Iterable[str] = (), config: Config | None = None) -> Opening[Observer]:
    """Open an observer; see `dafka.open_observer`, whose arguments and exceptions it has.

    `async with` or `await` opens the observer. Leaving the block, or `aclose`, closes it.
    """
    return Opening(Observer, partial(roles.open_observer, topics, config))
