"""Runs a broker with its servers, as `dafka broker` does. Programs that embed a broker use it too."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import attrs
import trio

from dafka.broker.broker import Broker, StartupProgress, open_broker
from dafka.broker.connections.security import ServerSecurity
from dafka.broker.connections.tcp_server import open_listening
from dafka.broker.node import BrokerNode
from dafka.config import DEFAULT_KAFKA_LISTEN, Config
from dafka.exceptions import unwrap_group
from dafka.extras import require_extra
from dafka.kafka.server.kafka_server import KafkaServer
from dafka.kafka.server.serve import serve_kafka

if TYPE_CHECKING:
    from dafka.http.server.http_server import HttpServer

ANSWERING_SHARE = 0.5
"""The fraction of `[node] grace_ms` for clients. The storage has the rest."""

HAND_OVER_SHARE = 0.2
"""The fraction of `[node] grace_ms` in which other brokers take over the logs. Requests that were received have what
remains of `ANSWERING_SHARE`."""


@attrs.frozen(eq=False)
class ServingBroker:
    """A broker with its servers, if any, for Kafka clients, and for WebSocket and HTTP. `serve_listeners` starts it."""

    broker: Broker
    kafka: KafkaServer | None
    web: HttpServer | None

    @property
    def node(self) -> BrokerNode:
        """The node: storage, logs and membership in the cluster."""
        return self.broker.node

    @property
    def bootstrap_servers(self) -> str:
        """The address for Kafka clients, `HOST:PORT`; empty if the broker has no server for them."""
        return "" if self.kafka is None else self.kafka.bootstrap_servers

    @property
    def url(self) -> str:
        """The URL for HTTP clients; empty if the broker has no server for them."""
        return "" if self.web is None else self.web.url


async def serve_listeners(
    config: Config | None = None,
    progress: StartupProgress | None = None,
    *,
    task_status: trio.TaskStatus[ServingBroker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker with servers for clients until cancelled.

    When it is cancelled, other brokers begin to lead its logs, then it stops reading requests. Within `[node]
    grace_ms`, it answers received requests and writes records that other nodes have sent.

    It has started when it takes part in its cluster. A broker of a cluster of several serves clients before: it
    describes the cluster as it has stored it, and leads no log yet.

    It listens at `[kafka] listen` and at `[http] listen`. If both are empty, it listens for Kafka clients at
    `DEFAULT_KAFKA_LISTEN`.

    Args:
        config: The configuration; the defaults if None.
        progress: Says what the broker waits for until it listens for clients.
        task_status: Receives the `ServingBroker` once it has started.

    Raises:
        AddressInUseError: The broker cannot listen at a configured address.
        ConfigError: A file of `[clients]` cannot be read, or unauthenticated clients could connect from other machines.
        MissingExtraError: Users or `[http] listen` are configured, and the extra that they need is not installed.
        OutdatedStoreError: The storage is an older copy or a clone. Run again, the broker has another store id.
        StorageError: The storage cannot be opened or read.
        StorageLostError: The storage was removed or replaced while it was open.
        DiscoveryError: The discovery cannot be set up.
    """
    config = config or Config()
    kafka_listen, http_listen = config.kafka.listen, config.http.listen
    if not http_listen:
        kafka_listen = kafka_listen or DEFAULT_KAFKA_LISTEN
    security = ServerSecurity(config.clients)
    with unwrap_group():
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            cancelled = await enter(trio.open_nursery())
            stack.callback(cancelled.cancel_scope.cancel)
            running = stack.enter_context(trio.CancelScope())
            # Bind first, so that an address in use is reported before the storage is opened.
            kafka_sockets = http_sockets = None
            if kafka_listen:
                kafka_sockets = await enter(open_listening(kafka_listen, security, "clients of Kafka"))
            if http_listen:
                with require_extra("web", "HTTP"):
                    # These modules need the extra `dafka[web]`.
                    from dafka.http.server.connection import serve_http  # noqa: PLC0415
                    from dafka.http.server.http_server import HttpServer  # noqa: PLC0415
                http_sockets = await enter(open_listening(http_listen, security, "HTTP clients"))
            broker = await enter(open_broker(config, security, progress))
            nursery = await enter(trio.open_nursery())
            kafka = web = None
            if kafka_sockets is not None:
                kafka = KafkaServer(broker)
                await nursery.start(serve_kafka, kafka, kafka_sockets)
            if http_sockets is not None:
                web = HttpServer(broker)
                await nursery.start(serve_http, web, http_sockets)
            await broker.has_started.wait()
            task_status.started(ServingBroker(broker, kafka, web))
            is_cancelled = trio.Event()
            cancelled.start_soon(_set_when_cancelled, is_cancelled)
            running.shield = True  # from here on, cancellation only begins the stop
            await is_cancelled.wait()
            grace_s = config.node.grace_ms / 1000
            cancelled_at = trio.current_time()
            broker.node.store.finish_by = cancelled_at + grace_s
            with trio.move_on_after(grace_s * HAND_OVER_SHARE):
                await broker.node.handover.run()
            broker.stopping.begin()
            running.deadline = cancelled_at + grace_s * ANSWERING_SHARE


async def _set_when_cancelled(event: trio.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        event.set()
