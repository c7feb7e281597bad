"""Serves the clients of Kafka that connect to a broker."""

from __future__ import annotations

import socket

import trio

from dafka.broker.connections.tcp_server import AcceptedClient, accept_clients
from dafka.broker.core.client_quotas import QuotaKey
from dafka.endpoints import split_tcp_endpoint
from dafka.kafka.server.cluster_view import split_listener
from dafka.kafka.server.connection import Connection
from dafka.kafka.server.kafka_server import KafkaServer


async def serve_kafka(
    server: KafkaServer, sockets: list[socket.socket], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve clients of Kafka, on the sockets of `open_listening`, until the broker stops."""
    advertised = server.broker.config.kafka.advertised_listener
    endpoint = split_listener(advertised) if advertised else None

    async def serve(client: AcceptedClient) -> None:
        refused_s = server.quota_meter.find_refusal(client.host, trio.current_time())
        if refused_s is not None:
            server.counters.throttled[QuotaKey.CONNECTION_CREATION_RATE.value] += 1
            await trio.sleep(refused_s)  # a client that is closed at once would connect again at once
            return
        await Connection(client, server, endpoint or client.local_address).run()

    host, port = sockets[0].getsockname()[:2]
    server.bootstrap_servers = _join(host, port)
    node = server.broker.node
    node_endpoint = split_tcp_endpoint(node.store.endpoint)
    if host in {"0.0.0.0", "::"} and node_endpoint is not None:
        # Clients of other brokers reach this server where the nodes reach this one.
        host = node_endpoint[0].strip("[]")
    node.membership.update_registration(kafka_listener=advertised or _join(host, port))
    await accept_clients(sockets, server.quotas, server.broker.stopping, serve, task_status=task_status)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
