"""Connects to the HTTP servers of other brokers.

Connections are reused. Each broker gets few of them, so that many clients cannot exhaust another broker's connections.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import h11
import trio
from websockets.trio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.node import BrokerNode
from dafka.config import Config
from dafka.http.forwarding.credentials import SCHEME, RequestSigner
from dafka.http.server.documents import decode_document, encode_document
from dafka.http.server.errors import STATUSES, WebError
from dafka.http.websocket.messages import BINARY_PROTOCOL
from dafka.transport.connections import has_peer_closed

CONNECT_S = 5.0
"""How long connecting to a broker may take."""

ANSWER_S = 30.0
"""How long a broker may take to answer a request."""

PING_S = 5.0
"""The interval of pings on a quiet connection, and how long the answer may take."""

CONNECTIONS_MAX = 8
"""The maximum number of concurrent requests to a broker; others wait. Requests for pages have the same limit again."""

SHOWN_WAIT_S = 2.0
"""How long a page waits for other brokers."""

IDLE_S = 10.0
"""How long an idle connection is kept."""

ANSWER_BYTES_MAX = 2**26

_READ_BYTES = 2**16
_FAILURES = (OSError, ssl.SSLError, h11.ProtocolError, trio.TooSlowError, trio.BrokenResourceError)
_REFUSED = "refuses this broker: both need the same [broker] secret_file"


class BrokerError(Exception):
    """Another broker does not answer, or refuses this one. The message is a clause that gives the reason."""


@attrs.define(eq=False)
class _Connection:
    """A connection to a broker. The stream is encrypted if the broker's is; the socket is not."""

    stream: trio.abc.Stream
    socket: trio.socket.SocketType
    host: str
    """The value of the header Host."""
    framing: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT))
    signer: RequestSigner | None = None
    """Signs requests; None until there is a challenge."""
    used_at: float = 0.0
    """The time of its last request, by Trio's clock."""

    def close(self) -> None:
        """Close the connection immediately."""
        self.socket.close()

    @property
    def can_continue(self) -> bool:
        """Whether the connection can carry another request."""
        return self.framing.our_state is h11.DONE and self.framing.their_state is h11.DONE

    async def exchange(
        self, method: str, target: str, document: Any = None
    ) -> tuple[int, Mapping[bytes, bytes], bytes]:
        """Send a request. Return the status, the headers and the body of the response."""
        framing = self.framing
        if framing.our_state is h11.DONE:
            framing.start_next_cycle()
        body = b"" if document is None else encode_document(document)
        authorization = RequestSigner.ASK if self.signer is None else self.signer.sign(method, target)
        sent = [("Host", self.host), ("Authorization", authorization)]
        if document is not None:
            sent += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        parts = [framing.send(h11.Request(method=method, target=target, headers=sent))]
        if body:
            parts.append(framing.send(h11.Data(data=body)))
        parts.append(framing.send(h11.EndOfMessage()))
        await self.stream.send_all(b"".join(each for each in parts if each))
        found = await self._receive_answer()
        self.used_at = trio.current_time()
        return found

    async def _receive_answer(self) -> tuple[int, Mapping[bytes, bytes], bytes]:
        framing = self.framing
        status, headers, found = 0, dict[bytes, bytes](), bytearray()
        while True:
            event = framing.next_event()
            if event is h11.NEED_DATA:
                framing.receive_data(bytes(await self.stream.receive_some(_READ_BYTES)))
            elif isinstance(event, h11.Response):
                status = event.status_code
                for name, value in event.headers:
                    headers.setdefault(name, value)
            elif isinstance(event, h11.Data):
                found += event.data
                if len(found) > ANSWER_BYTES_MAX:
                    raise trio.BrokenResourceError("the answer is too large")
            elif isinstance(event, h11.EndOfMessage):
                return status, headers, bytes(found)
            elif isinstance(event, h11.ConnectionClosed):
                raise trio.BrokenResourceError("the connection ended")


class _Pool:
    """The connections to one broker."""

    def __init__(self) -> None:
        self.limiters = {is_page: trio.CapacityLimiter(CONNECTIONS_MAX) for is_page in (False, True)}
        self.idle: list[_Connection] = []

    def take(self) -> _Connection | None:
        """Return an open connection; None if there is none."""
        while self.idle:
            found = self.idle.pop()
            if not has_peer_closed(found.socket.fileno()):
                return found
            found.close()
        return None

    def close_unused(self, before: float) -> None:
        """Close the connections that were last used before a time."""
        for each in self.idle:
            if each.used_at < before:
                each.close()
        self.idle = [each for each in self.idle if each.used_at >= before]


