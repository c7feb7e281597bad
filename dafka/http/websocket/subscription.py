"""Sends a subscription's records while there is credit and the client reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from dafka.broker.core.log.log import Log
from dafka.http.logs.divergences import DivergenceTracker
from dafka.http.logs.reading import find_logs
from dafka.http.server.errors import topic_not_found
from dafka.http.server.messages import Request
from dafka.http.websocket.binary import encode_records_head
from dafka.http.websocket.connection import Connection
from dafka.http.websocket.messages import BINARY_PROTOCOL, records_head
from dafka.http.websocket.shared_reads import EncodedRecords

REFRESH_S = 5.0
"""How often an idle subscription checks its user's permissions and the topic's number of logs."""

_T = TypeVar("_T")


class Subscription:
    """A subscription. It has no queue: records stay in the log until the client reads them.

    Args:
        identifier: Its id.
        topic: The topic.
        offsets: The offset at which to begin in each log.
        credit: How many records may be sent.
        request: The request of the connection's handshake.
        connection: The connection.
        has_all_logs: Whether it includes logs that are added to the topic later.

    Attributes:
        ended: Set when nothing else will be sent.
        credit: How many records may still be sent; negative after a batch that had more records than there was credit.
    """

    def __init__(
        self,
        identifier: int,
        topic: str,
        offsets: dict[Log, int],
        credit: int,
        request: Request,
        connection: Connection,
        *,
        has_all_logs: bool,
    ) -> None:
        self.ended = trio.Event()
        self.credit = credit
        self._id = identifier
        self._topic = topic
        self._offsets = offsets
        self._request = request
        self._access = request.logs
        self._connection = connection
        self._is_binary = connection.subprotocol == BINARY_PROTOCOL
        self._has_all_logs = has_all_logs
        self._head = records_head(identifier)
        self._has_credit = trio.Event()
        self._waiting = trio.CancelScope()
        self._is_stopping = False
        self._follower = DivergenceTracker(request.broker.node)

    def add_credit(self, records: int) -> None:
        """Allow more records to be sent."""
        self.credit += records
        if self.credit > 0:
            self._has_credit.set()

    def stop(self) -> None:
        """End the subscription after the current message; then `ended` is set."""
        self._is_stopping = True
        self._waiting.cancel()

    async def run(self) -> None:
        """Send records until `stop` is called. Raises `WebError` if that is impossible."""
        try:
            while not self._is_stopping:
                self._request.principal.check_read(self._topic)
                self._find_further_logs()
                if self.credit <= 0:
                    self._has_credit = trio.Event()
                    await self._wait(self._wait_credit)
                    continue
                for log, offset in self._offsets.items():
                    self._offsets[log] = self._follower.check(log, offset)
                ready = [log for log, offset in self._offsets.items() if self._access.has_records(log, offset)]
                if not ready:
                    await self._wait(self._wait_records)
                for log in ready:
                    if self.credit > 0:
                        await self._send_from(log)
        finally:
            self.ended.set()

    async def _wait(self, wait: Callable[[], Awaitable[_T]]) -> _T | None:
        """Wait for an event, the end of the subscription or a short timeout."""
        with trio.CancelScope() as self._waiting:
            if self._is_stopping:
                self._waiting.cancel()
            return await wait()
        return None

    async def _wait_credit(self) -> None:
        with trio.move_on_after(REFRESH_S):
            await self._has_credit.wait()

    async def _wait_records(self) -> None:
        with trio.move_on_after(REFRESH_S):
            await self._access.wait_records(self._offsets)

    def _find_further_logs(self) -> None:
        logs = find_logs(self._request.broker, self._topic)
        if any(log.is_gone for log in self._offsets):
            raise topic_not_found(self._topic)
        if self._has_all_logs:
            for log in logs[len(self._offsets) :]:
                self._offsets[log] = log.index.start_offset

    async def _send_from(self, log: Log) -> None:
        offset = self._offsets[log]
        self._access.check(log)
        read = await self._wait(lambda: self._request.web.reads.read(log, offset))
        if read is None:
            return
        if self._is_binary:
            await self._send(log, read.binary())
        else:
            for message in await read.texts(self._request.host):
                if self.credit <= 0 or self._is_stopping:
                    break
                if message.record_count > self.credit:
                    await self._send(log, await read.text_of(message.offset, self.credit, self._request.host))
                    break  # there can be new credit, but the next message would not be contiguous
                await self._send(log, message)
        # The other logs are first when there is credit again.
        self._offsets[log] = self._offsets.pop(log)

    async def _send(self, log: Log, message: EncodedRecords) -> None:
        self._offsets[log] = message.next_offset
        self.credit -= message.record_count
        if self._is_binary:
            head = encode_records_head(self._id, log.number, message.offset, message.next_offset)
            await self._connection.send_shared_binary(head, message.data)
        else:
            deflated = message.deflated() if self._connection.takes_deflated else None
            await self._connection.send_shared_text(self._head, message.data, deflated)
        self._request.web.counters.consumed[self._topic] += message.record_count
