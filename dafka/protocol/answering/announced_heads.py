"""The heads that a store sends without being asked.

`HeadRounds` sends the heads of all partitions to the other stores. `OrphanHeads` announces partitions whose producers
have left to nodes of libdafka.
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

ORPHAN_PAUSE_S = 2.0
"""Seconds until a partition without a producer is announced. libdafka's nodes repeat no FETCH within a second."""

ORPHAN_INTERVAL_S = 1.0
"""Seconds between two rounds of these announcements."""

ORPHAN_HEADS_MAX = 20
"""Partitions announced in one of these rounds, so that nodes that do not follow them discard few messages."""

ORPHANS_MAX = 10_000
"""The maximum number of partitions that wait to be announced. Others are announced when their heads are exchanged
again."""


class HeadRounds:
    """Chooses the partitions whose heads a store sends to the other stores, a few at a time, repeatedly.

    Stores exchange their heads when they connect, and when a producer leaves. That is not enough: discovery can lose
    and find a node again while its connection lasts, a full queue drops messages, and a store may never hear a producer
    that another store hears. Therefore each store also walks through its partitions as long as it runs. One walk takes
    at most about `WALK_S`, however many partitions there are, and a round sends few heads. A head that a store already
    knows costs it one lookup. Stores of different addresses have their rounds at different times.
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
        """Return the partitions of this round, some of which may have been removed; none if no round is due.

        If the number of other stores is 0, the rounds stop until `schedule`.
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


class OrphanHeads:
    """The partitions whose heads a store announces instead of their producers, for nodes of libdafka (erratum 32).

    A libdafka store learns of records only from the producer's HEADs and RECORDs. If it has not received everything
    when the producer leaves, it never asks for the rest. A libdafka node also asks for one page of records, and for the
    next one only when another HEAD comes (erratum 17). Nodes of this project do not need this: they take DIRECT-HEADs,
    and ask page by page.
    """

    def __init__(self) -> None:
        self._due: dict[Partition, float] = {}
        self._next_round = 0.0

    def schedule(self, partition: Partition, now: float) -> None:
        """Announce a partition soon, once."""
        if len(self._due) < ORPHANS_MAX:
            self._due.setdefault(partition, now + ORPHAN_PAUSE_S)

    def take_due(self, now: float) -> list[Partition]:
        """Return the partitions to announce now."""
        due: list[Partition] = []
        if now < self._next_round:
            return due
        for partition, time in self._due.items():  # in the order of their times
            if time > now or len(due) >= ORPHAN_HEADS_MAX:
                break
            due.append(partition)
        for partition in due:
            del self._due[partition]
        if due:
            self._next_round = now + ORPHAN_INTERVAL_S
        return due

    def deadline(self) -> float:
        """Return when `take_due` next returns something."""
        return max(next(iter(self._due.values()), float("inf")), self._next_round)
