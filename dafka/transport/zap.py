"""The doorkeeper of a closed cluster: a ZAP handler (ZeroMQ RFC 27) as a trio task.

libzmq asks, in the context of the socket that somebody connects to, at `inproc://zeromq.zap.01`, and goes on with that
connection when it has an answer. So every context with a socket that binds has one of these, and nodes with different
keys live in one process without knowing of each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import zmq
from zmq.utils import z85

from dafka.errors import AddressInUseError, ConfigError
from dafka.protocol import AuthorizedKeysUnreadable, Event, PeerRefused
from dafka.transport.connector import Monitor, Outcome
from dafka.transport.security import ZAP_DOMAIN, Security
from dafka.transport.socket import BaseSocket, Socket

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
REFRESH_S = 1.0
"""How often the authorized keys are looked at for a change."""

REBIND_S = 0.002
"""How long until it is tried to listen where this process has listened until a moment ago; then ever more rarely."""

TOLD_S = 60.0
"""A stranger that keeps trying is told of once in so long."""

TOLD_MAX = 256
"""Different strangers told of in that time: many that come with ever new keys fill no log."""


class ZapHandler:
    """Guards the binding sockets of one context. Made by `open_zap_handler`.

    Attributes:
        refused: handshakes that came to nothing, by reason.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], security: Security, report: Callable[[Event], None]
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._security = security
        self._authorised = security.authorized
        self._report = report
        self._nursery: trio.Nursery | None = None
        self._told: dict[tuple[str, str], float] = {}
        self._bound: dict[str, BaseSocket] = {}
        self._monitors: list[Monitor] = []
        self._changed: Callable[[], None] = lambda: None
        self._socket = Socket(context.socket(zmq.SocketType.ROUTER))
        self._socket.bind(ZAP_ENDPOINT)

    def start(self, nursery: trio.Nursery) -> None:
        """Begins to answer, until the nursery is cancelled."""
        self._nursery = nursery
        nursery.start_soon(self._answer)
        nursery.start_soon(self._refresh)

    def bind(self, socket: BaseSocket, endpoint: str) -> str:
        """Has a socket listen there to those alone who are authorized; gives the endpoint with its port.

        Raises as `Socket.bind`.
        """
        assert self._nursery is not None, "start() comes first"
        self._security.guard(socket)
        monitor = Monitor(socket)
        self._monitors.append(monitor)
        bound = socket.bind(endpoint)
        self._bound[bound] = socket
        self._nursery.start_soon(self._watch, monitor)
        return bound

    def on_change(self, changed: Callable[[], None]) -> None:
        """Who wants to know that others are authorized now."""
        self._changed = changed

    def close(self) -> None:
        """Answers nobody any more."""
        for monitor in self._monitors:
            monitor.close()
        self._socket.close(0)

    async def _answer(self) -> None:
        """Answers libzmq's questions."""
        while True:
            requests = await self._socket.receive_many()
            self._socket.send_many([reply for reply in map(self._reply, requests) if reply])

    async def _watch(self, monitor: Monitor) -> None:
        """Notices those who do not get as far as showing a key."""
        while True:
            for handshake in await monitor.receive_many():
                if handshake.outcome is Outcome.NO_CURVE:
                    self._refuse("", "", "no key")
                elif handshake.outcome is Outcome.WRONG_SERVER_KEY:
                    self._refuse("", "", "another key expected")

    async def _refresh(self) -> None:
        """Reads the authorized keys again when they change."""
        while True:
            await trio.sleep(REFRESH_S)
            try:
                revoked = self._authorised.refresh()
            except ConfigError as error:
                self._report(AuthorizedKeysUnreadable(str(error)))
                continue
            if revoked is None:
                continue
            if revoked:
                await self._drop_connections()
            self._told.clear()
            self._changed()

    async def _drop_connections(self) -> None:
        """Those who are still authorized come back at once. libzmq ends a listener's connections with it."""
        for endpoint, socket in self._bound.items():
            socket.unbind(endpoint)
            pause = REBIND_S
            while not _try_bind(socket, endpoint):
                await trio.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _reply(self, frames: Sequence[bytes]) -> list[bytes]:
        """The answer to a request: peer, empty, version, request id, domain, address, routing id, mechanism, key."""
        if len(frames) < 4:
            return []
        *_, request_id = frames[:4]
        key, address = _read_request(frames)
        if key and key in self._authorised:
            verdict = [b"200", b"OK", key.encode("ascii"), b""]
        else:
            self._refuse(address, key, "key not authorized")
            verdict = [b"400", b"key not authorized", b"", b""]
        return [*frames[:2], ZAP_VERSION, request_id, *verdict]

    def _refuse(self, address: str, key: str, reason: str) -> None:
        self.refused[reason] += 1
        now = trio.current_time()
        who = (address, key or reason)
        if now - self._told.get(who, -TOLD_S) < TOLD_S:
            return
        if len(self._told) >= TOLD_MAX:
            self._told = {each: told for each, told in self._told.items() if now - told < TOLD_S}
        if len(self._told) < TOLD_MAX:
            self._told[who] = now
            self._report(PeerRefused(address, key, reason, str(self._authorised.path)))


def _try_bind(socket: BaseSocket, endpoint: str) -> bool:
    """libzmq's thread may not have given the port back yet."""
    try:
        socket.bind(endpoint)
    except AddressInUseError:
        return False
    return True


@asynccontextmanager
async def open_zap_handler(
    context: zmq.Context[zmq.Socket[bytes]], security: Security, report: Callable[[Event], None]
) -> AsyncIterator[ZapHandler]:
    """A doorkeeper for the sockets of this context, for the length of a block.

    `report` is told of those who are refused.
    """
    guard = ZapHandler(context, security, report)
    try:
        async with trio.open_nursery() as nursery:
            guard.start(nursery)
            yield guard
            nursery.cancel_scope.cancel()
    finally:
        guard.close()


def _read_request(frames: Sequence[bytes]) -> tuple[str, str]:
    """The public key that is shown, in Z85, and the IP address; no key where it is not such a request."""
    if len(frames) != 9 or frames[2] != ZAP_VERSION or frames[4] != ZAP_DOMAIN:
        return "", ""
    address = frames[5].decode("ascii", "replace")
    if frames[7] != b"CURVE" or len(frames[8]) != 32:
        return "", address
    return z85.encode(frames[8]).decode("ascii"), address
