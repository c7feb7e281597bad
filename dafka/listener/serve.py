"""Serves the clients of Kafka that connect to a broker."""

from __future__ import annotations

import trio

from dafka.broker import AcceptedClient, accept_clients
from dafka.endpoints import split_tcp_endpoint
from dafka.listener.connection import Connection
from dafka.listener.kafka_listener import KafkaListener


async def serve_kafka(
    listener: KafkaListener,
    sockets: list[trio.SocketListener],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients of Kafka until cancelled.

    Args:
        listener: What the clients share.
        sockets: The listening sockets.
        task_status: Told that clients are served.
    """
    advertised = listener.service.config.kafka.advertised_listener
    found = split_tcp_endpoint(f"tcp://{advertised}") if advertised else None
    endpoint = None if found is None else (found[0], int(found[1]))

    async def serve(client: AcceptedClient) -> None:
        await Connection(client, listener, endpoint or client.local_address).run()

    host, port = sockets[0].socket.getsockname()[:2]
    listener.bootstrap_servers = f"{host}:{port}"
    task_status.started()
    await accept_clients(sockets, listener.crowd, serve)
