"""The addresses of the partitions that a leader writes for a log."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import NamedTuple

INDEX_TOPIC = "$logs"
"""The topic of the indexes of logs. It has a partition for each leader epoch of a log."""


class EpochAddress(NamedTuple):
    """The address of the two partitions of a leader epoch of a log.

    They are its index, and the records that its leader's clients append.
    """

    leader: str
    topic_id: str
    log: int
    epoch: int = 0

    @property
    def log_name(self) -> str:
        """The name of the log among all logs of the cluster."""
        return name_log(self.topic_id, self.log)

    def __str__(self) -> str:
        first = f"{self.leader}/{self.topic_id}/{self.log}"
        return f"{first}/{self.epoch}" if self.epoch else first


def name_log(topic_id: str, log: int) -> str:
    """Return the name of a log among all logs of a cluster."""
    return f"{topic_id}/{log}"


@lru_cache(maxsize=2**15)
def parse_address(address: str) -> EpochAddress | None:
    """Parse the address of a partition; None if no broker has written the partition for a log."""
    parts = address.split("/")
    if len(parts) not in (3, 4) or not all(each.isascii() and each.isdigit() for each in parts[2:]):
        return None
    leader, topic_id = map(sys.intern, parts[:2])  # thousands of partitions have the same
    return EpochAddress(leader, topic_id, int(parts[2]), int(parts[3]) if len(parts) == 4 else 0)
