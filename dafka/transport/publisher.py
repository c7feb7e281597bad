"""The socket that others connect to: an XPUB that holds no more for any of them than it should.

What a connection may subscribe to is the business of `Subscriptions`; how many there may be, and which of them go
where they are too many, is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import trio
import zmq

from dafka.config import NodeConfig
from dafka.transport.crowd import MANY_CONNECTIONS, SWEEP_S, Crowd
from dafka.transport.descriptors import source_of
from dafka.transport.socket import BaseSocket
from dafka.transport.subscriptions import Subscriptions

DRAIN_COUNT_MAX = 1000
"""Subscriptions taken at a time: a few milliseconds' work."""


class PublisherSocket(BaseSocket):
    """An XPUB. Only one task may receive at a time; any may send."""

    def __init__(self, socket: zmq.Socket[bytes], config: NodeConfig) -> None:
        super().__init__(socket)
        self._subscriptions = Subscriptions(config.subscription_bytes_max, config.subscriptions_max)
        self._connections_max = config.connections_max
        self._crowd = Crowd(0, config.connections_max)

    @property
    def discarded(self) -> Counter[str]:
        """Subscriptions not passed on, and connections ended, by reason."""
        return self._subscriptions.discarded

    def bind(self, endpoint: str) -> str:
        """See `BaseSocket.bind`."""
        bound = super().bind(endpoint)
        port = bound.rpartition(":")[2]
        self._crowd = Crowd(int(port) if bound.startswith("tcp://") else 0, self._connections_max)
        return bound

    async def receive_many(self) -> list[list[bytes]]:
        """Waits for subscriptions and gives those that may be. A checkpoint."""
        while True:
            await trio.lowlevel.checkpoint()
            subscriptions = self.receive_nowait()
            if subscriptions:
                return subscriptions
            await self._wait_events()

    def receive_nowait(self) -> list[list[bytes]]:
        """The subscriptions that are here and may be, of up to `DRAIN_COUNT_MAX`."""
        now = trio.current_time()
        begun: dict[int, bool] = {}
        found: list[list[bytes]] = []
        for frame in self._drain():
            source = source_of(frame)
            octets = frame.bytes
            if source is not None:
                if source not in begun:
                    begun[source] = self._subscriptions.begin(source, now)
                if begun[source] and not self._subscriptions.may_have(source, octets, now):
                    continue
            found.append([octets])
        return found

    async def watch(self) -> None:
        """Counts the connections from time to time, and ends what is too many. Runs until cancelled."""
        while True:
            await trio.sleep(SWEEP_S)
            self.sweep(trio.current_time())

    def sweep(self, now: float) -> None:
        """Forgets who has gone, and ends what is too many."""
        self._subscriptions.forget_gone()
        ended = self._crowd.sweep(self._subscriptions.connections(), now)
        if ended:
            self.discarded[MANY_CONNECTIONS] += ended

    def _drain(self) -> Iterator[zmq.Frame]:
        """The first frame of each message that is here."""
        receive = self._socket.recv
        try:
            for _ in range(DRAIN_COUNT_MAX):
                first = frame = receive(zmq.NOBLOCK, copy=False)
                while frame.more:
                    frame = receive(zmq.NOBLOCK, copy=False)
                yield first
        except zmq.Again:
            return
