"""Serves the clients of Kafka that connect to a broker."""

from __future__ import annotations

import socket

import trio

from dafka.broker.connections.tcp_server import AcceptedClient, accept_clients
from dafka.broker.node import BrokerNode
from dafka.endpoints import split_tcp_endpoint
from dafka.kafka.server.cluster_view import split_listener
from dafka.kafka.server.connection import Connection
from dafka.kafka.server.kafka_server import KafkaServer


async def serve_kafka(
    server: KafkaServer,
    sockets: list[socket.socket],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients of Kafka, on the sockets of `open_listening`, until the broker stops."""
    advertised = server.broker.config.kafka.advertised_listener
    endpoint = split_listener(advertised) if advertised else None

    async def serve(client: AcceptedClient) -> None:
        await Connection(client, server, endpoint or client.local_address).run()

    host, port = sockets[0].getsockname()[:2]
    server.bootstrap_servers = _join(host, port)
    server.broker.node.membership.update_registration(
        kafka_listener=advertised or find_listener(host, port, server.broker.node)
    )
    await accept_clients(sockets, server.quotas, server.broker.stopping, serve, task_status=task_status)


def find_listener(host: str, port: int, node: BrokerNode) -> str:
    """Return the address at which clients of other brokers reach this server: `HOST:PORT`.

    It is the one that the server listens on; if that means all addresses, the host is the node's own.
    """
    if host in {"0.0.0.0", "::"}:
        endpoint = split_tcp_endpoint(node.store.endpoint)
        if endpoint is not None:
            host = endpoint[0].strip("[]")
    return _join(host, port)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
