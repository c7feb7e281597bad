"""A ZAP handler (ZeroMQ RFC 27) as a trio task: it accepts authorized peers only.

When a peer connects, libzmq asks the handler at `inproc://zeromq.zap.01` in the context of the socket, and waits for
the answer. Every context with a bound socket has its own handler, so that nodes with different keys can run in one
process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import zmq
from zmq.utils import z85

from dafka.errors import ConfigError
from dafka.protocol import AuthorizedKeysUnreadable, Event, PeerRefused
from dafka.protocol.trust import KEY_NOT_AUTHORIZED, NO_KEY, WRONG_KEY
from dafka.transport.accepted import AcceptedConnections
from dafka.transport.connector import Handshake, Outcome
from dafka.transport.security import ZAP_DOMAIN, Security
from dafka.transport.socket import Socket

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
REFRESH_S = 1.0
"""Seconds between two checks of the authorized keys for changes."""

REPORT_INTERVAL_S = 60.0
"""Seconds between two reports of a refused peer that keeps trying."""

REPORTED_MAX = 256
"""Refused peers reported in that time, at most: a peer that keeps changing its key cannot fill a log."""


class ZapHandler:
    """The authentication of peers for the bound sockets of one ZeroMQ context. `open_zap_handler` creates it.

    It answers after `start`. `report` is called with refused peers, and when changed authorized keys cannot be read.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], security: Security, report: Callable[[Event], None]
    ) -> None:
        self.refused: Counter[str] = Counter()
        """The number of refused handshakes, by reason."""
        self._security = security
        self._authorized = security.authorized
        self._report = report
        self._reported_at: dict[tuple[str, str], float] = {}
        self._bound: list[AcceptedConnections] = []
        self._on_keys_changed: Callable[[], None] = lambda: None
        self._socket = Socket(context.socket(zmq.SocketType.ROUTER))
        self._socket.bind(ZAP_ENDPOINT)

    def start(self, nursery: trio.Nursery) -> None:
        """Answer libzmq until the nursery is cancelled."""
        nursery.start_soon(self._answer_requests)
        nursery.start_soon(self._refresh_keys)

    def bind(self, accepted: AcceptedConnections, endpoint: str) -> str:
        """Bind a socket that only authorized peers can connect to, and return the endpoint with its port.

        Raises the exceptions of `BaseSocket.bind`.
        """
        self._security.require_keys(accepted.socket)
        accepted.on_handshake(self._record_handshake)
        self._bound.append(accepted)
        return accepted.socket.bind(endpoint)

    def on_keys_changed(self, callback: Callable[[], None]) -> None:
        """Set the function that is called when the authorized keys have changed."""
        self._on_keys_changed = callback

    def close(self) -> None:
        """Stop answering."""
        self._socket.close(0)

    async def _answer_requests(self) -> None:
        while True:
            requests = await self._socket.receive_many()
            self._socket.send_many([reply for reply in map(self._reply, requests) if reply])

    def _record_handshake(self, handshake: Handshake) -> None:
        """Report a handshake that failed before the peer showed a key. libzmq does not ask the handler about those."""
        if handshake.outcome is Outcome.NO_CURVE:
            self._refuse_peer("", "", NO_KEY)
        elif handshake.outcome is Outcome.WRONG_SERVER_KEY:
            self._refuse_peer("", "", WRONG_KEY)

    async def _refresh_keys(self) -> None:
        while True:
            await trio.sleep(REFRESH_S)
            try:
                revoked = self._authorized.refresh()
            except ConfigError as error:
                self._report(AuthorizedKeysUnreadable(str(error)))
                continue
            if revoked is None:
                continue
            if revoked:
                for accepted in self._bound:
                    await accepted.drop_all()
            self._reported_at.clear()
            self._on_keys_changed()

    def _reply(self, frames: Sequence[bytes]) -> list[bytes]:
        """Return the answer to a request; empty if the request is too short.

        The frames of a request are peer, empty, version, request id, domain, address, routing id, mechanism and key.
        """
        if len(frames) < 4:
            return []
        *_, request_id = frames[:4]
        key, address = _read_request(frames)
        if key and key in self._authorized:
            verdict = [b"200", b"OK", key.encode("ascii"), b""]
        else:
            self._refuse_peer(address, key, KEY_NOT_AUTHORIZED)
            verdict = [b"400", KEY_NOT_AUTHORIZED.encode("ascii"), b"", b""]
        return [*frames[:2], ZAP_VERSION, request_id, *verdict]

    def _refuse_peer(self, address: str, key: str, reason: str) -> None:
        self.refused[reason] += 1
        now = trio.current_time()
        peer = (address, key or reason)
        if now - self._reported_at.get(peer, -REPORT_INTERVAL_S) < REPORT_INTERVAL_S:
            return
        if len(self._reported_at) >= REPORTED_MAX:
            self._reported_at = {each: at for each, at in self._reported_at.items() if now - at < REPORT_INTERVAL_S}
        if len(self._reported_at) < REPORTED_MAX:
            self._reported_at[peer] = now
            self._report(PeerRefused(address, key, reason, str(self._authorized.path)))


@asynccontextmanager
async def open_zap_handler(
    context: zmq.Context[zmq.Socket[bytes]], security: Security, report: Callable[[Event], None]
) -> AsyncIterator[ZapHandler]:
    """Open a ZAP handler for the sockets of a context, for the duration of a block. See `ZapHandler`."""
    handler = ZapHandler(context, security, report)
    try:
        async with trio.open_nursery() as nursery:
            handler.start(nursery)
            yield handler
            nursery.cancel_scope.cancel()
    finally:
        handler.close()


def _read_request(frames: Sequence[bytes]) -> tuple[str, str]:
    """Return the public key of a request, in Z85, and the IP address; an empty key if the request has none."""
    if len(frames) != 9 or frames[2] != ZAP_VERSION or frames[4] != ZAP_DOMAIN:
        return "", ""
    address = frames[5].decode("ascii", "replace")
    if frames[7] != b"CURVE" or len(frames[8]) != 32:
        return "", address
    return z85.encode(frames[8]).decode("ascii"), address
