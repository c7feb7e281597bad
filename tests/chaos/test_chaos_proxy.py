from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
import trio

from tests.chaos.proxy import GOOD, Conditions, Link

DEADLINE_S = 60.0

HOST = "127.0.0.1"


async def echo(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        async for data in stream:
            await stream.send_all(data)


@asynccontextmanager
async def open_link() -> AsyncIterator[Link]:
    """Open a link to a server that echoes what it receives."""
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host=HOST)
            nursery.start_soon(trio.serve_listeners, echo, [listener])
            link = Link((HOST, 0), (HOST, listener.socket.getsockname()[1]))
            await nursery.start(link.run)
            yield link
            nursery.cancel_scope.cancel()


async def receive(stream: trio.SocketStream, count: int) -> bytes:
    found = b""
    while len(found) < count:
        data = await stream.receive_some()
        assert data, "the connection has ended"
        found += data
    return found


async def test_bytes_pass_unchanged_under_every_condition() -> None:
    sent = bytes(range(256)) * 4000
    async with open_link() as link:
        link.set(Conditions(delay_s=0.001, bytes_per_s=50e6, loss=0.02))
        async with await trio.open_tcp_stream(*link.endpoint) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, sent)
            assert await receive(stream, len(sent)) == sent
        assert link.connections == 1
        assert link.bytes >= 2 * len(sent)


async def test_delay_holds_up_each_way() -> None:
    async with open_link() as link, await trio.open_tcp_stream(*link.endpoint) as stream:
        link.set(Conditions(delay_s=0.1))
        begun = trio.current_time()
        await stream.send_all(b"hello")
        await receive(stream, 5)
        assert trio.current_time() - begun >= 0.2


async def test_throttle_lets_no_more_pass() -> None:
    sent = b"." * 100_000
    async with open_link() as link, await trio.open_tcp_stream(*link.endpoint) as stream:
        link.set(Conditions(bytes_per_s=400_000))
        begun = trio.current_time()
        await stream.send_all(sent)
        await receive(stream, len(sent))
        assert trio.current_time() - begun >= 0.25


async def test_stalled_link_passes_on_later() -> None:
    async with open_link() as link, await trio.open_tcp_stream(*link.endpoint) as stream:
        link.set(Conditions(is_stalled=True))
        await stream.send_all(b"hello")
        with trio.move_on_after(0.2) as scope:
            await stream.receive_some()
        assert scope.cancelled_caught
        link.set(GOOD)
        assert await receive(stream, 5) == b"hello"


async def test_reset_ends_connections_with_an_error_and_lets_new_ones_begin() -> None:
    async with open_link() as link:
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            await stream.send_all(b"hello")
            await receive(stream, 5)
            assert link.reset() == 1
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            await stream.send_all(b"again")
            assert await receive(stream, 5) == b"again"


async def test_refused_connection_ends_at_once() -> None:
    async with open_link() as link:
        link.set(Conditions(is_refusing=True))
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        link.set(GOOD)
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            await stream.send_all(b"hello")
            assert await receive(stream, 5) == b"hello"


async def test_connection_ends_where_nobody_listens_behind_the_link() -> None:
    async with open_link() as link:
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        target = listeners[0].socket.getsockname()[1]
        await listeners[0].aclose()
        async with trio.open_nursery() as nursery:
            dead = Link((HOST, 0), (HOST, target))
            await nursery.start(dead.run)
            async with await trio.open_tcp_stream(*dead.endpoint) as stream:
                with pytest.raises(trio.BrokenResourceError):
                    await stream.receive_some()
            nursery.cancel_scope.cancel()
        assert dead.connections == link.connections == 0


def test_pause_follows_from_the_seed() -> None:
    conditions = Conditions(delay_s=0.5, bytes_per_s=1000, loss=0.5)
    pauses = [[conditions.pause(100, random) for _ in range(20)] for random in (Random(7), Random(7))]
    assert pauses[0] == pauses[1]
    assert min(pauses[0]) == pytest.approx(0.6)
    assert max(pauses[0]) >= 0.8
