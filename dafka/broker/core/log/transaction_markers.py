"""The transaction markers of Kafka's control batches."""

from __future__ import annotations

from typing import NamedTuple


class Marker(NamedTuple):
    """A transaction marker in a log."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
