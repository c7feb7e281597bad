"""Serves a connection that is upgraded to WebSocket: executes the requests of its client in order, and answers them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import trio
from websockets.exceptions import ConnectionClosed, NegotiationError
from websockets.frames import CloseCode
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from dafka.broker.core.error_codes import error_name
from dafka.errors import ConfigError, StorageError
from dafka.http.logs.log_access import find_logs
from dafka.http.logs.positions import find_offsets, parse_offsets, parse_position
from dafka.http.logs.publishing import ProducerSequence, Publication
from dafka.http.logs.records import parse_records
from dafka.http.server.errors import WebError
from dafka.http.server.messages import Request
from dafka.http.websocket import messages
from dafka.http.websocket.binary import BinaryPublish, decode_publish
from dafka.http.websocket.client_tasks import ClientTask, Subscription, WatchedResource
from dafka.http.websocket.connection import ClientStream, Connection
from dafka.http.websocket.messages import (
    SUBPROTOCOLS,
    ClientMessage,
    RefusedMessageError,
    decode_message,
    encode_message,
)
from dafka.http.websocket.queue_tasks import QueueSubscription, acknowledge, describe_queue, find_queue, receive
from dafka.storage.plugin_helpers import now_ms

UNANSWERED_MAX = 256
"""The maximum number of publishes that wait to be durable. Beyond it, reading from the client pauses."""

FORWARDED_FACTOR = 100
"""The factor by which a forwarding broker may have more subscriptions than a client."""

PING_INTERVAL_S = 20.0
"""How long a connection can be quiet until the broker sends a ping."""

_LOGGER = logging.getLogger("dafka.http")

HEADER_BYTES_MAX = 2**16
"""The maximum size of a message without its record batches."""

_M = TypeVar("_M", bound=ClientMessage)
_Handler = Callable[["Session", Any], Awaitable[None]]

_HANDLERS: dict[type[ClientMessage], _Handler] = {}


def _handles(message: type[_M]) -> Callable[[_Handler], _Handler]:
    def register(handler: _Handler) -> _Handler:
        _HANDLERS[message] = handler
        return handler

    return register


class Session:
    """The session of one WebSocket client, with the request of its handshake."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._web = request.web
        self._broker = request.broker
        self._settings = request.broker.config.http
        self._is_binary = connection.subprotocol == messages.BINARY_PROTOCOL
        self._subscriptions: dict[int, Subscription | QueueSubscription] = {}
        self._watches: dict[int, WatchedResource] = {}
        # One connection carries the requests of another broker's clients, some of which wait for records.
        self._queue_requests = trio.Semaphore(UNANSWERED_MAX * (FORWARDED_FACTOR if request.is_forwarded else 1))
        self._login_scope = trio.CancelScope()
        self._unanswered, self._answers = trio.open_memory_channel[tuple[int, Publication]](UNANSWERED_MAX)

    async def run(self) -> None:
        """Serve the client until the broker stops. Raises `ConnectionClosed` if the connection ends before."""
        if not self._request.principal.is_known:
            self._login_scope.deadline = trio.current_time() + self._broker.security.settings.login_ms / 1000
        user = self._request.principal.user if self._request.principal.is_known else None
        welcome = messages.Welcome(
            user=user,
            needs_authentication=not self._request.principal.is_known,
            message_bytes_max=self._settings.message_bytes_max,
            subscriptions_max=self._settings.subscriptions_max,
        )
        await self._send(welcome)
        with self._login_scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_alive)
                async with trio.open_nursery() as self._nursery, self._unanswered:
                    self._nursery.start_soon(self._answer_publishes)
                    while not self._broker.stopping.has_begun:
                        await self._receive()
                    for task in (*self._subscriptions.values(), *self._watches.values()):
                        task.stop()
                nursery.cancel_scope.cancel()
        if self._login_scope.cancelled_caught:
            await self._connection.aclose(CloseCode.POLICY_VIOLATION, "expected a login in time")
        else:
            await self._connection.go_away("the broker stops")

    # Requests

    async def _receive(self) -> None:
        identifier = received = None
        with self._broker.stopping.interrupting():
            received = await self._connection.recv()
        if received is None:
            return
        try:
            if isinstance(received, bytes):
                if not self._is_binary:
                    raise WebError("unsupported", f"binary messages need the subprotocol {messages.BINARY_PROTOCOL}")
                publish = decode_publish(received)
                identifier = publish.id
                self._check_known()
                await self._publish_batches(publish)
                return
            message = decode_message(received)
            identifier = message.id
            if not isinstance(message, (messages.Authenticate, messages.Ping)):
                self._check_known()
            await _HANDLERS[type(message)](self, message)
        except RefusedMessageError as refused:
            await self._refuse(refused.id, refused.error)
        except Exception as error:
            if not isinstance(error, (WebError, ConfigError, StorageError)):
                raise
            await self._refuse(identifier, _as_web_error(error))

    def _check_known(self) -> None:
        """Raise `WebError` if the client has not authenticated, or its credentials are no longer valid."""
        if not self._request.principal.is_known:
            raise WebError("unauthenticated", "expected `authenticate` first")
        self._request.principal.check_valid()

    async def _send(self, message: messages.ServerMessage) -> None:
        await self._connection.send_text(encode_message(message))

    async def _refuse(self, identifier: int | None, error: WebError) -> None:
        await self._connection.send_text(_error(identifier, error))

    @_handles(messages.Authenticate)
    async def _authenticate(self, message: messages.Authenticate) -> None:
        authenticator, is_private = self._web.authenticator, self._request.is_private
        try:
            if message.token is not None:
                principal = await authenticator.check_token(
                    message.token, host=self._request.host, is_private=is_private
                )
            elif message.user is not None and message.password is not None:
                principal = await authenticator.check_password(
                    message.user, message.password, host=self._request.host, is_private=is_private
                )
            else:
                raise WebError("bad_request", "authenticate: expected token, or user and password")
        except WebError as error:
            await self._refuse(message.id, error)
            await self._connection.aclose(CloseCode.POLICY_VIOLATION, error.code)
            return
        self._request.principal = principal
        self._login_scope.deadline = float("inf")
        self._request.mark_served()
        await self._send(messages.Authenticated(id=message.id, user=principal.user if principal.is_known else None))

    @_handles(messages.Publish)
    async def _publish(self, message: messages.Publish) -> None:
        self._request.principal.check_write(message.topic)
        producer = None
        if message.producer_id is not None:
            if message.producer_epoch is None or message.base_sequence is None:
                raise WebError("bad_request", "publish: producer_id needs producer_epoch and base_sequence")
            producer = ProducerSequence(message.producer_id, message.producer_epoch, message.base_sequence)
        records = parse_records(message.records, now_ms())
        await self._request.prepare_publishing(message.topic)
        publication = await self._request.publisher.begin(
            message.topic, records, self._request.source, log=message.log, producer=producer
        )
        await self._unanswered.send((message.id, publication))
        self._web.counters.produced[message.topic] += len(records)

    async def _publish_batches(self, message: BinaryPublish) -> None:
        self._request.principal.check_write(message.topic)
        await self._request.prepare_publishing(message.topic)
        source = self._request.source
        publication = await self._request.publisher.begin_batches(message.topic, message.log, message.batches, source)
        await self._unanswered.send((message.id, publication))
        self._web.counters.produced[message.topic] += publication.record_count

    @_handles(messages.InitProducer)
    async def _init_producer(self, message: messages.InitProducer) -> None:
        result = await self._broker.transactions.init_producer_id(None)
        if result.error_code:
            raise WebError("conflict", f"there is no id for the producer: {error_name(result.error_code)}")
        producer = result.producer
        await self._send(
            messages.Producer(id=message.id, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)
        )

    @_handles(messages.Describe)
    async def _describe(self, message: messages.Describe) -> None:
        self._request.principal.check_see(message.topic)
        if message.create:
            self._request.principal.check_write(message.topic)
            await self._request.prepare_publishing(message.topic)
        found = find_logs(self._broker, message.topic)
        is_forwarded = self._request.is_forwarded
        if is_forwarded:  # the forwarding broker asks the leaders of the other logs
            found = [log for log in found if log.leadership.is_led]
        logs = [
            {
                "log": log.number,
                "start_offset": bounds.start_offset,
                "end_offset": bounds.end_offset,
                **({"high_watermark": bounds.high_watermark, "offset_max": bounds.offset_max} if is_forwarded else {}),
            }
            for log, bounds in (await self._request.logs.bounds(found)).items()
        ]
        await self._send(messages.Described(id=message.id, topic=message.topic, logs=logs))

    @_handles(messages.Subscribe)
    async def _subscribe(self, message: messages.Subscribe) -> None:
        self._request.principal.check_read(message.topic)
        self._check_id(message.id)
        position = parse_position(message.position)
        group = getattr(position, "group", None)
        if group is not None:
            self._request.principal.check_group(group)
        logs = find_logs(self._broker, message.topic, message.logs)
        offsets = await find_offsets(self._request.logs, self._request.groups, logs, position)
        bounds = await self._request.logs.bounds(logs)
        subscription = Subscription(
            message.id,
            message.topic,
            offsets,
            message.credit,
            self._request,
            self._connection,
            has_all_logs=message.logs is None,
        )
        described = [
            {
                "log": log.number,
                "offset": offset,
                "start_offset": bounds[log].start_offset,
                "end_offset": bounds[log].end_offset,
            }
            for log, offset in offsets.items()
        ]
        self._subscriptions[message.id] = subscription
        await self._send(messages.Subscribed(id=message.id, topic=message.topic, logs=described))
        self._nursery.start_soon(self._run_until_error, message.id, self._subscriptions, subscription)

    @_handles(messages.Credit)
    async def _credit(self, message: messages.Credit) -> None:
        subscription = self._subscriptions.get(message.id)
        if subscription is not None:  # it can have ended while the message was in flight
            subscription.add_credit(message.records)

    @_handles(messages.Unsubscribe)
    async def _unsubscribe(self, message: messages.Unsubscribe) -> None:
        await self._stop(self._subscriptions.get(message.id))
        await self._send(messages.Unsubscribed(id=message.id))

    @_handles(messages.Commit)
    async def _commit(self, message: messages.Commit) -> None:
        self._request.principal.check_group(message.group)
        self._request.principal.check_read(message.topic)
        offsets = parse_offsets(message.offsets)
        find_logs(self._broker, message.topic, offsets)
        await self._request.groups.commit(message.group, message.topic, offsets)
        await self._send(messages.Committed(id=message.id))

    @_handles(messages.Consume)
    async def _consume(self, message: messages.Consume) -> None:
        queue = find_queue(self._request, message)
        self._check_id(message.id)
        await self._request.queues.known_states(queue, find_logs(self._broker, queue.topic, message.logs))
        subscription = QueueSubscription(message, queue, self._request, self._connection)
        self._subscriptions[message.id] = subscription
        await self._send(subscription.describe())
        self._nursery.start_soon(self._run_until_error, message.id, self._subscriptions, subscription)

    @_handles(messages.Receive)
    async def _receive_records(self, message: messages.Receive) -> None:
        await self._answer_later(message.id, partial(receive, self._request, self._connection, message))

    @_handles(messages.Acknowledge)
    async def _acknowledge(self, message: messages.Acknowledge) -> None:
        await self._answer_later(message.id, partial(acknowledge, self._request, message))

    @_handles(messages.DescribeQueue)
    async def _describe_queue(self, message: messages.DescribeQueue) -> None:
        await self._answer_later(message.id, partial(describe_queue, self._request, message))

    async def _answer_later(self, identifier: int, answer: Callable[[], Awaitable[messages.ServerMessage]]) -> None:
        """Answer a request in a task of its own, so that later requests need not wait for it."""
        await self._queue_requests.acquire()
        self._nursery.start_soon(self._answer_now, identifier, answer)

    async def _answer_now(self, identifier: int, answer: Callable[[], Awaitable[messages.ServerMessage]]) -> None:
        try:
            try:
                found = await answer()
            except (WebError, ConfigError, StorageError) as error:
                await self._refuse(identifier, _as_web_error(error))
            else:
                await self._send(found)
        finally:
            self._queue_requests.release()

    @_handles(messages.Watch)
    async def _watch(self, message: messages.Watch) -> None:
        self._check_id(message.id)
        watch = WatchedResource(message.id, message.path, message.interval_ms, self._request, self._connection)
        self._watches[message.id] = watch
        self._nursery.start_soon(self._run_until_error, message.id, self._watches, watch)

    @_handles(messages.Unwatch)
    async def _unwatch(self, message: messages.Unwatch) -> None:
        await self._stop(self._watches.get(message.id))
        await self._send(messages.Unwatched(id=message.id))

    @_handles(messages.Ping)
    async def _ping(self, message: messages.Ping) -> None:
        await self._send(messages.Pong(id=message.id))

    async def _stop(self, task: ClientTask | None) -> None:
        if task is not None:  # it can have ended while the message was in flight
            task.stop()
            await task.ended.wait()

    def _check_id(self, identifier: int) -> None:
        """Raise `WebError` if a subscription or a watch uses the id, or if there are too many."""
        if identifier in self._subscriptions or identifier in self._watches:
            raise WebError("conflict", f"there is a subscription or a watch with the id {identifier} already")
        count_max = self._settings.subscriptions_max
        if self._request.is_forwarded:  # one connection carries the requests of another broker's clients
            count_max *= FORWARDED_FACTOR
        if len(self._subscriptions) + len(self._watches) >= count_max:
            raise WebError("too_many_requests", f"a connection has at most {count_max} subscriptions and watches")

    # Tasks

    async def _run_until_error(self, identifier: int, running: dict[int, Any], task: ClientTask) -> None:
        """Run a subscription or a watch. Send an error to the client if it fails."""
        refusal: WebError | None = None
        try:
            await task.run()
        except (WebError, ConfigError, StorageError) as error:
            refusal = _as_web_error(error)
        finally:
            del running[identifier]
        if refusal is not None:
            await self._refuse(identifier, refusal)

    async def _answer_publishes(self) -> None:
        """Answer publishes in order when they are durable; several that become durable together in one write."""
        async for identifier, publication in self._answers:
            ready = [await self._answer_publish(identifier, publication)]
            while True:
                try:
                    identifier, publication = self._answers.receive_nowait()  # noqa: PLW2901
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
                if ready and not publication.is_durable:
                    await self._connection.send_all_texts(ready)
                    ready = []
                ready.append(await self._answer_publish(identifier, publication))
            await self._connection.send_all_texts(ready)

    async def _answer_publish(self, identifier: int, publication: Publication) -> bytes:
        try:
            published = await publication.wait()
        except WebError as error:
            return _error(identifier, error)
        return encode_message(messages.PublishedAnswer(id=identifier, offsets=published))

    async def _keep_alive(self) -> None:
        """Send pings to a quiet client. End the connection if it does not answer for too long.

        A slow client keeps its connection as long as it reads.
        """
        idle_s = self._settings.idle_ms / 1000
        interval_s = min(PING_INTERVAL_S, idle_s / 4)
        while True:
            await trio.sleep(interval_s)
            quiet_s = trio.current_time() - self._connection.last_activity
            if quiet_s >= idle_s:
                self._web.counters.disconnected["idle"] += 1
                await self._connection.end()
                return
            if quiet_s >= interval_s and not self._connection.is_sending:
                await self._connection.ping()


