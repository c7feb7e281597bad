"""One connection of a client: requests are handled in their order, and answered in their order.

The answer to Produce waits for the disk while the requests behind it are handled. All others are handled one after the
other, as Kafka does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from dafka.errors import EncodingError, StorageError, UnsupportedRequestError, WireError
from dafka.kafka.protocol import (
    ApiKey,
    FrameSplitter,
    Request,
    RequestHeader,
    Response,
    advertise,
    decode_request,
    encode_response,
    encode_unsupported,
)
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest
from dafka.kafka.protocol.messages.logs import ProduceRequest
from dafka.listener.handlers import HANDLERS, SERVED, Client, ProduceRefusedError, begin_produce
from dafka.listener.service import Service

READ_BYTES = 2**20
"""The most that is read from a connection at a time, in bytes."""

UNANSWERED_MAX = 100
"""Requests of a connection whose answers may wait for the disk or for the client to read."""

_LOGGER = logging.getLogger("dafka.broker")

_Outgoing: TypeAlias = bytes | tuple[RequestHeader, Callable[[], Awaitable[Response | None]]]


class DisconnectError(Exception):
    """The client is disconnected. The message says why."""


class Connection:
    """The connection of one client.

    Args:
        stream: The connection.
        service: What all clients share.
        host: The address of the client.
        endpoint: The host and port at which the client reaches the broker.
    """

    def __init__(self, stream: trio.abc.Stream, service: Service, host: str, endpoint: tuple[str, int]) -> None:
        self._stream = stream
        self._service = service
        self._host = host
        self._endpoint = endpoint
        kafka = service.config.kafka
        self._splitter = FrameSplitter(kafka.request_bytes_max)
        self._idle_s = kafka.idle_ms / 1000
        self._outgoing, self._answers = trio.open_memory_channel[_Outgoing](UNANSWERED_MAX)

    async def run(self) -> None:
        """Serve the client until it or the broker closes the connection."""
        try:
            async with self._stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all)
                async with self._outgoing:
                    await self._receive_all()
        except* (DisconnectError, ProduceRefusedError, WireError, EncodingError) as group:
            _LOGGER.info("disconnected the client at %s: %s", self._host, group.exceptions[0])
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has gone
        except* StorageError as failed:
            _LOGGER.warning("disconnected the client at %s: %s", self._host, failed.exceptions[0])
        except* Exception:
            # A mistake of this program must not end the service of other clients.
            _LOGGER.exception("disconnected the client at %s after an unexpected error", self._host)

    async def _receive_all(self) -> None:
        while True:
            with trio.move_on_after(self._idle_s) as scope:
                data = await self._stream.receive_some(READ_BYTES)
            if scope.cancelled_caught:
                raise DisconnectError(f"it has sent nothing for {self._idle_s:.0f} s")
            if not data:
                return
            for frame in self._splitter.receive(data):
                await self._handle(frame)

    async def _handle(self, frame: bytes) -> None:
        try:
            header, request = decode_request(frame)
        except UnsupportedRequestError as error:
            answer = encode_unsupported(error, SERVED)
            if answer is None:
                raise DisconnectError(str(error)) from None
            await self._outgoing.send(answer)
            return
        client = Client(self._service, header, self._host, self._endpoint)
        if isinstance(request, ProduceRequest):
            await self._service.broker.wait_room()
            await self._outgoing.send((header, begin_produce(client, request)))
            return
        response = await self._respond(client, request)
        if response is not None:
            await self._outgoing.send(encode_response(header, response))

    async def _respond(self, client: Client, request: Request) -> Response | None:
        if isinstance(request, ApiVersionsRequest):
            return advertise(SERVED)
        handler = HANDLERS.get(ApiKey(request.API_KEY))
        if handler is None:
            raise DisconnectError(f"the broker does not serve {request.API_KEY.name}")
        return await handler(client, request)

    async def _send_all(self) -> None:
        async for each in self._answers:
            if isinstance(each, bytes):
                await self._stream.send_all(each)
                continue
            header, wait = each
            response = await wait()
            if response is not None:
                await self._stream.send_all(encode_response(header, response))
