from __future__ import annotations

import random
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import pytest
import trio
import trio.testing
import zmq

from dafka.errors import AddressInUseError, TransportError
from dafka.transport import Socket, open_context
from tests.waiting import DEADLINE_S

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"

LOOPBACK = "tcp://127.0.0.1:*"


@pytest.fixture
async def context() -> AsyncIterator[Context]:
    async with open_context(0) as context:
        yield context


@pytest.fixture
def publisher(context: Context) -> Iterator[Socket]:
    with opened(context, zmq.SocketType.XPUB) as publisher:
        yield publisher


@pytest.fixture
def subscriber(context: Context) -> Iterator[Socket]:
    with opened(context, zmq.SocketType.SUB) as subscriber:
        yield subscriber


@contextmanager
def opened(context: Context, kind: zmq.SocketType) -> Iterator[Socket]:
    socket = Socket(context.socket(kind))
    socket.set_options(sndhwm=0, rcvhwm=0)
    try:
        yield socket
    finally:
        socket.close(0)


async def join(publisher: Socket, subscriber: Socket, prefix: bytes = b"") -> str:
    """Connect and subscribe; return the endpoint once the publisher has received the subscription."""
    endpoint = publisher.bind(LOOPBACK)
    subscriber.connect(endpoint)
    subscriber.subscribe(prefix)
    with trio.fail_after(DEADLINE_S):
        assert await publisher.receive_many() == [[b"\x01" + prefix]]
    return endpoint


async def receive(socket: Socket, count: int) -> list[list[bytes]]:
    messages: list[list[bytes]] = []
    with trio.fail_after(DEADLINE_S):
        while len(messages) < count:
            messages += await socket.receive_many()
    return messages


def numbered(first: int, end: int) -> list[list[bytes]]:
    return [[b"topic", b"", b"%d" % number] for number in range(first, end)]


@pytest.mark.parametrize(("endpoint", "host"), [(LOOPBACK, "127.0.0.1"), ("inproc://here", "")])
async def test_the_source_of_a_message_has_the_ip_address_of_the_peer_if_it_has_one(
    endpoint: str, host: str, publisher: Socket, subscriber: Socket
) -> None:
    async def answer_subscription() -> None:
        await publisher.receive_many()
        publisher.send_many(numbered(0, 1))

    subscriber.subscribe(b"")
    publisher.connect(subscriber.bind(endpoint))
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_subscription)
            ((frames, source),) = await subscriber.receive_with_sources(1)
    assert (frames, source.host) == (numbered(0, 1)[0], host)


# Waiting


@pytest.mark.usefixtures("either_loops")
async def test_a_reader_is_woken_even_if_a_send_has_reset_the_descriptor(publisher: Socket, subscriber: Socket) -> None:
    """Send without a checkpoint until a send has processed the subscription that the reader waits for."""
    await join(publisher, subscriber, b"first")
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, publisher, [b"\x01second"])
            await trio.testing.wait_all_tasks_blocked()
            subscriber.subscribe(b"second")
            deadline = time.monotonic() + DEADLINE_S
            while not subscriber.receive_nowait():
                assert time.monotonic() < deadline, "the subscription never took effect"
                publisher.send_many([[b"second"]])


@pytest.mark.usefixtures("either_loops")
async def test_a_reader_is_woken_even_if_a_subscribe_has_reset_the_descriptor(
    publisher: Socket, subscriber: Socket
) -> None:
    await join(publisher, subscriber, b"first")
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, subscriber, [b"first", b"0"])
            await trio.testing.wait_all_tasks_blocked()
            publisher.send_many([[b"first", b"0"]])
            for number in range(2000):
                subscriber.subscribe(b"%d" % number)


async def expect(socket: Socket, message: Sequence[bytes]) -> None:
    assert await socket.receive_many() == [list(message)]


