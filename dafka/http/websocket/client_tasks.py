"""The tasks of a WebSocket connection: subscriptions, whose records are sent while there is credit, and watches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from dafka.broker.core.log.log import Log
from dafka.http.api.registry import answer_get
from dafka.http.logs.log_access import find_logs
from dafka.http.logs.positions import DivergenceTracker
from dafka.http.server.errors import WebError, topic_not_found
from dafka.http.server.messages import JSON, Request, Response
from dafka.http.websocket.binary import encode_records_head
from dafka.http.websocket.connection import Connection
from dafka.http.websocket.messages import BINARY_PROTOCOL, encode_view, records_head
from dafka.http.websocket.shared_reads import EncodedRecords

REFRESH_S = 5.0
"""How often an idle subscription checks its user's permissions and the topic's number of logs."""

_T = TypeVar("_T")


class ClientTask:
    """A subscription or a watch: a task that sends messages to a client until it is stopped or fails."""

    def __init__(self, identifier: int, request: Request, connection: Connection) -> None:
        self.ended = trio.Event()
        """Set when nothing else will be sent."""
        self._id = identifier
        self._request = request
        self._connection = connection
        self._is_stopping = False
        self._waiting = trio.CancelScope()

    def stop(self) -> None:
        """End the task after the current message; then `ended` is set."""
        self._is_stopping = True
        self._waiting.cancel()

    async def run(self) -> None:
        """Send messages until `stop` is called. Raises `WebError` if that is impossible."""
        try:
            while not self._is_stopping:
                await self._send_next()
        finally:
            self.ended.set()

    async def _send_next(self) -> None:
        """Send what there is to send, or wait for it."""
        raise NotImplementedError

    async def _wait(self, wait: Callable[[], Awaitable[_T]]) -> _T | None:
        """Wait for an event, or for `stop`; then return None."""
        with trio.CancelScope() as self._waiting:
            if self._is_stopping:
                self._waiting.cancel()
            return await wait()
        return None


class Subscription(ClientTask):
    """A subscription. It has no queue: records stay in the log until the client reads them.

    `credit` is how many records may still be sent; it is negative after a batch with more records than there was
    credit. With `has_all_logs`, it includes logs that are added to the topic later.
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
        super().__init__(identifier, request, connection)
        self.credit = credit
        self._topic = topic
        self._offsets = offsets
        self._access = request.logs
        self._is_binary = connection.subprotocol == BINARY_PROTOCOL
        self._has_all_logs = has_all_logs
        self._head = records_head(identifier)
        self._has_credit = trio.Event()
        self._divergences = DivergenceTracker(request.broker.node)

    def add_credit(self, records: int) -> None:
        """Allow more records to be sent."""
        self.credit += records
        if self.credit > 0:
            self._has_credit.set()

    async def _send_next(self) -> None:
        self._request.principal.check_read(self._topic)
        self._find_added_logs()
        if self.credit <= 0:
            self._has_credit = trio.Event()
            await self._wait(self._wait_credit)
            return
        for log, offset in self._offsets.items():
            self._offsets[log] = self._divergences.check(log, offset)
        ready = [log for log, offset in self._offsets.items() if self._access.has_records(log, offset)]
        if not ready:
            await self._wait(self._wait_records)
        for log in ready:
            if self.credit > 0:
                await self._send_from(log)

    async def _wait_credit(self) -> None:
        with trio.move_on_after(REFRESH_S):
            await self._has_credit.wait()

    async def _wait_records(self) -> None:
        with trio.move_on_after(REFRESH_S):
            await self._access.wait_records(self._offsets)

    def _find_added_logs(self) -> None:
        logs = find_logs(self._request.broker, self._topic)
        if any(log.is_gone for log in self._offsets):
            raise topic_not_found(self._topic)
        if self._has_all_logs:
            for log in logs[len(self._offsets) :]:
                self._offsets[log] = log.index.start_offset

    async def _send_from(self, log: Log) -> None:
        offset = self._offsets[log]
        read = await self._wait(lambda: self._request.web.reads.read(self._access, log, offset))
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


class WatchedResource(ClientTask):
    """A resource of the HTTP API: a client gets the response to GET, and again whenever it has changed."""

    def __init__(self, identifier: int, path: str, interval_ms: int, request: Request, connection: Connection) -> None:
        super().__init__(identifier, request, connection)
        self._path = path
        self._interval_s = interval_ms / 1000
        self._last: tuple[int, bytes] | None = None

    async def _send_next(self) -> None:
        found = await self._wait(self._get)
        if found is not None and found != self._last:
            self._last = found
            await self._connection.send_text(encode_view(self._id, *found))
        await self._wait(partial(trio.sleep, self._interval_s))

    async def _get(self) -> tuple[int, bytes]:
        """Return the status and the body. Raises `WebError` if the resource is not JSON."""
        response = await answer_get(self._request, self._path, self._request.principal)
        if not isinstance(response, Response) or response.content_type not in {JSON, ""}:
            raise WebError("unsupported", f"watch: expected a resource that is a JSON document, not {self._path!r}")
        return int(response.status), response.body
