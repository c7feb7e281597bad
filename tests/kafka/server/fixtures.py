"""A tower and a broker in a thread of their own, for clients that know nothing of trio."""

from __future__ import annotations

from contextlib import AbstractContextManager

from dafka import Config
from dafka.testing import RunningKafka, kafka

RunningBroker = RunningKafka


def run_broker(storage: str, config: Config | None = None, port: int = 0) -> AbstractContextManager[RunningKafka]:
    """Run a tower and a broker during the block."""
    return kafka(storage, config, port=port)
