"""Delays published records for a short time, so that they form larger batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import trio

from dafka import wire
from dafka.batches import ENCODED_BYTES_MAX
from dafka.records import RecordBatch, join

LINGER_RECORDS_MAX = 4096
"""The maximum number of delayed records."""


class Linger:
    """The published records of a producer that wait for others. The first of them waits at most for `linger_s`."""

    def __init__(self, linger_s: float, send: Callable[[Sequence[wire.BatchedMessage]], None]) -> None:
        self._linger_s = linger_s
        self._send = send
        self._waiting: list[RecordBatch] = []
        self._records = 0
        self._bytes = 0
        self._deadline = math.inf
        self._changed = trio.Event()

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        """Send messages, but delay records. The order of everything published is kept."""
        if not self._linger_s:
            self._send(messages)
            return
        for message in messages:
            if isinstance(message, wire.RecordRun) and message.requestor is None:
                self._hold(message.batch)
            else:
                self.flush()
                self._send([message])

    def flush(self) -> None:
        """Send the waiting records."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._records = self._bytes = 0
            self._deadline = math.inf
            self._send([wire.RecordRun(join(waiting))])

    async def run(self) -> None:
        """Send records when they have waited long enough; when cancelled, send the rest."""
        try:
            while True:
                with trio.CancelScope(deadline=self._deadline):
                    await self._changed.wait()
                self._changed = trio.Event()
                if trio.current_time() >= self._deadline:
                    self.flush()
        finally:
            self.flush()

    def _hold(self, batch: RecordBatch) -> None:
        if not self._waiting:
            self._deadline = trio.current_time() + self._linger_s
            self._changed.set()
        self._waiting.append(batch)
        self._records += len(batch)
        self._bytes += batch.content_bytes
        if self._records >= LINGER_RECORDS_MAX or self._bytes >= ENCODED_BYTES_MAX:
            self.flush()
