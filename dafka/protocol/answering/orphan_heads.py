"""HEADs that a store publishes for producers that have left, for stores and consumers of libdafka.

A libdafka store learns of records only from the producer's HEADs and RECORDs. If it has not received everything when
the producer leaves, it never asks for the rest. A libdafka node also asks for one page of records, and for the next one
only when another HEAD comes (erratum 17). So a store of this project that holds more than such a node announces its
head instead of the producer (erratum 32). Nodes of this project do not need this: they take DIRECT-HEADs, and ask page
by page.
"""

from __future__ import annotations

from dafka.records import Partition

PAUSE_S = 2.0
"""Seconds until a partition is announced. libdafka's nodes repeat no FETCH within a second."""

INTERVAL_S = 1.0
"""Seconds between two rounds of announcements."""

HEADS_MAX = 20
"""Partitions announced in one round, so that nodes that do not follow them discard few messages."""

PARTITIONS_MAX = 10_000
"""The maximum number of partitions that wait to be announced. Others are announced when their heads are exchanged
again."""


class OrphanHeads:
    """The partitions whose heads a store announces instead of their producers."""

    def __init__(self) -> None:
        self._due: dict[Partition, float] = {}
        self._next_round = 0.0

    def schedule(self, partition: Partition, now: float) -> None:
        """Announce a partition soon, once."""
        if len(self._due) < PARTITIONS_MAX:
            self._due.setdefault(partition, now + PAUSE_S)

    def take_due(self, now: float) -> list[Partition]:
        """Return the partitions to announce now."""
        due: list[Partition] = []
        if now < self._next_round:
            return due
        for partition, time in self._due.items():  # in the order of their times
            if time > now or len(due) >= HEADS_MAX:
                break
            due.append(partition)
        for partition in due:
            del self._due[partition]
        if due:
            self._next_round = now + INTERVAL_S
        return due

    def deadline(self) -> float:
        """Return when `take_due` next returns something."""
        return max(next(iter(self._due.values()), float("inf")), self._next_round)
