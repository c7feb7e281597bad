"""Tells the operator what is thrown away: at once when it is for a new reason, else how often, from time to time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import trio

from dafka.protocol import MessagesDiscarded
from dafka.protocol.token_bucket import TokenBucket
from dafka.roles.log import NodeLog

LOOK_S = 1.0
"""How often the counters are looked at."""

TOLD_S = 60.0
"""A reason that has been told of is told of again at most so often, with a count."""


class Discards:
    """What has been told of so far, by reason. Whoever floods a node fills its counters, and not its log."""

    def __init__(self) -> None:
        self._told: Counter[str] = Counter()
        self._buckets: dict[str, TokenBucket] = {}

    def news(self, discarded: Mapping[str, int], now: float) -> list[MessagesDiscarded]:
        """What is to be told, given all that was discarded so far, by reason, and the time in seconds."""
        news = []
        for reason, total in discarded.items():
            bucket = self._buckets.setdefault(reason, TokenBucket(1 / TOLD_S, 1, now))
            if total > self._told[reason] and bucket.try_take(now):
                news.append(MessagesDiscarded(reason, total - self._told[reason], total))
                self._told[reason] = total
        return news


async def watch_discards(discarded: Callable[[], Mapping[str, int]], log: NodeLog) -> None:
    """Looks at the counters and logs, until cancelled."""
    discards = Discards()
    while True:
        await trio.sleep(LOOK_S)
        for notice in discards.news(discarded(), trio.current_time()):
            log.write(notice)
