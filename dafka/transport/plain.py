"""A plain node's subscriber: one SUB socket, connected to everybody.

Whose a message is, is not looked at: it costs time, and nothing would follow from it. That changes where many messages
have to be thrown away. Then they are taken one by one, with the descriptor that each came by, and a connection that
brings little else is ended, for a while that doubles each time. Others are served on meanwhile, and by themselves.
"""

from __future__ import annotations

import struct
from collections import Counter, deque

import trio
import zmq

from dafka.errors import TransportError
from dafka.protocol.token_bucket import TokenBucket
from dafka.transport.closed import Messages
from dafka.transport.descriptors import source_of
from dafka.transport.socket import RunSocket

SUSPICIOUS_PER_S = 500
"""So many messages thrown away in a second, and it is looked at whose they are."""

SUSPICIOUS_S = 5.0
"""For how long it is."""

LOOK_S = 1.0
"""For how long it is looked at whose messages they are where there are many that take long."""

LOOK_AGAIN_S = 20.0
"""How long until that is done again, where it has led to nothing."""

TOLERATED_PER_S = 200
"""So many of one connection's messages may be thrown away in a second, for ever."""

TOLERATED_BURST = 2000
"""So many at once."""

ABSENCE_S = 5.0
"""For how long a connection is ended the first time."""

ABSENCE_MAX_S = 300.0
"""For how long at most."""

FLOODS = "messages thrown away: connection ended for a while"

_HEADING = struct.Struct("=Hi")


class PlainSubscriber(RunSocket):
    """Attributes:
    discarded: connections ended, by reason.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        super().__init__(socket)
        self.discarded: Counter[str] = Counter()
        self._handshakes = self.monitor(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CONNECTED)
        self._endpoints: set[str] = set()
        self._by_source: dict[str, str] = {}
        self._waiting_groups: deque[tuple[Messages, str]] = deque()
        self._suspects: dict[str, TokenBucket] = {}
        self._absences: dict[str, float] = {}
        self._absent: dict[str, float] = {}
        self._seen = 0
        self._seen_at = 0.0
        self._suspicious_until = float("-inf")
        self._look_again_at = float("-inf")

    def connect(self, endpoint: str) -> None:
        """See `BaseSocket.connect`. An endpoint whose connection was ended a moment ago comes later."""
        if endpoint not in self._absent:
            super().connect(endpoint)
        self._endpoints.add(endpoint)

    def disconnect(self, endpoint: str) -> None:
        """See `BaseSocket.disconnect`."""
        if endpoint in self._endpoints:
            self._endpoints.discard(endpoint)
            if endpoint not in self._absent:
                super().disconnect(endpoint)

    async def receive(self) -> tuple[Messages, str]:
        """See `Subscriber.receive`; while it is looked at whose messages they are, those of one connection."""
        if self._waiting_groups:
            self._pace()
            await trio.lowlevel.checkpoint()
            return self._give_group()
        now = trio.current_time()
        if self.is_laboured and now >= self._look_again_at:
            self._look_again_at = now + LOOK_AGAIN_S
            self._suspicious_until = max(self._suspicious_until, now + LOOK_S)
        self.is_laboured = False
        if now >= self._suspicious_until:
            return await self.receive_many(), ""
        self._pace()
        self._waiting_groups.extend(await self._receive(self._receive_groups))
        return self._give_group()

    def judge(self, source: str, discarded: int) -> None:
        """Of what `receive` gave last, so many messages had to be thrown away."""
        now = trio.current_time()
        if not source:
            if now - self._seen_at >= 1.0:
                self._seen, self._seen_at = 0, now
            self._seen += discarded
            if self._seen >= SUSPICIOUS_PER_S:
                self._suspicious_until = now + SUSPICIOUS_S
            return
        if not discarded:
            return
        self._suspicious_until = now + SUSPICIOUS_S
        suspect = self._suspects.setdefault(source, TokenBucket(TOLERATED_PER_S, TOLERATED_BURST, now))
        if suspect.spend(now, discarded) <= 0:
            del self._suspects[source]
            self._end(source, now)

    def endpoint_of(self, source: str) -> str:
        """Where the connection of this name was made to; empty where that is not known."""
        return self._by_source.get(source, "")

    async def watch(self) -> None:
        """Connects again, in time, to those whose connection was ended. Runs until cancelled."""
        while True:
            await trio.sleep(1.0)
            now = trio.current_time()
            for endpoint in [endpoint for endpoint, until in self._absent.items() if until <= now]:
                del self._absent[endpoint]
                if endpoint in self._endpoints:
                    super().connect(endpoint)
            for endpoint in [each for each in self._absences if each not in self._endpoints | self._absent.keys()]:
                del self._absences[endpoint]
            if now >= self._suspicious_until:
                self._suspects.clear()

    async def receive_connections(self) -> list[str]:
        """See `Subscriber.receive_connections`."""
        made: list[str] = []
        while not made:
            for frames in await self._handshakes.receive_many():
                event, value = _HEADING.unpack(frames[0])
                endpoint = frames[-1].decode("utf-8", "replace")
                if event == zmq.EVENT_CONNECTED:
                    self._by_source[str(value)] = endpoint
                else:
                    made.append(endpoint)
        return made

    def close(self, linger_ms: int) -> None:
        """Closes it, and what tells of its connections."""
        super().close(linger_ms)
        self._handshakes.close(0)

    def _give_group(self) -> tuple[Messages, str]:
        messages, source = self._waiting_groups.popleft()
        self._note_given(messages)
        return messages, source

    def _receive_groups(self) -> list[tuple[Messages, str]]:
        """What is here, of each connection by itself; that of a connection just ended is left out."""
        groups: dict[str, Messages] = {}
        for frames in self._take_frames(self.count_max):
            groups.setdefault(str(source_of(frames[0]) or ""), []).append([frame.bytes for frame in frames])
        return [(messages, source) for source, messages in groups.items()]

    def _end(self, source: str, now: float) -> None:
        endpoint = self._by_source.get(source, "")
        if endpoint not in self._endpoints or endpoint in self._absent:
            return
        absence = min(2 * self._absences.get(endpoint, ABSENCE_S / 2), ABSENCE_MAX_S)
        try:
            super().disconnect(endpoint)
        except TransportError:
            return
        self._absences[endpoint] = absence
        self._absent[endpoint] = now + absence
        self.discarded[FLOODS] += 1
