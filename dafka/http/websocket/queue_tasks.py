"""Subscriptions to queues, and the answers to single requests for their records, over WebSocket."""

from __future__ import annotations

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.http.logs.log_access import find_logs
from dafka.http.queues.encoding import encode_locked
from dafka.http.queues.queue_access import (
    RECORDS_MAX,
    LockedRecords,
    Queue,
    ReceiveLimits,
    create_receipt,
    parse_acknowledgements,
)
from dafka.http.server.messages import Request
from dafka.http.websocket import messages
from dafka.http.websocket.binary import encode_deliveries_head
from dafka.http.websocket.client_tasks import REFRESH_S, ClientTask
from dafka.http.websocket.connection import Connection
from dafka.http.websocket.messages import BINARY_PROTOCOL, deliveries_head
from dafka.http.websocket.shared_reads import READ_BYTES, join_lines


async def send_locked(
    connection: Connection, request: Request, identifier: int, queue: Queue, locked: LockedRecords
) -> None:
    """Send records of a queue that are locked for the client."""
    if connection.subprotocol == BINARY_PROTOCOL:
        head = encode_deliveries_head(identifier, locked.log, locked.ranges)
        await connection.send_shared_binary(head, b"".join(data for _, data in locked.read.batches))
    else:
        lines = await encode_locked(locked, _lock_ms(request, queue), request.web.answers, request.host)
        records = b",".join(b"".join(join_lines([line], lambda _: b"", b"")) for line in lines)
        await connection.send_text(b'%b,"records":[%b]}' % (deliveries_head(identifier, locked.log), records))
    request.web.counters.consumed[queue.topic] += locked.record_count


def find_queue(request: Request, message: messages.QueueMessage) -> Queue:
    """Return the queue of a message. Raises `WebError` if the user may not use it."""
    request.principal.check_read(message.topic)
    request.principal.check_group(message.queue)
    return Queue(message.queue, message.topic)


def _lock_ms(request: Request, queue: Queue) -> int:
    return request.broker.shares.settings_of(queue.name).limits.lock_ms


async def receive(request: Request, connection: Connection, message: messages.Receive) -> messages.Received:
    """Lock available records, and send them before the answer. Raises `WebError`."""
    queue, receipt = find_queue(request, message), message.receipt or create_receipt()
    logs = find_logs(request.broker, queue.topic, message.logs)
    limits = ReceiveLimits(message.records_max, message.bytes_max)
    found = await request.queues.lock(queue, logs, receipt, limits, request.source)
    for locked in found:
        await send_locked(connection, request, message.id, queue, locked)
    count = sum(each.record_count for each in found)
    return messages.Received(id=message.id, receipt=receipt, lock_ms=_lock_ms(request, queue), record_count=count)


async def acknowledge(request: Request, message: messages.Acknowledge) -> messages.Acknowledged:
    """Acknowledge records durably. Raises `WebError`."""
    queue = find_queue(request, message)
    logs = find_logs(request.broker, queue.topic)
    settings = request.broker.shares.settings_of(queue.name)
    said = parse_acknowledgements(queue, len(logs), settings, message.receipt, message.acknowledgements, message.others)
    others = [] if message.others is None else message.logs or range(len(logs))
    asked = [log for log in logs if log.number in said.ranges or log.number in others]
    return messages.Acknowledged(id=message.id, refused=await request.queues.acknowledge(queue, asked, said))


async def describe_queue(request: Request, message: messages.DescribeQueue) -> messages.DescribedQueue:
    """Describe a queue, perhaps when it has available records. Raises `WebError`."""
    queue = find_queue(request, message)
    logs = find_logs(request.broker, queue.topic, message.logs)
    states = await request.queues.known_states(queue, logs)
    if message.wait_ms and not any(each.available_count for each in states.values()):
        with request.broker.stopping.interrupting(), trio.move_on_after(message.wait_ms / 1000):
            await request.queues.wait_available(queue, logs)
        states = await request.queues.known_states(queue, logs)
    described = [{"log": log.number, **attrs.asdict(states[log])} for log in logs if log in states]
    return messages.DescribedQueue(id=message.id, logs=described)


class QueueSubscription(ClientTask):
    """A subscription to a queue. Its records are locked for one receipt, and released when it ends.

    `credit` is how many records may still be sent. Without numbers of logs, it includes logs that are added later.
    """

    def __init__(self, message: messages.Consume, queue: Queue, request: Request, connection: Connection) -> None:
        super().__init__(message.id, request, connection)
        self.credit = message.credit
        self._queue = queue
        self._numbers = message.logs
        self._receipt = create_receipt()
        self._has_credit = trio.Event()

    def describe(self) -> messages.Consuming:
        """Return the answer to the request for it."""
        name, topic, lock_ms = self._queue.name, self._queue.topic, _lock_ms(self._request, self._queue)
        return messages.Consuming(id=self._id, topic=topic, queue=name, receipt=self._receipt, lock_ms=lock_ms)

    def add_credit(self, records: int) -> None:
        """Allow more records to be sent."""
        self.credit += records
        if self.credit > 0:
            self._has_credit.set()

    async def run(self) -> None:
        """Send records until `stop` is called, then release them. Raises `WebError` if that is impossible."""
        try:
            await super().run()
        finally:
            self._request.queues.release(self._queue, self._request.broker.node.logs(self._queue.topic), self._receipt)

    async def _send_next(self) -> None:
        self._request.principal.check_read(self._queue.topic)  # permissions can have changed meanwhile
        self._request.principal.check_group(self._queue.name)
        if self.credit <= 0:
            self._has_credit = trio.Event()
            await self._wait(self._wait_credit)
            return
        logs, limits = self._logs(), ReceiveLimits(min(self.credit, RECORDS_MAX), READ_BYTES)
        found = await self._request.queues.lock(self._queue, logs, self._receipt, limits, self._request.source)
        for locked in found:
            self.credit -= locked.record_count
            await send_locked(self._connection, self._request, self._id, self._queue, locked)
        if not found:
            await self._wait(self._wait_available)

    def _logs(self) -> list[Log]:
        return find_logs(self._request.broker, self._queue.topic, self._numbers)

    async def _wait_credit(self) -> None:
        with trio.move_on_after(REFRESH_S):
            await self._has_credit.wait()

    async def _wait_available(self) -> None:
        with trio.move_on_after(REFRESH_S):
            await self._request.queues.wait_available(self._queue, self._logs())
