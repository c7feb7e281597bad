"""The faulty network of chaos delays, holds up and ends connections, and changes no byte."""

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


async def expect_echo(stream: trio.SocketStream, sent: bytes) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, sent)
        found = b""
        while len(found) < len(sent):
            data = await stream.receive_some()
            assert data, "the connection has ended"
            found += data
    assert found == sent


@pytest.mark.parametrize(
    ("conditions", "size", "least_s"),
    [
        (Conditions(delay_s=0.001, bytes_per_s=50e6, loss=0.02), 1_000_000, 0.002),
        (Conditions(delay_s=0.1), 5, 0.2),
        (Conditions(bytes_per_s=400_000), 100_000, 0.25),
    ],
)
async def test_bytes_pass_unchanged_and_later(conditions: Conditions, size: int, least_s: float) -> None:
    async with open_link() as link, await trio.open_tcp_stream(*link.endpoint) as stream:
        link.set(conditions)
        begun = trio.current_time()
        await expect_echo(stream, bytes(range(256)) * (size // 256) + b"hello")
        assert trio.current_time() - begun >= least_s


async def test_a_stalled_link_passes_on_later() -> None:
    async with open_link() as link, await trio.open_tcp_stream(*link.endpoint) as stream:
        link.set(Conditions(is_stalled=True))
        await stream.send_all(b"hello")
        with trio.move_on_after(0.2) as scope:
            await stream.receive_some()
        assert scope.cancelled_caught
        link.set(GOOD)
        assert await stream.receive_some() == b"hello"


async def test_connections_that_are_reset_or_refused_end_with_an_error_and_new_ones_begin() -> None:
    async with open_link() as link:
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            await expect_echo(stream, b"hello")
            assert link.reset() == 1
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        link.set(Conditions(is_refusing=True))
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        link.set(GOOD)
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            await expect_echo(stream, b"again")


def test_a_pause_follows_from_the_seed() -> None:
    conditions = Conditions(delay_s=0.5, bytes_per_s=1000, loss=0.5)
    pauses = [[conditions.pause(100, random) for _ in range(20)] for random in (Random(7), Random(7))]
    assert pauses[0] == pauses[1]
    assert min(pauses[0]) == pytest.approx(0.6)
    assert max(pauses[0]) >= 0.8
