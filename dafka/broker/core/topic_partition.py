"""The names of logs."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One log of a topic, which Kafka calls a partition."""

    topic: str
    partition: int
