"""A broker that listens to clients of Kafka."""

from __future__ import annotations

import errno
import logging
from functools import partial

import attrs
import trio

from dafka.config import Config
from dafka.endpoints import split_tcp_endpoint
from dafka.errors import AddressInUseError
from dafka.groups import single_exception
from dafka.kafka.transactions import TransactionSettings
from dafka.listener.connection import Connection
from dafka.listener.security import ListenerSecurity, is_loopback
from dafka.listener.service import ProducerTable, Service
from dafka.roles import Broker, serve_broker

DEFAULT_LISTEN = "127.0.0.1:9092"
"""Where a broker listens to clients if nothing else is configured: Kafka's port."""

_LOGGER = logging.getLogger("dafka.broker")

_ACCEPT_PAUSE_S = 0.1

_GONE = {errno.ENOTCONN, errno.ECONNABORTED}
"""Errors of a connection whose client has gone before it was accepted."""


@attrs.frozen
class KafkaBroker:
    """A broker that listens to clients of Kafka, started by `serve_kafka`.

    Attributes:
        broker: The broker.
        bootstrap_servers: Where it listens, as clients take it: `HOST:PORT`.
        service: Its coordinators, and counters of what its clients do.
    """

    broker: Broker
    bootstrap_servers: str
    service: Service = attrs.field(repr=False)


async def serve_kafka(
    config: Config | None = None, *, task_status: trio.TaskStatus[KafkaBroker] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a broker that listens to clients of Kafka until cancelled.

    Args:
        config: The configuration; the defaults if None.
        task_status: Receives the `KafkaBroker` once it listens to clients.

    Raises:
        AddressInUseError: The broker cannot listen at the configured endpoint, or to clients at `[kafka] listen`.
        ConfigError: A file of `[clients]` cannot be read, or anyone could connect from elsewhere.
        MissingExtraError: There are users, and the extra `dafka[users]` is not installed.
        StorageError: The storage cannot be opened or read.
        StorageLostError: The storage was removed or replaced while it was open.
        DiscoveryError: The discovery cannot be set up.
    """
    config = config or Config()
    security = ListenerSecurity(config.clients)
    security.check_exposure(_listen_address(config)[0])
    producers = ProducerTable(TransactionSettings())
    with single_exception():
        listeners = await _open_listeners(config)
        try:
            async with trio.open_nursery() as nursery:

                async def start_broker(*, task_status: trio.TaskStatus[Broker]) -> None:
                    await serve_broker(config, restore_producer=producers.restore, task_status=task_status)

                broker: Broker = await nursery.start(start_broker)
                service = Service(broker, config, producers)
                await nursery.start(service.run)
                nursery.start_soon(security.keep_current)
                host, port = listeners[0].socket.getsockname()[:2]
                task_status.started(KafkaBroker(broker, f"{host}:{port}", service))
                await _accept_all(listeners, service, security)
        finally:
            for listener in listeners:
                listener.socket.close()


def _listen_address(config: Config) -> tuple[str, int]:
    return attrs.evolve(config.metrics, listen=config.kafka.listen or DEFAULT_LISTEN).address


async def _open_listeners(config: Config) -> list[trio.SocketListener]:
    host, port = _listen_address(config)
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}:
            raise
        raise AddressInUseError(f"cannot listen to clients of Kafka at {host}:{port}: {error.strerror}") from None


async def _accept_all(listeners: list[trio.SocketListener], service: Service, security: ListenerSecurity) -> None:
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(_accept, listener, service, security, nursery)


async def _accept(
    listener: trio.SocketListener, service: Service, security: ListenerSecurity, nursery: trio.Nursery
) -> None:
    async def serve(stream: trio.SocketStream, host: str, scope: trio.CancelScope) -> None:
        try:
            is_local = is_loopback(str(stream.socket.getsockname()[0]))
            endpoint = _endpoint(stream, service.config)
            served = partial(service.crowd.mark_served, scope)
            connection = Connection(stream, service, security, host, endpoint, is_local=is_local, mark_served=served)
            with scope:
                await connection.run()
        except OSError:
            pass  # the client has gone before it was known
        finally:
            service.crowd.leave(scope, host)
            stream.socket.close()

    while True:
        try:
            stream = await listener.accept()
            host = str(stream.socket.getpeername()[0])
        except OSError as error:
            if error.errno in _GONE:
                continue
            _LOGGER.warning("cannot accept a client: %s", error.strerror)
            await trio.sleep(_ACCEPT_PAUSE_S)
            continue
        scope = service.crowd.admit(host)
        if scope is None:
            service.counters.refused_connections += 1
            stream.socket.close()
            continue
        service.counters.connections += 1
        nursery.start_soon(serve, stream, host, scope)


def _endpoint(stream: trio.SocketStream, config: Config) -> tuple[str, int]:
    """Return the host and port at which a client reaches the broker."""
    if config.kafka.advertised_listener:
        found = split_tcp_endpoint(f"tcp://{config.kafka.advertised_listener}")
        if found is not None:
            return found[0], int(found[1])
    host, port = stream.socket.getsockname()[:2]
    return str(host), int(port)
