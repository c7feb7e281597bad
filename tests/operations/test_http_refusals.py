"""Connections that the HTTP server refuses do not count against its limit."""

from __future__ import annotations

import trio

from dafka.operations.http import CONNECTIONS_MAX
from tests.operations.test_http import GET, ask, serving, status_of


async def test_refused_connections_are_forgotten() -> None:
    async with serving() as port:
        waiting = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        for stream in waiting:
            await stream.send_all(GET[:5])
        with trio.fail_after(60):
            refused = 0
            while refused < 3 * CONNECTIONS_MAX:
                refused += not await ask(port, GET)
            for stream in waiting:
                await trio.aclose_forcefully(stream)
            while not (answer := await ask(port, GET)):  # noqa: ASYNC110 (until the server has noticed)
                await trio.sleep(0.01)
        assert status_of(answer) == 200