class BrokerClient:
    """Connects to the HTTP servers of other brokers, as the broker with an address.

    It signs requests with the cluster's secret, or with the key of the receiving broker if the secret is empty.
    """

    def __init__(self, config: Config, address: str, secret: str) -> None:
        self._config = config
        self._address = address
        self._secret = secret
        self._pools: dict[tuple[str, str, str], _Pool] = {}

    async def run(self) -> None:
        """Close idle connections until cancelled; then close all."""
        try:
            while True:
                await trio.sleep(IDLE_S / 2)
                before = trio.current_time() - IDLE_S
                for each in self._pools.values():
                    each.close_unused(before)
                self._pools = {
                    where: each
                    for where, each in self._pools.items()
                    if each.idle or any(limiter.borrowed_tokens for limiter in each.limiters.values())
                }
        finally:
            for each in self._pools.values():
                each.close_unused(float("inf"))

    @asynccontextmanager
    async def open_websocket(self, broker: BrokerRegistration) -> AsyncIterator[ClientConnection]:
        """Connect to a broker over WebSocket for the duration of a block.

        Raises `BrokerError` if the broker refuses this one.
        """
        with trio.fail_after(CONNECT_S):
            connection = await self._connect(broker)
        assert connection.signer is not None
        async with connect(
            f"ws://{connection.host}/ws",
            stream=connection.stream,
            subprotocols=[Subprotocol(BINARY_PROTOCOL)],
            additional_headers={"Authorization": connection.signer.sign("GET", "/ws")},
            compression=None,
            proxy=None,
            open_timeout=CONNECT_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            close_timeout=1,
            max_size=None,
        ) as websocket:
            yield websocket

    async def request(
        self, broker: BrokerRegistration, method: str, target: str, document: Any = None, *, is_page: bool = False
    ) -> Any:
        """Send a request to a broker. Return the document in its response; None if it has none.

        A response that is only displayed is a page. Such requests wait for each other, and no others wait for them.
        Raises `BrokerError` if the broker does not answer, and `WebError` if it refuses the request.
        """
        if not urlsplit(broker.http_url).hostname:
            raise BrokerError("does not listen to HTTP")
        try:
            with trio.fail_after(ANSWER_S):
                status, body = await self._exchange(broker, method, target, document, is_page=is_page)
        except _FAILURES as error:
            raise BrokerError(f"does not answer at {broker.http_url} ({describe_error(error)})") from None
        found = decode_document(body) if body else None
        if status >= 400:
            problem = found.get("error", {}) if isinstance(found, dict) else {}
            code = problem.get("code")
            message = str(problem.get("message") or f"it answers with the status {status}")
            if code == "unauthenticated":
                raise BrokerError(_REFUSED)
            raise WebError(code if code in STATUSES else "bad_request", message, status=status)
        return found

    async def _exchange(
        self, broker: BrokerRegistration, method: str, target: str, document: Any, *, is_page: bool
    ) -> tuple[int, bytes]:
        pool = self._pools.setdefault((broker.address, broker.http_url, broker.forwarding_key), _Pool())
        async with pool.limiters[is_page]:
            connection = pool.take()
            if connection is None:
                with trio.fail_after(CONNECT_S):
                    connection = await self._connect(broker)
            try:
                status, _, body = await connection.exchange(method, target, document)
            except BaseException:
                connection.close()
                raise
            if connection.can_continue and status != 401:
                pool.idle.append(connection)
            else:
                connection.close()
            return status, body

    async def _connect(self, broker: BrokerRegistration) -> _Connection:
        """Connect to a broker and get a challenge."""
        url = urlsplit(broker.http_url)
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        tcp = await trio.open_tcp_stream(host, port)
        stream: trio.abc.Stream = tcp
        try:
            if url.scheme == "https":
                stream = trio.SSLStream(tcp, self._make_context(), server_hostname=host, https_compatible=True)
            connection = _Connection(stream, tcp.socket, url.netloc)
            _, headers, _ = await connection.exchange("GET", "/session")
            scheme, _, challenge = headers.get(b"www-authenticate", b"").decode("latin-1").partition(" ")
            if scheme != SCHEME or not connection.can_continue:
                raise BrokerError(_REFUSED)
            secret = self._secret or broker.forwarding_key
            connection.signer = RequestSigner(secret, self._address, broker.address, challenge)
        except BaseException:
            tcp.socket.close()
            raise
        return connection

    def _make_context(self) -> ssl.SSLContext:
        clients, authority = self._config.clients, self._config.broker.tls_ca
        try:
            context = ssl.create_default_context(cafile=authority or None)
            if not authority and clients.tls_client_ca:
                context.load_verify_locations(cafile=clients.tls_client_ca)
            if clients.tls_client_ca and clients.tls_certificate:
                context.load_cert_chain(clients.tls_certificate, clients.tls_key or None)
        except OSError as error:
            raise BrokerError(f"cannot be reached with TLS: {error.strerror or error}") from None
        return context


class OtherBrokers:
    """The other brokers of the cluster."""

    def __init__(self, broker: BrokerNode, client: BrokerClient) -> None:
        self._broker = broker
        self._client = client

    async def request(self, broker: BrokerRegistration, method: str, target: str, document: Any = None) -> Any:
        """Send a request to a broker, and return the document in its answer; None without one.

        Raises `WebError` if the broker refuses the request, or does not answer.
        """
        try:
            return await self._client.request(broker, method, target, document)
        except BrokerError as error:
            raise WebError("broker_unavailable", f"broker {broker.number} {error}") from None

    async def get_all(self, target: str, *, wait_s: float = SHOWN_WAIT_S) -> Mapping[str, Any]:
        """Return the documents with which the other living brokers answer GET in time, by address."""
        found: dict[str, Any] = {}

        async def get(broker: BrokerRegistration) -> None:
            try:
                with trio.move_on_after(wait_s):
                    found[broker.address] = await self._client.request(broker, "GET", target, is_page=True)
            except (BrokerError, WebError):
                pass  # the page shows the rest without it

        own = self._broker.address
        async with trio.open_nursery() as nursery:
            for each in self._broker.brokers.living():
                if each.address != own and each.http_url:
                    nursery.start_soon(get, each)
        return found


def describe_error(error: BaseException) -> str:
    """Return a short reason why a connection failed."""
    if isinstance(error, (trio.TooSlowError, TimeoutError)):
        return "too slow"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
