"""The addresses of the partitions that a broker writes for a log."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

INDEX_TOPIC = "$logs"
"""Where the indexes of logs are kept, a partition for each branch of a log."""


class BranchAddress(NamedTuple):
    """The address of the two partitions that the leader of a branch writes: its index, and records of its clients.

    Attributes:
        leader: The address of the broker.
        topic_id: The topic's id.
        log: The number of the log.
        epoch: The leader epoch of the branch.
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
def parse_address(address: str) -> BranchAddress | None:
    """Return what the address of a partition says; None if no broker has written the partition for a log."""
    parts = address.split("/")
    if len(parts) not in (3, 4) or not all(each.isascii() and each.isdigit() for each in parts[2:]):
        return None
    return BranchAddress(parts[0], parts[1], int(parts[2]), int(parts[3]) if len(parts) == 4 else 0)
