"""Sends the heads of all partitions to the other stores, a few at a time, repeatedly.

Stores exchange their heads when they connect, and when a producer leaves. That is not enough: discovery can lose and
find a node again while its connection lasts, a full queue drops messages, and a store may never hear a producer that
another store hears. Therefore each store also walks through its partitions as long as it runs. One walk takes at most
about `WALK_S`, however many partitions there are, and a round sends few heads. A head that a store already knows costs
it one lookup.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from dafka.protocol.polling import jittered
from dafka.records import Partition

ROUND_S = 10.0
"""Seconds between two rounds, on average, unless there are very many partitions."""

WALK_S = 600.0
"""Seconds in which the heads of all partitions are sent."""

PARTITIONS_MAX = 100
"""Partitions of one round: a millisecond of work for each store."""

HEADS_MAX = 1000
"""Heads sent in one round to all stores together; fewer partitions take part if there are very many stores."""


class HeadRounds:
    """Chooses the partitions of each round, and when the next round is due.

    Args:
        address: The address of the store. Different stores have their rounds at different times.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._walk: deque[Partition] = deque()
        self._round = 0
        self._due = float("inf")

    def schedule(self, now: float) -> None:
        """Schedule the first round, if none is scheduled."""
        if self._due == float("inf"):
            self._due = now + jittered(ROUND_S, self._address, self._round)

    def take_due(self, now: float, partitions: Collection[Partition], stores: int) -> list[Partition]:
        """Return the partitions whose heads to send now.

        Args:
            now: The time in seconds.
            partitions: All partitions. They may have changed since the last call.
            stores: The number of other stores. If it is 0, the rounds stop until `schedule`.

        Returns:
            The partitions of this round; none if no round is due. Some may have been removed.
        """
        if now < self._due:
            return []
        if not stores:
            self._due = float("inf")
            return []
        if not self._walk:
            self._walk.extend(partitions)
        count = min(PARTITIONS_MAX, max(HEADS_MAX // stores, 1))
        self._round += 1
        pause_s = min(ROUND_S, WALK_S * count / max(len(partitions), 1))
        self._due = now + jittered(pause_s, self._address, self._round)
        return [self._walk.popleft() for _ in range(min(count, len(self._walk)))]

    def deadline(self) -> float:
        """Return when the next round is due."""
        return self._due
