"""Connects to the HTTP listeners of other brokers."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

import h11
import trio
from websockets.trio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from dafka.config import Config
from dafka.protocol.replication import BrokerDescription
from dafka.storage.plugin_helpers import now_ms
from dafka.web.documents import decode_document, encode_document
from dafka.web.errors import STATUSES, WebError
from dafka.web.forwarding.credentials import FORWARDED_BY, BrokerSecret
from dafka.web.websocket.messages import BINARY_PROTOCOL

CONNECT_S = 5.0
"""How long connecting to a broker may take."""

ANSWER_S = 30.0
"""How long a broker may take to answer a request."""

PING_S = 5.0
"""How often a quiet connection is tried, and how long the answer may take."""

ANSWER_BYTES_MAX = 2**26

_READ_BYTES = 2**16


class BrokerError(Exception):
    """Another broker does not answer, or refuses this one. The message is a part of a sentence that says why."""


class BrokerClient:
    """Connects to the HTTP listeners of other brokers.

    Args:
        config: The configuration of this broker.
        address: Its address.
        secret: The secret of the cluster; None if it has none.

    Raises:
        ConfigError: The certificates cannot be loaded.
    """

    def __init__(self, config: Config, address: str, secret: BrokerSecret | None) -> None:
        self._config = config
        self._address = address
        self._secret = secret

    def open_websocket(self, broker: BrokerDescription) -> AbstractAsyncContextManager[ClientConnection]:
        """Return a connection over WebSocket to a broker, to be entered."""
        url = urlsplit(broker.http_url)
        is_encrypted = url.scheme == "https"
        return connect(
            f"{'wss' if is_encrypted else 'ws'}://{url.netloc}/ws",
            ssl=self._make_context() if is_encrypted else None,
            subprotocols=[Subprotocol(BINARY_PROTOCOL)],
            additional_headers=self._headers(broker),
            compression=None,
            proxy=None,
            open_timeout=CONNECT_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            close_timeout=1,
            max_size=None,
        )

    async def request(self, broker: BrokerDescription, method: str, target: str, document: Any = None) -> Any:
        """Send a request to a broker, and return the document in its answer.

        Args:
            broker: The broker.
            method: The method.
            target: The path and the query.
            document: The JSON document of the request; None for none.

        Returns:
            The document; None if the answer has none.

        Raises:
            BrokerError: The broker does not answer.
            WebError: It refuses the request.
        """
        url = urlsplit(broker.http_url)
        if not url.hostname:
            raise BrokerError("does not listen to HTTP")
        try:
            with trio.fail_after(ANSWER_S):
                status, body = await self._exchange(broker, method, target, document)
        except (OSError, ssl.SSLError, h11.ProtocolError, trio.TooSlowError, trio.BrokenResourceError) as error:
            raise BrokerError(f"does not answer at {broker.http_url} ({describe_error(error)})") from None
        found = decode_document(body) if body else None
        if status >= 400:
            problem = found.get("error", {}) if isinstance(found, dict) else {}
            code = problem.get("code")
            message = str(problem.get("message") or f"it answers with the status {status}")
            if code == "unauthenticated":
                raise BrokerError("refuses this broker: both need the same [broker] secret_file")
            raise WebError(code if code in STATUSES else "bad_request", message, status=status)
        return found

    def _headers(self, broker: BrokerDescription) -> dict[str, str]:
        headers = {FORWARDED_BY: self._address}
        if self._secret is not None:
            headers["Authorization"] = self._secret.issue(broker.address, now_ms())
        return headers

    async def _exchange(self, broker: BrokerDescription, method: str, target: str, document: Any) -> tuple[int, bytes]:
        url = urlsplit(broker.http_url)
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        with trio.fail_after(CONNECT_S):
            stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
        if url.scheme == "https":
            stream = trio.SSLStream(stream, self._make_context(), server_hostname=host, https_compatible=True)
        try:
            return await _send_request(stream, method, target, url.netloc, self._headers(broker), document)
        finally:
            await trio.aclose_forcefully(stream)

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


async def _send_request(
    stream: trio.abc.Stream, method: str, target: str, host: str, headers: Mapping[str, str], document: Any
) -> tuple[int, bytes]:
    body = b"" if document is None else encode_document(document)
    sent = [("Host", host), ("Connection", "close"), *headers.items()]
    if document is not None:
        sent += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    framing = h11.Connection(h11.CLIENT)
    parts = [framing.send(h11.Request(method=method, target=target, headers=sent))]
    if body:
        parts.append(framing.send(h11.Data(data=body)))
    parts.append(framing.send(h11.EndOfMessage()))
    await stream.send_all(b"".join(each for each in parts if each))
    status, found = 0, bytearray()
    while True:
        event = framing.next_event()
        if event is h11.NEED_DATA:
            framing.receive_data(bytes(await stream.receive_some(_READ_BYTES)))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            found += event.data
            if len(found) > ANSWER_BYTES_MAX:
                raise trio.BrokenResourceError("the answer is too large")
        elif isinstance(event, h11.EndOfMessage):
            return status, bytes(found)
        elif isinstance(event, h11.ConnectionClosed):
            raise trio.BrokenResourceError("the connection ended")


def describe_error(error: BaseException) -> str:
    """Return why a connection has failed, in few words."""
    if isinstance(error, (trio.TooSlowError, TimeoutError)):
        return "too slow"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
