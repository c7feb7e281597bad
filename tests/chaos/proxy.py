"""A faulty network: TCP connections that are delayed, throttled, stalled, reset or refused. Octets are never changed.

Every node listens at one address and is known to the others by another, where a `Link` listens that passes on what
comes. What TCP makes of a lossy network is seen above it as pauses: a lost packet is sent again after a fifth of a
second or more, and holds up what came after it.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from random import Random

import attrs
import trio

PIECE_BYTES = 64 * 1024
"""Passed on at once, and delayed together."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends RST, and forgets what was not sent."""

LOST_S = (0.2, 1.0)
"""For how long a lost packet holds up what came after it."""


@attrs.frozen(kw_only=True)
class Conditions:
    """What a link does to what it passes on, in both directions.

    `delay_s` is added to each piece. `bytes_per_s`: 0 is no limit. `loss` is how likely a piece is held up, as by a
    lost packet. While `is_stalled`, nothing is passed on, and nobody is told; while `is_refusing`, nobody connects.
    """

    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    loss: float = 0.0
    is_stalled: bool = False
    is_refusing: bool = False

    def pause(self, size: int, random: Random) -> float:
        """How long a piece is held up."""
        pause = self.delay_s + (size / self.bytes_per_s if self.bytes_per_s else 0.0)
        return pause + (random.uniform(*LOST_S) if self.loss and random.random() < self.loss else 0.0)


GOOD = Conditions()


class Link:
    """Passes connections to `endpoint` on to `target`, each a host and a port.

    Attributes:
        connections: how many were passed on so far.
        bytes: how much was.
        endpoint: where it listens, once it runs; a port of 0 is replaced.
    """

    def __init__(self, endpoint: tuple[str, int], target: tuple[str, int], seed: int = 0) -> None:
        self.endpoint = endpoint
        self.connections = 0
        self.bytes = 0
        self._target = target
        self._random = Random(seed)
        self._conditions = GOOD
        self._changed = trio.Event()
        self._open: set[trio.SocketStream] = set()

    @property
    def conditions(self) -> Conditions:
        """As they are now."""
        return self._conditions

    def set(self, conditions: Conditions) -> None:
        """Changes what happens from now on; a piece that is being held up is passed on as was decided."""
        self._conditions = conditions
        self._changed.set()
        self._changed = trio.Event()

    def reset(self) -> int:
        """Ends all connections as a crashed machine does; gives their number."""
        streams = list(self._open)
        for stream in streams:
            _reset(stream)
        return len(streams) // 2

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Passes on until cancelled; `started` when it listens."""
        host, port = self.endpoint
        (listener,) = await trio.open_tcp_listeners(port, host=host)
        self.endpoint = (host, listener.socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve, [listener])
            task_status.started()

    async def _serve(self, client: trio.SocketStream) -> None:
        """Neither side's end is an error of ours."""
        server: trio.SocketStream | None = None
        try:
            if self._conditions.is_refusing:
                return
            server = await trio.open_tcp_stream(*self._target)
            self.connections += 1
            self._open |= {client, server}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, client, server, nursery.cancel_scope)
                nursery.start_soon(self._pass_on, server, client, nursery.cancel_scope)
        except OSError:
            pass  # nobody listens there now
        finally:
            for stream in (client, server):
                if stream is not None:
                    self._open.discard(stream)
                    _reset(stream)

    async def _pass_on(self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while piece := await source.receive_some(PIECE_BYTES):
                if self._conditions is not GOOD:
                    await self._hold_up(len(piece))
                await sink.send_all(piece)
                self.bytes += len(piece)
        scope.cancel()

    async def _hold_up(self, size: int) -> None:
        await trio.sleep(self._conditions.pause(size, self._random))
        while self._conditions.is_stalled:
            await self._changed.wait()


def _reset(stream: trio.SocketStream) -> None:
    with suppress(OSError, trio.ClosedResourceError):
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.socket.close()
