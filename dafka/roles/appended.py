"""Records that a client has appended to a log, until they are durable."""

from __future__ import annotations

import attrs
import trio

from dafka.errors import NotLeaderError, TopicDeletedError
from dafka.protocol.logs.log_state import OWN, LogState
from dafka.roles.log_watchers import LogWatchers


@attrs.frozen(eq=False)
class Appended:
    """Records that a client has appended.

    Attributes:
        watchers: Those who wait for the broker's logs to get further.
        log: The log.
        first_sequence: The sequence of the first record in the broker's own partition of the log.
        count: The number of records.
        epoch: The leader epoch of the log.
        durable: Set when they are durable here.
    """

    watchers: LogWatchers
    log: LogState
    first_sequence: int
    count: int
    epoch: int
    durable: trio.Event

    async def wait_offset(self, *, all_replicas: bool = True) -> int:
        """Wait until the records are durable, and return the offset of the first one.

        Args:
            all_replicas: Whether as many replicas must hold the records as the log's `availability` asks for. Without,
                this broker is enough.

        Returns:
            The offset; -1 if the records were deleted meanwhile.

        Raises:
            TopicDeletedError: The topic was deleted meanwhile.
            NotLeaderError: Another broker leads the log now, which may have the records or not.
        """
        log = self.log
        while log.is_replicated and not self.durable.is_set():
            with self.watchers.watching([log]) as advanced:
                self._check_log()  # a broker that cannot write leads no more where others can
                await advanced.wait()
        await self.durable.wait()
        offset = self.find_offset()
        if not log.is_replicated or not all_replicas or offset is None:
            return -1 if offset is None else offset
        while log.high_watermark < offset + self.count:
            with self.watchers.watching([log]) as advanced:
                await advanced.wait()
            self.find_offset()
        return offset

    def find_offset(self) -> int | None:
        """Return the offset of the first record; None if it has none. Raises what `wait_offset` raises."""
        self._check_log()
        return self.log.index.find(OWN, self.first_sequence)

    def _check_log(self) -> None:
        log = self.log
        if log.is_gone:
            raise TopicDeletedError(log.topic)
        if log.is_replicated and (log.leadership.epoch != self.epoch or not log.leadership.is_led):
            raise NotLeaderError(f"another broker leads the log {log.number} of {log.topic}", log.leadership.leader)
