"""Reads logs that other brokers lead. Clients that wait for the same records share one read."""

from __future__ import annotations

from collections import OrderedDict

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.http.forwarding.broker_client import BrokerError
from dafka.http.forwarding.leaders import RETRIED, RETRY_S, Leaders, StartSoon
from dafka.http.logs.log_access import ReadRecords
from dafka.http.server.errors import WebError, topic_not_found

KEPT_S = 10.0
"""How long a read without waiting tasks continues, and how long an ended read is kept."""

KEPT_BYTES = 2**25
"""The maximum size of all ended reads that are kept."""


@attrs.define(eq=False)
class RemoteRead:
    """A read that waits until there are records.

    `ended` is set when there are records, the leader changes (then `records` is None), or the read fails.
    """

    log: Log
    offset: int
    ended: trio.Event = attrs.field(factory=trio.Event)
    records: ReadRecords | None = None
    error: WebError | None = None
    waiting: int = 0
    """The number of waiting tasks."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Cancelled when the read is no longer needed."""
    used_at: float = attrs.field(factory=trio.current_time)
    """When it was last requested, by Trio's clock."""

    async def wait(self) -> None:
        """Wait until the read has ended. Raises `WebError` if it failed."""
        self.waiting += 1
        try:
            await self.ended.wait()
        finally:
            self.waiting -= 1
            self.used_at = trio.current_time()
        if self.error is not None:
            raise self.error

    @property
    def size(self) -> int:
        """The size of the records, in bytes."""
        return 0 if self.records is None else 200 + sum(len(data) for _, data in self.records.batches)


class RemoteReads:
    """The reads of logs that other brokers lead."""

    def __init__(self, leaders: Leaders, start_soon: StartSoon) -> None:
        self._leaders = leaders
        self._start_soon = start_soon
        self._reads: OrderedDict[tuple[Log, int], RemoteRead] = OrderedDict()

    async def run(self) -> None:
        """Drop unused reads until cancelled."""
        while True:
            await trio.sleep(KEPT_S / 2)
            self._drop_unused(trio.current_time() - KEPT_S)

    def has_records(self, log: Log, offset: int) -> bool:
        """Return whether records from an offset on have arrived."""
        found = self._reads.get((log, offset))
        return found is not None and found.records is not None

    def begin(self, log: Log, offset: int) -> RemoteRead:
        """Return a read of a log from an offset on; join one in progress."""
        found = self._reads.get((log, offset))
        if found is None:
            found = self._reads[log, offset] = RemoteRead(log, offset)
            self._start_soon(self._run, found)
        else:
            found.used_at = trio.current_time()
            self._reads.move_to_end((log, offset))
        return found

    async def _run(self, read: RemoteRead) -> None:
        with read.scope:
            try:
                read.records = await self._read(read)
            except WebError as error:
                read.error = error
        if read.records is None:
            self._forget(read)
        read.ended.set()
        self._drop_oldest()

    async def _read(self, read: RemoteRead) -> ReadRecords | None:
        """Wait for records and return them; None if the leader epoch has changed."""
        log = read.log
        begun = (log.leadership.leader, log.leadership.epoch)
        while not log.leadership.is_led and (log.leadership.leader, log.leadership.epoch) == begun:
            if log.is_gone:
                raise topic_not_found(log.topic)
            try:
                found = await self._leaders.retry_on_leader_change(
                    log, lambda link: link.read(log.topic, log.number, read.offset), float("inf")
                )
                if found:
                    return found[0]
            except BrokerError:
                pass  # retry
            except WebError as error:
                if error.code not in RETRIED:
                    raise
            await self._leaders.wait_leader_change(log, RETRY_S)
        return None

    def _forget(self, read: RemoteRead) -> None:
        if self._reads.get((read.log, read.offset)) is read:
            del self._reads[read.log, read.offset]

    def _drop_unused(self, before: float) -> None:
        for read in [each for each in self._reads.values() if not each.waiting and each.used_at < before]:
            self._forget(read)
            read.scope.cancel()

    def _drop_oldest(self) -> None:
        left = KEPT_BYTES - sum(each.size for each in self._reads.values())
        for read in [each for each in self._reads.values() if each.ended.is_set() and not each.waiting]:
            if left >= 0:
                return
            left += read.size
            self._forget(read)
