"""The table of accepted connections: kept by events, examined only when needed, and limited."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import attrs
import pytest
import trio
import zmq

from dafka.transport import AcceptedConnections, Socket, open_context
from dafka.transport import accepted as module
from dafka.transport import connections as low_level
from dafka.transport.connector import EVENT_HEADING

DEADLINE_S = 60
DUE_S = 1e9
"""A point in time at which every connection has been silent for long."""

Context = zmq.Context[zmq.Socket[bytes]]


@attrs.frozen
class Listener:
    socket: Socket
    accepted: AcceptedConnections
    endpoint: str
    context: Context
    ended: list[int]

    async def wait_count(self, count: int) -> None:
        with trio.fail_after(DEADLINE_S):
            while len(self.accepted) != count:
                self.accepted.update()
                await trio.sleep(0.001)

    async def open_stream(self) -> trio.SocketStream:
        host, _, port = self.endpoint.removeprefix("tcp://").partition(":")
        return await trio.open_tcp_stream(host, int(port))

    async def receive_descriptor(self) -> int:
        """Receive one message, and return the descriptor that it arrived on."""
        with trio.fail_after(DEADLINE_S):
            ((_, source),) = await self.socket.receive_with_sources(1)
        return source.connection

    async def wait_connection(self) -> None:
        """Receive one message, and note that its connection is not silent."""
        descriptor = await self.receive_descriptor()
        self.accepted.update()
        assert self.accepted.find(descriptor) is not None

    async def wait_ended(self, *numbers: int) -> None:
        with trio.fail_after(DEADLINE_S):
            while len(self.ended) < len(numbers):
                self.accepted.update()
                await trio.sleep(0.001)
        assert self.ended == list(numbers)

    @contextmanager
    def open_peer(self, prefix: bytes = b"x") -> Iterator[Socket]:
        peer = Socket(self.context.socket(zmq.SocketType.SUB))
        try:
            peer.subscribe(prefix)
            peer.connect(self.endpoint)
            yield peer
        finally:
            peer.close(0)


@asynccontextmanager
async def open_listener(wanted_max: int = 1000) -> AsyncIterator[Listener]:
    async with open_context(0) as context:
        socket = Socket(context.socket(zmq.SocketType.XPUB))
        accepted = AcceptedConnections(socket, wanted_max)
        try:
            socket.set_options(xpub_verbose=1)
            ended: list[int] = []
            accepted.on_ended(ended.append)
            yield Listener(socket, accepted, socket.bind("tcp://127.0.0.1:*"), context, ended)
        finally:
            socket.close(0)
            accepted.close()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with open_listener() as listener:
        yield listener


async def test_connections_are_counted_by_events_and_not_examined(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_connection", None)
    monkeypatch.setattr(module, "end_connection", None)
    monkeypatch.setattr(module, "is_open", None)
    async with AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(await listener.open_stream())
        await listener.wait_count(5)
        with listener.open_peer():
            descriptor = await listener.receive_descriptor()
            await listener.wait_count(6)
            spoken: list[module.AcceptedConnection] = []
            listener.accepted.on_first_message(spoken.append)
            connection = listener.accepted.find(descriptor)
            assert connection is not None
            assert (connection.number, connection.is_silent) == (6, False)
            assert listener.accepted.find(descriptor) is connection
            assert spoken == [connection]
            assert listener.accepted.find(10**6) is None
        await listener.wait_count(5)
        assert listener.ended == [6]
    await listener.wait_count(0)
    assert sorted(listener.ended) == [1, 2, 3, 4, 5, 6]


async def test_watching_keeps_the_table_without_messages(listener: Listener) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.accepted.watch)
        with trio.fail_after(DEADLINE_S):
            async with await listener.open_stream():
                while not len(listener.accepted):  # noqa: ASYNC110 (there is no event to wait for)
                    await trio.sleep(0.001)
            while not listener.ended:  # noqa: ASYNC110
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert len(listener.accepted) == 0


async def test_a_reused_descriptor_is_another_connection(listener: Listener) -> None:
    with listener.open_peer():
        first_descriptor = await listener.receive_descriptor()
        await listener.wait_count(1)
        first = listener.accepted.find(first_descriptor)
        assert first is not None
        assert listener.accepted.is_open(first.number)
    await listener.wait_count(0)
    assert listener.accepted.find(first_descriptor) is None
    assert listener.accepted.identify(first) is None
    assert not listener.accepted.is_open(first.number)
    with listener.open_peer(b"y"):
        await listener.wait_count(1)
        (second,) = listener.accepted._connections.values()
        second_descriptor = second.descriptor
        if second_descriptor != first_descriptor:
            pytest.skip("the system did not reuse the descriptor")
        assert second.number != first.number
        assert not listener.accepted.is_open(first.number)
        assert listener.accepted.end(first) is None
        await trio.testing.wait_all_tasks_blocked()
        listener.accepted.update()
        assert listener.accepted.is_open(second.number)


async def test_a_descriptor_reused_within_one_batch_of_events_is_another_connection(listener: Listener) -> None:
    with listener.open_peer():
        await listener.wait_count(1)
        (first,) = listener.accepted._connections.values()
        listener.accepted._record_events(
            [
                [EVENT_HEADING.pack(zmq.EVENT_DISCONNECTED, first.descriptor), b""],
                [EVENT_HEADING.pack(zmq.EVENT_ACCEPTED, first.descriptor), b""],
            ]
        )
        assert listener.ended == [first.number]
        found = listener.accepted.find(first.descriptor)
        assert found is not None
        assert found.number != first.number
        # Even if the end of the former connection is not reported, it is not taken for the new one.
        listener.accepted._record_events([[EVENT_HEADING.pack(zmq.EVENT_ACCEPTED, first.descriptor), b""]])
        assert listener.ended == [first.number, found.number]


async def test_ending_a_connection_ends_no_other(listener: Listener) -> None:
    one, other = await listener.open_stream(), await listener.open_stream()
    await listener.wait_count(2)
    first, _ = listener.accepted._connections.values()
    own, peer = one.socket.getsockname(), one.socket.getpeername()
    ends = listener.accepted.end(first)
    assert ends == low_level.Connection(peer, own)
    assert (ends.host, ends.port) == ("127.0.0.1", peer[1])
    await listener.wait_count(1)
    with trio.fail_after(DEADLINE_S):
        while await one.receive_some():
            pass
    (left,) = listener.accepted._connections.values()
    assert listener.accepted.is_open(left.number)
    await one.aclose()
    await other.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that the peer has closed its side")
async def test_a_connection_that_its_peer_has_just_closed_is_not_open(listener: Listener) -> None:
    """A node that restarts must not be refused because of its own former connection, which has not been read yet."""
    stream = await listener.open_stream()
    await listener.wait_count(1)
    (connection,) = listener.accepted._connections.values()
    assert listener.accepted.is_open(connection.number)
    await stream.aclose()
    with trio.fail_after(DEADLINE_S):
        while listener.accepted.is_open(connection.number):
            await trio.lowlevel.checkpoint()
    assert not listener.accepted.is_open(connection.number + 1)


async def test_beyond_the_limit_silent_connections_are_ended_first_and_then_the_newest() -> None:
    limit = low_level.CONNECTIONS_MIN + 4
    async with open_listener(limit) as listener, AsyncExitStack() as stack:
        for number in range(limit - 2):
            stack.enter_context(listener.open_peer(b"%d" % number))
            await listener.wait_connection()
        for _ in range(3):
            await stack.enter_async_context(await listener.open_stream())
        await listener.wait_ended(19)  # the oldest silent one
        for ended in ([19, 20], [19, 20, 21]):
            stack.enter_context(listener.open_peer(b"%d" % ended[-1]))
            await listener.wait_connection()
            await listener.wait_ended(*ended)
        assert len(listener.accepted) == limit
        listener.accepted._wanted_max = low_level.CONNECTIONS_MIN
        listener.accepted._enforce_limit(trio.current_time())
        assert listener.accepted._ending | {*listener.ended} == {17, 18, 19, 20, 21, 22, 23}
        assert listener.accepted.ended_count == 7


async def test_silent_connections_are_ended_after_a_while_if_there_are_many() -> None:
    limit = low_level.CONNECTIONS_MIN
    async with open_listener(limit) as listener, AsyncExitStack() as streams:
        for _ in range(limit // 2):
            await streams.enter_async_context(await listener.open_stream())
        await listener.wait_count(limit // 2)
        assert listener.accepted._silence_deadline() == float("inf")
        listener.accepted._enforce_limit(DUE_S)
        assert listener.accepted.ended_count == 0
        await streams.enter_async_context(await listener.open_stream())
        await listener.wait_count(limit // 2 + 1)
        first = next(iter(listener.accepted._connections.values()))
        assert listener.accepted._silence_deadline() == first.accepted_at + module.SILENT_S
        listener.accepted._enforce_limit(first.accepted_at + module.SILENT_S - 0.001)
        assert listener.accepted.ended_count == 0
        listener.accepted._enforce_limit(DUE_S)
        await listener.wait_count(0)
        assert listener.accepted.ended_count == limit // 2 + 1


async def test_the_sockets_of_a_process_share_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    least = low_level.CONNECTIONS_MIN
    monkeypatch.setattr(
        low_level, "descriptors_max", lambda: low_level.RESERVED_DESCRIPTORS + (least + 10) * 4 // 3 + 1
    )
    async with open_listener() as one, open_listener() as two, AsyncExitStack() as streams:
        assert one.accepted._limit() == least + 10
        for _ in range(5):
            await streams.enter_async_context(await two.open_stream())
        await two.wait_count(5)
        assert one.accepted._limit() == least + 5
        assert two.accepted._limit() == least + 10
        for _ in range(10):
            await streams.enter_async_context(await two.open_stream())
        await two.wait_count(15)
        assert one.accepted._limit() == least
    assert AcceptedConnections._process_count == 0


async def test_all_connections_can_be_dropped_and_the_peers_connect_again(listener: Listener) -> None:
    with listener.open_peer() as peer:
        await listener.receive_descriptor()
        await listener.wait_count(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.receive_many)  # libzmq repeats subscriptions in calls on the socket
            with trio.fail_after(DEADLINE_S):
                await listener.accepted.drop_all()
                assert listener.ended == [1]
                # libzmq ends the old connection in calls on the socket, too.
                while [b"\1x"] not in await listener.socket.receive_many():
                    pass
                await listener.wait_count(1)
            nursery.cancel_scope.cancel()
