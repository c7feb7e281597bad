"""Tells the operator what is thrown away: at once when it is for a new reason, else how often, from time to time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from dafka.protocol import MessagesDiscarded
from dafka.roles.log import NodeLog

LOOK_S = 1.0
"""How often the counters are looked at."""

TOLD_S = 60.0
"""A reason that has been told of is told of again at most so often, with a count."""


class Discards:
    """What has been told of so far, by reason. Whoever floods a node fills its counters, and not its log."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def news(self, discarded: Mapping[str, int], now: float) -> list[MessagesDiscarded]:
        """What is to be told, given all that was discarded so far, by reason, and the time in seconds."""
        news = []
        for reason, total in discarded.items():
            told_at, told = self._told.get(reason, (now - TOLD_S, 0))
            if total > told and now - told_at >= TOLD_S:
                self._told[reason] = now, total
                news.append(MessagesDiscarded(reason, total - told, total))
        return news


async def watch_discards(discarded: Callable[[], Mapping[str, int]], log: NodeLog) -> None:
    """Looks at the counters and logs, until cancelled."""
    discards = Discards()
    while True:
        await trio.sleep(LOOK_S)
        for notice in discards.news(discarded(), trio.current_time()):
            log.write(notice)
