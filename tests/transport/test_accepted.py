"""The table of accepted connections: kept by events, examined only when needed, and limited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager

import attrs
import pytest
import trio
import zmq

from dafka.transport import AcceptedConnections, Socket, open_context
from dafka.transport import accepted as module
from tests.waiting import DEADLINE_S

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

    @contextmanager
    def open_peer(self, prefix: bytes = b"x") -> Iterator[Socket]:
        peer = Socket(self.context.socket(zmq.SocketType.SUB))
        try:
            peer.subscribe(prefix)
            peer.connect(self.endpoint)
            yield peer
        finally:
            peer.close(0)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with open_context(0) as context:
        socket = Socket(context.socket(zmq.SocketType.XPUB))
        accepted = AcceptedConnections(socket, 1000)
        try:
            socket.set_options(xpub_verbose=1)
            ended: list[int] = []
            accepted.on_ended(ended.append)
            yield Listener(socket, accepted, socket.bind("tcp://127.0.0.1:*"), context, ended)
        finally:
            socket.close(0)
            accepted.close()


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
