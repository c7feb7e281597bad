"""A broker that compacts its logs often, except while a test compares what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from dafka import Config
from tests.http.running import SharedWeb, run_web


@attrs.frozen
class CompactingBroker:
    """A broker in a thread of its own. Each pass over a log takes its turn."""

    web: SharedWeb
    _turn: trio.Semaphore = attrs.field(init=False, factory=lambda: trio.Semaphore(1))

    def __attrs_post_init__(self) -> None:
        compaction: Any = self.web.server.broker._compaction
        compact = compaction.compact_log

        async def compact_in_turn(*arguments: Any) -> None:
            async with self._turn:
                await compact(*arguments)

        compaction.compact_log = compact_in_turn

    @property
    def bootstrap_servers(self) -> str:
        return self.web.broker.bootstrap_servers

    @property
    def config(self) -> Config:
        return self.web.config

    @contextmanager
    def compaction_held(self) -> Iterator[None]:
        """Have all logs stay as they are during the block."""
        self.web.call(self._turn.acquire)
        try:
            yield
        finally:
            self.web.call_sync(self._turn.release)


@contextmanager
def run_compacting(storage: str) -> Iterator[CompactingBroker]:
    """Run a broker that looks for logs to compact all the time."""
    with run_web(storage, Config().with_store(compaction_interval_ms=20, compaction_rate_bytes=0)) as web:
        yield CompactingBroker(web)
