"""A faulty network: TCP connections that are delayed, throttled, stalled, reset or refused. Bytes are never changed.

Every node listens at one host, and the others know it by another host, where a `Link` listens and forwards. Above
TCP, a lossy network shows as pauses: a lost packet is sent again after 0.2 s or more, and delays what follows.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from random import Random

import attrs
import trio

PIECE_BYTES = 64 * 1024
"""Bytes that are forwarded and delayed together."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, with which closing sends RST and drops what was not sent."""

LOST_S = (0.2, 1.0)
"""Seconds for which a lost packet delays what follows."""


@attrs.frozen(kw_only=True)
class Conditions:
    """The faults that a link applies to forwarded data, in both directions.

    `delay_s` is added to each piece. `bytes_per_s` 0 means no limit. `loss` is the probability that a piece is delayed
    as by a lost packet. While `is_stalled`, nothing is forwarded, without notice. While `is_refusing`, no connection is
    accepted.
    """

    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    loss: float = 0.0
    is_stalled: bool = False
    is_refusing: bool = False

    def pause(self, size: int, random: Random) -> float:
        """Return the seconds for which a piece is delayed."""
        pause = self.delay_s + (size / self.bytes_per_s if self.bytes_per_s else 0.0)
        return pause + (random.uniform(*LOST_S) if self.loss and random.random() < self.loss else 0.0)


GOOD = Conditions()


class Link:
    """Forwards connections to `endpoint` to `target`, each a host and a port; a port of 0 is replaced when it runs."""

    def __init__(self, endpoint: tuple[str, int], target: tuple[str, int], seed: int = 0) -> None:
        self.endpoint = endpoint
        self._target = target
        self._random = Random(seed)
        self._conditions = GOOD
        self._changed = trio.Event()
        self._open: set[trio.SocketStream] = set()

    def set(self, conditions: Conditions) -> None:
        """Change the conditions. A piece that is being delayed keeps its delay."""
        self._conditions = conditions
        self._changed.set()
        self._changed = trio.Event()

    def reset(self) -> int:
        """End all connections as a crashed machine does, and return their number."""
        streams = list(self._open)
        for stream in streams:
            _reset(stream)
        return len(streams) // 2

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward until cancelled. Reports `started` when it listens."""
        host, port = self.endpoint
        (listener,) = await trio.open_tcp_listeners(port, host=host)
        self.endpoint = (host, listener.socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve, [listener])
            task_status.started()

    async def _serve(self, client: trio.SocketStream) -> None:
        """Forward one connection. The end of either side is not an error."""
        server: trio.SocketStream | None = None
        try:
            if self._conditions.is_refusing:
                return
            server = await trio.open_tcp_stream(*self._target)
            self._open |= {client, server}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, client, server, nursery.cancel_scope)
                nursery.start_soon(self._pass_on, server, client, nursery.cancel_scope)
        except OSError:
            pass  # the target does not listen now
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
        scope.cancel()

    async def _hold_up(self, size: int) -> None:
        await trio.sleep(self._conditions.pause(size, self._random))
        while self._conditions.is_stalled:
            await self._changed.wait()


def _reset(stream: trio.SocketStream) -> None:
    with suppress(OSError, trio.ClosedResourceError):
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.socket.close()