@pytest.mark.usefixtures("either_loops")
async def test_cancelled_receives_lose_no_messages(publisher: Socket, subscriber: Socket) -> None:
    await join(publisher, subscriber)
    randomness = random.Random(3)
    received: list[list[bytes]] = []
    cancelled = 0

    async def send() -> None:
        for first in range(0, 3000, 10):
            publisher.send_many(numbered(first, first + 10))
            for _ in range(randomness.randrange(5)):
                await trio.lowlevel.checkpoint()

    async def cancel(scope: trio.CancelScope, turns: int) -> None:
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while len(received) < 3000:
                with trio.CancelScope() as scope:
                    nursery.start_soon(cancel, scope, randomness.randrange(6))
                    received += await subscriber.receive_many()
                cancelled += scope.cancelled_caught
    assert received == numbered(0, 3000)
    assert cancelled > 10


async def test_a_second_receiver_is_refused_and_the_first_continues(publisher: Socket, subscriber: Socket) -> None:
    await join(publisher, subscriber)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect, subscriber, numbered(0, 1)[0])
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError, match="another task is receiving from this socket"):
            await subscriber.receive_many()
        with pytest.raises(trio.BusyResourceError):
            await subscriber.receive_with_sources(1)
        publisher.send_many(numbered(0, 1))


# Endpoints


async def test_address_of_another_machine_is_refused(publisher: Socket) -> None:
    with pytest.raises(AddressInUseError) as caught:
        publisher.bind("tcp://192.0.2.1:5556")
    problem = "cannot listen at tcp://192.0.2.1:5556: cannot assign requested address"
    assert str(caught.value) == f"{problem}; expected an address of this machine, or * for all"


BAD_PORTS = ["", ":65536", ":99999", ":-1", ":x"]
BAD = ["", "rubbish", "tcp://", "smtp://127.0.0.1:25", *(f"tcp://127.0.0.1{port}" for port in BAD_PORTS)]


async def test_bad_endpoints_are_refused(publisher: Socket) -> None:
    for endpoint in (*BAD, "tcp://no such host:5556"):
        with pytest.raises(TransportError, match=f"^cannot listen at {re.escape(endpoint)}: ") as caught:
            publisher.bind(endpoint)
        assert type(caught.value) is TransportError
    for endpoint in (*BAD, "tcp://*:5556"):
        with pytest.raises(TransportError, match=f"^cannot connect to {re.escape(endpoint)}: "):
            publisher.connect(endpoint)
    for port in (1, 65535):
        publisher.connect(f"tcp://127.0.0.1:{port}")


async def test_disconnect_ends_the_connection_and_is_harmless_without_one(
    publisher: Socket, subscriber: Socket
) -> None:
    endpoint = await join(publisher, subscriber)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscriber.receive_many)
        subscriber.disconnect(endpoint)
        assert await receive(publisher, 1) == [[b"\x00"]]
        nursery.cancel_scope.cancel()
    subscriber.disconnect(endpoint)
    with pytest.raises(TransportError, match=r"^cannot disconnect from rubbish: invalid argument$"):
        subscriber.disconnect("rubbish")
    publisher.unbind("tcp://127.0.0.1:9")
    with pytest.raises(TransportError, match=r"^cannot stop listening at rubbish: invalid argument$"):
        publisher.unbind("rubbish")


@pytest.mark.usefixtures("either_loops")
async def test_a_waiting_message_survives_disconnecting(publisher: Socket, subscriber: Socket) -> None:
    """After EVENTS was read, libzmq alone would abort the process when the message is received."""
    endpoint = await join(publisher, subscriber)
    publisher.send_many([[b"first frame", b"second"], [b"next", b"message"]])
    with trio.fail_after(DEADLINE_S):
        while not subscriber._has_messages():  # noqa: ASYNC110 (reading EVENTS is the point of the test)
            await trio.sleep(0.001)
    subscriber.disconnect(endpoint)
    assert subscriber.receive_nowait() == [[b"first frame", b"second"]]
    assert subscriber.receive_nowait() == []
    for _ in range(2):  # closing again does nothing
        subscriber.close(0)
