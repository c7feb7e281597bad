"""Responses: in the order of the requests, and together those that are ready together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from dafka.broker.connections.memory import MemoryPool
from dafka.kafka.apis.produce import PendingProduce
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import COPIED_BYTES_MAX, RequestHeader, encode_response
from dafka.kafka.protocol.messages.logs import ProduceResponse
from dafka.kafka.server.counters import Counters
from dafka.kafka.server.responses import SEND_BYTES, PendingResponse, ResponseSender

MIB = 2**20


class Sent(trio.abc.Stream):
    """Keeps what is sent, in the pieces in which it is sent."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.pieces.append(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def pending(number: int, is_durable: trio.Event) -> PendingResponse:
    """Return the response to the request with this number, which waits for an event."""

    async def wait() -> ProduceResponse:
        if not is_durable.is_set():
            await is_durable.wait()
        return ProduceResponse(responses=[])

    return PendingResponse(header_of(number), PendingProduce(wait, is_durable.is_set), 0.0)


def header_of(number: int) -> RequestHeader:
    return RequestHeader(ApiKey.PRODUCE, 9, number, None)


def response(number: int) -> bytes:
    return encode_response(header_of(number), ProduceResponse(responses=[]))


async def test_responses_that_are_ready_together_are_sent_together(autojump_clock: trio.testing.MockClock) -> None:
    sent, pool = Sent(), MemoryPool(MIB)
    accepted: Any = SimpleNamespace(sent_at=0.0)
    server: Any = SimpleNamespace(answers=pool, counters=Counters())
    sender = ResponseSender(sent, accepted, server, send_s=1.0)
    first, second, never = trio.Event(), trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run)
        for number, event in enumerate((first, first, second, second, never)):
            await sender.put(pending(number, event))
        await trio.testing.wait_all_tasks_blocked()
        assert sent.pieces == []
        first.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sent.pieces == [response(0) + response(1)]  # nothing waits for the third one
        second.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sent.pieces[1:] == [response(2) + response(3)]
        never.set()
        await sender.put([b"small", bytes(SEND_BYTES + COPIED_BYTES_MAX), b"tail"])
        with sender:
            pass
    assert b"".join(sent.pieces[2:]) == response(4) + b"small" + bytes(SEND_BYTES + COPIED_BYTES_MAX) + b"tail"
    assert max(map(len, sent.pieces)) <= SEND_BYTES
    assert pool.taken_bytes == 0