def _error(identifier: int | None, error: WebError) -> bytes:
    return encode_message(messages.Error(id=identifier, code=error.code, message=error.message))


def _as_web_error(error: Exception) -> WebError:
    if isinstance(error, WebError):
        return error
    if isinstance(error, StorageError):
        _LOGGER.warning("a request over WebSocket failed: %s", error)
        return WebError("storage_failed", f"the storage fails: {error}")
    return WebError("bad_request", str(error))


async def serve_websocket(stream: trio.abc.Stream, received: bytes, request: Request) -> None:
    """Serve a WebSocket client until the connection ends.

    The received bytes are the request of the handshake, and possibly more. Its origin and credentials were checked.
    """
    web, settings = request.web, request.broker.config.http
    bytes_max = settings.message_bytes_max
    if request.is_forwarded:  # the forwarding broker has checked the size of the message
        bytes_max = max(bytes_max, request.broker.config.kafka.batch_bytes_max + HEADER_BYTES_MAX)
    client = ClientStream(stream, received, web.receiving, request.source, bytes_max, settings.receive_ms)
    async with trio.open_nursery() as nursery:
        connection = Connection(nursery, client, _select_subprotocol, bytes_max)
        with trio.move_on_after(settings.receive_ms / 1000):
            await connection.handshake(server_header=None)
        # The session answers the close frame of a client that closes immediately.
        if connection.response is None or connection.response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            web.counters.disconnected["refused handshake"] += 1
            await connection.end()
            return
        reason = "unexpected error"
        try:
            await Session(connection, request).run()
            reason = "closed" if web.broker.stopping.has_begun else "no login"
        except* ConnectionClosed:
            reason = "closed" if connection.close_code in {1000, 1001} else "gone"
        except* Exception:
            # A bug in this program must not affect other clients.
            _LOGGER.exception("ended the WebSocket of the client at %s after an unexpected error", request.host)
            with trio.move_on_after(1):
                await connection.aclose(CloseCode.INTERNAL_ERROR)
        finally:
            web.counters.disconnected[reason] += 1
            await connection.end()


def _select_subprotocol(_protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    if not offered:
        return None
    for each in SUBPROTOCOLS:
        if each in offered:
            return Subprotocol(each)
    raise NegotiationError(f"expected one of the subprotocols {', '.join(SUBPROTOCOLS)}, or none")
