"""The end of a transaction in a log, as Kafka's control batches say it."""

from __future__ import annotations

from typing import NamedTuple


class Marker(NamedTuple):
    """The end of a transaction in a log."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
