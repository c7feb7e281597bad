"""Forwards the requests of all clients to another broker over one connection.

It speaks the WebSocket protocol of clients, `dafka.binary.v1`. Requests are sent in order.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import attrs
import h11
import trio
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.trio.client import ClientConnection

from dafka.batches import iter_batches
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.errors import BatchError
from dafka.exceptions import unwrap_group
from dafka.http.forwarding.broker_client import BrokerClient, BrokerError, describe_error
from dafka.http.logs.log_access import LogOffsets, ReadRecords
from dafka.http.queues.queue_access import (
    Acknowledgements,
    LockedRecords,
    Queue,
    QueueState,
    ReceiveLimits,
    RefusedRecords,
)
from dafka.http.server.documents import decode_document, encode_document
from dafka.http.server.errors import STATUSES, WebError
from dafka.http.websocket.binary import (
    DELIVERIES,
    BinaryDeliveries,
    decode_deliveries,
    decode_records,
    encode_publish,
)
from dafka.storage.plugin_helpers import now_ms

CREDIT = 1
"""A subscription for one read gets one message, which has as many records as the leader reads at once."""


class UnsentError(BrokerError):
    """The other broker has certainly not received a request."""


@attrs.define(eq=False)
class Reply:
    """A broker's reply to one request.

    When it has arrived, or will not arrive, `arrived` is set and `notify` is called.
    """

    notify: Callable[[], None] | None = None
    arrived: trio.Event = attrs.field(factory=trio.Event)
    is_sent: bool = False
    """Whether the request could have reached the broker."""
    is_withdrawn: bool = False
    """Whether the request must no longer be sent."""
    _value: Any = None
    _error: Exception | None = None

    def set(self, value: Any) -> None:
        """Record the reply."""
        self._value = value
        self._arrive()

    def fail(self, error: Exception) -> None:
        """Record that the request is refused, or that no reply will arrive."""
        self._error = error
        self._arrive()

    def withdraw(self) -> bool:
        """Withdraw the request. Return False if it could have reached the broker."""
        self.is_withdrawn = True
        return not self.is_sent

    def result(self) -> Any:
        """Return the reply, which has arrived. Raises `WebError` or `BrokerError` if the request failed."""
        if self._error is not None:
            raise self._error
        return self._value

    def _arrive(self) -> None:
        self.arrived.set()
        if self.notify is not None:
            self.notify()


class BrokerLink:
    """A connection to another broker. When it is closed, the link can no longer be used."""

    def __init__(self, client: BrokerClient, broker: BrokerRegistration) -> None:
        self.broker = broker
        self.is_closed = False
        self._client = client
        self._numbers = count(1)
        self._outgoing: deque[tuple[str | bytes, Reply | None]] = deque()
        self._has_outgoing = trio.Event()
        self._replies: dict[int, Reply] = {}
        self._reads: set[int] = set()
        self._locked: dict[int, list[BinaryDeliveries]] = {}

    async def run(self) -> None:
        """Connect, and exchange requests and replies until the connection ends or the task is cancelled."""
        reason = "has ended the connection"
        try:
            if not self.broker.http_url:
                raise BrokerError("does not listen to HTTP")
            with unwrap_group():
                async with self._client.open_websocket(self.broker) as connection:
                    await self._serve(connection)
        except BrokerError as error:
            reason = str(error)
        except InvalidStatus as error:
            status = error.response.status_code
            reason = f"refuses the connection with the status {status}"
            if status in {401, 403}:
                reason = "refuses this broker: both need the same [broker] secret_file, and TLS with users"
        except trio.TooSlowError as error:
            reason = f"does not answer at {self.broker.http_url} ({describe_error(error)})"
        except ConnectionClosed:
            pass
        except (OSError, ssl.SSLError, h11.ProtocolError, WebSocketException, trio.BrokenResourceError) as error:
            reason = f"does not answer at {self.broker.http_url} ({describe_error(error)})"
        finally:
            self.is_closed = True
            for reply in [*self._replies.values()]:
                reply.fail(BrokerError(reason))
            self._replies.clear()

    def publish(self, topic: str, log: int, batches: bytes, notify: Callable[[], None]) -> Reply:
        """Send record batches. The reply is the offset of the first record; None if it is not known.

        `notify` is called when the reply has arrived.
        """
        number, reply = self._expect(notify)
        self._send(encode_publish(number, topic, log, batches), reply)
        return reply

    async def describe(self, topic: str) -> dict[int, LogOffsets]:
        """Return the offsets of each log of a topic that the other broker leads."""
        answer = await self._ask(*self._expect(), type="describe", topic=topic)
        return {each.pop("log"): LogOffsets(**each) for each in answer["logs"]}

    async def find_offset_by_time(self, topic: str, log: int, timestamp_ms: int) -> int:
        """Return the offset of the first record with this timestamp or a later one; else the end of the log."""
        number, reply = self._expect()
        answer = await self._subscribe(number, reply, topic, log, {"time": timestamp_ms}, credit=0)
        return int(answer["logs"][0]["offset"])

    async def read(self, topic: str, log: int, offset: int) -> ReadRecords:
        """Wait for committed records of a log from an offset on, and return them."""
        number, reply = self._expect()
        self._reads.add(number)
        try:
            records = await self._subscribe(number, reply, topic, log, {"offset": offset}, credit=CREDIT)
        finally:
            self._reads.discard(number)
        return _read_batches(records.offset, records.next_offset, records.batches)

    async def describe_queue(self, queue: Queue, logs: Sequence[int], wait_ms: int = 0) -> dict[int, QueueState]:
        """Return the states of a queue in logs that the other broker leads.

        It answers when there are available records, or after `wait_ms`.
        """
        answer = await self._ask_queue(*self._expect(), queue, type="describe_queue", logs=logs, wait_ms=wait_ms)
        return {
            each["log"]: QueueState(each["start_offset"], each["available_count"], each["locked_count"])
            for each in answer["logs"]
        }

    async def receive(
        self, queue: Queue, logs: Sequence[int], receipt: str, limits: ReceiveLimits
    ) -> list[LockedRecords]:
        """Lock available records of logs that the other broker leads, and return them."""
        begun_ms, (number, reply) = now_ms(), self._expect()
        found = self._locked[number] = []
        try:
            await self._ask_queue(number, reply, queue, type="receive", logs=logs, receipt=receipt, **limits._asdict())
        finally:
            del self._locked[number]
        return [
            LockedRecords(each.log, _read_batches(each.offset, each.next_offset, each.batches), each.ranges, begun_ms)
            for each in found
        ]

    async def acknowledge(
        self, queue: Queue, logs: Sequence[int], acknowledgements: Acknowledgements
    ) -> list[RefusedRecords]:
        """Acknowledge records of logs that the other broker leads. Return what is refused."""
        answer = await self._ask_queue(
            *self._expect(),
            queue,
            type="acknowledge",
            logs=logs,
            receipt=acknowledgements.receipt,
            acknowledgements=acknowledgements.documents(),
            others=None if acknowledgements.others is None else acknowledgements.others.name.lower(),
        )
        return [RefusedRecords(**each) for each in answer["refused"]]

    def release(self, queue: Queue, logs: Sequence[int], receipt: str) -> None:
        """Ask the other broker to release all records that a receipt locks in its logs. No answer is awaited."""
        request = {"type": "acknowledge", "logs": logs, "receipt": receipt, "others": "release"}
        named = {"id": next(self._numbers), "topic": queue.topic, "queue": queue.name}
        if not self.is_closed:
            self._send(encode_document({**named, **request}).decode(), None)

    async def _ask_queue(self, number: int, reply: Reply, queue: Queue, **request: Any) -> Any:
        """Send a request about a queue. Raises `UnsentError` if the other broker has certainly not received it."""
        try:
            return await self._ask(number, reply, topic=queue.topic, queue=queue.name, **request)
        except BrokerError as error:
            raise error if reply.is_sent else UnsentError(str(error)) from None

    # Sending

    def _expect(self, notify: Callable[[], None] | None = None) -> tuple[int, Reply]:
        number, reply = next(self._numbers), Reply(notify)
        if self.is_closed:
            reply.fail(BrokerError("has ended the connection"))
        else:
            self._replies[number] = reply
        return number, reply

    async def _ask(self, number: int, reply: Reply, **request: Any) -> Any:
        self._send(encode_document({"id": number, **request}).decode(), reply)
        try:
            await reply.arrived.wait()
        finally:
            self._replies.pop(number, None)
        return reply.result()

    async def _subscribe(
        self, number: int, reply: Reply, topic: str, log: int, position: dict[str, int], *, credit: int
    ) -> Any:
        """Return the reply to a subscription, which then ends."""
        request = {"type": "subscribe", "topic": topic, "logs": [log], "from": position, "credit": credit}
        try:
            return await self._ask(number, reply, **request)
        finally:
            if not self.is_closed:
                self._send(encode_document({"type": "unsubscribe", "id": number}).decode(), None)

    def _send(self, message: str | bytes, reply: Reply | None) -> None:
        self._outgoing.append((message, reply))
        self._has_outgoing.set()

    async def _serve(self, connection: ClientConnection) -> None:
        self._receive(await connection.recv())  # `welcome`: send nothing to a broker that does not accept this one
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_outgoing, connection)
            with suppress(ConnectionClosed):
                while True:
                    self._receive(await connection.recv())
            nursery.cancel_scope.cancel()

    async def _send_outgoing(self, connection: ClientConnection) -> None:
        while True:
            while self._outgoing:
                message, reply = self._outgoing.popleft()
                if reply is not None and reply.is_withdrawn:
                    continue
                if reply is not None:
                    reply.is_sent = True
                try:
                    await connection.send(message)
                except ConnectionClosed:
                    return  # the receiving task notices it, too
            self._has_outgoing = trio.Event()
            await self._has_outgoing.wait()

    # Receiving

    def _receive(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            try:
                if message[:1] == bytes([DELIVERIES]):
                    deliveries = decode_deliveries(message)
                    self._locked.get(deliveries.id, []).append(deliveries)
                    return
                records = decode_records(message)
            except ValueError as error:
                raise BrokerError(f"has sent a malformed message ({error})") from None
            reply = self._replies.pop(records.id, None)
            if reply is not None:
                reply.set(records)
            return
        answer = decode_document(message)
        kind, number = answer["type"], answer.get("id")
        if kind == "welcome" and answer["needs_authentication"]:
            raise BrokerError("does not accept this broker: both need the same [broker] secret_file")
        if number not in self._replies or (kind == "subscribed" and number in self._reads):
            return
        reply = self._replies.pop(number)
        if kind == "error":
            code = answer["code"] if answer["code"] in STATUSES else "bad_request"
            reply.fail(WebError(code, answer["message"]))
        elif kind == "published":
            reply.set(answer["offsets"][0]["offset"])
        else:
            reply.set(answer)


def _read_batches(offset: int, next_offset: int, received: memoryview) -> ReadRecords:
    try:
        data = bytes(received)
        batches = [(header, data[start : start + header.size]) for start, header in iter_batches(data)]
    except BatchError as error:
        raise BrokerError(f"has sent damaged records ({error})") from None
    return ReadRecords(offset, next_offset, batches)
